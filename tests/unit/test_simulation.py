"""The simulation: exact where sums tell the answer, whole, repeatable, and never below the ideal."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ignitetf.plan.affinity import rendezvous_owners
from ignitetf.plan.service import ServiceTimes
from ignitetf.plan.simulation import Scenario, simulate

PAGE = 1_000_000
TIMES = ServiceTimes(PAGE, 0.010, 0.002, 0.0)


def scenario(**more):
    given = {"times": TIMES, "partition_bytes": [5 * PAGE] * 64, "nodes": 4, "workers": 8}
    return Scenario(**{**given, **more})


def test_one_reader_on_one_node_takes_as_long_as_the_node_and_the_last_columns():
    found = simulate(scenario(nodes=1, workers=1))
    assert found.seconds == pytest.approx(64 * 5 * 0.010 + 0.002)
    assert found.first_s == pytest.approx(0.012)
    assert found.hottest == found.largest_share == 1 and found.connections == 1
    assert found.busiest == pytest.approx(3.2 / 3.202)


def test_the_slowest_part_decides():
    slow_reader = replace(TIMES, page_s=0.001, decode_s=0.020)
    found = simulate(scenario(nodes=1, workers=1, times=slow_reader))
    assert found.seconds == pytest.approx(320 * 0.020 + 0.001)
    found = simulate(scenario(nodes=1, workers=1, consume_s=0.050))
    assert found.seconds == pytest.approx(320 * 0.050 + 0.012)
    found = simulate(scenario(nodes=1, workers=1, link_bytes_per_s=PAGE / 0.040))
    assert found.seconds == pytest.approx(320 * 0.040 + 0.012)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"seed": 3},
        {"readers": 4},
        {"balanced": True, "backups": 1},
        {"slow": {0: 5.0}},
        {"start_s": 0.5, "map_s": 0.01},
        {"shared_cores": 2},
        {"lost": {1: 0.3}, "backups": 1},
        {"node_cores": 3, "consume_s": 0.001},
        {"workers": 100},
    ],
    ids=str,
)
def test_every_byte_is_served_once_and_again_only_after_a_loss(more):
    one = scenario(**more)
    found, total = simulate(one), sum(one.partition_bytes)
    assert simulate(one) == found
    assert found.seconds >= 0.999 * found.ideal_s > 0
    assert 0 < found.first_s <= found.seconds and found.median_s <= found.seconds
    assert 1 <= found.hottest <= one.nodes and found.busiest > 0
    assert (found.again_bytes > 0) == bool(one.lost)
    assert found.again_bytes < total / 4
    assert found.most_waiting >= 1 and found.most_connections >= 1


def test_workers_that_share_processors_crowd_each_other():
    """By the same part with each doubling, and only there."""
    longer = replace(TIMES, page_s=1.2 * TIMES.page_s, decode_s=1.2 * TIMES.decode_s)
    crowded = simulate(scenario(workers=4, shared_cores=2, crowding=0.1))
    assert crowded.seconds == simulate(scenario(workers=4, shared_cores=2, times=longer)).seconds
    apart = simulate(scenario(workers=4, crowding=0.1))
    assert apart == simulate(scenario(workers=4))


def test_reading_copies_too_evens_out_the_nodes():
    plain = simulate(scenario(backups=1, nodes=10, balanced=False))
    even = simulate(scenario(backups=1, nodes=10))
    assert even.hottest < plain.hottest and even.seconds < plain.seconds


def test_a_lost_node_with_the_only_copy_is_told():
    with pytest.raises(ValueError, match="its only copy"):
        simulate(scenario(lost={0: 0.1}))


def test_large_partitions_leave_one_connection_at_work_at_a_time():
    # Pages are consumed in order: of other partitions a connection keeps a few pages only.
    fast = {"nodes": 8, "workers": 1, "times": replace(TIMES, decode_s=0.0)}
    small = simulate(scenario(partition_bytes=[4 * PAGE] * 256, **fast))
    large = simulate(scenario(partition_bytes=[64 * PAGE] * 16, **fast))
    assert small.seconds < 4 * small.ideal_s < large.seconds
    assert math.isclose(small.ideal_s, large.ideal_s)


def test_partitions_are_spread_as_by_rendezvous_hashing():
    owners = rendezvous_owners(4096, 16, copies=3)
    assert owners.shape == (4096, 3)
    assert all(len(set(row)) == 3 for row in owners.tolist())
    counts = np.bincount(owners[:, 0], minlength=16)
    assert counts.sum() == 4096 and counts.min() > 180 and counts.max() < 340
    # A node more takes partitions, and moves no others: its names are the first of the same seed.
    more = rendezvous_owners(4096, 17)[:, 0]
    assert set(np.flatnonzero(more != owners[:, 0])) == set(np.flatnonzero(more == 16))
