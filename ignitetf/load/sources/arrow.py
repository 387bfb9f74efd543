"""Converts Arrow arrays to columns: types, nulls, dictionaries, decimals, times, lists.

CSV or Parquet -> plain Arrow -> **fields, columns** -> Batch

Timestamps become nanoseconds since 1970 UTC (int64; milliseconds and nanoseconds if a value of the
column is outside int64 nanoseconds), dates milliseconds since 1970 (int64), times of day
milliseconds (int64), decimals and UUIDs their text, structs objects, maps two lists. Values are
never truncated; one that does not fit is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError, SourceError
from ignitetf.load.sources.arrowplain import import_pyarrow, is_uuid, plain_field, refusal
from ignitetf.load.sources.headings import nested_names
from ignitetf.load.sources.times import check_years, moments, moments_in
from ignitetf.load.sources.values import stored_field
from ignitetf.wire.arrow import FIELD_METADATA
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Column, Dense, Runs, Struct
from ignitetf.wire.datatypes import DATA_TYPES, LIST_OF, Family, family_of
from ignitetf.wire.schema import BYTES, Field, Shape, field_for

__all__ = ["arrow_column", "arrow_field", "marked_field", "renamed_parts"]


def arrow_field(name: str, arrow_type: Any, *, nullable: bool = True) -> Field:
    """Return the field that stores values of a plain Arrow type (see `arrowplain`).

    Raises:
        SchemaError: No Ignite type can store them.
    """
    pa = import_pyarrow("tables")
    return _field(pa, pa.field(name, arrow_type, nullable), name)


def _field(pa: Any, plain: Any, column: str) -> Field:
    """Return the field of a plain column, or of a part of a column."""
    types = pa.types
    name, kind, nullable = plain.name, plain.type, plain.nullable
    if is_uuid(plain):
        return Field(name, TypeCode.UUID, BYTES, (), nullable)
    if types.is_struct(kind) or types.is_map(kind):
        return _nested_field(pa, plain, column)
    if _is_list(types, kind) or types.is_fixed_size_list(kind):
        return _list_field(pa, plain, column)
    if (scalar := _scalar_field(pa, name, kind, nullable)) is not None:
        return scalar
    raise refusal(column, kind)


def _nested_field(pa: Any, plain: Any, column: str) -> Field:
    """Return the field of structs, which become nested objects, or of maps."""
    kind = plain.type
    if pa.types.is_map(kind):
        parts = [kind.key_field.with_name("keys"), kind.item_field.with_name("values")]
        inner = tuple(_field(pa, part, column) for part in parts)
        return Field(plain.name, TypeCode.MAP, BYTES, (), plain.nullable, inner)
    parts = [kind.field(i) for i in range(kind.num_fields)]
    try:
        names = nested_names([part.name for part in parts])
    except ValueError as error:
        raise refusal(column, f"{kind}: {error}") from error
    inner = tuple(
        _field(pa, part.with_name(name), column) for part, name in zip(parts, names, strict=True)
    )
    return Field(plain.name, TypeCode.OBJECT, BYTES, (), plain.nullable, inner)


def _list_field(pa: Any, plain: Any, column: str) -> Field:
    """Return the field of lists: arrays of numbers or texts, or lists of other values."""
    types = pa.types
    name, kind, nullable = plain.name, plain.type, plain.nullable
    shape: Shape = ()
    if _is_list(types, kind):
        shape, kind = (None,), kind.value_type
    while types.is_fixed_size_list(kind):
        shape, kind = (*shape, kind.list_size), kind.value_type
    if (dtype := _number_dtype(pa, kind)) is not None:
        return stored_field(name, dtype, shape, nullable=nullable)
    if len(shape) == 1 and _is_text(types, kind):
        return Field(name, TypeCode.STRING_ARRAY, BYTES, (None,), nullable)
    item = _field(pa, plain.type.value_field.with_name("item"), column)
    code = LIST_OF.get(item.type, TypeCode.COLLECTION)
    return Field(name, code, item.dtype, (None,), nullable, (item,))


def _is_list(types: Any, arrow_type: Any) -> bool:
    names = ("list", "large_list", "list_view", "large_list_view")
    return any(getattr(types, f"is_{name}")(arrow_type) for name in names)


def _is_text(types: Any, arrow_type: Any) -> bool:
    names = ("string", "large_string", "string_view")
    return any(getattr(types, f"is_{name}")(arrow_type) for name in names)


def marked_field(arrow: Any, name: str | None = None) -> Field:
    """Return the field of a table's column: from the notes of an export, otherwise a new one.

    Args:
        arrow: The column.
        name: Name of the field; None for the column's in upper case.
    """
    pa = import_pyarrow("tables")
    arrow = plain_field(arrow)
    found = _field(pa, arrow.with_name(name or arrow.name.upper()), arrow.name)
    try:
        noted = Field.from_json(json.loads((arrow.metadata or {})[FIELD_METADATA]))
    except (KeyError, ValueError, SchemaError):
        return found
    size = arrow.type.byte_width if pa.types.is_fixed_size_binary(arrow.type) else None
    # Another tool may have changed the column and kept the metadata.
    same = noted.name.upper() == arrow.name.upper() and _can_hold(noted, found, size)
    return replace(noted, name=found.name, nullable=found.nullable) if same else found


def renamed_parts(arrow: Any, field: Field) -> Iterator[tuple[str, str]]:
    """Yield old and new name of each nested value that has another name in its field.

    Args:
        arrow: A column of a table.
        field: Its field; a name is given as `AT.x_y`.
    """
    pa = import_pyarrow("tables")
    yield from _renamed(pa, plain_field(arrow).type, field, arrow.name, field.name)


def _renamed(pa: Any, kind: Any, field: Field, old: str, new: str) -> Iterator[tuple[str, str]]:
    if pa.types.is_struct(kind):
        parts = [kind.field(i) for i in range(kind.num_fields)]
        for part, inner in zip(parts, field.fields, strict=True):
            names = f"{old}.{part.name}", f"{new}.{inner.name}"
            if part.name != inner.name:
                yield names
            yield from _renamed(pa, part.type, inner, *names)
    elif pa.types.is_map(kind):
        for part, inner in zip((kind.key_field, kind.item_field), field.fields, strict=True):
            yield from _renamed(pa, part.type, inner, old, new)
    elif field.fields:
        yield from _renamed(pa, kind.value_type, field.fields[0], old, new)


def _can_hold(noted: Field, found: Field, size: int | None) -> bool:
    """True if values with the form of a column can be values of a noted field.

    Args:
        noted: The field in the notes of an export.
        found: The field that the column has without notes.
        size: Bytes of each value, if the column has values of one size.
    """
    if noted.fields or found.fields:
        pairs = zip(noted.fields, found.fields, strict=False)
        return (
            (noted.type, len(noted.fields)) == (found.type, len(found.fields))
            and noted.shape == found.shape
            and all(a.name == b.name and _can_hold(a, b, None) for a, b in pairs)
        )
    if noted.ragged or found.ragged:
        alike = noted.ragged and found.ragged and noted.type == found.type
        return alike and noted.dtype == found.dtype
    if noted.shape and noted.dtype == np.uint8 and size is not None:
        return noted.size == size
    if noted.shape or found.shape:
        return noted.size == found.size and noted.dtype == found.dtype
    if noted.dtype == BYTES:
        texts = (Family.TEXT, Family.UUID, Family.DECIMAL)
        blob = noted.type == found.type == TypeCode.BYTE_ARRAY
        return found.dtype == BYTES and (
            blob or {family_of(noted.type), family_of(found.type)} <= set(texts)
        )
    if family_of(noted.type) in (Family.MILLISECONDS, Family.TIMESTAMP):
        return found.type == noted.type or (noted.type, found.type) == (
            TypeCode.DATE,
            TypeCode.TIMESTAMP,
        )
    return noted.dtype == found.dtype


def _scalar_field(pa: Any, name: str, arrow_type: Any, nullable: bool) -> Field | None:
    types = pa.types
    if (dtype := _number_dtype(pa, arrow_type)) is not None:
        return stored_field(name, dtype, nullable=nullable)
    for row in DATA_TYPES.values():
        tests = (getattr(types, f"is_{name}", None) for name in row.arrow)
        if any(test is not None and test(arrow_type) for test in tests):
            return Field(name, row.code, row.value or BYTES, (), nullable)
    return None


def _number_dtype(pa: Any, arrow_type: Any) -> np.dtype[Any] | None:
    """Return the NumPy dtype of a number or bool; float16 widens, because Ignite has none."""
    types = pa.types
    if types.is_float16(arrow_type):
        return np.dtype(np.float32)
    if (
        types.is_integer(arrow_type)
        or types.is_floating(arrow_type)
        or types.is_boolean(arrow_type)
    ):
        dtype: np.dtype[Any] = np.dtype(arrow_type.to_pandas_dtype())
        return dtype
    return None


def arrow_column(field: Field, array: Any) -> Column:
    """Convert a plain Arrow array whose type `arrow_field` described; `valid` marks the nulls.

    Raises:
        SourceError: A value cannot be stored in the field: a null inside a list, or a time outside
            the years 1 to 9999.
        ArrowException: Another value does not fit.
    """
    pa = import_pyarrow("tables")
    valid = None
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
    if field.fields:
        return _nested(pa, field, array, valid)
    if field.type == TypeCode.STRING_ARRAY:
        return _lists(Field(field.name, TypeCode.STRING, BYTES), array, valid)
    if field.ragged:
        return _ragged(pa, field, array, valid)
    if field.shape and pa.types.is_fixed_size_binary(array.type):
        return _fixed_bytes(field, array, valid)
    if field.shape:
        return _fixed_lists(pa, field, array, valid)
    if field.type == TypeCode.UUID and pa.types.is_fixed_size_binary(array.type):
        return _uuids(array, valid)
    if field.dtype == BYTES:
        return _bytes(pa, field, array, valid)
    return Dense(_numbers(pa, field, array), valid=valid)


def _nested(pa: Any, field: Field, array: Any, valid: NDArray[np.bool_] | None) -> Column:
    """Return structs as objects, maps as two lists, and lists of values that are not arrays."""
    if field.type is TypeCode.OBJECT:
        inner = zip(field.fields, array.flatten(), strict=True)  # null if the struct is null
        return Struct({f.name: _part(f, part, valid) for f, part in inner}, valid=valid)
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    flat = array.flatten()
    if field.type is not TypeCode.MAP:
        return Runs.from_offsets(_items(field.fields[0], flat), offsets, valid)
    pairs = zip(field.fields, flat.flatten(), strict=True)
    return Struct({f.name: Runs.from_offsets(_items(f, a), offsets) for f, a in pairs}, valid=valid)


def _part(field: Field, array: Any, outer: NDArray[np.bool_] | None) -> Column:
    """Return the column of one field of structs; where a struct is null, the value is arbitrary."""
    column = arrow_column(field, array)
    if field.nullable or column.valid is None:
        return column
    if not (column.valid if outer is None else column.valid | ~outer).all():
        raise SourceError(f"its field {field.name} must not be null")
    return column.marked(None)


def _items(field: Field, array: Any) -> Column:
    column = arrow_column(field, array)
    if column.valid is not None and not field.nullable:
        raise SourceError("a null inside a list")
    return column


def _uuids(array: Any, valid: NDArray[np.bool_] | None) -> Column:
    """Return UUIDs of 16 bytes as their usual text."""
    n = len(array)
    raw = np.frombuffer(array.buffers()[1], np.uint8, n * 16, array.offset * 16) if n else b""
    digits = np.frombuffer(bytes(raw).hex().encode(), np.uint8).reshape(n, 32)
    texts = np.full((n, 36), ord("-"), np.uint8)
    texts[:, [i for i in range(36) if i not in (8, 13, 18, 23)]] = digits
    return Runs.from_offsets(Dense(texts.reshape(-1)), np.arange(n + 1) * 36, valid)


def _numbers(pa: Any, field: Field, array: Any) -> NDArray[Any]:
    if field.type == TypeCode.TIMESTAMP:
        return _moments(pa, array)
    if field.type == TypeCode.DATE and pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", array.type.tz)).cast(pa.int64())
    else:
        array = _cast(pa, field, array)
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    elif pa.types.is_uint64(array.type):
        array = array.cast(pa.int64())  # a long holds only half of the unsigned values
    if array.null_count:
        array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    if field.type == TypeCode.DATE:
        check_years(values)
    return values.astype(field.dtype, copy=False)


def _moments(pa: Any, array: Any) -> NDArray[Any]:
    """Return timestamps; also those of milliseconds and nanoseconds within them (see `times`)."""
    if pa.types.is_struct(array.type):
        ms, ns = (part.fill_null(0).to_numpy() for part in array.flatten())
        return moments(ms, ns)
    values = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return moments_in(values, array.type.unit)


def _cast(pa: Any, field: Field, array: Any) -> Any:
    """Convert decimals to text, and times to integers in the unit of the field's type."""
    if (name := DATA_TYPES[field.type].arrow_cast) is None:
        return array
    kind = pa.type_for_alias(name)
    if pa.types.is_timestamp(kind):
        kind = pa.timestamp(kind.unit, array.type.tz)
    array = array.cast(kind)
    if not pa.types.is_temporal(kind):
        return array
    return array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())


