"""`ignitetf plan`: what the figures of a plan carry, and that each has its rule."""

import itertools
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ignitetf.bench.workloads import WORKLOADS
from ignitetf.cli.main import app
from ignitetf.errors import ConfigError
from ignitetf.plan.service import assumed_times
from ignitetf.plan.sizing import Demand, make_plan

CASES = [
    (name, accelerators, gbit)
    for name in WORKLOADS
    for accelerators in (1, 7, 64, 1000)
    for gbit in (10.0, 100.0)
]


def planned(name, accelerators, gbit, **more):
    demand = Demand(WORKLOADS[name], accelerators, network_gbit=gbit, **more)
    times = assumed_times(demand.workload.row_bytes)
    return demand, times, make_plan(demand, times)


@pytest.mark.parametrize(("name", "accelerators", "gbit"), CASES)
def test_the_nodes_carry_data_and_demand_also_without_one_of_them(name, accelerators, gbit):
    samples = 1_000_000 if name != "unet3d" else 20_000
    demand, times, plan = planned(name, accelerators, gbit, samples=samples)
    rate = min(times.node_bytes_per_s, demand.link_bytes_per_s)
    assert (plan.nodes - plan.backups) * rate >= demand.bytes_per_s
    data = samples * demand.workload.sample_rows * demand.workload.row_bytes
    assert plan.nodes * demand.node_memory >= (1 + plan.backups) * data
    assert plan.node_memory <= demand.node_memory
    assert plan.backups == (plan.nodes > 1)
    assert plan.workers * plan.per_worker >= accelerators > (plan.workers - 1) * plan.per_worker
    assert plan.readers * times.reader_bytes_per_s * plan.workers >= demand.bytes_per_s
    assert plan.partitions & (plan.partitions - 1) == 0
    assert plan.workers <= plan.partitions <= 65_000
    if plan.readers > 1 and plan.partitions < min(32_768, samples // 32):
        assert data / plan.partitions <= 2 * times.window_bytes
    if plan.per_worker * demand.workload.bytes_per_s <= demand.link_bytes_per_s:
        assert plan.utilisation == 1 and plan.slowest == "accelerators"
    else:  # not even one accelerator fits into the link of a host
        assert plan.per_worker == 1 and plan.slowest == "links" and plan.notes


def test_more_accelerators_never_need_less():
    found = [planned("resnet50", n, 25.0)[2] for n in range(1, 300, 13)]
    for less, more in itertools.pairwise(found):
        assert less.nodes <= more.nodes and less.workers <= more.workers


def test_of_given_nodes_is_told_how_busy_they_keep_the_accelerators():
    demand, times, plan = planned("resnet50", 100, 1000.0, nodes=2)
    assert plan.nodes == 2
    assert plan.utilisation == pytest.approx(2 * times.node_bytes_per_s / demand.bytes_per_s)
    assert plan.slowest == "nodes"
    assert any("90 % are wanted" in note for note in plan.notes)
    slow = replace(times, page_s=2 * times.page_s)
    assert make_plan(demand, slow).utilisation == pytest.approx(plan.utilisation / 2)


def test_every_figure_has_a_rule():
    _, _, plan = planned("cosmoflow", 8, 25.0)
    assert {row["figure"] for row in plan.as_rows()} == set(plan.rules)
    assert all(row["rule"] and row["value"] for row in plan.as_rows())


def test_too_few_rows_for_the_workers_are_refused():
    with pytest.raises(ConfigError, match="too few to divide among 125 workers") as caught:
        planned("resnet50", 1000, 100.0, samples=1000)
    assert "--samples" in caught.value.hint


def test_the_command_prints_one_object():
    words = ["plan", "--accelerators", "64", "--no-measure", "--output", "json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["workload"] == "resnet50" and found["accelerators"] == 64
    assert found["times"]["measured"] is False
    assert set(found["rules"]) >= {"nodes", "partitions", "copies", "workers", "readers"}


def test_rules_are_whole_and_lines_short_where_there_is_no_terminal():
    words = ["plan", "--accelerators", "64", "--no-measure"]
    done = CliRunner().invoke(app, words)
    assert max(map(len, done.stdout.splitlines())) <= 100
    rules = json.loads(CliRunner().invoke(app, [*words, "--output", "json"]).stdout)["rules"]
    shown = "".join(done.stdout.split())
    assert all("".join(rule.split()[:6]) in shown for rule in rules.values())
