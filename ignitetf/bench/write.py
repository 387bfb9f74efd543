"""`ignitetf bench write`: rates of the load beside the machine's limit and pyignite.

Every way writes the same rows into a fresh cache, in turn, several times, in both orders; the
report has the median of each. The limit is how fast the cluster takes requests that were encoded
before the clock started, over as many connections as the writer has. Only for `load_dataset` does
the time include creating the cache. Afterwards the rows and the blocks are read.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ignitetf.bench.put_all import PutAll, put_all_seconds
from ignitetf.bench.rows import Profile, drop_rows, make_rows, schema_of
from ignitetf.bench.sent import Sent, blocks_to_send, rows_to_send
from ignitetf.bench.turns import in_turn, median_ratio, rows_a_second
from ignitetf.bench.ways import BARE, Setup, Way, make_ways
from ignitetf.load.blocks import Blocks
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.load.sources.base import batch_bytes, rows_per_batch
from ignitetf.load.writer import Writer, register_types
from ignitetf.net.client import Client, connect
from ignitetf.settings import Settings
from ignitetf.tables.caches import create_cache, create_table
from ignitetf.tables.spec import CacheSpec
from ignitetf.wire.block_keys import BlockKeys
from ignitetf.wire.blocks import block_schema
from ignitetf.wire.concat import concat
from ignitetf.wire.schema import Batch

__all__ = ["PNG", "PROFILES", "WriteRate", "bench_write"]

_CACHE: Final = "IGNITETF_BENCH_WRITE"
_BLOCKS: Final = f"{_CACHE}_BLOCKS"
_SEED: Final = 20
# Most that pyignite writes: more takes longer, at the same rate.
_PYIGNITE_BYTES: Final = 100 << 20
_PYIGNITE_ROWS: Final = 5_000
_LIMIT: Final = "encoded requests, put_all"
_STREAMER: Final = "encoded requests, streamer"
_BLOCK_LIMIT: Final = "encoded blocks, put_all"
_PYIGNITE: Final = "pyignite put_all"
# Larger rows are not put into blocks.
_BLOCK_ROW_BYTES: Final = 64 << 10
_READ_BATCH: Final = 128
PNG: Final = "png"
_PNG_FILES: Final = 70_000
_PNG_SIDE: Final = 28


# Enough rows for a load of about half a second, because starting and ending one takes some 17 ms.
# The batches are pyignite's; it is no faster with larger ones.
PROFILES: Final = {"mnist": Profile(300_000, 784, 500), "1mb": Profile(1_000, 1_000_000, 4)}


@dataclass(frozen=True)
class WriteRate:
    """The median rate of one way to write, or to read what was written.

    Attributes:
        profile: The rows.
        way: How they were written or read.
        rows_per_s: Rows per second.
        mb_per_s: Megabytes (10^6) of values per second.
        to_limit: Rate relative to the limit: for rows and blocks, requests encoded beforehand and
            sent with `put_all`; for reads, a bare socket; for image files, only reading them.
            Ratios are medians of the rounds, None if there is nothing to compare with.
        to_streamer: Rate relative to requests encoded beforehand and sent through the data
            streamer.
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
    files: int = _PNG_FILES,
    more: dict[str, Callable[[str, int], tuple[int, float]]] | None = None,
) -> list[WriteRate]:
    """Measure all ways of writing one profile's rows.

    Args:
        settings: Where the node is; the benchmark's caches are created there and dropped.
        profile: A name in `PROFILES`, or `png`: image files in a folder.
        rounds: Times each way is run, after one that is not counted.
        partitions: Partitions of the caches.
        files: Number of image files.
        more: Further ways by name: called with an empty cache and the bytes of a row, each returns
            rows and seconds.
    """
    with connect(settings=settings) as client:
        if profile == PNG:
            return _bench_files(client, rounds, partitions, files)
        bench = _Bench(client, PROFILES[profile], partitions, more or {})
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
    if bench.profile.row_bytes > _BLOCK_ROW_BYTES:
        return []
    bench.load("rows")
    bench.load("blocks", _BLOCKS)
    ways = bench.read_ways("rows", _CACHE) | bench.read_ways("blocks", _BLOCKS)
    found = in_turn(ways, rounds)
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
    import io

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
        self.schema = replace(schema_of(profile), type_name=_CACHE)
        self.step = rows_per_batch(profile.row_bytes, batch_bytes(self.schema))

    def ways(self) -> dict[str, Callable[[], float]]:
        """Return by name the functions that write into a fresh cache and return rows per second."""
        ways: dict[str, Callable[[], float]] = {
            _LIMIT: lambda: self._timed(lambda: self.requests.put_all()),
            _STREAMER: lambda: self._timed(lambda: self.requests.stream()),
            "writer, rows": lambda: self._timed(lambda: self._write_rows(streamer=False)),
            "writer, rows by streamer": lambda: self._timed(
                lambda: self._write_rows(streamer=True)
            ),
            "load_dataset, rows": lambda: self.load("rows"),
        }
        if self.profile.row_bytes <= _BLOCK_ROW_BYTES:
            ways |= {
                _BLOCK_LIMIT: lambda: self._timed(lambda: self.blocks.put_all(), blocks=True),
                "writer, blocks": lambda: self._timed(self._write_blocks, blocks=True),
                "load_dataset, blocks": lambda: self.load("blocks"),
            }
        ways |= {name: functools.partial(self._further, run) for name, run in self.more.items()}
        ways[_PYIGNITE] = self._pyignite
        return ways

    def read_ways(self, layout: str, cache: str) -> dict[str, Callable[[], float]]:
        """Return by name the functions that read a whole cache and return rows per second."""
        names = {
            BARE: BARE,
            "numpy()": "numpy()",
            f"batch({_READ_BATCH}), reduce": f"batches of {_READ_BATCH}",
        }
        profile = replace(self.profile, batch=_READ_BATCH)
        every = make_ways(Setup(self.client, cache, profile, self.partitions))
        return {
            f"read, {name}, {layout}": functools.partial(self._read, every[way])
            for way, name in names.items()
            if way in every
        }

    def _read(self, way: Way) -> float:
        begin = time.perf_counter()
        done = way.run()
        took_s = done[1] if isinstance(done, tuple) else time.perf_counter() - begin
        return self.profile.rows / took_s  # a bare socket counts blocks

    @functools.cached_property
    def rows(self) -> Batch:
        """The rows, made once the node has answered: they take a while."""
        return concat(list(make_rows(self.profile)))

    @functools.cached_property
    def requests(self) -> Sent:
        """The encoded rows, made during the warm-up round."""
        return rows_to_send(self.client, _CACHE, self.schema, self.rows.slices(self.step))

    @functools.cached_property
    def blocks(self) -> Sent:
        """The encoded blocks."""
        parts = self.rows.slices(self.step)
        return blocks_to_send(self.client, _CACHE, self.schema, parts, self.partitions)

    def drop(self) -> None:
        """Remove the caches and their manifests."""
        for cache in (_CACHE, _BLOCKS):
            drop_rows(self.client, cache)

    def _further(self, run: Callable[[str, int], tuple[int, float]]) -> float:
        drop_rows(self.client, _CACHE)
        create_cache(self.client, CacheSpec(_CACHE, partitions=self.partitions))
        rows, seconds = run(_CACHE, self.profile.row_bytes)
        return rows / seconds

    def _timed(self, write: Callable[[], None], *, blocks: bool = False) -> float:
        drop_rows(self.client, _CACHE)
        spec = CacheSpec(_CACHE, partitions=self.partitions)
        if blocks:
            create_cache(self.client, spec)
            register_types(self.client, block_schema(self.schema))
        else:
            create_table(self.client, self.schema, _CACHE, spec)
            register_types(self.client, self.schema)
        begin = time.perf_counter()
        write()
        seconds = time.perf_counter() - begin
        return len(self.rows) / seconds

    def _write_rows(self, *, streamer: bool) -> None:
        with self._writer(streamer=streamer) as writer:
            for part in self.rows.slices(self.step):
                writer.write(part)

    def _write_blocks(self) -> None:
        with self._writer(entry_schema=block_schema(self.schema)) as writer:
            blocks = Blocks(writer, BlockKeys(self.partitions))
            for part in self.rows.slices(self.step):
                blocks.add(part)
            blocks.write()

    def _writer(self, **options: Any) -> Writer:
        return Writer(
            self.client,
            _CACHE,
            self.schema,
            partitions=self.partitions,
            overwrite=False,
            **options,
        )

    def load(self, layout: Any, cache: str = _CACHE) -> float:
        """Load the rows into a cache."""
        drop_rows(self.client, cache)
        # A fixed fingerprint avoids hashing the whole array, which would count in the figures.
        source = open_source(
            "records",
            lambda: iter(self.rows.slices(self.step)),
            schema=replace(self.schema, type_name="Row"),
            rows=len(self.rows),
            fingerprint="bench",
        )
        report = load_dataset(
            source, cache, client=self.client, partitions=self.partitions, layout=layout
        )
        return report.rows_per_s

    def _pyignite(self) -> float:
        most = max(1, min(_PYIGNITE_ROWS, _PYIGNITE_BYTES // self.profile.row_bytes))
        rows = min(most, self.profile.rows)
        work = PutAll(self.client.settings, _CACHE, replace(self.profile, rows=rows))
        seconds = 1.0

        def write() -> None:
            nonlocal seconds
            seconds = put_all_seconds(work)

        self._timed(write)
        return rows / seconds
