"""Fields to columns: positions in a page in, one array per field out.

objects -> **columns** -> tensors

One function per family of types. Positions are int64 `[n]`, -1 where a record has no such field;
such a record counts as null there. A column is a copy, except runs of bytes (strings, blobs),
which stay views into the page.

What has no NumPy dtype of its own: UUID is text of 36 characters or two uint64 (high, low),
decimal is text or float64, date and time are int64 milliseconds, timestamp is int64 nanoseconds
(all since 1970-01-01 UTC or midnight), enum is its int32 ordinal, char is a uint16 code unit.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError, WireError
from ignitetf.wire.codes import ARRAY_ELEMENT, FIXED_DTYPE, TypeCode
from ignitetf.wire.objects import (
    Bytes,
    Positions,
    bytes_at,
    check_bounds,
    field_positions,
    find_elements,
    gather,
    headers,
    unwrap,
)
from ignitetf.wire.schema import BYTES, Column, Field
from ignitetf.wire.types import TypeRegistry

__all__ = ["decode_column", "type_code", "type_codes"]

NANOSECONDS_PER_MILLISECOND: Final = 1_000_000
_ENUMS: Final = (TypeCode.ENUM, TypeCode.BINARY_ENUM)
_ELEMENT_CODE: Final = {
    TypeCode.STRING_ARRAY: TypeCode.STRING,
    TypeCode.UUID_ARRAY: TypeCode.UUID,
    TypeCode.DATE_ARRAY: TypeCode.DATE,
    TypeCode.TIMESTAMP_ARRAY: TypeCode.TIMESTAMP,
    TypeCode.TIME_ARRAY: TypeCode.TIME,
    TypeCode.DECIMAL_ARRAY: TypeCode.DECIMAL,
    TypeCode.ENUM_ARRAY: TypeCode.ENUM,
}


def type_code(code: int) -> str:
    """A type code for a message: its name and number."""
    try:
        return f"{TypeCode(code).name} ({code})"
    except ValueError:
        return f"unknown type code {code}"


def type_codes(data: Bytes, at: Positions) -> NDArray[np.uint8]:
    """The type codes at these positions; NULL where the position is -1."""
    if len(at) and int(at.min()) >= 0:
        check_bounds(data, at, 1)
        return data[at]
    check_bounds(data, at[at >= 0], 1)
    return np.where(at >= 0, data[np.maximum(at, 0)], np.uint8(TypeCode.NULL))


def decode_column(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    """The values of one field.

    Args:
        data: The page.
        at: Where the field's object begins in each of n records, -1 where there is none.
        field: Expected type; dtype and shape say the form of the values.
        registry: Binary types, for nested objects.

    Returns:
        A column of n records; null records have zeros, or an empty run, and False in `valid`.

    Raises:
        SchemaError: Another type, or a value of another length, stands in a record. `record`
            is its index.
        WireError: A value reaches beyond the page.
    """
    if field.type in (TypeCode.OBJECT, TypeCode.HANDLE):
        at = np.where(at >= 0, unwrap(data, np.maximum(at, 0)), -1) if len(at) else at
    codes = type_codes(data, at)
    valid = codes != TypeCode.NULL
    alike = codes == field.type
    if field.type in _ENUMS:
        alike |= (codes == TypeCode.ENUM) | (codes == TypeCode.BINARY_ENUM)
    if (wrong := np.flatnonzero(valid & ~alike)).size:
        raise _mismatch(field, int(wrong[0]), type_code(int(codes[wrong[0]])))
    whole = bool(valid.all())
    column = _decode_valid(data, at if whole else at[valid], field, registry)
    return column if whole else _spread(column, valid)


def _decode_valid(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    if field.type == TypeCode.UUID:
        return _uuids(data, at, field)
    if field.type == TypeCode.TIMESTAMP:
        raw = gather(data, at + 1, FIXED_DTYPE[TypeCode.TIMESTAMP])
        return Column(raw["ms"] * NANOSECONDS_PER_MILLISECOND + raw["ns"])
    if field.type in _ENUMS:
        return Column(gather(data, at + 5, "<i4"))
    if field.type in FIXED_DTYPE:
        return Column(_as_dtype(gather(data, at + 1, FIXED_DTYPE[field.type]), field))
    if field.type == TypeCode.STRING:
        return _runs_of_bytes(data, at)
    if field.type == TypeCode.DECIMAL:
        return _decimals(data, at, field)
    if field.type in ARRAY_ELEMENT:
        return _array(data, at, field)
    if field.type == TypeCode.OBJECT:
        return _objects(data, at, field, registry)
    if field.type == TypeCode.MAP:
        return _maps(data, at, field, registry)
    return _lists(data, at, field, registry)


def _as_dtype(values: NDArray[Any], field: Field) -> NDArray[Any]:
    """Values in the declared dtype of the same width: bits are kept, never converted."""
    if values.dtype == field.dtype:
        return values
    if field.dtype.itemsize != values.dtype.itemsize or field.dtype.kind not in "iubf":
        raise SchemaError(
            f"field {field.name!r} is stored as {values.dtype}, the dataset expects {field.dtype}",
            hint="declare the stored type, and convert with Dataset.map",
            field=field.name,
        )
    return values.view(field.dtype)


def _runs_of_bytes(data: Bytes, at: Positions) -> Column:
    lengths = _lengths(data, at + 1)
    check_bounds(data, at + 5, lengths)
    return Column(data, at + 5, lengths)


def _lengths(data: Bytes, at: Positions) -> Positions:
    lengths = gather(data, at, "<i4").astype(np.int64)
    if (lengths < 0).any():
        raise WireError("a value has a negative length")
    return lengths


def _array(data: Bytes, at: Positions, field: Field) -> Column:
    kind = ARRAY_ELEMENT[field.type]
    counts = _lengths(data, at + 1)
    check_bounds(data, at + 5, counts * kind.itemsize)
    if field.dtype == BYTES:
        return Column(data, at + 5, counts * kind.itemsize)
    if not field.ragged:
        check_counts(field, counts)
        raw = bytes_at(data, at + 5, field.size * kind.itemsize).view(kind)
        return Column(_as_dtype(raw, field).reshape(len(at), *field.shape))
    check_inner(field, counts)
    if kind.itemsize == 1:
        return Column(_as_dtype(data.view(kind), field), at + 5, counts)
    view = memoryview(data)  # type: ignore[arg-type]
    ends = at + 5 + counts * kind.itemsize
    pieces = [view[p:q] for p, q in zip((at + 5).tolist(), ends.tolist(), strict=True)]
    flat = np.frombuffer(b"".join(pieces), kind)
    return Column.from_offsets(_as_dtype(flat, field), _offsets(counts))


def check_counts(field: Field, counts: Positions) -> None:
    """Raise SchemaError unless every record has as many elements as the field's shape."""
    if (wrong := np.flatnonzero(counts != field.size)).size:
        found = int(counts[wrong[0]])
        raise SchemaError(
            f"field {field.name!r} has {found} elements, the dataset expects {field.size}"
            f" {list(field.shape)}",
            hint=f"pass schema={{{field.name!r}: ...}} with a dimension None for lengths that"
            " differ",
            field=field.name,
            record=int(wrong[0]),
        )


