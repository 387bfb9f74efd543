"""What order, shuffle and state cost beside a plain read of the same rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import psutil
from history import Figure

from ignitetf import Client, IgniteDataset, connect, open_rows
from ignitetf.bench.read import reduced_rows
from ignitetf.bench.rows import PROFILES, drop_rows, fill_cache, sized
from ignitetf.bench.turns import in_turn, median_ratio, rows_a_second
from ignitetf.settings import Settings

_BATCH = 128
_PARTITIONS = 8
_ROWS = 60_000
_WINDOWS_MB = (4, 16, 64)
_PLAIN, _EAGER = "reduce", "eager loop"


def order_figures(settings: Settings, rounds: int, rows: int | None) -> list[Figure]:
    """Rates by that of the plain read of the same kind, and the memory that windows take.

    Args:
        settings: Where the node is.
        rounds: Times each way is run.
        rows: Rows to read; None for 60,000, which a whole shuffle has as one window.
    """
    profile = sized(PROFILES["mnist"], rows or _ROWS)
    with connect(settings=settings) as client:
        try:
            fill_cache(client, profile, _PARTITIONS)
            runs = {n: rows_a_second(w) for n, w in _ways(profile.cache, settings).items()}
            found = in_turn(runs, rounds)
            memory = dict(_window_memory(client, profile.cache))
        finally:
            drop_rows(client, profile.cache)
    name = f"mnist, {profile.rows:,} rows"
    rates = [
        Figure(
            "order",
            name,
            way,
            round(statistics.median(mine), 1),
            "rows/s",
            median_ratio(mine, found[_EAGER if way.startswith(_EAGER) else _PLAIN]),
            rounds,
        )
        for way, mine in found.items()
    ]
    return rates + [Figure("order", name, way, mb, "MB", None, 1) for way, mb in memory.items()]


def _ways(cache: str, settings: Settings) -> dict[str, Callable[[], int]]:
    def reduced(**options: object) -> Callable[[], int]:
        batches = IgniteDataset(cache, settings=settings, **options).batch(_BATCH)
        return lambda: reduced_rows(batches)

    def looped(keep_state: bool, **options: object) -> Callable[[], int]:
        dataset = IgniteDataset(cache, settings=settings, **options)
        batches = dataset.batch(_BATCH)

        def run() -> int:
            rows = 0
            for item in batches:
                rows += int(item["key"].shape[0])
                if keep_state:
                    dataset.state(rows, 0)
            return rows

        return run

    return {
        _PLAIN: reduced(),
        "reduce, one of one shards": reduced(shard=(0, 1), even="pad"),
        "reduce, shuffle, whole set": reduced(shuffle=7),
        "reduce, shuffle, windows of 8 MB": reduced(shuffle=7, window_bytes=8 << 20),
        _EAGER: looped(False),
        "eager loop, state each batch": looped(True),
        "eager loop, shuffle, state each batch": looped(True, shuffle=7, window_bytes=8 << 20),
    }


def _window_memory(client: Client, cache: str) -> Iterator[tuple[str, float]]:
    """The most memory, in MB, that three shuffled epochs add to the process."""
    process = psutil.Process()
    for window_mb in _WINDOWS_MB:
        rows = open_rows(
            cache, client=client, shuffle=7, shard=(0, 1), window_bytes=window_mb << 20
        )
        before = most = process.memory_info().rss
        for _ in range(3):
            for _ in rows.batches():
                most = max(most, process.memory_info().rss)
            rows = rows.next_epoch()
        yield f"memory, shuffle, windows of {window_mb} MB", round((most - before) / 1e6)
