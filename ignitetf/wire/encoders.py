"""Encodes the values of one field for many records at once.

Batch -> **parts** -> encode -> page of entries

A part is made from a column and knows the size of each object. It can fill a matrix with rows of
equal size, or scatter its objects over a flat buffer at given positions. Both write whole columns.

A column of lists is one column of all elements, whose objects follow each other. A map is a list
of pairs. Elements can be any objects, including null.

Source: Apache Ignite 2.17.0, `BinaryWriterExImpl`, `BinaryUtils.doWriteDecimal`,
`BinaryUtils.doReadCollection`, `GridBinaryMarshaller` (kinds of collections and maps).
"""

from __future__ import annotations

import decimal
import math
import struct
import uuid
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Column, Dense, Runs, Struct, copy_runs, in_milliseconds
from ignitetf.wire.datatypes import (
    ARRAY_ELEMENT,
    DATA_TYPES,
    FIXED_DTYPE,
    LIST_ELEMENT,
    Family,
    family_of,
)
from ignitetf.wire.schema import Field
from ignitetf.wire.zones import Zone

__all__ = [
    "LARGE_BYTES",
    "Part",
    "RunsPart",
    "as_bytes",
    "container_part",
    "dense_values",
    "each",
    "enum_part",
    "large_runs",
    "ordered_runs",
    "put_rows",
    "stored_times",
    "value_part",
]

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]

# Values of at least this mean size are sent from their own memory instead of being copied: two more
# buffers in a request cost less than the copy.
LARGE_BYTES: Final = 64 << 10


class Part(Protocol):
    """The encoded objects of one field of n records."""

    @property
    def sizes(self) -> int | Positions:
        """Bytes of every object, or an array if the sizes differ."""

    def fill(self, out: Bytes) -> None:
        """Write the objects into the rows of `out`, shape [n, sizes]; only for equal sizes."""

    def scatter(self, out: Bytes, at: Positions) -> None:
        """Write object i at `out[at[i]]`."""


class FixedPart:
    """Objects of equal size: a common head and bodies of equal length."""

    def __init__(self, head: bytes, body: Bytes) -> None:
        self.head = np.frombuffer(head, np.uint8)
        self.body = body

    @property
    def sizes(self) -> int:
        """Bytes of every object."""
        return len(self.head) + int(self.body.shape[1])

    def fill(self, out: Bytes) -> None:
        """See `Part`."""
        out[:, : len(self.head)] = self.head
        out[:, len(self.head) :] = self.body

    def scatter(self, out: Bytes, at: Positions) -> None:
        """See `Part`."""
        put_rows(out, at, np.broadcast_to(self.head, (len(at), len(self.head))))
        put_rows(out, at + len(self.head), self.body)


class RunsPart:
    """Objects of different sizes, each with its own head and a run of bytes."""

    def __init__(self, heads: Bytes, flat: Bytes, starts: Positions, lengths: Positions) -> None:
        self.heads, self.flat, self.starts, self.lengths = heads, flat, starts, lengths

    @property
    def sizes(self) -> Positions:
        """Bytes of each object."""
        sizes: Positions = self.lengths + self.heads.shape[1]
        return sizes

    def fill(self, out: Bytes) -> None:
        """Never called: the sizes differ."""
        raise AssertionError("runs do not form a matrix")

    def scatter(self, out: Bytes, at: Positions) -> None:
        """See `Part`."""
        put_rows(out, at, self.heads)
        copy_runs(out, at + self.heads.shape[1], self.flat, self.starts, self.lengths)


def large_runs(part: Part) -> RunsPart | None:
    """Return the objects as runs, a view, if they are too large to be worth copying.

    Return None for smaller objects, and for unordered runs, whose hash codes need an ordered copy.
    """
    if isinstance(part, FixedPart):
        n, width = part.body.shape
        if n == 0 or width < LARGE_BYTES:
            return None
        heads = np.broadcast_to(part.head, (n, len(part.head)))
        return RunsPart(heads, part.body.reshape(-1), np.arange(n) * width, np.full(n, width))
    if not isinstance(part, RunsPart) or len(part.lengths) == 0:
        return None
    large = part.lengths.mean() >= LARGE_BYTES
    return part if large and _rising(part.starts, part.lengths) else None