def check_inner(field: Field, counts: Positions) -> None:
    """Raise SchemaError unless every count is a multiple of the fixed dimensions."""
    step = field.size
    if step > 1 and (wrong := np.flatnonzero(counts % step)).size:
        raise SchemaError(
            f"field {field.name!r} has {int(counts[wrong[0]])} elements, which does not fill"
            f" {list(field.shape)}",
            field=field.name,
            record=int(wrong[0]),
        )


def _uuids(data: Bytes, at: Positions, field: Field) -> Column:
    raw = gather(data, at + 1, FIXED_DTYPE[TypeCode.UUID])
    if field.dtype != BYTES:
        return Column(np.stack([raw["msb"], raw["lsb"]], axis=1))
    pairs = zip(raw["msb"].tolist(), raw["lsb"].tolist(), strict=True)
    return Column.from_bytes([str(uuid.UUID(int=(h << 64) | low)).encode() for h, low in pairs])


def _decimals(data: Bytes, at: Positions, field: Field) -> Column:
    scales = gather(data, at + 1, "<i4")
    lengths = _lengths(data, at + 5)
    check_bounds(data, at + 9, lengths)
    if (lengths == 0).any():
        raise WireError("a decimal has no digits")
    view = memoryview(data)  # type: ignore[arg-type]
    numbers = []
    ends = (at + 9 + lengths).tolist()
    for scale, p, q in zip(scales.tolist(), (at + 9).tolist(), ends, strict=True):
        numbers.append(_decimal(scale, bytes(view[p:q])))
    if field.dtype == BYTES:
        return Column.from_bytes([format(d, "f").encode() for d in numbers])
    return Column(np.array([float(d) for d in numbers], np.float64))


