"""`ignitetf bench write`: rates of the load compared with the machine's limit and pyignite.

Every way writes the same rows, in turn, several times, in both orders; the report has the median of
each. The limit is how fast the cluster stores entries that it sent before, so that sending them
needs no encoding. Only the time of `load_dataset` includes creating the cache. Finally the rows and
the blocks are read.
"""

from __future__ import annotations

import functools
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np

from ignitetf import Client, connect, load_dataset
from ignitetf.bench.bare import Entries
from ignitetf.bench.put_all import PutAll, put_all_seconds
from ignitetf.bench.read import BARE, Setup, Way, make_ways
from ignitetf.bench.rows import Profile, drop_rows, make_rows
from ignitetf.bench.turns import in_turn, median_ratio, rows_a_second
from ignitetf.load.sources import open_source
from ignitetf.settings import Settings

__all__ = ["PNG", "PROFILES", "WriteRate", "bench_write"]

_CACHE: Final = "IGNITETF_BENCH_WRITE"
# Data sets by layout; their entries are sent again, and they are read.
_KEPT: Final = {"rows": f"{_CACHE}_ROWS", "blocks": f"{_CACHE}_BLOCKS"}
_SEED: Final = 20
# Maximum that pyignite writes: more takes longer, at the same rate.
_PYIGNITE_BYTES: Final = 100 << 20
_PYIGNITE_ROWS: Final = 5_000
_LIMIT: Final = "encoded requests, put_all"
_STREAMER: Final = "encoded requests, streamer"
_BLOCK_LIMIT: Final = "encoded blocks, put_all"
_PYIGNITE: Final = "pyignite put_all"
# Larger rows are not put into blocks.
_BLOCK_ROW_BYTES: Final = 64 << 10
_BLOCK_BYTES: Final = 1 << 20
_READ_BATCH: Final = 128
PNG: Final = "png"
_PNG_FILES: Final = 70_000
_PNG_SIDE: Final = 28

Layout = Literal["rows", "blocks"]

# Enough rows for a load of about half a second, because starting and ending one takes some 17 ms.
# The batches are pyignite's; larger ones are not faster.
PROFILES: Final = {"mnist": Profile(300_000, 784, 500), "1mb": Profile(1_000, 1_000_000, 4)}


@dataclass(frozen=True)
class WriteRate:
    """The median rate of one way to write, or to read what was written.

    Attributes:
        profile: The rows.
        way: The way of writing or reading.
        rows_per_s: Rows per second.
        mb_per_s: Megabytes (10^6) of values per second.
        to_limit: Rate relative to the limit: for rows and blocks, encoded requests sent with
            `put_all`; for reads, a bare socket; for image files, only reading them. Ratios are
            medians of the rounds, None if there is nothing to compare with.
        to_streamer: Rate relative to encoded requests sent through the data streamer.
        to_pyignite: Rate relative to pyignite's `put_all`.
        to_rows: For reads from blocks, rate relative to the same read from rows.
    """

    profile: str
    way: str
    rows_per_s: float
    mb_per_s: float
    to_limit: float | None = None
    to_streamer: float | None = None
    to_pyignite: float | None = None
    to_rows: float | None = None


def bench_write(
    settings: Settings,
    profile: str,
    *,
    rounds: int = 5,
    partitions: int = 8,
    rows: int | None = None,
    files: int = _PNG_FILES,
    more: dict[str, Callable[[str, int], tuple[int, float]]] | None = None,
) -> list[WriteRate]:
    """Measure all ways of writing one profile's rows.

    Args:
        settings: Settings of the connection; the benchmark's caches are created there and dropped.
        profile: A name in `PROFILES`, or `png`: image files in a folder.
        rounds: Times each way is run, after one that is not counted.
        partitions: Partitions of the caches.
        rows: Number of rows; None for the profile's own.
        files: Number of image files.
        more: Further ways by name: called with an empty cache and the bytes of a row, each returns
            rows and seconds.
    """
    with connect(settings=settings) as client:
        if profile == PNG:
            return _bench_files(client, rounds, partitions, files)
        chosen = PROFILES[profile]
        bench = _Bench(client, replace(chosen, rows=rows or chosen.rows), partitions, more or {})
        try:
            found = in_turn(bench.ways(), rounds)
            rates = [_rate(profile, bench.profile, name, found) for name in found]
            return rates + _reads(bench, profile, rounds)
        finally:
            bench.drop()


def _rate(profile: str, chosen: Profile, name: str, found: dict[str, list[float]]) -> WriteRate:
    limit = _BLOCK_LIMIT if "blocks" in name else _LIMIT
    others = (limit, _STREAMER, _PYIGNITE)
    ratios = (median_ratio(found[name], found.get(other)) for other in others)
    return WriteRate(profile, name, *_rates(found[name], chosen.row_bytes), *ratios)


def _rates(found: list[float], row_bytes: float) -> tuple[float, float]:
    rows_per_s = statistics.median(found)
    return round(rows_per_s, 1), round(rows_per_s * row_bytes / 1e6, 1)


def _reads(bench: _Bench, profile: str, rounds: int) -> list[WriteRate]:
    """Return rates of reading the rows and the blocks, needed to choose between the layouts."""
    if len(bench.layouts) < 2:
        return []
    found = in_turn(bench.read_ways("rows") | bench.read_ways("blocks"), rounds)
    rates = []
    for name, mine in found.items():
        way, _, layout = name.rpartition(", ")
        to_limit = median_ratio(mine, found.get(f"read, {BARE}, {layout}"))
        to_rows = median_ratio(mine, found[f"{way}, rows"]) if layout == "blocks" else None
        rate = WriteRate(profile, name, *_rates(mine, bench.profile.row_bytes), to_limit)
        rates.append(replace(rate, to_rows=to_rows))
    return rates


