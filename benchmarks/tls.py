"""What TLS costs beside plain text: the same rows from and into two nodes, in turn.

Both nodes keep their data on disk, which a login needs; one speaks TLS only.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping

from history import Figure

from ignitetf import Client, Node, connect, load_dataset
from ignitetf.bench.read import BARE, BARE_AHEAD, Setup, make_ways
from ignitetf.bench.rows import PROFILES, Profile, drop_rows, fill_cache, make_rows, sized
from ignitetf.bench.turns import in_turn, median_ratio, rows_a_second
from ignitetf.local.state import node_directory
from ignitetf.node.embedded import DEFAULT_PORT
from ignitetf.node.ports import free_ports

_PARTITIONS = 8
_ROWS = {"mnist": 60_000, "1mb": 300}
_PLAIN, _TLS = "plain", "TLS"

Runs = dict[tuple[str, str], Callable[[], float]]


def tls_figures(rounds: int, rows: int | None) -> list[Figure]:
    """Rates over TLS, and their ratios to the plain ones.

    Args:
        rounds: Times each way is run.
        rows: Rows to read and write; None for 60,000 of 784 bytes and 300 of 1 MB.
    """
    with _two_clients() as clients:
        return [
            figure
            for name, usual in _ROWS.items()
            for figure in _figures(clients, name, rows or usual, rounds)
        ]


def _figures(clients: Mapping[str, Client], name: str, rows: int, rounds: int) -> Iterator[Figure]:
    profile = sized(PROFILES[name], rows)
    try:
        found = in_turn(_loads(clients, profile), rounds)
        found |= in_turn(_reads(clients, profile), rounds)
    finally:
        for client in clients.values():
            drop_rows(client, profile.cache)
    for (kind, way), mine in found.items():
        yield Figure(
            "tls",
            f"{name}, {rows:,} rows",
            f"{way}, {kind}",
            round(statistics.median(mine), 1),
            "rows/s",
            median_ratio(mine, found[_PLAIN, way]),
            rounds,
        )


@contextlib.contextmanager
def _two_clients() -> Iterator[dict[str, Client]]:
    """A client of a plain node and one of a node with TLS and a login; both nodes go afterwards."""
    with contextlib.ExitStack() as stack:
        yield {
            kind: stack.enter_context(_client(options))
            for kind, options in ((_PLAIN, {"persist": True}), (_TLS, {"secure": True}))
        }


@contextlib.contextmanager
def _client(options: dict[str, bool]) -> Iterator[Client]:
    port = next(free_ports(DEFAULT_PORT, ()))
    name = f"bench-tls-{port}"
    try:
        with (
            Node.start(name, port=port, memory="2g", **options) as node,
            connect(settings=node.settings) as client,
        ):
            yield client
    finally:
        shutil.rmtree(node_directory(name), ignore_errors=True)  # its data are of no more use


def _loads(clients: Mapping[str, Client], profile: Profile) -> Runs:
    (columns,) = make_rows(profile, profile.rows * profile.row_bytes)

    def load(client: Client, layout: str) -> float:
        drop_rows(client, profile.cache)
        report = load_dataset(
            columns, profile.cache, client=client, partitions=_PARTITIONS, layout=layout
        )
        return report.rows_per_s

    layouts = ("rows", "blocks") if profile.row_bytes < 1000 else ("rows",)
    return {
        (kind, f"load, {layout}"): functools.partial(load, client, layout)
        for layout in layouts
        for kind, client in clients.items()
    }


def _reads(clients: Mapping[str, Client], profile: Profile) -> Runs:
    runs = {}
    for kind, client in clients.items():
        fill_cache(client, profile, _PARTITIONS)
        made = make_ways(Setup(client, profile.cache, profile))
        for way in (BARE, BARE_AHEAD, "numpy()", f"batch({profile.batch}), reduce"):
            runs[kind, way] = rows_a_second(made[way])
    return runs
