"""The rows that `ignitetf bench` reads and writes, generated from a fixed seed.

profile -> **columns** -> a data set
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ignitetf import Client, drop_dataset, load_dataset

__all__ = [
    "PROFILES",
    "Columns",
    "Kind",
    "Profile",
    "drop_rows",
    "fill_cache",
    "make_rows",
    "sized",
]

Columns = dict[str, NDArray[Any]]
Kind = Literal["dense", "blobs", "columns", "floats", "wide"]

_SEED: Final = 20
# Rows that are generated and loaded at a time.
_PART_BYTES: Final = 256 << 20
_CITIES: Final = ("Oslo", "Lima", "Ulan Bator", "Addis Ababa", "Rio de Janeiro")


@dataclass(frozen=True)
class Profile:
    """A kind of rows to read.

    Attributes:
        rows: Number of rows.
        row_bytes: Bytes of the values of a row; the mean if rows differ.
        batch: Rows of a batch.
        kind: `dense`: an array of bytes and a label; `blobs`: bytes of half to one and a half times
            `row_bytes`, and a label; `columns`: three numbers and two short texts; `floats`: four
            arrays of float32; `wide`: integers of 4 bytes, and of 1 byte, in 200 columns if a row
            has 761 bytes.
        page_rows: Rows of a page; None uses the reader's default.
    """

    rows: int
    row_bytes: int
    batch: int
    kind: Kind = "dense"
    page_rows: int | None = None

    @property
    def cache(self) -> str:
        """Its cache: one per kind, because the cluster keeps the fields of a type for ever."""
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


def make_rows(profile: Profile, part_bytes: int = _PART_BYTES) -> Iterator[Columns]:
    """Yield the rows as columns, in parts; every call yields the same ones.

    The key of a row is its number, assigned by the load.
    """
    rng = np.random.default_rng(_SEED)
    step = max(1, part_bytes // profile.row_bytes)
    make = _KINDS[profile.kind]
    for start in range(0, profile.rows, step):
        yield make(rng, profile, np.arange(start, min(start + step, profile.rows)))


def _dense(rng: np.random.Generator, profile: Profile, keys: NDArray[np.int64]) -> Columns:
    pixels = rng.integers(0, 256, (len(keys), profile.row_bytes), dtype=np.uint8)
    return {"IMAGE": pixels, "LABEL": (keys % 10).astype(np.int32)}


def _blobs(rng: np.random.Generator, profile: Profile, keys: NDArray[np.int64]) -> Columns:
    half = profile.row_bytes // 2
    images = np.empty(len(keys), object)
    images[:] = [rng.bytes(n) for n in rng.integers(half, 3 * half, len(keys), endpoint=True)]
    return {"IMAGE": images, "LABEL": (keys % 10).astype(np.int32)}


def _columns(rng: np.random.Generator, profile: Profile, keys: NDArray[np.int64]) -> Columns:
    return {
        "AGE": rng.integers(0, 100, len(keys), dtype=np.int32),
        "BALANCE": rng.random(len(keys)),
        "CITY": np.array(_CITIES)[keys % len(_CITIES)],
        "NAME": np.array([f"Customer {key}" for key in keys.tolist()]),
        "VISITS": rng.integers(0, 1 << 40, len(keys), dtype=np.int64),
    }


def _floats(rng: np.random.Generator, profile: Profile, keys: NDArray[np.int64]) -> Columns:
    size = profile.row_bytes // (4 * _FLOAT_FIELDS)
    fields = (rng.random((len(keys), size), np.float32) for _ in range(_FLOAT_FIELDS))
    return {f"FIELD_{number}": values for number, values in enumerate(fields)}


def _wide(rng: np.random.Generator, profile: Profile, keys: NDArray[np.int64]) -> Columns:
    # One byte for one column in 15, so that 761 bytes make 200 columns.
    narrow = max(1, profile.row_bytes // 58)
    wide = (profile.row_bytes - narrow) // 4
    kinds = [np.int8] * narrow + [np.int32] * wide
    return {
        f"C{number:03}": rng.integers(0, np.iinfo(kind).max, len(keys), kind)
        for number, kind in enumerate(kinds)
    }


_FLOAT_FIELDS: Final = 4
_KINDS: Final = {
    "dense": _dense,
    "blobs": _blobs,
    "columns": _columns,
    "floats": _floats,
    "wide": _wide,
}


def fill_cache(
    client: Client, profile: Profile, partitions: int | None = None, cache: str | None = None
) -> None:
    """Load the rows into a cache, replacing the remains of an interrupted run.

    Args:
        client: The cluster.
        profile: The rows.
        partitions: Partitions of the cache; None uses the load's default.
        cache: Its name; None for the profile's own.
    """
    name = profile.cache if cache is None else cache
    drop_rows(client, name)
    for number, part in enumerate(make_rows(profile)):
        mode: Literal["error", "append"] = "append" if number else "error"
        given = None if number else partitions
        load_dataset(part, name, client=client, partitions=given, if_exists=mode)


def drop_rows(client: Client, cache: str) -> None:
    """Remove a cache of rows, and the remains of an interrupted load."""
    drop_dataset(cache, client=client, missing_ok=True)
