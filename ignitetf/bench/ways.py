"""The ways to read that `ignitetf bench read` compares, all over the same rows.

rows of a profile -> **a function for each way** -> rows read, and where the time went
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ignitetf.bench.bare import Scans
from ignitetf.bench.rows import Profile
from ignitetf.net.client import Client
from ignitetf.read.cursor import Times
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.rows import open_rows

__all__ = ["BARE", "BARE_AHEAD", "Setup", "Way", "make_ways", "reduced_rows"]

BARE: Final = "bare socket"
BARE_AHEAD: Final = "bare socket, asks ahead"
# Pyignite is slow: this many rows are enough for its rate.
_PYIGNITE_ROWS: Final = 3_000
_PYIGNITE_PAGE: Final = 500
_FEW_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class Way:
    """One way to read.

    Attributes:
        run: Reads once and returns the number of rows, with the seconds if the way has its own
            clock.
        times: Where the reader's time went so far; None for a reader that is not ours.
    """

    run: Callable[[], int | tuple[int, float]]
    times: Times | None = None


@dataclass(frozen=True)
class Setup:
    """What is read.

    Attributes:
        client: The cluster.
        cache: The cache with the rows.
        profile: The rows.
        partitions: Partitions of the cache.
        more: Further ways by name; each is called with the name of the cache.
    """

    client: Client
    cache: str
    profile: Profile
    partitions: int
    more: dict[str, Callable[[str], tuple[int, float]]] = field(default_factory=dict)

    def at_most(self, rows: int) -> int:
        """Return `rows`, or fewer if the cache has fewer or they are large."""
        return max(1, min(rows, self.profile.rows, _FEW_BYTES // self.profile.row_bytes))


def make_ways(setup: Setup) -> dict[str, Way]:
    """Return all ways that can run here, the bare sockets first."""
    client = setup.client
    reader = CacheReader(client, setup.cache, ReadOptions(page_size=setup.profile.page_rows))
    page = reader.page_size()
    ways = _bare(reader)
    ways["numpy()"] = _numpy(setup)
    with contextlib.suppress(ImportError):
        import tensorflow

        ways |= _tensorflow(setup, tensorflow)
    ways["pyignite scan"] = Way(lambda: _pyignite(setup, min(page, _PYIGNITE_PAGE)))
    for name, run in setup.more.items():
        ways[name] = Way(lambda run=run: run(setup.cache))  # type: ignore[misc]
    return ways


def _bare(reader: CacheReader) -> dict[str, Way]:
    scans = Scans(reader)
    return {
        BARE: Way(scans.drain),
        BARE_AHEAD: Way(functools.partial(scans.drain, scans.depth)),
    }


def _numpy(setup: Setup) -> Way:
    """Read the columns of `EpochRows.batches()`; works without TensorFlow."""
    rows = open_rows(
        setup.cache, client=setup.client, page_size=setup.profile.page_rows, shard=(0, 1)
    )

    def read() -> int:
        return sum(len(batch["key"]) for batch in rows.batches())

    return Way(read, rows.reader.times)


def _tensorflow(setup: Setup, tf: Any) -> dict[str, Way]:
    from ignitetf.read.tf.dataset import IgniteDataset

    size = setup.profile.batch
    dataset = IgniteDataset(
        setup.cache, settings=setup.client.settings, page_size=setup.profile.page_rows, shard=(0, 1)
    )
    batches, times = dataset.batch(size), dataset.rows.reader.times
    zero = tf.constant(0, tf.int64)

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def loop(items: Any) -> Any:
        rows = zero
        for item in items:
            rows = _count(rows, item)
        return rows

    def eager() -> int:
        return sum(int(item["key"].shape[0]) for item in batches)

    def single() -> int:
        return int(dataset.reduce(zero, lambda rows, _: rows + 1))

    return {
        f"batch({size}), reduce": Way(lambda: reduced_rows(batches), times),
        f"batch({size}), tf.function": Way(lambda: int(loop(batches)), times),
        f"batch({size}), eager loop": Way(eager, times),
        "single elements, reduce": Way(single),
    }


def reduced_rows(batches: Any) -> int:
    """Return the number of rows in batches of a `tf.data.Dataset`, counted within TensorFlow."""
    import tensorflow as tf

    return int(batches.reduce(tf.constant(0, tf.int64), _count))


def _count(rows: Any, item: Any) -> Any:
    import tensorflow as tf

    return rows + tf.shape(item["key"], tf.int64)[0]


def _pyignite(setup: Setup, page: int) -> int:
    rows, most = 0, setup.at_most(_PYIGNITE_ROWS)
    with setup.client.cache(setup.cache).scan(page_size=page) as cursor:
        for _ in cursor:
            rows += 1
            if rows >= most:
                break
    return rows
