"""Find entries and fields in a page: where everything stands, no values yet.

frames -> **objects** -> columns -> tensors

A page is uint8 `[nbytes]`; what is found are positions in it, int64. All positions are checked
against the end of the page before they are used, so that a damaged page raises WireError and
nothing else. Entries are found by a loop over their lengths, in C where pages have many (walk.py);
everything inside them is found for all entries at once.

Source: Apache Ignite 2.17.0, `BinaryObjectImpl`, `BinaryReaderExImpl`, `GridBinaryMarshaller`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import WireError
from ignitetf.wire.codes import ARRAY_ELEMENT, FIXED_SIZE, BinaryFlag, TypeCode
from ignitetf.wire.types import TypeRegistry
from ignitetf.wire.walk import object_positions

__all__ = [
    "Headers",
    "bytes_at",
    "field_positions",
    "find_rows",
    "gather",
    "headers",
    "object_end",
    "unwrap",
]

Positions = NDArray[np.int64]
Bytes = NDArray[np.uint8]

HEADER_BYTES: Final = 24
# Nested deeper than this is taken for an attack on the stack.
_MAX_DEPTH: Final = 64
_INT32 = struct.Struct("<i")
_FIXED: Final = {int(code): size for code, size in FIXED_SIZE.items()}
_ARRAY: Final = {int(code): dtype.itemsize for code, dtype in ARRAY_ELEMENT.items()}
_OBJECT_ARRAYS: Final = frozenset(
    int(c)
    for c in (
        TypeCode.STRING_ARRAY,
        TypeCode.UUID_ARRAY,
        TypeCode.DATE_ARRAY,
        TypeCode.TIMESTAMP_ARRAY,
        TypeCode.TIME_ARRAY,
        TypeCode.DECIMAL_ARRAY,
    )
)


def gather(data: Bytes, at: Positions, dtype: np.dtype[Any] | str) -> NDArray[Any]:
    """Values of one dtype standing at these positions (unaligned), a copy.

    Raises:
        WireError: A value would reach beyond the page.
    """
    kind = np.dtype(dtype)
    check_bounds(data, at, kind.itemsize)
    return _anywhere(data, kind)[at] if len(at) else np.empty(0, kind)


def bytes_at(data: Bytes, at: Positions, size: int) -> Bytes:
    """`size` bytes from each position, shape [n, size], a copy; positions must be in bounds."""
    if size == 0 or len(at) == 0:
        return np.empty((len(at), size), np.uint8)
    # One void of `size` bytes is copied at once, `size` single bytes take three times as long.
    return _anywhere(data, np.dtype((np.void, size)))[at].view(np.uint8).reshape(len(at), size)


def _anywhere(data: Bytes, kind: np.dtype[Any]) -> NDArray[Any]:
    """The values of a dtype that begin at each byte of the page: overlapping, unaligned."""
    return np.ndarray((len(data) - kind.itemsize + 1,), kind, data.data, 0, (1,))


def check_bounds(data: Bytes, at: Positions, size: int | Positions) -> None:
    """Raise WireError unless `size` bytes from each position are inside the page."""
    if len(at) == 0:
        return
    if int(at.min()) < 0 or int((at + size).max()) > len(data):
        raise WireError(f"a value reaches beyond the end of the page ({len(data)} bytes)")


def find_rows(data: Bytes, count: int, columns: int = 2) -> list[Positions]:
    """Where the objects of each row begin; rows follow each other and fill the page.

    Args:
        data: The page's bytes.
        count: Rows in it.
        columns: Objects in a row: 2 for entries (key and value).

    Returns:
        One array of `count` positions for each column.

    Raises:
        WireError: The rows do not fill the page exactly, or a length is impossible.
    """
    if count == 0 or columns == 0:
        if len(data):
            raise WireError(f"{len(data)} bytes stand after the last entry")
        return [np.empty(0, np.int64) for _ in range(columns)]
    if len(data) == 0:
        raise WireError(f"an empty page cannot hold {count} entries")
    flat = object_positions(data, count * columns)
    if flat is None and columns == 2 and (found := _wrapped_after_fixed(data, count)) is not None:
        return found
    if flat is None:
        flat = _walk_all(data, count * columns)
    return [flat[i::columns] for i in range(columns)]


def _wrapped_after_fixed(data: Bytes, count: int) -> list[Positions] | None:
    """The usual entries: keys of one fixed size, values wrapped binary objects; else None."""
    size = _FIXED.get(int(data[0]))
    if size is None or len(data) <= size + 5 or data[size] != TypeCode.WRAPPED:
        return None
    unpack, at, length_at, rest = _INT32.unpack_from, 0, size + 1, size + 9
    starts = [0] * count
    view = memoryview(data)  # type: ignore[arg-type]
    try:
        for i in range(count):
            starts[i] = at
            at += rest + unpack(view, at + length_at)[0]
    except struct.error:
        return None
    begin = np.array(starts, np.int64)
    if at != len(data) or int(begin.min()) < 0:
        return None
    ends = np.append(begin[1:], at)
    alike = (data[begin] == data[0]) & (data[begin + size] == TypeCode.WRAPPED)
    if not alike.all() or ((ends - begin) < rest).any():
        return None
    return [begin, begin + size]


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
        raise WireError(f"{len(data) - at} bytes stand after the last entry")
    return np.array(starts, np.int64)


def object_end(view: memoryview, at: int) -> int:
    """Where the object at `at` ends; IndexError, struct.error or WireError where it cannot."""
    return _skip(view, at, 0)


def _skip(view: memoryview, at: int, depth: int) -> int:
    """Where the object at `at` ends."""
    code = view[at]
    if (size := _FIXED.get(code)) is not None:
        return _inside(view, at + size)
    if depth > _MAX_DEPTH:
        raise WireError(f"objects nested more than {_MAX_DEPTH} deep")
    if code == TypeCode.HANDLE:
        return _inside(view, at + 5)
    if code == TypeCode.OBJECT:
        length = _length(view, at + 12)
        if length < HEADER_BYTES:
            raise WireError(f"binary object of {length} bytes")
        return _inside(view, at + length)
    if code == TypeCode.DECIMAL:
        return _inside(view, at + 9 + _length(view, at + 5))
    if code == TypeCode.STRING or code in _ARRAY:
        return _inside(view, at + 5 + _length(view, at + 1) * _ARRAY.get(code, 1))
    if code == TypeCode.WRAPPED:
        return _inside(view, at + 9 + _length(view, at + 1))
    first, count = elements_at(view, at)
    for _ in range(count):
        first = _skip(view, first, depth + 1)
    return first


def elements_at(view: memoryview, at: int) -> tuple[int, int]:
    """First position and number of the objects inside an array of objects, collection or map."""
    code = view[at]
    if code in _OBJECT_ARRAYS:
        return at + 5, _count(view, at + 1)
    if code in (TypeCode.OBJECT_ARRAY, TypeCode.ENUM_ARRAY):
        after = at + 5
        if _INT32.unpack_from(view, at + 1)[0] == 0:
            after = _skip(view, after, 1)  # the class name of a type that is not registered
        return after + 4, _count(view, after)
    if code == TypeCode.COLLECTION:
        return at + 6, _count(view, at + 1)
    if code == TypeCode.MAP:
        return at + 6, 2 * _count(view, at + 1)
    raise WireError(f"unknown type code {code} at byte {at}")


def _inside(view: memoryview, end: int) -> int:
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
        raise WireError(f"{value} elements cannot stand at byte {at}")
    return value


def find_elements(data: Bytes, at: Positions) -> tuple[Positions, Positions]:
    """The objects inside arrays of objects, collections and maps (key, value, key, ...).

    Returns:
        Positions of all elements one after the other, and their number for each of `at`.
    """
    view = memoryview(data)  # type: ignore[arg-type]
    counts = np.zeros(len(at), np.int64)
    found: list[int] = []
    try:
        for i, start in enumerate(at.tolist()):
            where, count = elements_at(view, start)
            counts[i] = count
            for _ in range(count):
                found.append(where)
                where = _skip(view, where, 0)
    except (struct.error, IndexError, RecursionError) as error:
        raise WireError("an array or collection is cut") from error
    return np.array(found, np.int64), counts


def unwrap(data: Bytes, at: Positions) -> Positions:
    """Positions of the objects themselves where they stand wrapped (code 27), or by handle."""
    codes = data[at]
    wrapped = codes == TypeCode.WRAPPED
    if wrapped.any():
        where = at[wrapped]
        lengths = gather(data, where + 1, "<i4").astype(np.int64)
        offsets = gather(data, where + 5 + lengths, "<i4").astype(np.int64)
        if (offsets < 0).any() or (offsets >= np.maximum(lengths, 1)).any():
            raise WireError("a wrapped object begins outside its wrapper")
        at = at.copy()
        at[wrapped] = where + 5 + offsets
        check_bounds(data, at, 1)
        codes = data[at]
    handles = codes == TypeCode.HANDLE
    if handles.any():
        where = at[handles]
        back = gather(data, where + 1, "<i4").astype(np.int64)
        at = at.copy()
        at[handles] = where - back
        check_bounds(data, at, 1)
        if (data[at[handles]] != TypeCode.OBJECT).any():
            raise WireError("a handle leads to no binary object")
    return at


@dataclass(frozen=True)
class Headers:
    """Headers of binary objects, each attribute an array [n].

    `start` and `end` bound the object; `schema_at` is where its footer begins.
    """

    start: Positions
    end: Positions
    flags: NDArray[np.uint16]
    type_id: NDArray[np.int32]
    schema_id: NDArray[np.int32]
    schema_at: Positions


def headers(data: Bytes, at: Positions) -> Headers:
    """Headers of the binary objects (code 103) at these positions.

    Raises:
        WireError: A header is impossible.
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
    data: Bytes, found: Headers, registry: TypeRegistry, field_ids: Iterable[int]
) -> dict[int, Positions]:
    """Where the fields stand in each object; -1 where its schema has no such field.

    Raises:
        UnknownType: A (type id, schema id) the registry does not hold.
        WireError: A footer is impossible.
    """
    n = len(found.start)
    wanted = list(field_ids)
    out = {field: np.full(n, -1, np.int64) for field in wanted}
    for rows, flags, type_id, schema_id in _groups(found):
        if not flags & BinaryFlag.HAS_SCHEMA:
            continue
        part = found.start[rows], found.end[rows], found.schema_at[rows]
        if flags & BinaryFlag.COMPACT_FOOTER:
            order = registry.schema(type_id, schema_id)
            offsets = _compact_footer(data, part, flags, len(order))
        else:
            order, offsets = _full_footer(data, part, flags)
        for field in wanted:
            if field in order:
                out[field][rows] = part[0] + offsets[:, order.index(field)]
    return out


def _groups(found: Headers) -> list[tuple[Any, int, int, int]]:
    """Rows of the same flags, type and schema: (index, flags, type id, schema id)."""
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
