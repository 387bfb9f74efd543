"""`ignitetf bench read`: rates of the read path beside the machine's limit and other ways to read.

Every way reads the same rows of the same cache, in turn, several times, in both orders. The report
has the median of each way and its ratio to two bare sockets that drain the same scans: one requests
page by page, the other ahead of need. They parse nothing, so they show what the node and the
loopback can deliver. For ignitetf's own ways it also shows where the time went; these shares
overlap, because pages are received while others are decoded and used.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from ignitetf.bench.rows import PROFILES, drop_rows, fill_cache, sized
from ignitetf.bench.turns import in_turn, median_ratio
from ignitetf.bench.ways import BARE, BARE_AHEAD, Setup, Way, make_ways
from ignitetf.errors import ConfigError
from ignitetf.net.client import connect
from ignitetf.read.cursor import Times
from ignitetf.settings import Settings

__all__ = ["Rate", "bench_read"]

_KEY_BYTES: Final = 8


@dataclass(frozen=True)
class Rate:
    """The median rate of one way to read.

    Attributes:
        profile: The rows.
        way: How they were read.
        rows_per_s: Rows per second.
        mb_per_s: Megabytes (10^6) of keys and values per second.
        ratio: Rate relative to the bare socket that requests page by page, median of the rounds.
        ratio_ahead: Rate relative to the bare socket that requests ahead.
        wait: Share of the time in which nothing of an answer had arrived, over all readers.
        receive: Share in which answers were arriving.
        decode: Share in which pages were decoded, by readers or by a consumer that would wait; of
            rows that are taken apart in C as they arrive this is part of `receive`.
        hand_over: Share in which the consumer was not waiting for a page, from the start of the
            scan: copies into tensors, TensorFlow's own work, and decoding that the reader left to
            it.
        start_ms: Milliseconds until the scan began: TensorFlow's cost to start an epoch, however
            many rows it has.
        row_bytes: Bytes of a row's values.
        rows: Rows in the cache.
        partitions: Partitions of the cache.
        nodes: Nodes of the cluster.
    """

    profile: str
    way: str
    rows_per_s: float
    mb_per_s: float
    ratio: float | None
    ratio_ahead: float | None
    wait: float | None
    receive: float | None
    decode: float | None
    hand_over: float | None
    start_ms: float | None
    row_bytes: int
    rows: int
    partitions: int
    nodes: int


def bench_read(
    settings: Settings,
    profile: str,
    *,
    rounds: int = 5,
    partitions: int = 8,
    rows: int | None = None,
    ways: Collection[str] | None = None,
    more: dict[str, Callable[[str], tuple[int, float]]] | None = None,
    on_round: Callable[[int], None] = lambda number: None,
) -> list[Rate]:
    """Measure all ways of reading one profile's rows.

    Args:
        settings: Where the node is; the benchmark's cache is created there and dropped.
        profile: A name in `PROFILES`.
        rounds: Times each way is run.
        partitions: Partitions of the cache.
        rows: Rows to read; None for the profile's own number.
        ways: Only these, and the bare sockets; None for all that can run here.
        more: Further ways by name: called with the cache, each returns rows and seconds.
        on_round: Called after each round.

    Raises:
        ConfigError: A way is unknown, or the cluster has no template for the partitions.
    """
    chosen = sized(PROFILES[profile], rows)
    with connect(settings=settings) as client:
        try:
            fill_cache(client, chosen, partitions)
            setup = Setup(client, chosen.cache, chosen, partitions, more or {})
            timed = {
                name: functools.partial(_timed, way) for name, way in _chosen(setup, ways).items()
            }
            runs = in_turn(timed, rounds, on_round)
            nodes = max(1, len(client.nodes()))
        finally:
            drop_rows(client, chosen.cache)
    return [_rate(profile, setup, nodes, name, runs) for name in runs]


def _chosen(setup: Setup, ways: Collection[str] | None) -> dict[str, Way]:
    every = make_ways(setup)
    if ways is None:
        return every
    if unknown := set(ways) - set(every):
        raise ConfigError(
            f"no way of reading is called {sorted(unknown)[0]!r}", hint=f"one of {', '.join(every)}"
        )
    return {name: way for name, way in every.items() if name in {*ways, BARE, BARE_AHEAD}}


@dataclass(frozen=True)
class _Run:
    """One run of one way: rows per second, seconds in all, seconds before the scan, the scan's."""

    rate: float
    seconds: float
    start: float = 0.0
    times: Times | None = None


def _timed(way: Way) -> _Run:
    before = replace(way.times or Times())
    begin = time.monotonic()
    done = way.run()
    seconds = time.monotonic() - begin
    if isinstance(done, tuple):
        done, seconds = done
    if way.times is None:
        return _Run(done / seconds, seconds)
    spent = way.times.since(before)
    return _Run(done / seconds, seconds, spent.began - begin, spent)


def _rate(profile: str, setup: Setup, nodes: int, name: str, runs: dict[str, list[_Run]]) -> Rate:
    mine, rows = runs[name], setup.profile
    rates = {way: [run.rate for run in runs[way]] for way in runs}
    rate = statistics.median(rates[name])
    return Rate(
        profile=profile,
        way=name,
        rows_per_s=round(rate, 1),
        mb_per_s=round(rate * (rows.row_bytes + _KEY_BYTES) / 1e6, 1),
        ratio=median_ratio(rates[name], rates.get(BARE)),
        ratio_ahead=median_ratio(rates[name], rates.get(BARE_AHEAD)),
        wait=_share(mine, lambda run, times: times.wait),
        receive=_share(mine, lambda run, times: times.receive),
        decode=_share(mine, lambda run, times: times.decode),
        hand_over=_share(mine, lambda run, times: run.seconds - run.start - times.starved),
        start_ms=_start_ms(mine),
        row_bytes=rows.row_bytes,
        rows=rows.rows,
        partitions=setup.partitions,
        nodes=nodes,
    )


def _share(mine: list[_Run], seconds: Callable[[_Run, Times], float]) -> float | None:
    shares = [seconds(run, run.times) / run.seconds for run in mine if run.times is not None]
    return round(statistics.median(shares), 3) if shares else None


def _start_ms(mine: list[_Run]) -> float | None:
    starts = [run.start for run in mine if run.times is not None]
    return round(1e3 * statistics.median(starts), 1) if starts else None
