"""Decodes fields into columns: from positions in a page to one column per field.

objects -> meaning -> **decode** -> columns

There is one function per family of types. Positions are int64 `[n]`; -1 marks a record that lacks
the field, which counts as null. Columns are copies, except that runs of bytes (strings, blobs) stay
views into the page.

Types without a NumPy dtype: UUID is text of 36 characters or two uint64 (high, low), decimal is
text or float64, date and time are int64 milliseconds, timestamp is int64 nanoseconds or in the
unit of a declared datetime64 (all since 1970-01-01 or midnight, on the calendar of the nodes' time
zone; see zones), enum is its int32 ordinal, char is a uint16 code unit.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError, WireError
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs, Struct
from ignitetf.wire.datatypes import (
    ALIKE,
    ARRAY_ELEMENT,
    FIXED_DTYPE,
    LIST_ELEMENT,
    TIMESTAMP_UNITS,
    Family,
    family_of,
)
from ignitetf.wire.frames import Page
from ignitetf.wire.meaning import described, is_raw, meant, type_code, type_codes
from ignitetf.wire.objects import (
    Bytes,
    Positions,
    bytes_at,
    check_bounds,
    field_positions,
    find_elements,
    find_rows,
    gather,
    headers,
    object_end,
    unwrap,
)
from ignitetf.wire.schema import BYTES, Field, Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["Decoder", "as_dtype", "calendar", "decode_column", "is_widened"]

_AS_STORED: Final = "schema={'key': 'stored', 'val': None} reads keys as the bytes that are stored"


class Decoder:
    """Decodes the pages of one cache by its schema.

    Args:
        schema: The expected records.
        registry: Known binary types; `decode` raises UnknownType for others.
        fields: Names of the value's fields to decode; None for all.
    """

    def __init__(
        self, schema: Schema, registry: TypeRegistry, fields: Sequence[str] | None = None
    ) -> None:
        names = schema.names if fields is None else tuple(fields)
        self.schema = schema
        self.fields = [schema[name] for name in names]
        self._registry = registry

    def decode(self, page: Page) -> Batch:
        """Decode the records of a page, in its order.

        Returns:
            A batch whose columns are views of the page where possible.

        Raises:
            SchemaError: A record does not match the schema; `record` is its index.
            WireError: The page is damaged.
            UnknownType: The registry lacks a type of the page.
        """
        data = page.data
        key_at, value_at = find_rows(data, page.count)
        key = self._key(data, unwrap(data, key_at))
        if not self.fields:
            return Batch(key, {})
        try:
            if self.schema.type_name is None:
                value = decode_column(data, unwrap(data, value_at), self.fields[0], self._registry)
                return Batch(key, {self.fields[0].name: value})
            return Batch(key, self._fields(data, unwrap(data, value_at)))
        except SchemaError as error:
            # Attach all keys, so that the caller can name the key of the bad record.
            error.fields["keys"] = key
            raise

    def _key(self, data: Bytes, at: Positions) -> Column:
        try:
            return decode_column(data, at, self.schema.key, self._registry)
        except SchemaError as error:
            error.fields["field"] = self.schema.key.name
            raise error.hinted(_AS_STORED) from error

    def _fields(self, data: Bytes, at: Positions) -> dict[str, Column]:
        codes = type_codes(data, at)
        objects = codes == TypeCode.OBJECT
        if (wrong := np.flatnonzero(~objects & (codes != TypeCode.NULL))).size:
            record = int(wrong[0])
            found = described(data, int(at[record]), int(codes[record]), self._registry)
            raise SchemaError(
                f"the value is {found}, the dataset expects a binary object",
                hint="plain values and objects in one cache cannot be read together",
                record=record,
            )
        found_at = headers(data, at[objects])
        places = field_positions(data, found_at, self._registry, [f.name for f in self.fields])
        columns = {}
        for field in self.fields:
            where = np.full(len(at), -1, np.int64)
            where[objects] = places[field.name]
            try:
                columns[field.name] = decode_column(data, where, field, self._registry)
            except SchemaError as error:
                # The cause may be a nested field, but only the whole field can be left out.
                error.fields["field"] = field.name
                raise
        return columns


_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1
_MOST_DIGITS: Final = 100_000


def decode_column(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    """Decode the values of one field.

    Args:
        data: The page.
        at: Start of the field's object in each of n records; -1 if it is missing.
        field: Expected type; its dtype and shape determine the form of the values.
        registry: Binary types, for nested objects.

    Returns:
        A column of n records; nulls have zeros or an empty run, and False in `valid`.

    Raises:
        SchemaError: A record has another type, or a value of another length; `record` is its
            index.
        WireError: A value reaches beyond the page.
    """
    codes = type_codes(data, at)
    valid = codes != TypeCode.NULL
    if (valid & ~_alike(codes, field)).any():
        data, at, codes = meant(data, at)
        valid = codes != TypeCode.NULL
        if (wrong := np.flatnonzero(valid & ~_alike(codes, field))).size:
            raise _mismatch(data, at, codes, int(wrong[0]), field, registry)
    whole = bool(valid.all())
    try:
        column = _decode_valid(data, at if whole else at[valid], field, registry)
    except SchemaError as error:
        if not whole and error.fields.get("record") is not None:
            error.fields["record"] = int(np.flatnonzero(valid)[error.fields["record"]])
        raise
    return column if whole else _spread(column, valid)


def _alike(codes: NDArray[np.uint8], field: Field) -> NDArray[np.bool_]:
    """Return which type codes are acceptable for the field's type."""
    if family_of(field.type) is Family.STORED:
        return np.ones(len(codes), np.bool_)
    first, *others = ALIKE[field.type]
    alike: NDArray[np.bool_] = codes == first
    for other in others:
        alike |= codes == other
    return alike


