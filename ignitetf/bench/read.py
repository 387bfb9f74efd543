"""`ignitetf bench read`: rates of the read path compared with the machine's limit and pyignite.

Every way reads the same rows of the same cache, in turn, several times, in both orders. The report
has the median of each way and its ratio to two bare sockets that drain the same scans: one requests
page by page, the other ahead. They parse nothing, so they show what the node and the loopback can
deliver.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

from ignitetf import Client, connect, open_rows
from ignitetf.bench.bare import PAGE_BYTES, Scans
from ignitetf.bench.rows import PROFILES, Profile, drop_rows, fill_cache, sized
from ignitetf.bench.turns import in_turn, median_ratio
from ignitetf.errors import ConfigError
from ignitetf.settings import Settings

__all__ = ["BARE", "BARE_AHEAD", "Rate", "Setup", "Way", "bench_read", "make_ways", "reduced_rows"]

BARE: Final = "bare socket"
BARE_AHEAD: Final = "bare socket, asks ahead"
_KEY_BYTES: Final = 8
# Pyignite is slow: this many rows are enough for its rate.
_PYIGNITE_ROWS: Final = 3_000
_PYIGNITE_PAGE: Final = 500
_FEW_BYTES: Final = 256 << 20

# Reads once and returns the number of rows, and the seconds if the way measures them itself.
Way = Callable[[], "int | tuple[int, float]"]


@dataclass(frozen=True)
class Rate:
    """The median rate of one way to read.

    Attributes:
        profile: The rows.
        way: Description of the way of reading.
        rows_per_s: Rows per second.
        mb_per_s: Megabytes (10^6) of keys and values per second.
        ratio: Rate relative to the bare socket that requests page by page, median of the rounds.
        ratio_ahead: Rate relative to the bare socket that requests ahead.
        cpu: CPU seconds of this process, over all threads, per second.
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
    cpu: float
    row_bytes: int
    rows: int
    partitions: int
    nodes: int