class NullablePart:
    """Objects of the valid records, and nulls for the others."""

    def __init__(self, inner: Part, valid: NDArray[np.bool_]) -> None:
        self.inner, self.valid = inner, valid

    @property
    def sizes(self) -> Positions:
        """Bytes of each object."""
        sizes = np.ones(len(self.valid), np.int64)
        sizes[self.valid] = self.inner.sizes
        return sizes

    def fill(self, out: Bytes) -> None:
        """Never called: the sizes differ."""
        raise AssertionError("nulls do not form a matrix")

    def scatter(self, out: Bytes, at: Positions) -> None:
        """See `Part`."""
        out[at[~self.valid]] = TypeCode.NULL
        self.inner.scatter(out, at[self.valid])


def dense_values(column: Column) -> NDArray[Any]:
    """Return the values of a dense column; for any other column, an empty array of objects."""
    return column.values if isinstance(column, Dense) else np.empty((len(column), 0), object)


def value_part(field: Field, column: Column) -> Part:
    """Return the part for a column without nulls, except for enums, lists, maps and nested objects.

    Raises:
        SchemaError: The column's values do not fit the field.
    """
    if isinstance(column, Dense) and _is_text(column.values):
        column = Runs.from_bytes([_text(v) for v in column.values.tolist()])
    if (write := _WRITERS.get(family_of(field.type))) is None:
        raise SchemaError(f"field {field.name!r}: {field.type.name} cannot be written")
    return write(field, column)


def each(sizes: int | Positions, count: int) -> Positions:
    """Return the sizes as an array of length `count`."""
    return np.full(count, sizes, np.int64) if isinstance(sizes, int) else sizes


def as_bytes(values: NDArray[Any]) -> Bytes:
    """Return values [n, ...] as bytes [n, k]."""
    n = len(values)
    width = math.prod(values.shape[1:]) * values.itemsize
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(n, width)


def put_rows(out: Bytes, at: Positions, rows: Bytes) -> None:
    """Write row i of `rows` [n, k] at `out[at[i]]`."""
    width = rows.shape[1]
    if len(at) and width:
        window(out, width)[at] = rows


def window(data: Bytes, size: int) -> Bytes:
    """Return all runs of `size` bytes in the buffer, shape [len - size + 1, size], as a view."""
    # NumPy's own functions for such views are ten times slower.
    return np.ndarray((len(data) - size + 1, size), np.uint8, data, 0, (1, 1))


def ordered_runs(
    values: NDArray[Any], starts: Positions, lengths: Positions
) -> tuple[Bytes, Positions, Positions]:
    """Return runs of elements as runs of bytes in rising order, copied only if out of order."""
    size = values.itemsize
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    if _rising(starts, lengths):
        return flat, starts * size, lengths * size
    sizes = lengths * size
    begin = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)
    copy_runs(out, begin, flat, starts * size, sizes)
    return out, begin, sizes


def _rising(starts: Positions, lengths: Positions) -> bool:
    """Return True if each run begins at or after the end of the previous one."""
    return bool((starts[1:] >= starts[:-1] + lengths[:-1]).all())


def _stored(field: Field, column: Column) -> NDArray[Any]:
    """Return dense values in the dtype that the wire uses for the field's type."""
    values = dense_values(column)
    target = (FIXED_DTYPE if field.type in FIXED_DTYPE else ARRAY_ELEMENT)[field.type]
    if target.names is not None:
        if values.dtype.names != target.names:
            raise _misfit(field, f"values are {values.dtype}, expected {target}")
        return values.astype(target)
    kind = field.dtype if field.dtype.itemsize == target.itemsize else target
    if not np.can_cast(values.dtype, kind, "safe"):
        raise _misfit(field, f"values are {values.dtype}, expected {kind}")
    if kind.itemsize > 1:
        kind = kind.newbyteorder("<")
    return values.astype(kind, copy=False)


