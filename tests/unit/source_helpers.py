"""What the tests of the sources share: real data, small files, whole sources as one batch."""

import struct
from pathlib import Path

import numpy as np
from helpers.needs import missing
from helpers.paths import SHARED_DATA

from ignitetf.load.sources.base import Source
from ignitetf.wire.columns import Batch, Column, Dense, Struct


def real_data(name: str) -> Path:
    """A folder of real data; skips where it is absent, fails in CI."""
    folder = SHARED_DATA / name
    if not folder.is_dir():
        missing(f"the data set {folder} is not on this machine")
    return folder


def idx_bytes(array: np.ndarray) -> bytes:
    """An IDX file of an array."""
    codes = {"|u1": 8, "|i1": 9, ">i2": 0xB, ">i4": 0xC, ">f4": 0xD, ">f8": 0xE}
    big = array.astype(array.dtype.newbyteorder(">"))
    head = bytes([0, 0, codes[big.dtype.str], big.ndim])
    return head + struct.pack(f">{big.ndim}i", *big.shape) + big.tobytes()


def values(column: Column) -> list:
    """The values of a column as Python objects, None for a null."""
    n = len(column)
    if isinstance(column, Struct):
        parts = [values(part) for part in column.fields.values()]
        out = [dict(zip(column.fields, row, strict=True)) for row in zip(*parts, strict=True)]
    elif isinstance(column, Dense):
        out = list(column.values)
    elif not isinstance(column.items, Dense):
        inner = values(column.items)
        out = [
            inner[s : s + k]
            for s, k in zip(column.starts.tolist(), column.lengths.tolist(), strict=True)
        ]
    elif column.values.dtype == np.uint8:
        out = column.to_bytes()
    else:
        out = [
            column.values[s : s + k]
            for s, k in zip(column.starts.tolist(), column.lengths.tolist(), strict=True)
        ]
    if column.valid is None:
        return out
    return [out[i] if column.valid[i] else None for i in range(n)]


def everything(source: Source, start: int = 0, max_bytes: int = 4 << 20) -> dict[str, list]:
    """All records of a source as lists of values, the keys under `key`."""
    out: dict[str, list] = {"key": [], **{name: [] for name in source.schema.names}}
    for batch in source.batches(start, max_bytes=max_bytes):
        assert set(batch.columns) == set(source.schema.names)
        assert all(len(column) == len(batch) for column in batch.columns.values())
        out["key"] += values(batch.key)
        for name, column in batch.columns.items():
            out[name] += values(column)
    return out


def same(left: dict[str, list], right: dict[str, list]) -> bool:
    """Whether two results of `everything` are equal."""
    if left.keys() != right.keys():
        return False
    return all(
        len(left[name]) == len(right[name])
        and all(_equal(a, b) for a, b in zip(left[name], right[name], strict=True))
        for name in left
    )


def _equal(a: object, b: object) -> bool:
    if a is None or b is None:
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(np.array_equal(a, b))


def check_resume(source: Source, max_bytes: int = 64) -> None:
    """From every position that the source passes, the rest follows, in batches of any size."""
    whole = everything(source, max_bytes=max_bytes)
    stops = [(0, 0)]
    done = 0
    for batch in source.batches(max_bytes=max_bytes):
        done += len(batch)
        stops.append((source.position, done))
    for position, count in stops:
        expected = {name: column[count:] for name, column in whole.items()}
        for size in (max_bytes, 4 << 20):
            assert same(everything(source, start=position, max_bytes=size), expected)


def batch_sizes(source: Source, max_bytes: int) -> list[int]:
    """Bytes of every batch."""
    return [batch.nbytes for batch in source.batches(max_bytes=max_bytes)]


__all__ = [
    "Batch",
    "batch_sizes",
    "check_resume",
    "everything",
    "idx_bytes",
    "real_data",
    "same",
    "values",
]
