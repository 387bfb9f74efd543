"""Converts Arrow arrays to columns: types, nulls, dictionaries, decimals, times, lists.

CSV or Parquet -> Arrow -> **fields, columns** -> Batch

Timestamps become nanoseconds since 1970 UTC (int64), dates milliseconds since 1970 (int64), times
of day milliseconds (int64), decimals their text. Values are never truncated; one that does not fit
is an error.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import MissingExtra, SchemaError, SourceError
from ignitetf.load.sources.exact import stored_field
from ignitetf.wire.arrow import FIELD_METADATA
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import DATA_TYPES, Family, family_of
from ignitetf.wire.schema import BYTES, Column, Field, Shape, field_for

__all__ = ["arrow_column", "arrow_field", "import_pyarrow", "marked_field"]


def import_pyarrow(what: str) -> Any:
    """Import pyarrow.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtra.of(f"{what} are read through pyarrow", "arrow", error) from error
    return pyarrow


def arrow_field(name: str, arrow_type: Any, *, nullable: bool = True) -> Field:
    """Return the field that stores values of an Arrow type.

    Raises:
        SourceError: No Ignite type can store them.
    """
    pa = import_pyarrow("tables")
    types = pa.types
    shape: Shape = ()
    if isinstance(arrow_type, pa.BaseExtensionType):
        inner = getattr(arrow_type, "shape", None)
        arrow_type = arrow_type.storage_type
        if inner is not None and types.is_fixed_size_list(arrow_type):
            dtype = _number_dtype(pa, arrow_type.value_type)
            if dtype is not None:
                return stored_field(name, dtype, tuple(inner), nullable=nullable)
    if types.is_dictionary(arrow_type):
        return arrow_field(name, arrow_type.value_type, nullable=nullable)
    if _is_list(types, arrow_type):
        shape, arrow_type = (None,), arrow_type.value_type
    while shape != (None,) and types.is_fixed_size_list(arrow_type):
        shape, arrow_type = (*shape, arrow_type.list_size), arrow_type.value_type
    if shape and types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if shape:
        if len(shape) == 1 and _is_text(types, arrow_type):
            return Field(name, TypeCode.STRING_ARRAY, BYTES, (None,), nullable)
        if (dtype := _number_dtype(pa, arrow_type)) is not None:
            return stored_field(name, dtype, shape, nullable=nullable)
    elif (scalar := _scalar_field(pa, name, arrow_type, nullable)) is not None:
        return scalar
    raise SourceError(
        f"column {name!r}: no Ignite type stores {arrow_type}",
        hint="leave the column out, or convert it before",
    )


def _is_list(types: Any, arrow_type: Any) -> bool:
    names = ("list", "large_list", "list_view", "large_list_view")
    return any(getattr(types, f"is_{name}")(arrow_type) for name in names)


def _is_text(types: Any, arrow_type: Any) -> bool:
    names = ("string", "large_string", "string_view")
    return any(getattr(types, f"is_{name}")(arrow_type) for name in names)


def marked_field(arrow: Any) -> Field:
    """Return the field of a column of a table: the one that an export noted, else a new one."""
    found = arrow_field(arrow.name.upper(), arrow.type, nullable=arrow.nullable)
    try:
        noted = Field.from_json(json.loads((arrow.metadata or {})[FIELD_METADATA]))
    except (KeyError, ValueError, SchemaError):
        return found
    pa = import_pyarrow("tables")
    size = arrow.type.byte_width if pa.types.is_fixed_size_binary(arrow.type) else None
    # Another tool may have changed the column and kept the metadata.
    same = noted.name.upper() == found.name and _stands_for(noted, found, size)
    return replace(noted, name=found.name, nullable=found.nullable) if same else found


def _stands_for(noted: Field, found: Field, size: int | None) -> bool:
    """Whether values of the form that a column has can be those of a noted field.

    Args:
        noted: The field that was exported.
        found: The field that the column would be.
        size: Bytes of each value, if the column has values of one size.
    """
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
    """Convert an Arrow array whose type `arrow_field` described; nulls are marked in `valid`.

    Raises:
        SourceError: A value cannot be stored in the field: a null inside a list, a time out of
            range for int64 nanoseconds.
        ArrowException: Another value does not fit.
    """
    pa = import_pyarrow("tables")
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    valid = None
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
    if field.type == TypeCode.STRING_ARRAY:
        return _lists(Field(field.name, TypeCode.STRING, BYTES), array, valid)
    if field.ragged:
        return _lists(field_for(field.name, field.dtype), array, valid)
    if field.shape and pa.types.is_fixed_size_binary(array.type):
        return _fixed_bytes(field, array, valid)
    if field.shape:
        return _fixed_lists(pa, field, array, valid)
    if field.dtype == BYTES:
        return _bytes(pa, field, array, valid)
    return Column(_numbers(pa, field, array), valid=valid)


def _numbers(pa: Any, field: Field, array: Any) -> NDArray[Any]:
    if field.type == TypeCode.DATE and pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", array.type.tz)).cast(pa.int64())
    else:
        array = _cast(pa, field, array)
    if pa.types.is_float16(array.type):
        array = array.cast(pa.float32())
    elif pa.types.is_uint64(array.type):
        array = array.cast(pa.int64())  # a long holds half of its values
    if array.null_count:
        array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values.astype(field.dtype, copy=False)


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
        return Column.from_bytes(nothing)
    array = _cast(pa, field, array).cast(pa.large_binary())
    n = len(array)
    _, offset_buffer, data = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, n + 1, array.offset * 8) if n else np.zeros(1)
    offsets = offsets.astype(np.int64, copy=False)
    flat = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    lengths = np.diff(offsets)
    if valid is not None:
        lengths = np.where(valid, lengths, 0)
    return Column(flat, offsets[:-1], lengths, valid)


def _lists(inner: Field, array: Any, valid: NDArray[np.bool_] | None) -> Column:
    column = arrow_column(inner, array.flatten())  # without what null lists hide
    if column.valid is not None:
        raise SourceError("a null inside a list")
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = column.values if inner.dtype != BYTES else column
    assert not isinstance(flat, dict)
    return Column(flat, np.cumsum(lengths) - lengths, lengths, valid)


def _fixed_bytes(field: Field, array: Any, valid: NDArray[np.bool_] | None) -> Column:
    """Return pixels that are stored as their bytes."""
    size, n = array.type.byte_width, len(array)
    flat = np.frombuffer(array.buffers()[1], np.uint8, n * size, array.offset * size)
    shape = tuple(k or 0 for k in field.shape)
    return Column(flat.reshape(n, *shape), valid=valid)


def _fixed_lists(pa: Any, field: Field, array: Any, valid: NDArray[np.bool_] | None) -> Column:
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
    return Column(flat.reshape(n, *shape), valid=valid)