def _milliseconds(field: Field, column: Column) -> NDArray[Any]:
    """Return values of DATE and TIME, from int64 milliseconds or a NumPy time of any unit."""
    values = dense_values(column)
    if values.dtype.kind in "mM":
        values = values.astype(f"{values.dtype.kind}8[ms]").view("<i8")
    if values.dtype.kind not in "iu":
        raise _misfit(field, f"values are {values.dtype}, expected int64 milliseconds")
    return values.astype("<i8", copy=False)


def stored_times(field: Field, column: Column, zone: Zone) -> Column:
    """Convert times on the calendar to moments; return other columns unchanged.

    Raises:
        SchemaError: A time does not exist in the zone; `record` is its index.
    """
    family = family_of(field.type)
    if family not in (Family.MILLISECONDS, Family.TIMESTAMP):
        return column
    try:
        if family is Family.TIMESTAMP:
            stored = _timestamps(field, column)
            ms = np.ascontiguousarray(stored["ms"])
            if (moments := zone.of_timestamps(ms)) is not ms:
                stored["ms"] = moments
        else:
            convert = zone.of_times if field.type == TypeCode.TIME else zone.of_dates
            stored = convert(_milliseconds(field, column))
    except SchemaError as error:
        message = f"field {field.name!r}: {error.message}"
        fields = {**error.fields, "field": field.name}
        raise SchemaError(message, hint=error.hint, **fields) from error
    return Dense(stored)


def _timestamps(field: Field, column: Column) -> NDArray[Any]:
    """Return values of TIMESTAMP, from int64 nanoseconds or a NumPy time of any unit."""
    values = dense_values(column)
    if values.dtype.names is not None:
        return _stored(field, column)
    if values.dtype.kind == "M":
        values = values.astype("M8[ns]").view("<i8")
    if values.dtype.kind not in "iu":
        raise _misfit(field, f"values are {values.dtype}, expected int64 nanoseconds")
    return in_milliseconds(values.astype("<i8", copy=False))


def _uuid_pairs(field: Field, column: Column) -> NDArray[Any]:
    """Return values of UUID, from two uint64 per record (high, low) or a structure of them."""
    values = dense_values(column)
    if values.dtype.names is not None:
        return _stored(field, column)
    if values.dtype != np.uint64 or values.shape[1:] != (2,):
        raise _misfit(field, f"values are {values.dtype} {list(values.shape)}, expected uint64 [2]")
    return values.astype("<u8", copy=False)


def _fixed(body: Callable[[Field, Column], NDArray[Any]]) -> Callable[[Field, Column], Part]:
    """Return the writer of a fixed-size type, given a function that encodes its values."""

    def write(field: Field, column: Column) -> Part:
        return FixedPart(bytes([field.type]), as_bytes(body(field, column)))

    return write


def _uuids(field: Field, column: Column) -> Part:
    """Write UUIDs given as text or as pairs of numbers."""
    if not isinstance(column, Runs):
        body = as_bytes(_uuid_pairs(field, column))
    else:
        texts = [_uuid(field, text) for text in column.to_bytes()]
        body = np.frombuffer(b"".join(texts), np.uint8).reshape(-1, 16)
    return FixedPart(bytes([field.type]), body)


def _uuid(field: Field, text: bytes) -> bytes:
    try:
        number = uuid.UUID(text.decode()).int
    except ValueError as error:
        raise _misfit(field, f"{text!r} is not a UUID") from error
    return struct.pack("<QQ", number >> 64, number & 0xFFFFFFFFFFFFFFFF)


def _array(field: Field, column: Column) -> Part:
    """Write strings and arrays: type code, int32 count, elements."""
    counts, flat, starts, lengths = _elements(field, column)
    n = len(counts)
    if n and (lengths == lengths[0]).all() and (counts == counts[0]).all():
        size = int(lengths[0])
        head = struct.pack("<bi", field.type, int(counts[0]))
        if _is_contiguous(flat, starts, size):
            return FixedPart(head, flat.reshape(n, size))
        return FixedPart(head, window(flat, size)[starts] if size else np.empty((n, 0), np.uint8))
    heads = np.empty((n, 5), np.uint8)
    heads[:, 0] = field.type
    heads[:, 1:] = as_bytes(counts.astype("<i4"))
    return RunsPart(heads, flat, starts, lengths)