@dataclass(frozen=True)
class Setup:
    """The cache to read.

    Attributes:
        client: The cluster.
        cache: The cache with the rows.
        profile: The rows.
        more: Further ways by name; each is called with the name of the cache.
    """

    client: Client
    cache: str
    profile: Profile
    more: dict[str, Callable[[str], tuple[int, float]]] = field(default_factory=dict)

    def at_most(self, rows: int) -> int:
        """Return `rows`, or fewer if the cache has fewer or they are large."""
        return max(1, min(rows, self.profile.rows, _FEW_BYTES // self.profile.row_bytes))


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
        settings: Settings of the connection; the benchmark's cache is created there and dropped.
        profile: A name in `PROFILES`.
        rounds: Times each way is run.
        partitions: Partitions of the cache.
        rows: Rows to read; None for the profile's own number.
        ways: Run only these and the bare sockets; None for all that can run here.
        more: Further ways by name: called with the cache, each returns rows and seconds.
        on_round: Called after each round.

    Raises:
        ConfigError: A way is unknown, or the cluster has no template for the partitions.
    """
    chosen = sized(PROFILES[profile], rows)
    with connect(settings=settings) as client:
        try:
            fill_cache(client, chosen, partitions)
            setup = Setup(client, chosen.cache, chosen, more or {})
            timed = {
                name: functools.partial(_timed, way) for name, way in _chosen(setup, ways).items()
            }
            runs = in_turn(timed, rounds, on_round)
            nodes = max(1, len(client.nodes()))
        finally:
            drop_rows(client, chosen.cache)
    return [_rate(profile, chosen, partitions, nodes, name, runs) for name in runs]


def _chosen(setup: Setup, ways: Collection[str] | None) -> dict[str, Way]:
    every = make_ways(setup)
    if ways is None:
        return every
    if unknown := set(ways) - set(every):
        raise ConfigError(
            f"no way of reading is called {sorted(unknown)[0]!r}", hint=f"one of {', '.join(every)}"
        )
    return {name: way for name, way in every.items() if name in {*ways, BARE, BARE_AHEAD}}


def _timed(way: Way) -> tuple[float, float]:
    """Return rows per second, and CPU seconds per second."""
    begin, spent = time.perf_counter(), time.process_time()
    done = way()
    whole_s, cpu_s = time.perf_counter() - begin, time.process_time() - spent
    rows, seconds = done if isinstance(done, tuple) else (done, whole_s)
    return rows / seconds, cpu_s / whole_s


def _rate(
    name: str,
    profile: Profile,
    partitions: int,
    nodes: int,
    way: str,
    runs: dict[str, list[tuple[float, float]]],
) -> Rate:
    rates = {each: [rate for rate, _ in found] for each, found in runs.items()}
    rate = statistics.median(rates[way])
    return Rate(
        profile=name,
        way=way,
        rows_per_s=round(rate, 1),
        mb_per_s=round(rate * (profile.row_bytes + _KEY_BYTES) / 1e6, 1),
        ratio=median_ratio(rates[way], rates.get(BARE)),
        ratio_ahead=median_ratio(rates[way], rates.get(BARE_AHEAD)),
        cpu=round(statistics.median(cpu for _, cpu in runs[way]), 3),
        row_bytes=profile.row_bytes,
        rows=profile.rows,
        partitions=partitions,
        nodes=nodes,
    )


def make_ways(setup: Setup) -> dict[str, Way]:
    """Return all ways that can run here, the bare sockets first."""
    profile = setup.profile
    page_bytes = (profile.page_rows or 0) * profile.row_bytes or PAGE_BYTES
    scans = Scans(setup.client, setup.cache, profile.row_bytes, page_bytes)
    ways: dict[str, Way] = {
        BARE: scans.drain,
        BARE_AHEAD: functools.partial(scans.drain, scans.ahead),
        "numpy()": _numpy(setup),
    }
    with contextlib.suppress(ImportError):
        import tensorflow

        ways |= _tensorflow(setup, tensorflow)
    ways["pyignite scan"] = functools.partial(_pyignite, setup, scans.page_rows)
    for name, run in setup.more.items():
        ways[name] = functools.partial(run, setup.cache)
    return ways


def _numpy(setup: Setup) -> Way:
    """Read the columns of `open_rows(...).batches()`; works without TensorFlow."""
    rows = open_rows(
        setup.cache, client=setup.client, page_size=setup.profile.page_rows, shard=(0, 1)
    )
    return lambda: sum(len(batch["key"]) for batch in rows.batches())


def _tensorflow(setup: Setup, tf: Any) -> dict[str, Way]:
    from ignitetf import IgniteDataset

    size = setup.profile.batch
    dataset = IgniteDataset(
        setup.cache, settings=setup.client.settings, page_size=setup.profile.page_rows, shard=(0, 1)
    )
    batches = dataset.batch(size)
    zero = tf.constant(0, tf.int64)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def loop(items: Any) -> Any:
        rows = zero
        for item in items:
            rows = _count(rows, item)
        return rows

    return {
        f"batch({size}), reduce": lambda: reduced_rows(batches),
        f"batch({size}), tf.function": lambda: int(loop(batches)),
        f"batch({size}), eager loop": lambda: sum(int(item["key"].shape[0]) for item in batches),
        "single elements, reduce": lambda: int(dataset.reduce(zero, lambda rows, _: rows + 1)),
    }


def reduced_rows(batches: Any) -> int:
    """Return the number of rows in batches of a `tf.data.Dataset`, counted within TensorFlow."""
    import tensorflow as tf

    return int(batches.reduce(tf.constant(0, tf.int64), _count))


def _count(rows: Any, item: Any) -> Any:
    import tensorflow as tf

    return rows + tf.shape(item["key"], tf.int64)[0]


def _pyignite(setup: Setup, page_rows: int) -> int:
    rows, most = 0, setup.at_most(_PYIGNITE_ROWS)
    with setup.client.cache(setup.cache).scan(page_size=min(page_rows, _PYIGNITE_PAGE)) as cursor:
        for _ in cursor:
            rows += 1
            if rows >= most:
                break
    return rows
