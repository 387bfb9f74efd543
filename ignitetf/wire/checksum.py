"""A checksum of records that does not depend on their order or storage layout.

Each record has a 64-bit hash of its key and fields, and the checksum of a set is their sum modulo
2^64. Hashes are computed from columns, so a source, a cache of rows and a cache of blocks with the
same records all have the same checksum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.wire.codes import TypeCode, java_hash_lower
from ignitetf.wire.datatypes import INTEGERS, TIME_UNIT
from ignitetf.wire.encoders import as_bytes, ordered_runs
from ignitetf.wire.hashing import RowHashes, mix, row_hash_rows, row_hash_runs
from ignitetf.wire.schema import Batch, Column, Field, Schema

__all__ = ["batch_hashes", "checksum", "marks_of"]

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
    """Return a number for each key of a cache that no other key has: itself, or a 64-bit hash.

    It does not depend on the name of the key.
    """
    if schema.key.type in INTEGERS and isinstance(keys.values, np.ndarray):
        return keys.values.astype(np.int64).view(np.uint64)
    return batch_hashes(Schema(None, replace(schema.key, name=""), ()), Batch(keys))


def _salted(field: Field, column: Column, known: RowHashes) -> NDArray[np.uint64]:
    """Hashes of one field, salted so that swapping values between fields changes them."""
    salt = (java_hash_lower(field.name) * _SPREAD) & _MASK
    hashes = mix(_hashes(field, column, known), salt)
    if column.valid is not None:
        hashes = np.where(column.valid, hashes, mix(_NULL, salt))
    return hashes


def _hashes(field: Field, column: Column, known: RowHashes) -> NDArray[np.uint64]:
    values = column.values
    if isinstance(values, dict):
        total = np.zeros(len(column), np.uint64)
        for inner in field.fields:
            total = total + _salted(inner, values[inner.name], known)
        return total
    if column.starts is None:
        assert isinstance(values, np.ndarray)
        rows = as_bytes(_canonical(field, values))
        found = known.get((rows.ctypes.data, *rows.shape)) if known else None
        return row_hash_rows(rows) if found is None else found
    assert column.lengths is not None
    if isinstance(values, Column):
        return _nested_hashes(field, column, values)
    flat, starts, lengths = ordered_runs(_canonical(field, values), column.starts, column.lengths)
    return row_hash_runs(flat, starts, lengths)


def _nested_hashes(field: Field, column: Column, inner: Column) -> NDArray[np.uint64]:
    """Hash each inner object, and then the runs of those hashes."""
    assert column.starts is not None and column.lengths is not None
    element = Field(field.name, TypeCode.STRING, field.dtype, (), True)
    if field.type is not TypeCode.STRING_ARRAY and field.fields:
        element = field.fields[0]
    each = _salted(element, inner, {})
    flat, starts, lengths = ordered_runs(each, column.starts, column.lengths)
    return row_hash_runs(flat, starts, lengths)


def _canonical(field: Field, values: NDArray[Any]) -> NDArray[Any]:
    """Little-endian values of the field's dtype; times as the integers that a read returns."""
    if values.dtype.kind == "M":
        return values.astype(f"M8[{TIME_UNIT.get(field.type, 'ms')}]").view(np.int64)
    if values.dtype.kind == "m":
        return values.astype("m8[ms]").view(np.int64)
    if values.dtype.names is not None:
        # Of a time that nanoseconds cannot count, what is left of them: whatever batch it is in.
        nanoseconds: NDArray[Any] = values["ms"] * _NS_PER_MS + values["ns"]
        return nanoseconds
    if field.dtype.kind == "O":
        return values
    if field.type in TIME_UNIT:
        return values.astype("<i8", copy=False)
    kind = field.dtype.newbyteorder("<") if field.dtype.itemsize > 1 else field.dtype
    return values if values.dtype == kind else values.astype(kind)