def _bench_files(client: Client, rounds: int, partitions: int, files: int) -> list[WriteRate]:
    """Measure image files in a folder: only read and checked, and loaded."""
    alone, whole = "files read and checked", "load_dataset, rows"
    with tempfile.TemporaryDirectory() as folder:
        size = _write_files(Path(folder), files)

        def read() -> int:
            return sum(len(batch) for batch in open_source("images", folder).batches())

        def load() -> int:
            drop_rows(client, _CACHE)
            source = open_source("images", folder)
            return load_dataset(source, _CACHE, client=client, partitions=partitions).rows

        try:
            found = in_turn({alone: rows_a_second(read), whole: rows_a_second(load)}, rounds)
        finally:
            drop_rows(client, _CACHE)
    return [
        WriteRate(PNG, name, *_rates(mine, size / files), median_ratio(mine, found[alone]))
        for name, mine in found.items()
    ]


def _write_files(folder: Path, files: int) -> int:
    """Write small PNG files into ten folders, and return their total bytes."""
    from PIL import Image

    rng, size = np.random.default_rng(_SEED), 0
    for label in range(10):
        (folder / str(label)).mkdir()
    for number in range(files):
        pixels = rng.integers(0, 256, (_PNG_SIDE, _PNG_SIDE), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG", compress_level=1)
        size += (folder / str(number % 10) / f"{number}.png").write_bytes(out.getvalue())
    return size


class _Bench:
    """The rows, and every way to write them."""

    def __init__(
        self,
        client: Client,
        profile: Profile,
        partitions: int,
        more: dict[str, Callable[[str, int], tuple[int, float]]],
    ) -> None:
        self.client, self.profile, self.partitions, self.more = client, profile, partitions, more
        small = profile.row_bytes <= _BLOCK_ROW_BYTES
        self.layouts: tuple[Layout, ...] = ("rows", "blocks") if small else ("rows",)
        (self.rows,) = make_rows(profile, profile.rows * profile.row_bytes)

    def ways(self) -> dict[str, Callable[[], float]]:
        """Return by name the functions that write all rows and return rows per second."""
        rows, *blocks = [self._kept(layout) for layout in self.layouts]
        ways: dict[str, Callable[[], float]] = {
            _LIMIT: lambda: self._stored(_KEPT["rows"], rows.put_all),
            _STREAMER: lambda: self._stored(_KEPT["rows"], rows.stream),
            "load_dataset, rows": lambda: self.load("rows"),
        }
        for entries in blocks:
            ways[_BLOCK_LIMIT] = functools.partial(self._stored, _KEPT["blocks"], entries.put_all)
            ways["load_dataset, blocks"] = lambda: self.load("blocks")
        ways |= {name: functools.partial(self._load_rate, run) for name, run in self.more.items()}
        ways[_PYIGNITE] = self._pyignite
        return ways

    def read_ways(self, layout: Layout) -> dict[str, Callable[[], float]]:
        """Return by name the functions that read a whole cache and return rows per second."""
        profile = replace(self.profile, batch=_READ_BATCH)
        every = make_ways(Setup(self.client, _KEPT[layout], profile))
        names = {
            BARE: BARE,
            "numpy()": "numpy()",
            f"batch({_READ_BATCH}), reduce": f"batches of {_READ_BATCH}",
        }
        return {
            f"read, {name}, {layout}": functools.partial(self._read, every[way])
            for way, name in names.items()
            if way in every
        }

    def load(self, layout: Layout, cache: str = _CACHE) -> float:
        """Load the rows into a new cache."""
        drop_rows(self.client, cache)
        return load_dataset(
            self.rows, cache, client=self.client, partitions=self.partitions, layout=layout
        ).rows_per_s

    def drop(self) -> None:
        """Remove the caches and their manifests."""
        for cache in (_CACHE, *_KEPT.values()):
            drop_rows(self.client, cache)

    def _kept(self, layout: Layout) -> Entries:
        """Load the rows, and return their entries."""
        self.load(layout, _KEPT[layout])
        size = self.profile.row_bytes if layout == "rows" else _BLOCK_BYTES
        return Entries(self.client, _KEPT[layout], size)

    def _stored(self, cache: str, send: Callable[[], float]) -> float:
        """Empty a cache, store its entries again, and return rows per second."""
        self.client.cache(cache).clear()
        return self.profile.rows / send()

    def _read(self, way: Way) -> float:
        begin = time.perf_counter()
        done = way()
        took_s = done[1] if isinstance(done, tuple) else time.perf_counter() - begin
        return self.profile.rows / took_s  # a bare socket counts blocks

    def _load_rate(self, run: Callable[[str, int], tuple[int, float]]) -> float:
        self._make_table()
        rows, seconds = run(_CACHE, self.profile.row_bytes)
        return rows / seconds

    def _pyignite(self) -> float:
        most = max(1, min(_PYIGNITE_ROWS, _PYIGNITE_BYTES // self.profile.row_bytes))
        rows = min(most, self.profile.rows)
        self._make_table()
        work = PutAll(self.client.settings, _CACHE, replace(self.profile, rows=rows))
        return rows / put_all_seconds(work)

    def _make_table(self) -> None:
        """Create an empty table; its cache and binary type have the table's name."""
        drop_rows(self.client, _CACHE)
        template = f"TEMPLATE=p{self.partitions}, CACHE_NAME={_CACHE}, VALUE_TYPE={_CACHE}"
        columns = "ID BIGINT PRIMARY KEY, IMAGE VARBINARY, LABEL INT"
        self.client.sql(f'CREATE TABLE {_CACHE} ({columns}) WITH "{template}"').close()
