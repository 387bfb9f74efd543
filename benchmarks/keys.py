"""Rows by key, in order and in a random one, beside bare GET_ALL requests for the same keys."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from history import Figure
from numpy.typing import NDArray

from ignitetf import IgniteDataset, open_rows
from ignitetf.bench.rows import PROFILES, Profile, drop_rows, fill_cache, sized
from ignitetf.bench.turns import in_turn, median_ratio, rows_a_second
from ignitetf.bench.ways import reduced_rows
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client, cache_id, connect
from ignitetf.read.keys import IntegerKeys
from ignitetf.read.rows import EpochRows
from ignitetf.settings import Settings
from ignitetf.wire.codes import OpCode
from ignitetf.wire.requests import batch_head

# Keys of a request, and requests in flight; the best of them is the limit.
_FORMS: Final = {"mnist": ((128, 8), (128, 16), (256, 8)), "1mb": ((1, 8), (1, 16), (2, 8))}
_SEED: Final = 7
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


def _ways(
    client: Client, profile: Profile, forms: tuple[tuple[int, int], ...]
) -> dict[str, Callable[[], int]]:
    build = functools.partial(open_rows, profile.cache, client=client, shard=(0, 1))
    shuffled = build(order="global", shuffle=_SEED)
    dataset = IgniteDataset.from_rows(shuffled).batch(profile.batch)
    cache = cache_id(shuffled.reader.cache)
    numbers = np.random.default_rng(_SEED).permutation(profile.rows)
    keys = IntegerKeys(shuffled.reader.schema, profile.rows)
    ways: dict[str, Callable[[], int]] = {
        f"bare GET_ALL, {size} x {depth}": functools.partial(
            _bare, client, cache, keys, numbers, size, depth
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
    client: Client, cache: int, keys: IntegerKeys, numbers: NDArray[np.int64], size: int, depth: int
) -> int:
    """Ask for the keys and receive every answer into the same memory, without a look at it."""
    memory = memoryview(bytearray(64 << 20))
    with Channel(client.settings.addresses[0], client.settings) as channel:
        waiting = 0
        for body in _bodies(cache, keys, numbers, size):
            channel.send(OpCode.CACHE_GET_ALL, body)
            waiting += 1
            if waiting >= depth:
                channel.next_answer(lambda number, count, nbytes: memory[:nbytes])
                waiting -= 1
        for _ in itertools.repeat(None, waiting):
            channel.next_answer(lambda number, count, nbytes: memory[:nbytes])
    return len(numbers)


def _bodies(
    cache: int, keys: IntegerKeys, numbers: NDArray[np.int64], size: int
) -> Iterator[bytes]:
    for start in range(0, len(numbers), size):
        part = numbers[start : start + size]
        yield batch_head(cache, len(part)) + keys.objects(part)
