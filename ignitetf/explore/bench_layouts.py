"""The ways to read what `ignitetf bench write` wrote: blocks beside rows, with a bare socket each.

caches of the same rows -> **a function for each way and layout** -> rows that were read
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Final

from ignitetf.explore import bench_ways
from ignitetf.explore.bench_bare import can_drain, draining
from ignitetf.explore.bench_ways import reduced_rows
from ignitetf.net.client import Client
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader

__all__ = ["BARE", "read_ways"]

BARE: Final = f"read, {bench_ways.BARE}"
_BATCH: Final = 128

Ways = dict[str, Callable[[], int]]


def read_ways(client: Client, caches: dict[str, str]) -> Ways:
    """Name and layout -> a function that reads everything and gives the number of rows.

    Args:
        client: The cluster.
        caches: Cache by layout, all of the same rows.
    """
    ways: Ways = {}
    for layout, cache in caches.items():
        if can_drain(client):
            ways[f"{BARE}, {layout}"] = _bare(client, cache)
    with contextlib.suppress(ImportError):
        import tensorflow  # noqa: F401

        for layout, cache in caches.items():
            ways |= _tensorflow(client, cache, layout)
    return ways


def _bare(client: Client, cache: str) -> Callable[[], int]:
    reader = CacheReader(client, cache, ReadOptions())
    rows = sum(reader.partition_counts(list(range(reader.partition_count))))
    drained = draining(reader)

    def run() -> int:
        drained()  # the number of blocks, where there are such
        return rows

    return run


def _tensorflow(client: Client, cache: str, layout: str) -> Ways:
    from ignitetf.read.tf.dataset import IgniteDataset

    dataset = IgniteDataset(cache, settings=client.settings, shard=(0, 1))
    batches = dataset.batch(_BATCH)

    def whole() -> int:
        return sum(len(page["key"]) for page in dataset.numpy())

    return {
        f"read, numpy(), {layout}": whole,
        f"read, batches of {_BATCH}, {layout}": functools.partial(reduced_rows, batches),
    }
