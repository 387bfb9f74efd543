"""Locates the fields of binary objects from their headers and footers.

objects -> **fields** -> columns

All objects of a page with the same type and schema are processed at once. All positions are checked
against the bounds of their object before use.

Source: Apache Ignite 2.17.0, `BinaryObjectImpl`, `BinaryReaderExImpl`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import WireError
from ignitetf.wire.codes import BinaryFlag, TypeCode
from ignitetf.wire.objects import HEADER_BYTES, Bytes, Positions, bytes_at, check_bounds
from ignitetf.wire.types import TypeRegistry

__all__ = ["Headers", "compact_fields", "field_positions", "full_fields", "headers"]


@dataclass(frozen=True)
class Headers:
    """The headers of binary objects; each attribute is an array [n].

    `start` and `end` bound the object; `schema_at` is where its footer begins.
    """

    start: Positions
    end: Positions
    flags: NDArray[np.uint16]
    type_id: NDArray[np.int32]
    schema_id: NDArray[np.int32]
    schema_at: Positions


def headers(data: Bytes, at: Positions) -> Headers:
    """Read the headers of the binary objects (code 103) at these positions.

    Raises:
        WireError: A header is invalid.
    """
    check_bounds(data, at, HEADER_BYTES)
    raw = bytes_at(data, at, HEADER_BYTES)
    if len(at) and ((raw[:, 0] != TypeCode.OBJECT) | (raw[:, 1] != 1)).any():
        raise WireError("a binary object does not begin with code 103, version 1")
    numbers = np.ascontiguousarray(raw[:, 4:24]).view("<i4")
    flags = np.ascontiguousarray(raw[:, 2:4]).view("<u2")[:, 0]
    length = numbers[:, 2].astype(np.int64)
    schema_at = np.where(flags & BinaryFlag.HAS_SCHEMA, numbers[:, 4], length).astype(np.int64)
    if ((length < HEADER_BYTES) | (schema_at < HEADER_BYTES) | (schema_at > length)).any():
        raise WireError("a binary object has an impossible length or schema offset")
    check_bounds(data, at, length)
    return Headers(at, at + length, flags, numbers[:, 0], numbers[:, 3], at + schema_at)


def field_positions(
    data: Bytes, found: Headers, registry: TypeRegistry, names: Iterable[str]
) -> dict[str, Positions]:
    """Return the positions of the named fields in each object; -1 if its schema lacks the field.

    Raises:
        UnknownType: The registry lacks a (type id, schema id).
        WireError: A footer is invalid.
    """
    wanted = list(names)
    out = {name: np.full(len(found.start), -1, np.int64) for name in wanted}
    for rows, flags, type_id, schema_id in _groups(found):
        if not flags & BinaryFlag.HAS_SCHEMA:
            continue
        part = found.start[rows], found.end[rows], found.schema_at[rows]
        if flags & BinaryFlag.COMPACT_FOOTER:
            order = registry.schema(type_id, schema_id)
            offsets = _compact_footer(data, part, flags, len(order))
        else:
            order, offsets = _full_footer(data, part, flags)
        for name, field in zip(wanted, registry.field_ids(type_id, wanted), strict=True):
            if field in order:
                out[name][rows] = part[0] + offsets[:, order.index(field)]
    return out


def compact_fields(
    data: Bytes, found: Headers, registry: TypeRegistry
) -> tuple[tuple[int, ...], Positions]:
    """Return ids and offsets of all fields of the first object, whose footer is compact, if any."""
    if not int(found.flags[0]) & BinaryFlag.HAS_SCHEMA:
        return (), np.empty(0, np.int64)
    order = registry.schema(int(found.type_id[0]), int(found.schema_id[0]))
    part = found.start[:1], found.end[:1], found.schema_at[:1]
    return order, _compact_footer(data, part, int(found.flags[0]), len(order))[0]


def full_fields(data: Bytes, found: Headers, row: int) -> tuple[int, ...]:
    """Return the ids of the fields of an object with a full footer, which lists them."""
    one = slice(row, row + 1)
    part = found.start[one], found.end[one], found.schema_at[one]
    return _full_footer(data, part, int(found.flags[row]))[0]


def _groups(found: Headers) -> list[tuple[Any, int, int, int]]:
    """Group rows by flags, type and schema: (index, flags, type id, schema id)."""
    if len(found.start) == 0:
        return []
    same = (
        (found.flags == found.flags[0])
        & (found.type_id == found.type_id[0])
        & (found.schema_id == found.schema_id[0])
    )
    if same.all():
        return [(slice(None), int(found.flags[0]), int(found.type_id[0]), int(found.schema_id[0]))]
    table = np.stack([found.flags.astype(np.int64), found.type_id, found.schema_id], axis=1)
    kinds, which = np.unique(table, axis=0, return_inverse=True)
    which = which.reshape(-1)
    return [
        (np.flatnonzero(which == i), int(k[0]), int(k[1]), int(k[2])) for i, k in enumerate(kinds)
    ]


def _offset_dtype(flags: int) -> np.dtype[Any]:
    if flags & BinaryFlag.OFFSET_ONE_BYTE:
        return np.dtype("u1")
    if flags & BinaryFlag.OFFSET_TWO_BYTES:
        return np.dtype("<u2")
    return np.dtype("<i4")


def _compact_footer(
    data: Bytes, part: tuple[Positions, Positions, Positions], flags: int, count: int
) -> Positions:
    start, end, schema_at = part
    kind = _offset_dtype(flags)
    size = kind.itemsize * count
    if (schema_at + size > end).any():
        raise WireError("the footer of a binary object is shorter than its schema")
    raw = bytes_at(data, schema_at, size)
    return _checked(raw.view(kind).astype(np.int64).reshape(len(start), count), start, schema_at)


def _full_footer(
    data: Bytes, part: tuple[Positions, Positions, Positions], flags: int
) -> tuple[tuple[int, ...], Positions]:
    start, end, schema_at = part
    kind = np.dtype([("id", "<i4"), ("offset", _offset_dtype(flags))])
    raw_bytes = 4 if flags & BinaryFlag.HAS_RAW else 0
    sizes = end - schema_at - raw_bytes
    if (sizes != sizes[0]).any() or sizes[0] < 0 or sizes[0] % kind.itemsize:
        raise WireError("the footer of a binary object has an impossible length")
    table = bytes_at(data, schema_at, int(sizes[0])).view(kind).reshape(len(start), -1)
    ids = table["id"]
    if (ids != ids[0]).any():
        raise WireError("objects of one schema id have different fields")
    return tuple(ids[0].tolist()), _checked(table["offset"].astype(np.int64), start, schema_at)


def _checked(offsets: Positions, start: Positions, schema_at: Positions) -> Positions:
    inside = (offsets >= HEADER_BYTES) & (offsets < (schema_at - start)[:, None])
    if not inside.all():
        raise WireError("a field stands outside its binary object")
    return offsets
