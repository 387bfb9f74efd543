"""Reading what `ignitetf bench write` wrote: blocks beside rows, each beside a bare socket.

Every way reads the same rows, in turn, forwards and backwards; medians are reported.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Final

from ignitetf.client import Client
from ignitetf.explore.bench_bare import drain, owners_of
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader

__all__ = ["BARE", "Ways", "measure_in_turn", "median_ratio", "read_ways"]

BARE: Final = "read, bare socket"
_BATCH: Final = 128

Ways = dict[str, Callable[[], int]]


def read_ways(client: Client, caches: dict[str, str], partitions: int) -> Ways:
    """Name and layout -> a function that reads everything and gives the number of rows.

    Args:
        client: The cluster.
        caches: Cache by layout, all of the same rows.
        partitions: Partitions of each.
    """
    ways: Ways = {}
    for layout, cache in caches.items():
        if not client.settings.tls and not client.settings.username:
            ways[f"{BARE}, {layout}"] = _bare(client, cache, partitions)
    with contextlib.suppress(ImportError):
        import tensorflow  # noqa: F401

        for layout, cache in caches.items():
            ways |= _tensorflow(client, cache, layout)
    return ways


def _bare(client: Client, cache: str, partitions: int) -> Callable[[], int]:
    reader = CacheReader(client, cache, ReadOptions())
    rows = sum(reader.partition_counts(list(range(partitions))))
    owners, page = owners_of(client, cache, list(range(partitions))), reader.page_size()

    def run() -> int:
        drain(owners, cache, page)
        return rows

    return run


def _tensorflow(client: Client, cache: str, layout: str) -> Ways:
    import tensorflow as tf

    from ignitetf.read.dataset import IgniteDataset

    dataset = IgniteDataset(cache, settings=client.settings, shard=(0, 1))
    batches = dataset.batch(_BATCH)
    zero = tf.constant(0, tf.int64)

    def reduced() -> int:
        return int(batches.reduce(zero, lambda n, item: n + tf.shape(item["key"], tf.int64)[0]))

    def whole() -> int:
        return sum(len(page["key"]) for page in dataset.numpy())

    return {f"read, numpy(), {layout}": whole, f"read, batches of {_BATCH}, {layout}": reduced}


def measure_in_turn(ways: Ways, rounds: int) -> dict[str, list[float]]:
    """Rows a second of every way in each round; the first round warms up."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in ways if number % 2 else reversed(ways):
            begin = time.perf_counter()
            rows = ways[name]()
            if number:
                found[name].append(rows / (time.perf_counter() - begin))
    return found


def median_ratio(mine: list[float], theirs: list[float] | None) -> float | None:
    """Median of the ratios of the rounds; None where there is nothing to compare with."""
    if theirs is None:
        return None
    return round(statistics.median(a / b for a, b in zip(mine, theirs, strict=True)), 2)
