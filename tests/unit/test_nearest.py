"""Which copy is near, how equally near ones are shared out, and the sums that prove an epoch."""

import random
import uuid
from collections import Counter

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from ignitetf.errors import ConfigError
from ignitetf.net.topology import Origin, chosen_copies, place_of
from ignitetf.node import Node
from ignitetf.read import usage
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Dense
from ignitetf.wire.schema import Field, Schema

NODES = [uuid.UUID(int=n) for n in range(4)]
SCHEMA = Schema(None, Field("key", TypeCode.LONG, np.dtype("<i8")), ())


@pytest.mark.parametrize(
    ("addresses", "center", "own", "place"),
    [
        (["127.0.0.1:10800"], None, None, "host"),
        (["127.0.0.1:10800", "[::1]:10800"], "a", "a", "host"),
        # Every node has loopback addresses: they tell nothing where it has others.
        (["127.0.0.1:10800", "198.51.100.7:10800"], None, None, "elsewhere"),
        (["198.51.100.7:10800"], "a", "a", "data_center"),
        (["198.51.100.7:10800"], "a", "b", "elsewhere"),
        (["198.51.100.7:10800"], "a", None, "elsewhere"),
        (["198.51.100.7:10800"], None, "a", "elsewhere"),
        # The address of a tunnel.
        (["127.0.0.1:10800"], "b", "a", "elsewhere"),
        ([], None, None, "elsewhere"),
    ],
)
def test_a_node_is_on_this_host_or_in_this_data_center_or_elsewhere(addresses, center, own, place):
    assert place_of(addresses, center, own) == place


def test_the_nearest_copies_are_read_and_equally_near_ones_by_turns():
    primaries = {p: NODES[p % 4] for p in range(12)}
    every = [(p, node) for p in range(12) for node in NODES]
    near = chosen_copies(primaries, every, {node: int(node != NODES[1]) for node in NODES})
    assert set(near.values()) == {NODES[1]}
    two = chosen_copies(primaries, every, {node: int(node.int > 1) for node in NODES})
    assert sorted(two) == list(range(12))
    assert [list(two.values()).count(node) for node in NODES] == [6, 6, 0, 0]
    assert two == chosen_copies(primaries, every[::-1], {n: int(n.int > 1) for n in NODES})
    # A node that has left is not asked, and without any copy nearby the others are.
    left = chosen_copies(primaries, every, {NODES[2]: 1, NODES[3]: 1})
    assert set(left.values()) == {NODES[2], NODES[3]}
    assert chosen_copies(primaries, [], dict.fromkeys(NODES, 1)) == primaries


@st.composite
def copied(draw):
    nodes = [uuid.UUID(int=n + 1) for n in range(draw(st.integers(1, 6)))]
    some = st.lists(st.sampled_from(nodes), min_size=1, unique=True)
    return nodes, draw(st.lists(some, max_size=25))


@hypothesis.given(copied())
def test_equally_near_nodes_have_as_many_partitions_as_can_be(found):
    nodes, having = found
    primaries = {p: copies[0] for p, copies in enumerate(having)}
    copies = [(p, node) for p, each in enumerate(having) for node in each]
    distance = dict.fromkeys(nodes, 0)
    chosen = chosen_copies(primaries, copies, distance)
    assert chosen == chosen_copies(primaries, copies[::-1], distance)
    assert sorted(chosen) == list(range(len(having)))
    assert all(node in having[p] for p, node in chosen.items())
    loads = Counter(chosen.values())
    most = max(loads.values(), default=0)
    assert most == 0 or not fits(having, most - 1)


def fits(having, most):
    """Whether each partition has a node if none takes more than so many (augmenting paths)."""
    taken = {}

    def place(p, seen):
        for node in having[p]:
            if node in seen:
                continue
            seen.add(node)
            held = [q for q, at in taken.items() if at == node]
            if len(held) < most or any(place(q, seen) for q in held):
                taken[p] = node
                return True
        return False

    return all(place(p, set()) for p in range(len(having)))


def test_many_partitions_on_many_nodes_are_evened_out():
    chance = random.Random(3)
    nodes = [uuid.UUID(int=n + 1) for n in range(100)]
    having = [chance.sample(nodes, 2) for _ in range(1024)]
    primaries = {p: copies[0] for p, copies in enumerate(having)}
    copies = [(p, node) for p, each in enumerate(having) for node in each]
    loads = Counter(chosen_copies(primaries, copies, dict.fromkeys(nodes, 0)).values())
    assert max(loads.values()) == 11 and max(Counter(primaries.values()).values()) > 15


def batches_of(*parts):
    yield from (Batch(Dense(np.asarray(part, np.int64))) for part in parts)


def last():
    return usage.snapshot().iterations[-1]


def test_sums_of_keys_add_up_and_tell_a_row_that_is_missing_or_twice(monkeypatch):
    monkeypatch.setenv("IGNITETF_JOB", "j")
    of = usage.Epoch("D", "scan", 3, (0, 2))

    def checksum(*parts):
        assert sum(map(len, usage.counted(batches_of(*parts), of, SCHEMA))) == last().rows
        assert last().ended and last().of == of
        return last().checksum

    whole = checksum(range(1000))
    assert (checksum(range(0, 1000, 2)) + checksum([999, 1], range(3, 999, 2))) % 2**64 == whole
    assert checksum(range(999)) != whole != checksum(range(1000), [7])
    # One row in the place of another.
    assert checksum([*range(999), 0]) != whole


def test_an_iteration_has_ended_only_after_its_last_row(monkeypatch):
    monkeypatch.delenv("IGNITETF_JOB", raising=False)
    of = usage.Epoch("D", "keys", 0, (0, 1))
    found = usage.counted(batches_of([1, 2], [3]), of, SCHEMA, rows=3)
    next(found)
    assert (last().rows, last().ended, last().checksum) == (2, False, None)
    next(found)
    assert (last().rows, last().ended) == (3, True)
    stopped = usage.counted(batches_of([1, 2], [3]), of, SCHEMA)
    next(stopped)
    stopped.close()
    assert (last().rows, last().ended) == (2, False)
    first = last().number
    for _ in range(100):
        list(usage.counted(batches_of([1]), of, SCHEMA))
    assert last().number == first + 100 and len(usage.snapshot().iterations) < 100
    next(found, None)  # one that is no longer kept does no harm


def test_what_nodes_delivered_adds_up_by_place():
    before = usage.snapshot()
    for node, place in (("a:1", "host"), ("b:1", "elsewhere"), ("c:1", "elsewhere")):
        usage.add_read("COUNTED", Origin(node, place), 10, 1000)
    after = usage.snapshot()
    assert (after.rows - before.rows, after.nbytes - before.nbytes) == (30, 3000)
    assert after.rows == sum(one.rows for one in after.places.values())
    assert after.places["elsewhere"].nbytes >= 2000


def test_members_have_one_data_center_each_or_all_the_same():
    with pytest.raises(ConfigError, match="2 data centers for 3 members"):
        Node.start("nowhere", nodes=3, data_center=["a", "b"])
