"""Python values to columns: types and shapes from a sample, then whole columns at a time.

records -> **fields, columns** -> Batch

A value must mean the same after conversion as before: an integer that does not fit, a float
where integers are expected or a text that looks like a number is refused, never cut or parsed.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import BYTES, Column, Field, Shape, field_for

__all__ = ["cast_array", "column_of", "field_of", "strings_column", "unfit"]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MICROSECOND = dt.timedelta(microseconds=1)
_DAY_MS = 86_400_000
# Kinds of arrays whose values all have their equal in a target of this kind.
_SOURCE_KINDS = {"i": "iub", "u": "iub", "f": "fiu", "b": "b"}


_LIST_CODE = {
    TypeCode.UUID: TypeCode.UUID_ARRAY,
    TypeCode.DECIMAL: TypeCode.DECIMAL_ARRAY,
    TypeCode.DATE: TypeCode.DATE_ARRAY,
    TypeCode.TIMESTAMP: TypeCode.TIMESTAMP_ARRAY,
    TypeCode.TIME: TypeCode.TIME_ARRAY,
}


def field_of(name: str, values: Sequence[Any]) -> Field:
    """The field that fits a sample of values; None among them makes it nullable.

    Integers become int64, floats float64, lists and arrays a fixed shape where all in the
    sample have it and a leading None else.

    Raises:
        SchemaError: No Ignite type stores such values, or the sample mixes types.
    """
    present = [v for v in values if v is not None]
    nullable = len(present) < len(values)
    if not present:
        return Field(name, TypeCode.STRING, BYTES, (), nullable=True)
    if (special := _special(name, present, nullable)) is not None:
        return special
    try:
        arrays = [np.asarray(v) for v in present]
    except ValueError as error:
        raise SchemaError(f"field {name!r}: a list whose parts differ in length") from error
    dtype = np.result_type(*{a.dtype for a in arrays})
    if len({a.dtype.kind for a in arrays} - {"i", "u", "f"}) > (dtype.kind not in "iuf"):
        raise SchemaError(f"field {name!r}: types are mixed: {_kinds(present)}")
    if dtype.kind in "US":
        return Field(name, TypeCode.STRING_ARRAY, BYTES, _common_shape(name, arrays), nullable)
    if dtype.kind == "O":
        raise SchemaError(f"field {name!r}: no Ignite type stores {_kinds(present)}")
    return field_for(name, dtype, _common_shape(name, arrays), nullable=nullable)


def _special(name: str, present: list[Any], nullable: bool) -> Field | None:
    """Fields of values that are no arrays of numbers."""
    kinds = (
        (str, TypeCode.STRING, BYTES),
        ((bytes, bytearray, memoryview), TypeCode.BYTE_ARRAY, BYTES),
        (decimal.Decimal, TypeCode.DECIMAL, BYTES),
        (dt.datetime, TypeCode.TIMESTAMP, np.dtype(np.int64)),
        (dt.date, TypeCode.DATE, np.dtype(np.int64)),
        (dt.time, TypeCode.TIME, np.dtype(np.int64)),
        (uuid.UUID, TypeCode.UUID, BYTES),
    )
    for types, code, dtype in kinds:
        if all(isinstance(v, types) for v in present):
            return Field(name, code, dtype, (), nullable)
        if any(isinstance(v, types) for v in present):
            raise SchemaError(f"field {name!r}: types are mixed: {_kinds(present)}")
    if all(isinstance(v, Mapping) for v in present):
        return _object_field(name, present, nullable)
    if all(isinstance(v, (list, tuple)) for v in present):
        return _list_field(name, present, nullable)
    return None


def _object_field(name: str, present: list[Mapping[str, Any]], nullable: bool) -> Field:
    """A nested object of all names that the sample has."""
    names = dict.fromkeys(str(key) for value in present for key in value)
    if not names:
        raise SchemaError(f"field {name!r}: dicts without keys")
    inner = tuple(field_of(key, [value.get(key) for value in present]) for key in names)
    return Field(name, TypeCode.OBJECT, BYTES, (), nullable, inner)


def _list_field(name: str, present: list[Any], nullable: bool) -> Field | None:
    """Lists of what NumPy has no numbers for; None for the others."""
    items = [item for value in present for item in value]
    types = (uuid.UUID, decimal.Decimal, dt.date, dt.time, Mapping)
    if not any(isinstance(item, types) for item in items):
        return None
    item = field_of("item", items)
    code = _LIST_CODE.get(item.type, TypeCode.COLLECTION)
    return Field(name, code, item.dtype, (None,), nullable, (item,))


def _kinds(values: list[Any]) -> str:
    return ", ".join(sorted({type(v).__name__ for v in values}))


def _common_shape(name: str, arrays: list[NDArray[Any]]) -> Shape:
    shapes = {a.shape for a in arrays}
    if len(shapes) == 1:
        return shapes.pop()
    if len({s[1:] for s in shapes}) == 1 and () not in shapes:
        return (None, *shapes.pop()[1:])
    raise SchemaError(
        f"field {name!r}: shapes differ in more than their first dimension: {sorted(shapes)[:4]}"
    )


def unfit(field: Field, value: Any) -> str | None:
    """Why a value does not fit to a field; None when it does."""
    try:
        column_of(field, [value])
    except (SchemaError, ValueError, TypeError, OverflowError, ArithmeticError) as error:
        return f"field {field.name}: {error}"
    return None


def column_of(field: Field, values: Sequence[Any]) -> Column:
    """The column of these values.

    Raises:
        SchemaError: One of them does not fit (also other errors of conversion: `unfit` finds
            the value).
    """
    valid = None
    if any(v is None for v in values):
        if not field.nullable:
            raise SchemaError("null, but the field is not nullable")
        valid = np.fromiter((v is not None for v in values), np.bool_, len(values))
    if field.fields:
        return _nested(field, values, valid)
    if field.type in (TypeCode.STRING, TypeCode.DECIMAL, TypeCode.UUID) or (
        field.type == TypeCode.BYTE_ARRAY and field.dtype == BYTES
    ):
        return Column.from_bytes([_to_bytes(field, v) for v in values])
    if field.type == TypeCode.STRING_ARRAY:
        return strings_column(field, [() if v is None else v for v in values], valid)
    if field.type in (TypeCode.TIMESTAMP, TypeCode.DATE, TypeCode.TIME):
        numbers = [0 if v is None else _to_time(field, v) for v in values]
        return Column(np.array(numbers, np.int64), valid=valid)
    if field.ragged:
        return _runs(field, values, valid)
    return _dense(field, values, valid)


def _nested(field: Field, values: Sequence[Any], valid: NDArray[np.bool_] | None) -> Column:
    """Nested objects from dicts, lists of objects from lists, maps from dicts."""
    whole = [({} if v is None else v) for v in values]
    if field.type in (TypeCode.OBJECT, TypeCode.MAP) and not all(
        isinstance(v, Mapping) for v in whole
    ):
        raise SchemaError("no dict")
    if field.type is TypeCode.OBJECT:
        return Column({f.name: _object_column(f, values) for f in field.fields}, valid=valid)
    if field.type is TypeCode.MAP:
        keys, items = field.fields
        lists = ([list(v) for v in whole], [list(v.values()) for v in whole])
        columns = {f.name: _list(f, v, None) for f, v in zip((keys, items), lists, strict=True)}
        return Column(columns, valid=valid)
    return _list(field.fields[0], whole, valid)


def _object_column(field: Field, values: Sequence[Any]) -> Column:
    """One field of nested objects; where the object itself is missing, any value will do."""
    present = [v.get(field.name) for v in values if v is not None]
    column = column_of(field, present)
    if len(present) == len(values):
        return column
    rows = np.array([v is not None for v in values])
    if not present:
        return column_of(replace(field, nullable=True), [None] * len(values))
    spread = column[np.maximum(np.cumsum(rows) - 1, 0)]
    marks = rows if spread.valid is None else rows & spread.valid
    return replace(spread, valid=marks if field.nullable else None)


def _list(item: Field, lists: Sequence[Any], valid: NDArray[np.bool_] | None) -> Column:
    if any(isinstance(v, (str, bytes)) for v in lists):
        raise SchemaError("a text instead of a list")
    inner = column_of(item, [one for v in lists for one in v])
    offsets = np.cumsum([0, *(len(v) for v in lists)], dtype=np.int64)
    plain = inner.starts is None and inner.valid is None and isinstance(inner.values, np.ndarray)
    return Column.from_offsets(inner.values if plain else inner, offsets, valid)  # type: ignore[arg-type]


def _to_bytes(field: Field, value: Any) -> bytes | None:
    if value is None:
        return None
    if field.type == TypeCode.DECIMAL:
        if not isinstance(value, (decimal.Decimal, int)) or isinstance(value, bool):
            raise SchemaError(f"{type(value).__name__} instead of a decimal")
        number = decimal.Decimal(value)
        if not number.is_finite():
            raise SchemaError(f"{number} is no finite decimal")
        return format(number, "f").encode()
    if field.type == TypeCode.UUID:
        return str(uuid.UUID(str(value))).encode()
    if isinstance(value, str):
        if field.type == TypeCode.BYTE_ARRAY:
            raise SchemaError("str instead of bytes")
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        if field.type == TypeCode.STRING:
            raw.decode()
        return raw
    raise SchemaError(f"{type(value).__name__} instead of {field.type.name.lower()}")


def _to_time(field: Field, value: Any) -> int:
    """Nanoseconds since the epoch for a timestamp, milliseconds for a date or a time of day."""
    if field.type == TypeCode.TIME:
        if not isinstance(value, dt.time) or value.tzinfo is not None:
            raise SchemaError(f"{type(value).__name__} instead of a time without a zone")
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * 1000 + value.microsecond // 1000
    if field.type == TypeCode.DATE:
        if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
            raise SchemaError(f"{type(value).__name__} instead of a date")
        return (value.toordinal() - _EPOCH.toordinal()) * _DAY_MS
    if not isinstance(value, dt.datetime):
        raise SchemaError(f"{type(value).__name__} instead of a datetime")
    moment = value if value.tzinfo is not None else value.replace(tzinfo=dt.timezone.utc)
    return (moment - _EPOCH) // _MICROSECOND * 1000


def strings_column(
    field: Field, lists: Sequence[Any], valid: NDArray[np.bool_] | None = None
) -> Column:
    """A column of arrays of strings: runs of runs of bytes."""
    flat: list[bytes] = []
    lengths = np.zeros(len(lists), np.int64)
    for i, items in enumerate(lists):
        if isinstance(items, (str, bytes)):
            raise SchemaError(f"{type(items).__name__} instead of a list of strings")
        texts = [item.encode() if isinstance(item, str) else bytes(item) for item in items]
        if field.shape[0] not in (None, len(texts)) and (valid is None or valid[i]):
            raise SchemaError(f"{len(texts)} strings, expected {field.shape[0]}")
        for text in texts:
            text.decode()
        flat += texts
        lengths[i] = len(texts)
    starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))[:-1]
    return Column(Column.from_bytes(flat), starts, lengths, valid)


def _dense(field: Field, values: Sequence[Any], valid: NDArray[np.bool_] | None) -> Column:
    shape = tuple(n or 0 for n in field.shape)
    if valid is None:
        whole = np.asarray(values) if len(values) else np.empty((0, *shape), field.dtype)
        if whole.shape != (len(values), *shape):
            raise SchemaError(f"shape {list(whole.shape[1:])}, expected {list(shape)}")
        return Column(cast_array(field, whole))
    out = np.zeros((len(values), *shape), field.dtype)
    present = [v for v in values if v is not None]
    if present:
        out[valid] = _dense(field, present, None).values
    return Column(out, valid=valid)


def _runs(field: Field, values: Sequence[Any], valid: NDArray[np.bool_] | None) -> Column:
    trailing = tuple(n or 0 for n in field.shape[1:])
    empty = np.empty((0, *trailing), field.dtype)
    pieces = []
    for value in values:
        array = empty if value is None else np.asarray(value)
        if array.size == 0 and array.ndim == 1:
            array = empty
        if array.ndim != len(field.shape) or array.shape[1:] != trailing:
            raise SchemaError(f"shape {list(array.shape)}, expected {list(field.shape)}")
        pieces.append(cast_array(field, array).reshape(-1))
    lengths = np.fromiter((len(p) for p in pieces), np.int64, len(pieces))
    starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))[:-1]
    flat = np.concatenate(pieces) if pieces else np.empty(0, field.dtype)
    return Column(flat, starts, lengths, valid)


def cast_array(field: Field, array: NDArray[Any]) -> NDArray[Any]:
    """The array in the field's dtype, where every value keeps its meaning."""
    target = field.dtype
    if array.dtype == target:
        return array
    if array.dtype.kind not in _SOURCE_KINDS.get(target.kind, "") and array.size:
        raise SchemaError(f"{array.dtype} instead of {target}")
    if target.kind in "iu" and array.size:
        limits = np.iinfo(target)
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise SchemaError(f"{low if low < limits.min else high} does not fit into {target}")
    return array.astype(target)