def _as_it_is(field: Field, column: Column) -> Part:
    """Write objects given by their own bytes."""
    if not isinstance(column, Runs) or not isinstance(column.items, Dense):
        raise _misfit(field, "values are not the bytes of objects")
    flat, starts, lengths = ordered_runs(column.values, column.starts, column.lengths)
    return RunsPart(np.empty((len(starts), 0), np.uint8), flat, starts, lengths)


def _elements(field: Field, column: Column) -> tuple[Positions, Bytes, Positions, Positions]:
    """Return the number of elements of each record, and its bytes as runs."""
    if not isinstance(column, Runs):
        dtype = ARRAY_ELEMENT.get(field.type)
        if dtype is None or (not field.ragged and column_shape(column) != field.shape):
            raise _misfit(field, f"values have shape {list(column_shape(column))}")
        rows = as_bytes(_stored(field, column))
        n, width = rows.shape
        lengths = np.full(n, width, np.int64)
        return lengths // dtype.itemsize, rows.reshape(-1), np.arange(n) * width, lengths
    if not isinstance(column.items, Dense):
        raise _misfit(field, "values are nested")
    values = column.items.values
    size = 1
    if field.type in ARRAY_ELEMENT and not (values.dtype == np.uint8 and _is_byte_run(field)):
        values = _stored(field, Dense(values))
        size = values.itemsize
    if not field.ragged and field.shape and (column.lengths != field.size).any():
        raise _misfit(field, f"a record has not {field.size} elements")
    flat = np.ascontiguousarray(values).view(np.uint8)
    return column.lengths, flat, column.starts * size, column.lengths * size


def _decimals(field: Field, column: Column) -> Part:
    """Write decimals given as text: scale, length, magnitude with the sign in its top bit."""
    if not isinstance(column, Runs):
        raise _misfit(field, "values are not texts")
    items = [_decimal(field, text) for text in column.to_bytes()]
    runs = Runs.from_bytes(items)
    heads = np.full((len(items), 1), int(field.type), np.uint8)
    return RunsPart(heads, runs.values, runs.starts, runs.lengths)


