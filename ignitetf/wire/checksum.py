"""A checksum of records that does not depend on their order or storage layout.

Each record has a 64-bit hash of its key and fields, and the checksum of a set is their sum modulo
2^64. Hashes are computed from columns, so a source, a cache of rows and a cache of blocks with the
same records all have the same checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import ignitetf._core._native as core
from ignitetf.wire.codes import TypeCode, java_hash_lower
from ignitetf.wire.columns import Batch, Column, Dense, Runs, Struct
from ignitetf.wire.datatypes import INTEGERS, TIME_UNIT
from ignitetf.wire.encoders import as_bytes, ordered_runs
from ignitetf.wire.schema import Field, Schema

__all__ = [
    "RowHashes",
    "batch_hashes",
    "both_hashes",
    "checksum",
    "hash_joined",
    "hash_rows",
    "hash_runs",
    "marks_of",
    "mix",
    "row_hash_rows",
    "row_hash_runs",
]

_Bytes = NDArray[np.uint8]
_Positions = NDArray[np.int64]
# Known row hashes by address, number and width of the rows.
RowHashes = dict[tuple[int, int, int], NDArray[np.uint64]]

_JAVA: Final = np.uint32(31)


def hash_rows(rows: _Bytes) -> NDArray[np.uint32]:
    """Compute Java's `31 * h + b`, starting at 1, over the signed bytes of each row.

    Args:
        rows: Shape [n, m]; rows may be strided, but the bytes of each must be contiguous.

    Returns:
        Shape [n]; view it as int32 for Java's value.
    """
    out = np.empty(len(rows), np.uint32)
    core.hash_rows(rows, out)
    return out


def hash_runs(flat: _Bytes, starts: _Positions, lengths: _Positions) -> NDArray[np.uint32]:
    """Like `hash_rows`, for runs `flat[starts[i] : starts[i] + lengths[i]]`.

    Raises:
        ValueError: A run is not inside `flat`.
    """
    out = np.empty(len(starts), np.uint32)
    core.hash_runs(flat, _positions(starts), _positions(lengths), out)
    return out


def hash_joined(
    pieces: Sequence[tuple[NDArray[np.uint32], int | _Positions]],
) -> NDArray[np.uint32]:
    """Combine the hash codes of the pieces of n rows.

    Args:
        pieces: At least one piece, in order: its hash codes as returned by `hash_runs`, uint32 [n],
            and its length in bytes, for all rows or for each, int64 [n].

    Returns:
        Shape [n].
    """
    (codes, _), *others = pieces
    for more, lengths in others:
        power = np.power(_JAVA, np.uint32(lengths))
        codes = codes * power + (more - power)
    return codes


def row_hash_rows(rows: _Bytes) -> NDArray[np.uint64]:
    """Compute a 64-bit hash of each row for checksums; rows as for `hash_rows`.

    Changing a single byte always changes the hash; other changes escape with probability 2^-64.
    """
    out = np.empty(len(rows), np.uint64)
    core.row_hash_rows(rows, out)
    return out


def row_hash_runs(flat: _Bytes, starts: _Positions, lengths: _Positions) -> NDArray[np.uint64]:
    """Like `row_hash_rows`, for runs as in `hash_runs`."""
    out = np.empty(len(starts), np.uint64)
    core.row_hash_runs(flat, _positions(starts), _positions(lengths), out)
    return out


def both_hashes(rows: _Bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """Compute `hash_rows` and `row_hash_rows` in one pass over the rows."""
    codes, hashes = np.empty(len(rows), np.uint32), np.empty(len(rows), np.uint64)
    core.both_hashes(rows, codes, hashes)
    return codes, hashes


def mix(values: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """Spread every bit of `values ^ salt` over all bits, so that differences do not cancel in sums."""
    given = np.ascontiguousarray(values, np.uint64)
    out = np.empty(given.shape, np.uint64)
    core.mix(given, salt, out)
    return out


def _positions(values: Any) -> _Positions:
    return np.ascontiguousarray(values, np.int64)


_MASK: Final = (1 << 64) - 1
_SPREAD: Final = 0x9E3779B97F4A7C15
_NS_PER_MS: Final = 1_000_000
_NULL: Final = np.array([0xD6E8FEB86659FD93], np.uint64)


def checksum(schema: Schema, batch: Batch, known: RowHashes | None = None) -> int:
    """Return the sum of the records' hashes modulo 2^64; checksums of parts can be added up."""
    return int(batch_hashes(schema, batch, known).sum(dtype=np.uint64))


