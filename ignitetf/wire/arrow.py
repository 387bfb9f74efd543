"""Converts columns to Arrow: the one place that makes its arrays, schemas and streams.

columns -> **arrow** -> rows, results of SQL, exports

The caller gives the Arrow type of each column. The array shares the column's memory if the layout
is the same. pyarrow makes the structures of Arrow's C data interface. It is passed as an argument,
because only users of Arrow need it.
"""

from __future__ import annotations

import datetime
import json
import math
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import WireError
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Column, Dense, Runs, Struct
from ignitetf.wire.datatypes import Family, family_of
from ignitetf.wire.schema import Field

__all__ = [
    "FIELD_METADATA",
    "array_of",
    "array_of_objects",
    "arrow_field",
    "meant_type",
    "stream_of",
]

# The key in an Arrow field's metadata under which the original field is stored, as JSON.
FIELD_METADATA: Final = b"ignitetf"
_DAY_MS: Final = 86_400_000


def array_of(pa: Any, column: Column, kind: Any) -> Any:
    """Return a column as an array of an Arrow type.

    Numbers must be in the type's own unit, except that days are given in milliseconds. Runs of
    dense values can also become lists of lists of fixed sizes.

    Raises:
        WireError: A text is not UTF-8.
    """
    if isinstance(column, Runs):
        is_list = pa.types.is_large_list(kind)
        return _lists(pa, column, kind) if is_list else _texts(pa, column, kind)
    marks = _validity(pa, column)
    if isinstance(column, Struct):
        parts = [array_of(pa, column.fields[part.name], part.type) for part in kind]
        return pa.Array.from_buffers(kind, len(column), [marks], children=parts)
    assert isinstance(column, Dense)
    if pa.types.is_fixed_size_binary(kind):
        data = pa.py_buffer(np.ascontiguousarray(column.values).reshape(-1))
        return pa.Array.from_buffers(kind, len(column), [marks, data])
    if not pa.types.is_fixed_size_list(kind):
        return _numbers(pa, column.values, column.valid, kind)
    kinds = _fixed_list_types(pa, kind)
    array = _numbers(pa, column.values.reshape(-1), None, kinds[-1].value_type)
    sizes = [one.list_size for one in kinds]
    for axis in reversed(range(len(kinds))):
        count = len(column) * math.prod(sizes[:axis])
        # `from_arrays` cannot infer the number of lists of length 0.
        buffers = [marks if axis == 0 else None]
        array = pa.Array.from_buffers(kinds[axis], count, buffers, children=[array])
    return array


def _fixed_list_types(pa: Any, kind: Any) -> list[Any]:
    """Return the nested list types of fixed sizes, the outermost first."""
    found = []
    while pa.types.is_fixed_size_list(kind):
        found.append(kind)
        kind = kind.value_type
    return found


def _validity(pa: Any, column: Column) -> Any:
    """Return the validity buffer; None if no value is null."""
    valid = column.valid
    return None if valid is None or valid.all() else pa.array(valid).buffers()[1]


def _numbers(pa: Any, values: NDArray[Any], valid: NDArray[np.bool_] | None, kind: Any) -> Any:
    values = np.ascontiguousarray(values)
    if pa.types.is_date32(kind):
        values = (values // _DAY_MS).astype(np.int32)
    elif pa.types.is_time32(kind):
        values = values.astype(np.int32)
    array = pa.array(values, mask=None if valid is None or valid.all() else ~valid)
    return array.view(kind) if pa.types.is_temporal(kind) else array


def _texts(pa: Any, column: Runs, kind: Any) -> Any:
    items, offsets = column.compact()
    assert isinstance(items, Dense)
    data = pa.py_buffer(np.ascontiguousarray(items.values))
    buffers = [_validity(pa, column), pa.py_buffer(offsets), data]
    found = pa.Array.from_buffers(kind, len(column), buffers)
    if pa.types.is_large_string(kind):
        try:
            found.validate(full=True)
        except pa.ArrowInvalid as error:
            raise WireError(
                f"a text is not UTF-8, which Arrow requires: {error}",
                hint="use fetchall() or numpy() if a text has half of a surrogate pair",
            ) from error
    return found


def _lists(pa: Any, column: Runs, kind: Any) -> Any:
    items, offsets = column.compact()
    sizes = [one.list_size for one in _fixed_list_types(pa, kind.value_type)]
    if sizes and isinstance(items, Dense) and items.values.ndim == 1:
        items = Dense(items.values.reshape(-1, *sizes))
        offsets = offsets // math.prod(sizes)
    children = [array_of(pa, items, kind.value_type)]
    buffers = [_validity(pa, column), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(column), buffers, children=children)


def array_of_objects(pa: Any, values: Iterable[Any], kind: Any = None) -> Any:
    """Return Python objects as an array; if no type is given, pyarrow infers it."""
    return pa.array([_plain(value) for value in values], kind)


def _plain(value: Any) -> Any:
    """Return a value that pyarrow accepts."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return (datetime.datetime.min + value).time()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return value


# Types and fields


def meant_type(pa: Any, field: Field, kind: Any, zone: str | None = None) -> Any:
    """Return the Arrow type for the meaning of a field, such as a text or a time.

    Args:
        pa: pyarrow.
        field: The field.
        kind: The Arrow type of its values as they are read: bytes, integers, or lists.
        zone: The time zone of timestamps in the Arrow type.
    """
    family = family_of(field.type)
    if pa.types.is_large_binary(kind):
        is_text = family in (Family.TEXT, Family.DECIMAL, Family.UUID)
        return pa.large_string() if is_text else kind
    if field.type is TypeCode.STRING_ARRAY and pa.types.is_large_list(kind):
        return pa.large_list(pa.large_string())
    if not pa.types.is_int64(kind):
        return kind
    if family is Family.TIMESTAMP:
        unit = np.datetime_data(field.dtype)[0] if field.dtype.kind == "M" else "ns"
        return pa.timestamp(unit, zone)
    if field.type is TypeCode.DATE:
        return pa.timestamp("ms", zone)
    return pa.time32("ms") if field.type is TypeCode.TIME else kind


def arrow_field(pa: Any, field: Field, kind: Any, *, nullable: bool) -> Any:
    """Return an Arrow field whose metadata has `field`, so that a load stores the same type."""
    metadata = {FIELD_METADATA: json.dumps(field.to_json()).encode()}
    return pa.field(field.name, kind, nullable=nullable, metadata=metadata)


# Streams


def stream_of(
    pa: Any, schema: Any, batches: Iterator[Any], requested_schema: object | None
) -> object:
    """Return record batches as an Arrow stream (PyCapsule), for other libraries."""
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    return reader.__arrow_c_stream__(requested_schema)
