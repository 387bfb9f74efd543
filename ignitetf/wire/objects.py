"""Finds the positions of entries and elements in a page, without reading values.

frames -> **objects** -> columns -> tensors

A page is uint8 `[nbytes]`, and positions in it are int64. All positions are checked against the end
of the page before use, so that a damaged page can only raise WireError. Entries are found by a loop
over their lengths, in C (`_core/objects.c`). Fields inside the entries are found for all entries at
once.

Source: Apache Ignite 2.17.0, `BinaryObjectImpl`, `BinaryReaderExImpl`, `GridBinaryMarshaller`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf._core._native import object_starts
from ignitetf.errors import WireError
from ignitetf.wire.codes import BinaryFlag, TypeCode, java_hash_lower
from ignitetf.wire.datatypes import DATA_TYPES, FIXED_SIZE, Family, types_of
from ignitetf.wire.types import TypeRegistry

__all__ = [
    "HEADER_BYTES",
    "TREES",
    "Headers",
    "bytes_at",
    "check_bounds",
    "extents",
    "field_positions",
    "find_elements",
    "find_rows",
    "follow",
    "full_fields",
    "gather",
    "headers",
    "object_end",
    "object_positions",
    "unwrap",
]


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


def full_fields(data: Bytes, found: Headers, row: int) -> tuple[int, ...]:
    """Return the ids of the fields of an object, from its full footer."""
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
        raise WireError("a field begins outside its binary object")
    return offsets


_CODES: Final = 256


def object_positions(data: NDArray[np.uint8], count: int) -> NDArray[np.int64] | None:
    """Return the positions of `count` adjacent objects that fill the page.

    Args:
        data: The page's bytes, contiguous.
        count: Number of objects in it.

    Returns:
        int64 `[count]`, in bytes from the beginning of the page; None if they do not fill it.
    """
    starts = np.empty(count, np.int64)
    return starts if object_starts(data, count, extents(), starts) else None


@functools.cache
def extents() -> NDArray[np.int32]:
    """Return the `Extent` of each type code as the core expects it; int32 `[256, 5]`."""
    table = np.zeros((_CODES, 5), np.int32)
    for code, row in DATA_TYPES.items():
        if (end := row.extent) is not None:
            table[code] = end.head, end.unit, end.objects, end.count_at, end.class_id
    return table


Positions = NDArray[np.int64]
Bytes = NDArray[np.uint8]

HEADER_BYTES: Final = 24
# Deeper nesting is treated as an attack on the stack.
_MAX_DEPTH: Final = 64
_INT32 = struct.Struct("<i")
_FIXED: Final = {int(code): size for code, size in FIXED_SIZE.items()}
_COUNTED: Final = {
    int(code): row.extent
    for code, row in DATA_TYPES.items()
    if row.extent is not None and row.extent.count_at
}
# By type code: size of the head, bytes per counted item, position of the count.
_RUN: Final = {
    code: (extent.head, extent.unit, extent.count_at)
    for code, extent in _COUNTED.items()
    if not extent.objects
}
_HOLDER: Final = {code: extent for code, extent in _COUNTED.items() if extent.objects}
# End of the class id, unless a name follows; the count is stored after both.
_CLASS_ID_END: Final = 5
# Types that a handle can refer to.
_REFERABLE: Final = types_of(Family.OBJECT, Family.LIST, Family.MAP)
# Type ids of binary objects whose raw data are the elements of a sorted collection. Clients write
# their type names with or without the package.
TREES: Final = {
    java_hash_lower(f"{package}BinaryTree{kind}"): code
    for package in ("", "org.apache.ignite.internal.binary.")
    for kind, code in (("Set", TypeCode.COLLECTION), ("Map", TypeCode.MAP))
}
# Only references can yield more elements than a page has bytes. More than this is not real data.
_MOST_SHARED: Final = 1 << 22


def gather(data: Bytes, at: Positions, dtype: np.dtype[Any] | str) -> NDArray[Any]:
    """Return the values of one dtype at these (unaligned) positions, a copy.

    Raises:
        WireError: A value would reach beyond the page.
    """
    kind = np.dtype(dtype)
    check_bounds(data, at, kind.itemsize)
    return _values_at_all_bytes(data, kind)[at] if len(at) else np.empty(0, kind)


def bytes_at(data: Bytes, at: Positions, size: int) -> Bytes:
    """Return `size` bytes from each position, [n, size], a copy; positions must be in bounds."""
    if size == 0 or len(at) == 0:
        return np.empty((len(at), size), np.uint8)
    # Copying one void of `size` bytes is three times faster than copying `size` single bytes.
    return (
        _values_at_all_bytes(data, np.dtype((np.void, size)))[at]
        .view(np.uint8)
        .reshape(len(at), size)
    )


def _values_at_all_bytes(data: Bytes, kind: np.dtype[Any]) -> NDArray[Any]:
    """Return the values of a dtype at each byte of the page: overlapping, unaligned."""
    return np.ndarray((len(data) - kind.itemsize + 1,), kind, data.data, 0, (1,))


def check_bounds(data: Bytes, at: Positions, size: int | Positions) -> None:
    """Raise WireError unless `size` bytes from each position are inside the page."""
    if len(at) == 0:
        return
    if int(at.min()) < 0 or int((at + size).max()) > len(data):
        raise WireError(f"a value reaches beyond the end of the page ({len(data)} bytes)")


def find_rows(data: Bytes, count: int, columns: int = 2) -> list[Positions]:
    """Return where the objects of each row begin; the rows must fill the page exactly.

    Args:
        data: The page's bytes.
        count: Number of rows in it.
        columns: Number of objects in a row; 2 for entries (key and value).

    Returns:
        One array of `count` positions for each column.

    Raises:
        WireError: The rows do not fill the page exactly, or a length is invalid.
    """
    if count == 0 or columns == 0:
        if len(data):
            raise WireError(f"{len(data)} bytes follow the last entry")
        return [np.empty(0, np.int64) for _ in range(columns)]
    if len(data) == 0:
        raise WireError(f"an empty page cannot hold {count} entries")
    flat = object_positions(data, count * columns)
    if flat is None:
        flat = _walk_all(data, count * columns)  # raises an error that explains the damage
    return [flat[i::columns] for i in range(columns)]


def _walk_all(data: Bytes, count: int) -> Positions:
    view = memoryview(data)  # type: ignore[arg-type]
    starts, at = [0] * count, 0
    try:
        for i in range(count):
            starts[i] = at
            at = _skip(view, at, 0)
    except (struct.error, IndexError, RecursionError) as error:
        raise WireError(f"the page is cut within object {i} of {count}") from error
    if at != len(data):
        raise WireError(f"{len(data) - at} bytes follow the last entry")
    return np.array(starts, np.int64)


def object_end(view: memoryview, at: int) -> int:
    """Return where the object at `at` ends; IndexError, struct.error or WireError if damaged."""
    return _skip(view, at, 0)


def _skip(view: memoryview, at: int, depth: int) -> int:
    """Return where the object at `at` ends."""
    code = view[at]
    if (size := _FIXED.get(code)) is not None:
        return _checked_end(view, at + size)
    if depth > _MAX_DEPTH:
        raise WireError(f"objects nested more than {_MAX_DEPTH} deep")
    if (run := _RUN.get(code)) is not None:
        head, unit, count_at = run
        return _checked_end(view, at + head + _length(view, at + count_at) * unit)
    if code == TypeCode.OBJECT:
        length = _length(view, at + 12)
        if length < HEADER_BYTES:
            raise WireError(f"binary object of {length} bytes")
        return _checked_end(view, at + length)
    if code == TypeCode.CLASS:
        return _skip_class(view, at + 1)
    if code == TypeCode.PROXY:
        first = at + 5
        for _ in range(_count(view, at + 1)):
            first = _skip_class(view, first)
        return _skip(view, first, depth + 1)
    first, count = elements_at(view, at)
    for _ in range(count):
        first = _skip(view, first, depth + 1)
    return first


def elements_at(view: memoryview, at: int) -> tuple[int, int]:
    """Return position and number of the objects inside an array of objects, collection or map."""
    code = view[at]
    if (holder := _HOLDER.get(code)) is None:
        if code == TypeCode.OBJECT:
            return _tree_elements(view, at)
        raise WireError(f"unknown type code {code} at byte {at}")
    if holder.class_id:
        at = _skip_class(view, at + 1) - _CLASS_ID_END
    return at + holder.head, holder.objects * _count(view, at + holder.count_at)


def _tree_elements(view: memoryview, at: int) -> tuple[int, int]:
    """`elements_at` for a TreeSet or TreeMap; its raw data are comparator, size and elements."""
    type_id = _INT32.unpack_from(view, at + 4)[0]
    if type_id not in TREES:
        raise WireError(f"an object of type {type_id} has no elements")
    after = _skip(view, at + _length(view, at + 20), 1)
    return after + 4, _count(view, after) * (2 if TREES[type_id] == TypeCode.MAP else 1)


def _skip_class(view: memoryview, at: int) -> int:
    """Return where the class id ends, including the name that follows if it is unregistered."""
    number: int = _INT32.unpack_from(view, at)[0]
    if number:
        return at + 4
    if view[at + 4] != TypeCode.STRING:
        raise WireError(f"a class without id or name at byte {at}")
    return _skip(view, at + 4, 1)


def _checked_end(view: memoryview, end: int) -> int:
    if end > len(view):
        raise IndexError("object beyond the end of the page")
    return end


def _length(view: memoryview, at: int) -> int:
    value: int = _INT32.unpack_from(view, at)[0]
    if value < 0:
        raise WireError(f"length {value} at byte {at}")
    return value


def _count(view: memoryview, at: int) -> int:
    value = _length(view, at)
    if value > len(view) - at:
        raise WireError(f"{value} elements do not fit at byte {at}")
    return value


def find_elements(data: Bytes, at: Positions) -> tuple[Positions, Positions]:
    """Find the objects inside arrays of objects, collections and maps (key, value, key, ...).

    Returns:
        Positions of all elements in order, and their number for each of `at`.
    """
    view = memoryview(data)  # type: ignore[arg-type]
    counts = np.zeros(len(at), np.int64)
    found: list[int] = []
    try:
        for i, start in enumerate(at.tolist()):
            where, count = elements_at(view, start)
            counts[i] = count
            if len(found) + count > len(view) + _MOST_SHARED:
                raise WireError(f"{len(found) + count} elements do not fit in one page")
            for _ in range(count):
                found.append(where)
                where = _skip(view, where, 0)
    except (struct.error, IndexError, RecursionError) as error:
        raise WireError("an array or collection is cut") from error
    return np.array(found, np.int64), counts


def unwrap(data: Bytes, at: Positions) -> Positions:
    """Return the positions of the objects, inside their wrapper if they have one (code 27)."""
    wrapped = data[at] == TypeCode.WRAPPED
    if wrapped.any():
        where = at[wrapped]
        lengths = gather(data, where + 1, "<i4").astype(np.int64)
        offsets = gather(data, where + 5 + lengths, "<i4").astype(np.int64)
        if (offsets < 0).any() or (offsets >= np.maximum(lengths, 1)).any():
            raise WireError("a wrapped object begins outside its wrapper")
        at = at.copy()
        at[wrapped] = where + 5 + offsets
        check_bounds(data, at, 1)
    return at


def follow(data: Bytes, at: Positions) -> tuple[Positions, NDArray[np.bool_]]:
    """Resolve handles (code 102), which refer to earlier objects in the same record.

    Returns:
        The positions of the objects, and which of them contain the handle itself: a cycle.
    """
    back = gather(data, at + 1, "<i4").astype(np.int64)
    target = at - back
    if (back <= 0).any() or (target < 0).any():
        raise WireError("a handle does not point to an earlier object")
    view = memoryview(data)  # type: ignore[arg-type]
    cyclic = np.zeros(len(at), np.bool_)
    for i, (start, handle) in enumerate(zip(target.tolist(), at.tolist(), strict=True)):
        if view[start] not in _REFERABLE:
            raise WireError("a handle does not point to an object, array, collection or map")
        try:
            cyclic[i] = object_end(view, start) > handle
        except (struct.error, IndexError, RecursionError) as error:
            raise WireError("an object that a handle points to is cut") from error
    return target, cyclic