def _decode_valid(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    if (read := _READERS.get(family_of(field.type))) is None:
        raise SchemaError(
            f"field {field.name!r} of type {type_code(field.type)} cannot be read",
            hint="leave it out with fields=[...]",
            field=field.name,
        )
    return read(data, at, field, registry)


def as_dtype(values: NDArray[Any], field: Field) -> NDArray[Any]:
    """Convert values to the declared dtype; a dtype of the same width reinterprets the bits.

    An unsigned dtype of half the width keeps the numbers, because loading stores them that way.
    """
    if values.dtype == field.dtype:
        return values
    if is_widened(field.dtype, values.dtype):
        limit = np.iinfo(field.dtype).max
        if values.size and (int(values.min()) < 0 or int(values.max()) > limit):
            raise SchemaError(
                f"field {field.name!r} has values outside of {field.dtype}",
                hint=f"declare what is stored: schema={{{field.name!r}: {values.dtype.name!r}}}",
                field=field.name,
            )
        return values.astype(field.dtype)
    if field.dtype.itemsize != values.dtype.itemsize or field.dtype.kind not in "iubf":
        raise SchemaError(
            f"field {field.name!r} is stored as {values.dtype}, the dataset expects {field.dtype}",
            hint="declare the stored type, and convert with Dataset.map",
            field=field.name,
        )
    return values.view(field.dtype)


def is_widened(dtype: np.dtype[Any], stored: np.dtype[Any]) -> bool:
    """Return whether `dtype` is unsigned and `stored` is signed and twice as wide."""
    return dtype.kind == "u" and stored.kind == "i" and stored.itemsize == 2 * dtype.itemsize


def _numbers(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    return Dense(as_dtype(gather(data, at + 1, FIXED_DTYPE[field.type]), field))


def _enums(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    return Dense(as_dtype(gather(data, at + 5, "<i4"), field))


def _days_and_times(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    return Dense(calendar(gather(data, at + 1, FIXED_DTYPE[field.type]), field, registry))


def calendar(moments: NDArray[Any], field: Field, registry: TypeRegistry) -> NDArray[Any]:
    """Convert the moments of a field of dates or times of day to the nodes' calendar."""
    convert = registry.zone.times if field.type == TypeCode.TIME else registry.zone.dates
    return as_dtype(_convert_field(field, convert, moments), field)


def _convert_field(
    field: Field, convert: Callable[[NDArray[np.int64]], NDArray[np.int64]], moments: NDArray[Any]
) -> NDArray[np.int64]:
    try:
        return convert(moments)
    except SchemaError as error:
        error.fields["field"] = field.name
        raise


def _timestamps(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    raw = gather(data, at + 1, FIXED_DTYPE[field.type])
    ms = _convert_field(field, registry.zone.timestamps, np.ascontiguousarray(raw["ms"]))
    return Dense(_to_unit(ms, raw["ns"], field))


def _to_unit(ms: NDArray[np.int64], rest: NDArray[np.int32], field: Field) -> NDArray[Any]:
    """Return timestamps as int64 in the unit of the field's dtype, by default nanoseconds.

    If the dtype is (ms, ns), return pairs of milliseconds and nanoseconds.
    """
    if field.dtype.names is not None:
        both = np.empty(len(ms), FIXED_DTYPE[field.type])
        both["ms"], both["ns"] = ms, rest
        return both
    unit = np.datetime_data(field.dtype)[0] if field.dtype.kind == "M" else "ns"
    if unit not in TIMESTAMP_UNITS:
        raise SchemaError(f"field {field.name!r}: timestamps have no unit {unit!r}")
    per_ms, ns_per_unit = TIMESTAMP_UNITS[unit]
    first, last = divmod(_LEAST, per_ms), divmod(_GREATEST, per_ms)
    if len(ms) and (int(ms.min()) <= first[0] or int(ms.max()) >= last[0]):
        part = rest // ns_per_unit
        early = (ms < first[0]) | ((ms == first[0]) & (part < first[1]))
        late = (ms > last[0]) | ((ms == last[0]) & (part > last[1]))
        if (wrong := np.flatnonzero(early | late)).size:
            coarser = {"ns": "us", "us": "ms"}[unit]
            raise SchemaError(
                f"field {field.name!r} has a timestamp {int(ms[wrong[0]])} ms from 1970, beyond"
                f" what int64 holds in {unit}",
                hint=f"declare a coarser unit: schema={{{field.name!r}: 'datetime64[{coarser}]',"
                " ...}; or leave it out with fields=[...]",
                field=field.name,
                record=int(wrong[0]),
            )
    return np.asarray(ms * per_ms + (rest if ns_per_unit == 1 else rest // ns_per_unit))


def _texts(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    lengths = _lengths(data, at + 1)
    check_bounds(data, at + 5, lengths)
    return Runs(Dense(data), at + 5, lengths)


def _lengths(data: Bytes, at: Positions) -> Positions:
    lengths = gather(data, at, "<i4").astype(np.int64)
    if (lengths < 0).any():
        raise WireError("a value has a negative length")
    return lengths


def _arrays(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    kind = ARRAY_ELEMENT[field.type]
    counts = _lengths(data, at + 1)
    check_bounds(data, at + 5, counts * kind.itemsize)
    if field.dtype == BYTES:
        return Runs(Dense(data), at + 5, counts * kind.itemsize)
    if not field.ragged:
        check_counts(field, counts)
        raw = bytes_at(data, at + 5, field.size * kind.itemsize).view(kind)
        return Dense(as_dtype(raw, field).reshape(len(at), *field.shape))
    check_inner(field, counts)
    if kind.itemsize == 1:
        return Runs(Dense(as_dtype(data.view(kind), field)), at + 5, counts)
    view = memoryview(data)  # type: ignore[arg-type]
    ends = at + 5 + counts * kind.itemsize
    pieces = [view[p:q] for p, q in zip((at + 5).tolist(), ends.tolist(), strict=True)]
    flat = np.frombuffer(b"".join(pieces), kind)
    return Runs.from_offsets(Dense(as_dtype(flat, field)), _offsets(counts))


def check_counts(field: Field, counts: Positions) -> None:
    """Raise SchemaError unless every record has the number of elements of the field's shape."""
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


def _uuids(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    raw = gather(data, at + 1, FIXED_DTYPE[field.type])
    if field.dtype != BYTES:
        return Dense(np.stack([raw["msb"], raw["lsb"]], axis=1))
    pairs = zip(raw["msb"].tolist(), raw["lsb"].tolist(), strict=True)
    return Runs.from_bytes([str(uuid.UUID(int=(h << 64) | low)).encode() for h, low in pairs])


def _decimals(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    scales = gather(data, at + 1, "<i4")
    lengths = _lengths(data, at + 5)
    check_bounds(data, at + 9, lengths)
    if (lengths == 0).any():
        raise WireError("a decimal has no digits")
    view = memoryview(data)  # type: ignore[arg-type]
    numbers = []
    ends = (at + 9 + lengths).tolist()
    for i, (scale, p, q) in enumerate(zip(scales.tolist(), (at + 9).tolist(), ends, strict=True)):
        if max(abs(scale), q - p) > _MOST_DIGITS:
            raise SchemaError(
                f"field {field.name!r} has a decimal of more than {_MOST_DIGITS} digits",
                hint=f"leave {field.name!r} out with fields=[...]",
                field=field.name,
                record=i,
            )
        numbers.append(_decimal(scale, bytes(view[p:q])))
    if field.dtype == BYTES:
        return Runs.from_bytes([format(d, "f").encode() for d in numbers])
    return Dense(np.array([float(d) for d in numbers], np.float64))


def _decimal(scale: int, magnitude: bytes) -> Decimal:
    """Decode a decimal, whose magnitude has its sign in the top bit and is big-endian."""
    number = int.from_bytes(bytes([magnitude[0] & 0x7F]) + magnitude[1:], "big")
    # Through Decimal, because Python refuses to convert long integers to text.
    digits = Decimal(number).as_tuple().digits
    return Decimal((1 if magnitude[0] & 0x80 else 0, digits, -scale))


def _objects(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    found = headers(data, at)
    if (raw := np.flatnonzero(is_raw(found.flags))).size:
        codes = np.full(len(at), TypeCode.OBJECT, np.uint8)
        raise _mismatch(data, at, codes, int(raw[0]), field, registry)
    places = field_positions(data, found, registry, [f.name for f in field.fields])
    columns = {f.name: decode_column(data, places[f.name], f, registry) for f in field.fields}
    # Without fields, only `valid` records how many objects there are.
    return Struct(columns, None if columns else np.ones(len(at), np.bool_))


def _lists(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    """Decode arrays of objects and collections as runs of one column of their elements."""
    found, counts = find_elements(data, at)
    if field.fields:
        element = field.fields[0]
    elif (code := LIST_ELEMENT.get(field.type)) is not None:
        element = Field(field.name, code, field.dtype, field.shape[1:], True)
    else:
        raise SchemaError(
            f"field {field.name!r} of type {type_code(field.type)} cannot be read",
            hint="leave it out with fields=[...]",
            field=field.name,
        )
    inner = _decode_items(data, found, element, registry, counts)
    if not field.ragged and field.shape:
        check_counts(replace(field, shape=field.shape[:1]), counts)
    return Runs.from_offsets(inner, _offsets(counts))


def _maps(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    """Decode maps as two columns of runs, `keys` and `values`."""
    found, counts = find_elements(data, at)
    offsets = _offsets(counts // 2)
    columns: dict[str, Column] = {}
    for i, item in enumerate(field.fields):
        inner = _decode_items(data, found[i::2], item, registry, counts // 2)
        columns[item.name] = Runs.from_offsets(inner, offsets)
    return Struct(columns)


def _stored(data: Bytes, at: Positions, field: Field, registry: TypeRegistry) -> Column:
    """Decode objects of any type as their own bytes, views of the page."""
    at = unwrap(data, at)
    view = memoryview(data)  # type: ignore[arg-type]
    try:
        ends = np.array([object_end(view, start) for start in at.tolist()], np.int64)
    except (struct.error, IndexError, RecursionError) as error:
        raise WireError("an object is cut") from error
    return Runs(Dense(data), at, ends - at)


_READERS: Final = {
    Family.NUMBER: _numbers,
    Family.MILLISECONDS: _days_and_times,
    Family.TIMESTAMP: _timestamps,
    Family.UUID: _uuids,
    Family.ENUM: _enums,
    Family.TEXT: _texts,
    Family.DECIMAL: _decimals,
    Family.ARRAY: _arrays,
    Family.LIST: _lists,
    Family.MAP: _maps,
    Family.OBJECT: _objects,
    Family.STORED: _stored,
}


def _decode_items(
    data: Bytes, at: Positions, item: Field, registry: TypeRegistry, counts: Positions
) -> Column:
    """Decode the items of all lists; errors name the record of the list, not of the item."""
    try:
        return decode_column(data, at, item, registry)
    except SchemaError as error:
        if (number := error.fields.get("record")) is not None:
            error.fields["record"] = int(np.searchsorted(np.cumsum(counts), number, "right"))
        raise


def _offsets(counts: Positions) -> Positions:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _spread(column: Column, valid: NDArray[np.bool_]) -> Column:
    """Spread a column of the valid records over all records, with zeros or empty runs elsewhere."""
    n = len(valid)
    if isinstance(column, Runs):
        starts, lengths = np.zeros(n, np.int64), np.zeros(n, np.int64)
        starts[valid], lengths[valid] = column.starts, column.lengths
        return Runs(column.items, starts, lengths, valid)
    if isinstance(column, Struct):
        inner = {name: _spread(c, valid) for name, c in column.fields.items()}
        for name, item in column.fields.items():
            if item.valid is not None:
                both = valid.copy()
                both[valid] = item.valid
                inner[name] = inner[name].marked(both)
        return Struct(inner, valid)
    assert isinstance(column, Dense)
    values = np.zeros((n, *column.values.shape[1:]), column.values.dtype)
    values[valid] = column.values
    return Dense(values, valid)


def _mismatch(
    data: Bytes,
    at: Positions,
    codes: NDArray[np.uint8],
    record: int,
    field: Field,
    registry: TypeRegistry,
) -> SchemaError:
    found = described(data, int(at[record]), int(codes[record]), registry)
    return SchemaError(
        f"field {field.name!r} is {found}, the dataset expects {type_code(field.type)}",
        hint=f"leave {field.name!r} out with fields=[...], or declare it with schema=",
        field=field.name,
        record=record,
    )
