"""Rows by key, in order and in a random one, beside bare GET_ALL requests for the same keys."""

from __future__ import annotations

import functools
import statistics
import struct
import time
from collections.abc import Iterator
from typing import Final

import numpy as np
from history import Figure
from numpy.typing import NDArray
from pyignite.utils import cache_id

from ignitetf import Client, IgniteDataset, connect, open_rows
from ignitetf.bench.bare import send_ahead, sockets
from ignitetf.bench.read import Way, reduced_rows
from ignitetf.bench.rows import PROFILES, Profile, drop_rows, fill_cache, sized
from ignitetf.bench.turns import in_turn, median_ratio, rows_a_second
from ignitetf.read.rows import EpochRows
from ignitetf.settings import Settings

# Keys of a request, and requests in flight; the best of them is the limit.
_FORMS: Final = {"mnist": ((128, 8), (128, 16), (256, 8)), "1mb": ((1, 8), (1, 16), (2, 8))}
_SEED: Final = 7
_GET_ALL: Final = 1003
_KEY: Final = np.dtype([("type", "u1"), ("key", "<i8")])  # a long is of type 4
# Rows that a call of `rows[...]` asks for.
_CALLS: Final = (128, 512, 4096)


def key_figures(
    settings: Settings, rounds: int, rows: int | None, profile: str, partitions: int
) -> list[Figure]:
    """Rates of each way to read by key, by that of the best bare requests.

    Args:
        settings: Where the node is.
        rounds: Times each way is run.
        rows: Rows to read; None for the profile's own number.
        profile: Rows of `ignitetf bench`: `mnist` or `1mb`.
        partitions: Partitions of the cache.
    """
    chosen = PROFILES[profile] if rows is None else sized(PROFILES[profile], rows)
    with connect(settings=settings) as client:
        try:
            fill_cache(client, chosen, partitions)
            ways = _ways(client, chosen, _FORMS[profile])
            found = in_turn({n: rows_a_second(way) for n, way in ways.items()}, rounds)
        finally:
            drop_rows(client, chosen.cache)
    bare = [rates for name, rates in found.items() if name.startswith("bare")]
    best = max(bare, key=statistics.median)
    where = f"{profile}, {chosen.rows:,} rows, {partitions} partitions"
    return [
        Figure(
            "keys", where, way, round(statistics.median(mine), 1), "rows/s",
            median_ratio(mine, best), rounds,
        )
        for way, mine in found.items()
    ]  # fmt: skip


def _ways(client: Client, profile: Profile, forms: tuple[tuple[int, int], ...]) -> dict[str, Way]:
    build = functools.partial(open_rows, profile.cache, client=client, shard=(0, 1))
    shuffled = build(order="global", shuffle=_SEED)
    dataset = IgniteDataset.from_rows(shuffled).batch(profile.batch)
    cache = cache_id(profile.cache)
    numbers = np.random.default_rng(_SEED).permutation(profile.rows)
    ways: dict[str, Way] = {
        f"bare GET_ALL, {size} x {depth}": functools.partial(
            _bare, client, cache, numbers, size, depth
        )
        for size, depth in forms
    }
    ways |= {
        "numpy(), global": functools.partial(_rows, shuffled),
        "numpy(), keys": functools.partial(_rows, build(order="keys")),
        "numpy(), scan": functools.partial(_rows, build()),
        "numpy(), scan, shuffled": functools.partial(_rows, build(shuffle=_SEED)),
        f"batch({profile.batch}), reduce, global": functools.partial(reduced_rows, dataset),
    }
    calls = [size for size in _CALLS if size * profile.row_bytes <= 16 << 20]
    return ways | {
        f"rows[...], {size} a call": functools.partial(_taken, shuffled, numbers, size)
        for size in calls
    }


def _rows(rows: EpochRows) -> int:
    return sum(len(batch["val"]["LABEL"]) for batch in rows.numpy())


def _taken(rows: EpochRows, numbers: NDArray[np.int64], size: int) -> int:
    for start in range(0, len(numbers), size):
        rows[numbers[start : start + size]]
    return len(numbers)


def _bare(
    client: Client, cache: int, numbers: NDArray[np.int64], size: int, depth: int
) -> tuple[int, float]:
    """Request the keys over one socket and receive every answer without a look at it."""
    with sockets(client, client.settings.addresses[:1]) as (sock,):
        begin = time.perf_counter()
        send_ahead(sock, _GET_ALL, _bodies(cache, numbers, size), depth)
        return len(numbers), time.perf_counter() - begin


def _bodies(cache: int, numbers: NDArray[np.int64], size: int) -> Iterator[tuple[bytes, ...]]:
    keys = np.empty(len(numbers), _KEY)
    keys["type"], keys["key"] = 4, numbers
    for start in range(0, len(keys), size):
        part = keys[start : start + size]
        yield struct.pack("<ibi", cache, 0, len(part)), part.tobytes()
