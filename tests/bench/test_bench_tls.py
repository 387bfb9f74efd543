"""What TLS costs beside plain text: `pytest -m bench -s tests/bench/test_bench_tls.py`.

Two nodes of one kind, both on disk, which a login needs; one speaks TLS only. The same rows are
loaded into and read from both in turn, by clients of one process; nothing about time is asserted.
"""

import contextlib
import statistics

import pytest
from helpers.ports import lasting_port

from ignitetf.bench.rows import (
    PROFILES,
    drop_rows,
    fill_cache,
    make_rows,
    sized,
    source_of,
)
from ignitetf.bench.turns import in_turn, median_ratio, rows_a_second
from ignitetf.bench.ways import Setup, make_ways
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect

tf = pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.node, pytest.mark.bench, pytest.mark.timeout(1800)]

PARTITIONS, ROUNDS = 8, 7


@pytest.fixture(scope="module")
def clients(node_home):
    """A client of a plain node and one of a node with TLS and a login."""
    from ignitetf.node import Node

    with contextlib.ExitStack() as stack:
        found = {}
        for kind, options in (("plain", {"persist": True}), ("TLS", {"secure": True})):
            port = lasting_port()
            node = Node.start(f"bench-{port}", port=port, memory="2g", **options)
            stack.enter_context(node)
            found[kind] = stack.enter_context(connect(settings=node.settings))
            assert found[kind].settings.tls is (kind == "TLS")
        yield found


def report(profile, row_bytes, found):
    """Print each pair, and the ratio: TLS by plain."""
    print()
    for way in dict.fromkeys(name for _, name in found):
        mine, plain = found["TLS", way], found["plain", way]
        rates = [statistics.median(rates) for rates in (plain, mine)]
        print(
            f"{profile:6} {way:24} plain {rates[0]:10,.0f} rows/s {rates[0] * row_bytes / 1e6:6,.0f}"
            f" MB/s, TLS {rates[1]:10,.0f} rows/s {rates[1] * row_bytes / 1e6:6,.0f} MB/s,"
            f" ratio {median_ratio(mine, plain)}"
        )


def chosen(name):
    return sized(PROFILES[name], 300 if name == "1mb" else 60_000)


@pytest.mark.parametrize("name", ["mnist", "1mb"])
def test_reads(clients, name):
    profile = chosen(name)
    ways = {}
    for kind, client in clients.items():
        fill_cache(client, profile, PARTITIONS)
        made = make_ways(Setup(client, profile.cache, profile, PARTITIONS))
        for way in (f"batch({profile.batch}), reduce", "numpy()"):
            ways[kind, way] = made[way].run
    try:
        assert {run() for run in ways.values()} == {profile.rows}
        found = in_turn({way: rows_a_second(run) for way, run in ways.items()}, ROUNDS)
    finally:
        for client in clients.values():
            drop_rows(client, profile.cache)
    report(name, profile.row_bytes, found)


@pytest.mark.parametrize("name", ["mnist", "1mb"])
def test_loads(clients, name):
    profile = chosen(name)
    rows = list(make_rows(profile))

    def load(kind, layout):
        drop_rows(clients[kind], profile.cache)
        source = source_of(profile, lambda: rows)
        return load_dataset(
            source, profile.cache, client=clients[kind], partitions=PARTITIONS, layout=layout
        )

    ways = {}
    for layout in ("rows", "blocks") if name == "mnist" else ("rows",):
        for kind in clients:
            assert load(kind, layout).rows == profile.rows
            ways[kind, f"load, {layout}"] = lambda k=kind, at=layout: load(k, at).rows_per_s
    try:
        found = in_turn(ways, ROUNDS)
    finally:
        for client in clients.values():
            drop_rows(client, profile.cache)
    report(name, profile.row_bytes, found)