def _bytes(pa: Any, field: Field, array: Any, valid: NDArray[np.bool_] | None) -> Column:
    if pa.types.is_null(array.type):
        nothing: list[bytes | None] = [None] * len(array)
        return Runs.from_bytes(nothing)
    array = _cast(pa, field, array).cast(pa.large_binary())
    if field.type is TypeCode.STRING:
        array.cast(pa.large_string())  # raises an error for a text that is not UTF-8
    n = len(array)
    _, offset_buffer, data = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, n + 1, array.offset * 8) if n else np.zeros(1)
    offsets = offsets.astype(np.int64, copy=False)
    flat = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    lengths = np.diff(offsets)
    if valid is not None:
        lengths = np.where(valid, lengths, 0)
    return Runs(Dense(flat), offsets[:-1], lengths, valid)


def _lists(inner: Field, array: Any, valid: NDArray[np.bool_] | None) -> Column:
    column = arrow_column(inner, array.flatten())  # without values hidden by null lists
    if column.valid is not None:
        raise SourceError("a null inside a list")
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return Runs(column, np.cumsum(lengths) - lengths, lengths, valid)


def _ragged(pa: Any, field: Field, array: Any, valid: NDArray[np.bool_] | None) -> Column:
    """Return lists of numbers, or of arrays of one shape: their numbers one after another."""
    inner = array.flatten()
    size = math.prod(n for n in field.shape if n is not None)
    if len(field.shape) > 1:
        whole = replace(field, shape=field.shape[1:])
        if inner.null_count:
            raise SourceError("a null inside a list")
        column: Column = Dense(_fixed_lists(pa, whole, inner, None).values.reshape(-1))
    else:
        column = arrow_column(field_for(field.name, field.dtype), inner)
    if column.valid is not None:
        raise SourceError("a null inside a list")
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    lengths *= size
    return Runs(column, np.cumsum(lengths) - lengths, lengths, valid)


def _fixed_bytes(field: Field, array: Any, valid: NDArray[np.bool_] | None) -> Column:
    """Return pixels that are stored as their bytes."""
    size, n = array.type.byte_width, len(array)
    flat = np.frombuffer(array.buffers()[1], np.uint8, n * size, array.offset * size)
    shape = tuple(k or 0 for k in field.shape)
    return Dense(flat.reshape(n, *shape), valid=valid)


def _fixed_lists(pa: Any, field: Field, array: Any, valid: NDArray[np.bool_] | None) -> Dense:
    n, values = len(array), array
    while pa.types.is_fixed_size_list(values.type):
        size = values.type.list_size
        values = values.values.slice(values.offset * size, len(values) * size)
        if values.null_count:
            there = values.is_valid().to_numpy(zero_copy_only=False).reshape(n, -1)
            if not there[slice(None) if valid is None else valid].all():
                raise SourceError("a null inside a list")
    flat = _numbers(pa, Field(field.name, TypeCode.LONG, field.dtype), values)
    shape = tuple(k or 0 for k in field.shape)
    return Dense(flat.reshape(n, *shape), valid=valid)