def batch_hashes(
    schema: Schema, batch: Batch, known: RowHashes | None = None
) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each record, over its key and all fields of the schema.

    Args:
        schema: The fields.
        batch: The records.
        known: Hashes computed earlier, of memory that has not been freed since.

    Returns:
        Shape [n].
    """
    assert batch.key is not None
    total = _salted(schema.key, batch.key, {})
    for field in schema.fields:
        total = total + _salted(field, batch.columns[field.name], known or {})
    return mix(total, 0)


def marks_of(schema: Schema, keys: Column) -> NDArray[np.uint64]:
    """Return a number that identifies each key of a cache: the key itself, or a 64-bit hash.

    It does not depend on the name of the key field.
    """
    if schema.key.type in INTEGERS and isinstance(keys, Dense):
        return keys.values.astype(np.int64).view(np.uint64)
    return batch_hashes(Schema(None, replace(schema.key, name=""), ()), Batch(keys))


def _salted(field: Field, column: Column, known: RowHashes) -> NDArray[np.uint64]:
    """Return the hashes of one field, salted so that swapping values of fields changes them."""
    salt = (java_hash_lower(field.name) * _SPREAD) & _MASK
    hashes = mix(_hashes(field, column, known), salt)
    if column.valid is not None:
        hashes = np.where(column.valid, hashes, mix(_NULL, salt))
    return hashes


def _hashes(field: Field, column: Column, known: RowHashes) -> NDArray[np.uint64]:
    if isinstance(column, Struct):
        total = np.zeros(len(column), np.uint64)
        for inner in field.fields:
            total = total + _salted(inner, column.fields[inner.name], known)
        return total
    if isinstance(column, Dense):
        rows = as_bytes(_canonical(field, column.values))
        found = known.get((rows.ctypes.data, *rows.shape)) if known else None
        return row_hash_rows(rows) if found is None else found
    assert isinstance(column, Runs)
    if not isinstance(column.items, Dense):
        return _nested_hashes(field, column)
    values = _canonical(field, column.items.values)
    flat, starts, lengths = ordered_runs(values, column.starts, column.lengths)
    return row_hash_runs(flat, starts, lengths)


def _nested_hashes(field: Field, column: Runs) -> NDArray[np.uint64]:
    """Hash each inner object, then return the hashes of the runs of the hashes."""
    element = Field(field.name, TypeCode.STRING, field.dtype, (), True)
    if field.type is not TypeCode.STRING_ARRAY and field.fields:
        element = field.fields[0]
    each = _salted(element, column.items, {})
    flat, starts, lengths = ordered_runs(each, column.starts, column.lengths)
    return row_hash_runs(flat, starts, lengths)


def _canonical(field: Field, values: NDArray[Any]) -> NDArray[Any]:
    """Return little-endian values of the field's dtype; times as integers, as in a read."""
    if values.dtype.kind == "M":
        return values.astype(f"M8[{TIME_UNIT.get(field.type, 'ms')}]").view(np.int64)
    if values.dtype.kind == "m":
        return values.astype("m8[ms]").view(np.int64)
    if values.dtype.names is not None:
        # A time beyond the range of nanoseconds overflows, in the same way in every batch.
        nanoseconds: NDArray[Any] = values["ms"] * _NS_PER_MS + values["ns"]
        return nanoseconds
    if field.dtype.kind == "O":
        return values
    if field.type in TIME_UNIT:
        return values.astype("<i8", copy=False)
    kind = field.dtype.newbyteorder("<") if field.dtype.itemsize > 1 else field.dtype
    return values if values.dtype == kind else values.astype(kind)
