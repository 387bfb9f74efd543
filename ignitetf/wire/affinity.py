"""Computes the partitions of whole columns of keys.

Only keys of fixed types and strings are supported; for other keys the functions return None. Do not
use this for a cache with its own affinity function; for such a cache the cluster returns an empty
partition map.

Source: Apache Ignite 2.17.0, `RendezvousAffinityFunction.calculatePartition`,
`GridCacheUtils`; `hashCode` of java.lang.Long, Integer, Double, String, java.util.UUID.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.wire.codes import TypeCode, java_hash
from ignitetf.wire.columns import Batch, Column, Dense, Runs, Struct
from ignitetf.wire.datatypes import FIXED_DTYPE, INTEGERS
from ignitetf.wire.encode import encode_entries
from ignitetf.wire.encoders import dense_values, stored_times
from ignitetf.wire.schema import Field, Schema
from ignitetf.wire.zones import Zone

__all__ = ["key_hashes", "partitions_of"]


def partitions_of(schema: Schema, keys: Column, count: int) -> NDArray[np.int32] | None:
    """Return each key's partition in a cache of `count` partitions, or None if unsupported."""
    hashes = key_hashes(schema, keys)
    if hashes is None:
        return None
    bits = hashes.view(np.uint32)
    if count & (count - 1) == 0:
        return ((bits ^ (bits >> np.uint32(16))) & np.uint32(count - 1)).astype(np.int32)
    # In Java Math.abs of the smallest int is negative, which Ignite treats as partition 0.
    rest = np.fmod(hashes.astype(np.int64), count)
    return np.abs(rest).astype(np.int32)


def key_hashes(schema: Schema, keys: Column) -> NDArray[np.int32] | None:
    """Return Java's `hashCode` of each key or its affinity field, or None if unsupported."""
    field = schema.key
    if field.type is not TypeCode.OBJECT:
        return _scalar_hashes(field, keys, schema.zone)
    if not isinstance(keys, Struct) or schema.key_type_name is None:
        return None  # without the type, the stored bytes of the objects cannot be reproduced
    if schema.affinity_key is not None:
        for part in field.fields:
            if part.name.lower() == schema.affinity_key.lower():
                return _scalar_hashes(part, keys.fields[part.name], schema.zone)
        return None
    return _object_hashes(schema, keys)


def _object_hashes(schema: Schema, keys: Column) -> NDArray[np.int32]:
    """Return the hash code in the header of each key object."""
    if not len(keys):
        return np.empty(0, np.int32)
    dummy = Field("val", TypeCode.BYTE, np.dtype("i1"))
    plain = Schema(None, schema.key, (dummy,), key_type_name=schema.key_type_name, zone=schema.zone)
    column = Dense(np.zeros(len(keys), np.int8))
    page = encode_entries(plain, Batch(keys, {"val": column}))
    starts = np.concatenate(([0], page.ends[:-1])).astype(np.int64)
    codes: NDArray[np.int32] = page.data[starts[:, None] + np.arange(8, 12)].view("<i4")[:, 0]
    return codes


def _scalar_hashes(field: Field, column: Column, zone: Zone) -> NDArray[np.int32] | None:
    if column.valid is not None and not column.valid.all():
        return None
    if field.type is TypeCode.STRING and isinstance(column, Runs):
        return np.array([java_hash(item.decode()) for item in column.to_bytes()], np.int32)
    if not isinstance(column, Dense):
        return None
    if field.has_times:
        column = stored_times(field, column, zone)
    return _number_hashes(field.type, dense_values(column))


def _number_hashes(code: TypeCode, values: NDArray[Any]) -> NDArray[np.int32] | None:
    if code is TypeCode.UUID and values.ndim == 2:
        return _fold(values[:, 0] ^ values[:, 1])
    if values.ndim != 1:
        return None
    stored = FIXED_DTYPE.get(code)
    if stored == np.int64:
        return _fold(values.astype(np.int64).view(np.uint64))
    if code in INTEGERS and values.dtype.kind == "i":
        return values.astype(np.int32)
    if stored == np.float64:
        return _fold(np.ascontiguousarray(values, np.float64).view(np.uint64))
    return None


def _fold(bits: NDArray[np.uint64]) -> NDArray[np.int32]:
    return (bits ^ (bits >> np.uint64(32))).astype(np.uint32).view(np.int32)
