"""The rows that `ignitetf bench read` reads, generated from a fixed seed.

profile -> **batches of columns** -> a cache, a TFRecord file, arrays in memory
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import CacheNotFound
from ignitetf.load.journal import drop_journal
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.load.sources.base import Source
from ignitetf.net.client import Client
from ignitetf.tables.catalog import drop_manifest
from ignitetf.tables.removal import remove_cache
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import BYTES, Batch, Column, Field, Schema

__all__ = [
    "PROFILES",
    "Profile",
    "drop_rows",
    "fill_cache",
    "make_rows",
    "schema_of",
    "sized",
    "source_of",
]

_SEED: Final = 20
_BATCH_BYTES: Final = 16 << 20
_LABEL: Final = Field("LABEL", TypeCode.INT, np.dtype("<i4"))
_CITIES: Final = (b"Oslo", b"Lima", b"Ulan Bator", b"Addis Ababa", b"Rio de Janeiro")


@dataclass(frozen=True)
class Profile:
    """Rows to read.

    Attributes:
        rows: Number of rows.
        row_bytes: Bytes of the values of a row; the mean if rows differ.
        batch: Rows of a batch.
        kind: `dense`: an array of bytes and a label; `blobs`: a `tf.string` of half to one and a
            half times `row_bytes`, and a label; `columns`: three numbers and two short texts.
        page_rows: Rows of a page; None leaves that to the reader.
    """

    rows: int
    row_bytes: int
    batch: int
    kind: Literal["dense", "blobs", "columns"] = "dense"
    page_rows: int | None = None

    @property
    def cache(self) -> str:
        """Its cache: one per kind, because the cluster never forgets the fields of a type."""
        return f"IGNITETF_BENCH_READ_{self.kind.upper()}"


# Enough rows for a scan of about half a second: TensorFlow takes some 25 ms to start one.
PROFILES: Final = {
    "mnist": Profile(600_000, 784, 128),
    "100b": Profile(1_000_000, 100, 128),
    "1kb": Profile(500_000, 1_000, 128),
    "10kb": Profile(50_000, 10_000, 128),
    "100kb": Profile(5_000, 100_000, 64),
    "1mb": Profile(1_000, 1_000_000, 16),
    "blobs": Profile(30_000, 20_000, 128, "blobs"),
    "sql": Profile(1_000_000, 43, 128, "columns"),
    # The rows and pages of the benchmark published for the old bridge.
    "partitions": Profile(1_000, 1_000_000, 16, page_rows=20),
}


def sized(profile: Profile, rows: int | None) -> Profile:
    """Return the profile with another number of rows; None leaves it unchanged."""
    return profile if rows is None else replace(profile, rows=rows)


def schema_of(profile: Profile) -> Schema:
    """Return the schema of the rows."""
    if profile.kind == "columns":
        fields: tuple[Field, ...] = (
            Field("AGE", TypeCode.INT, np.dtype("<i4")),
            Field("BALANCE", TypeCode.DOUBLE, np.dtype("<f8")),
            Field("CITY", TypeCode.STRING, BYTES),
            Field("NAME", TypeCode.STRING, BYTES),
            Field("VISITS", TypeCode.LONG, np.dtype("<i8")),
        )
    elif profile.kind == "blobs":
        fields = (Field("IMAGE", TypeCode.BYTE_ARRAY, BYTES), _LABEL)
    else:
        shape = (profile.row_bytes,)
        fields = (Field("IMAGE", TypeCode.BYTE_ARRAY, np.dtype("u1"), shape), _LABEL)
    return Schema("BenchRow", Field("key", TypeCode.LONG, np.dtype("<i8")), fields)


def make_rows(profile: Profile) -> Iterator[Batch]:
    """Yield the rows in batches of about 16 MB; every call yields the same ones."""
    rng = np.random.default_rng(_SEED)
    step = max(1, _BATCH_BYTES // profile.row_bytes)
    make = {"dense": _dense, "blobs": _blobs, "columns": _columns}[profile.kind]
    for start in range(0, profile.rows, step):
        keys = np.arange(start, min(start + step, profile.rows), dtype=np.int64)
        yield Batch(Column(keys), make(rng, profile, keys))


def _dense(rng: Any, profile: Profile, keys: NDArray[np.int64]) -> dict[str, Column]:
    pixels = rng.integers(0, 256, (len(keys), profile.row_bytes), dtype=np.uint8)
    return {"IMAGE": Column(pixels), "LABEL": Column((keys % 10).astype(np.int32))}


def _blobs(rng: Any, profile: Profile, keys: NDArray[np.int64]) -> dict[str, Column]:
    half = profile.row_bytes // 2
    lengths = rng.integers(half, 3 * half, len(keys), endpoint=True)
    values = rng.integers(0, 256, int(lengths.sum()), dtype=np.uint8)
    return {"IMAGE": _texts(values, lengths), "LABEL": Column((keys % 10).astype(np.int32))}


def _columns(rng: Any, profile: Profile, keys: NDArray[np.int64]) -> dict[str, Column]:
    cities = [_CITIES[key % len(_CITIES)] for key in keys.tolist()]
    names = [b"Customer %d" % key for key in keys.tolist()]
    return {
        "AGE": Column(rng.integers(0, 100, len(keys), dtype=np.int32)),
        "BALANCE": Column(rng.random(len(keys))),
        "CITY": _joined(cities),
        "NAME": _joined(names),
        "VISITS": Column(rng.integers(0, 1 << 40, len(keys), dtype=np.int64)),
    }


def _joined(items: list[bytes]) -> Column:
    lengths = np.fromiter(map(len, items), np.int64, len(items))
    return _texts(np.frombuffer(b"".join(items), np.uint8), lengths)


def _texts(values: NDArray[np.uint8], lengths: NDArray[np.int64]) -> Column:
    ends = np.cumsum(lengths, dtype=np.int64)
    return Column(values, ends - lengths, lengths)


def source_of(profile: Profile, batches: Callable[[], Iterable[Batch]]) -> Source:
    """Return a profile's rows as a source, with a fixed fingerprint: hashing all rows takes time.

    Args:
        profile: The rows.
        batches: Yields them anew on each call.
    """
    return open_source(
        "records", batches, schema=schema_of(profile), rows=profile.rows, fingerprint="bench"
    )


def fill_cache(client: Client, profile: Profile, partitions: int) -> None:
    """Load the rows into their cache, replacing what an interrupted run left of it."""
    drop_rows(client, profile.cache)
    source = source_of(profile, lambda: make_rows(profile))
    load_dataset(source, profile.cache, client=client, partitions=partitions)


def drop_rows(client: Client, cache: str) -> None:
    """Remove a cache of rows, its manifest, and the journal of an interrupted load."""
    with contextlib.suppress(CacheNotFound):
        remove_cache(client, cache)
    drop_manifest(client, cache)
    drop_journal(client, cache)