def _decimal(field: Field, text: bytes) -> bytes:
    try:
        sign, digits, exponent = decimal.Decimal(text.decode()).as_tuple()
        number = int(decimal.Decimal((0, digits, 0)))  # int() of a text: 4,300 digits at most
        scale = -int(exponent)
    except (decimal.InvalidOperation, UnicodeDecodeError, ValueError) as error:
        raise _misfit(field, f"{text[:80]!r} is not a decimal") from error
    magnitude = bytearray(number.to_bytes(number.bit_length() // 8 + 1, "big"))
    if sign:
        magnitude[0] |= 0x80
    return struct.pack("<ii", scale, len(magnitude)) + magnitude


def column_shape(column: Column) -> tuple[int, ...]:
    """Return the shape of one record of a dense column."""
    return tuple(dense_values(column).shape[1:])


def _is_byte_run(field: Field) -> bool:
    return field.type == TypeCode.BYTE_ARRAY


def _is_contiguous(flat: Bytes, starts: Positions, size: int) -> bool:
    n = len(starts)
    return len(flat) == n * size and bool((starts == np.arange(n) * size).all())


def _is_text(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "SUO" and values.ndim == 1


def _text(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _misfit(field: Field, found: str) -> SchemaError:
    return SchemaError(f"field {field.name!r} ({field.type.name}): {found}", field=field.name)


_WRITERS: Final = {
    Family.NUMBER: _fixed(_stored),
    Family.MILLISECONDS: _fixed(_milliseconds),
    Family.TIMESTAMP: _fixed(_timestamps),
    Family.UUID: _uuids,
    Family.TEXT: _array,
    Family.DECIMAL: _decimals,
    Family.ARRAY: _array,
    Family.STORED: _as_it_is,
}


_ANY_OBJECT: Final = -1  # the type id of java.lang.Object
_ARRAY_LIST: Final = 1
_LINKED_MAP: Final = 2

PartOf = Callable[[Field, Column], Part]


def _element_field(field: Field) -> Field:
    """Return the field that describes the elements of a list."""
    if field.fields:
        return field.fields[0]
    if (code := LIST_ELEMENT.get(field.type)) is None:
        raise SchemaError(f"field {field.name!r}: the type of its elements is not declared")
    return Field(field.name, code, field.dtype, field.shape[1:], True)


def container_part(field: Field, column: Column, type_id: int, part_of: PartOf) -> Part:
    """Return the part that encodes a column of lists or maps without nulls.

    Args:
        field: A field of the family LIST or MAP.
        column: Runs of elements; for maps, two such columns `keys` and `values`.
        type_id: Type id of the enum, for arrays of enums.
        part_of: Returns the part for a column of elements.

    Raises:
        SchemaError: The column does not have this form.
    """
    if family_of(field.type) is Family.MAP:
        return _maps(field, column, part_of)
    inner, offsets = _list_elements(field, column)
    part = part_of(_element_field(field), inner)
    sizes = each(part.sizes, len(inner))
    ends = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    flat = np.empty(int(ends[-1]), np.uint8)
    part.scatter(flat, ends[:-1])
    heads = _heads(field, np.diff(offsets), type_id)
    return RunsPart(heads, flat, ends[offsets[:-1]], ends[offsets[1:]] - ends[offsets[:-1]])


def enum_part(field: Field, column: Column, type_id: int) -> Part:
    """Return the part that encodes enums, given by their ordinals."""
    ordinals = dense_values(column)
    if ordinals.dtype.kind not in "iu" or ordinals.ndim != 1:
        raise SchemaError(f"field {field.name!r}: values are {ordinals.dtype}, expected ordinals")
    return FixedPart(struct.pack("<bi", field.type, type_id), as_bytes(ordinals.astype("<i4")))


def _maps(field: Field, column: Column, part_of: PartOf) -> Part:
    if not isinstance(column, Struct) or set(column.fields) != {f.name for f in field.fields}:
        raise SchemaError(f"field {field.name!r}: values are not columns of keys and values")
    found = [_list_elements(inner, column.fields[inner.name]) for inner in field.fields]
    offsets = found[0][1]
    if not np.array_equal(offsets, found[1][1]):
        raise SchemaError(f"field {field.name!r}: a map has different numbers of keys and values")
    parts = [part_of(f, inner) for f, (inner, _) in zip(field.fields, found, strict=True)]
    count = int(offsets[-1])
    keys, values = (each(part.sizes, count) for part in parts)
    ends = np.concatenate(([0], np.cumsum(keys + values, dtype=np.int64)))
    flat = np.empty(int(ends[-1]), np.uint8)
    parts[0].scatter(flat, ends[:-1])
    parts[1].scatter(flat, ends[:-1] + keys)
    heads = _heads(field, np.diff(offsets), 0)
    return RunsPart(heads, flat, ends[offsets[:-1]], ends[offsets[1:]] - ends[offsets[:-1]])


def _list_elements(field: Field, column: Column) -> tuple[Column, Positions]:
    """Return all elements as one column, and the bounds of each list in it."""
    if not isinstance(column, Runs):
        raise SchemaError(f"field {field.name!r}: values are not lists")
    return column.compact()


def _heads(field: Field, counts: Positions, type_id: int) -> Bytes:
    """Return the bytes before the elements of each list: type code, count, kind of list."""
    row = DATA_TYPES[field.type]
    assert row.extent is not None
    lengths = as_bytes(counts.astype("<i4"))
    before, after = bytes([field.type]), b""
    if row.extent.class_id:
        before += struct.pack("<i", _ANY_OBJECT if row.element is None else type_id)
    if row.extent.head > len(before) + 4:
        after = bytes([_LINKED_MAP if row.family is Family.MAP else _ARRAY_LIST])
    heads = np.empty((len(counts), len(before) + 4 + len(after)), np.uint8)
    heads[:, : len(before)] = np.frombuffer(before, np.uint8)
    heads[:, len(before) : len(before) + 4] = lengths
    heads[:, len(before) + 4 :] = np.frombuffer(after, np.uint8)
    return heads