def _decimal(scale: int, magnitude: bytes) -> Decimal:
    """The sign is the top bit of the first byte; the rest is an unsigned big-endian number."""
    if abs(scale) > 100_000 or len(magnitude) > 100_000:
        raise WireError("a decimal of impossible size")
    number = int.from_bytes(bytes([magnitude[0] & 0x7F]) + magnitude[1:], "big")
    digits = tuple(int(c) for c in str(number)) if number else (0,)
    return Decimal((1 if magnitude[0] & 0x80 else 0, digits, -scale))


def _objects(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    places = field_positions(data, headers(data, at), registry, [f.field_id for f in field.fields])
    return Column(
        {f.name: decode_column(data, places[f.field_id], f, registry) for f in field.fields}
    )


def _lists(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    """Arrays of objects and collections: runs of a column of their elements."""
    found, counts = find_elements(data, at)
    if field.fields:
        element = field.fields[0]
    elif (code := _ELEMENT_CODE.get(field.type)) is not None:
        element = Field(field.name, code, field.dtype, field.shape[1:], True)
    else:
        raise SchemaError(
            f"field {field.name!r} of type {type_code(field.type)} cannot be read",
            hint="leave it out with fields=[...]",
            field=field.name,
        )
    inner = decode_column(data, found, element, registry)
    if not field.ragged and field.shape:
        check_counts(replace(field, shape=field.shape[:1]), counts)
    return Column.from_offsets(_whole(inner), _offsets(counts))


def _maps(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    """Maps: two columns of runs, `keys` and `values`."""
    found, counts = find_elements(data, at)
    offsets = _offsets(counts // 2)
    columns = {}
    for i, item in enumerate(field.fields):
        inner = decode_column(data, found[i::2], item, registry)
        columns[item.name] = Column.from_offsets(_whole(inner), offsets)
    return Column(columns)


def _whole(inner: Column) -> Column | NDArray[Any]:
    """The array of a dense column without nulls, so that runs of it are plain runs."""
    if inner.valid is None and inner.starts is None and isinstance(inner.values, np.ndarray):
        return inner.values
    return inner


def _offsets(counts: Positions) -> Positions:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _spread(column: Column, valid: NDArray[np.bool_]) -> Column:
    """A column of the valid records over all records: zeros and empty runs elsewhere."""
    n = len(valid)
    if column.starts is not None and column.lengths is not None:
        starts, lengths = np.zeros(n, np.int64), np.zeros(n, np.int64)
        starts[valid], lengths[valid] = column.starts, column.lengths
        return Column(column.values, starts, lengths, valid)
    if isinstance(column.values, dict):
        inner = {name: _spread(c, valid) for name, c in column.values.items()}
        for name, item in column.values.items():
            if item.valid is not None:
                both = valid.copy()
                both[valid] = item.valid
                inner[name] = replace(inner[name], valid=both)
        return Column(inner, valid=valid)
    assert isinstance(column.values, np.ndarray)
    values = np.zeros((n, *column.values.shape[1:]), column.values.dtype)
    values[valid] = column.values
    return Column(values, valid=valid)


def _mismatch(field: Field, record: int, found: str) -> SchemaError:
    return SchemaError(
        f"field {field.name!r} is {found}, the dataset expects {type_code(field.type)}",
        hint=f"leave {field.name!r} out with fields=[...], or declare it with schema=",
        field=field.name,
        record=record,
    )
