"""`ignitetf bench write`: rates of the load beside the limit of the machine and beside pyignite.

Every way writes the same rows into a fresh cache, in turn, several times over, in both orders;
what is reported is the median of each. The limit is what a node takes of requests that were
encoded before the clock started. Making the cache is timed in `load_dataset`, nowhere else.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.catalog import drop_manifest
from ignitetf.client import Client, cache_id, connect
from ignitetf.errors import CacheNotFound
from ignitetf.load.blocks import BlockKeys, Blocks
from ignitetf.load.caches import CacheSpec, create_cache, create_table, remove_cache
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.load.writer import Writer, register_types
from ignitetf.settings import Settings
from ignitetf.wire.blocks import block_schema
from ignitetf.wire.codes import OpCode, StreamerFlag, TypeCode
from ignitetf.wire.encode import encode_entries
from ignitetf.wire.schema import Batch, Column, Field, Schema

__all__ = ["PROFILES", "WriteRate", "bench_write"]

_CACHE: Final = "IGNITETF_BENCH_WRITE"
_SEED: Final = 20
_BATCH_BYTES: Final = 4 << 20
_REQUEST_BYTES: Final = 1 << 20
_IN_FLIGHT: Final = 3
# Rows that pyignite writes, and in how many bytes at once: more is slower, its rate is the same.
_PYIGNITE_BYTES: Final = 100 << 20
_PYIGNITE_ROWS: Final = 5_000
_PYIGNITE_BATCH_BYTES: Final = 4 << 20
_PYIGNITE_BATCH_ROWS: Final = 500
_LIMIT: Final = "encoded requests, streamer"
_PYIGNITE: Final = "pyignite put_all"


@dataclass(frozen=True)
class Profile:
    """Rows to write: how many, of how many bytes."""

    rows: int
    row_bytes: int


PROFILES: Final = {"mnist": Profile(60_000, 784), "1mb": Profile(200, 1_000_000)}


@dataclass(frozen=True)
class WriteRate:
    """The median rate of one way to write.

    Attributes:
        profile: The rows.
        way: How they were written.
        rows_per_s: Rows by time.
        mb_per_s: Megabytes (10^6) of values by time.
        to_limit: Rate by that of requests encoded beforehand, median of the rounds.
        to_pyignite: Rate by that of pyignite's `put_all`, median of the rounds.
    """

    profile: str
    way: str
    rows_per_s: float
    mb_per_s: float
    to_limit: float
    to_pyignite: float


def bench_write(
    settings: Settings, profile: str, *, rounds: int = 5, partitions: int = 8
) -> list[WriteRate]:
    """Measure all ways of writing one profile's rows.

    Args:
        settings: Where the node is; the caches of the benchmark are made there and dropped.
        profile: A name in `PROFILES`.
        rounds: Times each way is run, after one that is not counted.
        partitions: Partitions of the caches.
    """
    chosen = PROFILES[profile]
    found: dict[str, list[float]] = {}
    with connect(settings=settings) as client:
        bench = _Bench(client, chosen, partitions)
        try:
            ways = bench.ways()
            for number in range(rounds + 1):
                for name in ways if number % 2 else reversed(ways):
                    rate = ways[name]()
                    if number:
                        found.setdefault(name, []).append(rate)
        finally:
            bench.drop()
    return [_rate(profile, chosen, name, found) for name in bench.ways()]


def _rate(profile: str, chosen: Profile, name: str, found: dict[str, list[float]]) -> WriteRate:
    def ratio(other: str) -> float:
        pairs = zip(found[name], found[other], strict=True)
        return round(statistics.median(mine / theirs for mine, theirs in pairs), 2)

    rows_per_s = statistics.median(found[name])
    return WriteRate(
        profile,
        name,
        round(rows_per_s, 1),
        round(rows_per_s * chosen.row_bytes / 1e6, 1),
        ratio(_LIMIT),
        ratio(_PYIGNITE),
    )


class _Bench:
    """The rows, and every way to write them."""

    def __init__(self, client: Client, profile: Profile, partitions: int) -> None:
        self.client, self.partitions = client, partitions
        rng = np.random.default_rng(_SEED)
        images = rng.integers(0, 256, (profile.rows, profile.row_bytes), dtype=np.uint8)
        labels = np.arange(profile.rows, dtype=np.int32) % 10
        self.arrays: dict[str, NDArray[Any]] = {"IMAGE": images, "LABEL": labels}
        key = Field("key", TypeCode.LONG, np.dtype("<i8"))
        self.schema = Schema(
            _CACHE,
            key,
            (
                Field("IMAGE", TypeCode.BYTE_ARRAY, np.dtype("u1"), (profile.row_bytes,)),
                Field("LABEL", TypeCode.INT, np.dtype("<i4")),
            ),
        )
        columns = {name: Column(values) for name, values in self.arrays.items()}
        self.rows = Batch(Column(np.arange(profile.rows)), columns)
        self.step = max(1, _BATCH_BYTES // profile.row_bytes)

    def ways(self) -> dict[str, Callable[[], float]]:
        """Name -> a function that writes into a fresh cache and gives rows a second."""
        encoded = self.encoded
        return {
            _LIMIT: lambda: self._timed(lambda: self._send(encoded, streamer=True)),
            "encoded requests, put_all": lambda: self._timed(
                lambda: self._send(encoded, streamer=False)
            ),
            "writer, rows": lambda: self._timed(lambda: self._write_rows(streamer=True)),
            "writer, rows by put_all": lambda: self._timed(
                lambda: self._write_rows(streamer=False)
            ),
            "writer, blocks": lambda: self._timed(self._write_blocks, blocks=True),
            "load_dataset, rows": lambda: self._load("rows"),
            "load_dataset, blocks": lambda: self._load("blocks"),
            _PYIGNITE: self._pyignite,
        }

    @functools.cached_property
    def encoded(self) -> list[tuple[int, bytes]]:
        """Count and bytes of each request."""
        pages = (encode_entries(self.schema, part) for part in self.rows.slices(self.step))
        return [(n, bytes(view)) for page in pages for n, view in page.pieces(_REQUEST_BYTES)]

    def drop(self) -> None:
        """Remove the cache and its manifest."""
        with contextlib.suppress(CacheNotFound):
            remove_cache(self.client, _CACHE)
        drop_manifest(self.client, _CACHE)

    def _timed(self, write: Callable[[], None], *, blocks: bool = False) -> float:
        self.drop()
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

    def _load(self, layout: Any) -> float:
        self.drop()
        # A fingerprint of its own keeps the hash of a whole array out of the figures.
        source = open_source(
            "records",
            lambda: iter(self.rows.slices(self.step)),
            schema=replace(self.schema, type_name="Row"),
            rows=len(self.rows),
            fingerprint="bench",
        )
        report = load_dataset(
            source, _CACHE, client=self.client, partitions=self.partitions, layout=layout
        )
        return report.rows_per_s

    def _send(self, requests: list[tuple[int, bytes]], *, streamer: bool) -> None:
        number = cache_id(_CACHE)
        flags = int(StreamerFlag.KEEP_BINARY)
        with self.client.channel() as channel:
            if streamer:
                start = struct.pack("<ibiibi", number, flags, 4096, 4096, TypeCode.NULL, 0)
                body = channel.call(OpCode.DATA_STREAMER_START, start)
                (stream,) = struct.unpack_from("<q", body, 0)
            waiting: deque[int] = deque()
            for count, entries in requests:
                if streamer:
                    head = struct.pack("<qbi", stream, flags, count)
                    waiting.append(channel.send(OpCode.DATA_STREAMER_ADD_DATA, head, entries))
                else:
                    head = struct.pack("<ibi", number, 0, count)
                    waiting.append(channel.send(OpCode.CACHE_PUT_ALL, head, entries))
                if len(waiting) > _IN_FLIGHT:
                    channel.receive(waiting.popleft())
            while waiting:
                channel.receive(waiting.popleft())
            if streamer:
                closing = flags | int(StreamerFlag.FLUSH | StreamerFlag.CLOSE)
                end = struct.pack("<qbi", stream, closing, 0)
                channel.call(OpCode.DATA_STREAMER_ADD_DATA, end, timeout_s=60)

    def _pyignite(self) -> float:
        row_bytes = int(self.arrays["IMAGE"].shape[1])
        rows = max(1, min(_PYIGNITE_ROWS, len(self.rows), _PYIGNITE_BYTES // row_bytes))
        batch = max(1, min(_PYIGNITE_BATCH_ROWS, _PYIGNITE_BATCH_BYTES // row_bytes))
        seconds = 1.0

        def write() -> None:
            nonlocal seconds
            begin = time.perf_counter()
            cache = self.client.cache(_CACHE)
            for entries in _objects(self.arrays, rows, batch):
                cache.put_all(entries)
            seconds = time.perf_counter() - begin

        self._timed(write)
        return rows / seconds


def _objects(arrays: dict[str, NDArray[Any]], rows: int, batch: int) -> Iterator[dict[Any, Any]]:
    """Rows as a user of pyignite has them: objects by key."""
    from collections import OrderedDict

    from pyignite import GenericObjectMeta
    from pyignite.datatypes import ByteArrayObject, IntObject, LongObject

    fields = OrderedDict(IMAGE=ByteArrayObject, LABEL=IntObject)
    row: Any = GenericObjectMeta(_CACHE, (), {}, type_name=_CACHE, schema=fields)
    for start in range(0, rows, batch):
        yield {
            (i, LongObject): row(IMAGE=arrays["IMAGE"][i].tobytes(), LABEL=int(arrays["LABEL"][i]))
            for i in range(start, min(start + batch, rows))
        }
