"""Single records of a batch as plain Python values.

columns of a batch -> **records** -> head, previews, notebooks
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ignitetf.read.reader import CacheReader
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Struct, runs_of
from ignitetf.wire.datatypes import DATA_TYPES
from ignitetf.wire.schema import BYTES, Field, Schema

__all__ = ["as_times", "batches_of", "record_at", "time_unit", "value_at"]

# The NumPy units in which fields store times as integers.
_ONE: Final = {
    code: f"{'m8' if row.python == (datetime.time,) else 'M8'}[{row.units[0]}]"
    for code, row in DATA_TYPES.items()
    if row.units
}
_UNITS: Final[dict[TypeCode, str]] = _ONE | {
    code: _ONE[row.element] for code, row in DATA_TYPES.items() if row.element in _ONE
}


def time_unit(field: Field) -> str | None:
    """Return the NumPy dtype of the times that a field stores as integers; None for others."""
    return _UNITS.get(field.type) if field.dtype.kind == "i" else None


def as_times(field: Field, value: Any) -> Any:
    """Return integers of a field, one or an array, as `datetime64` or `timedelta64`.

    Anything else, and the values of other fields, are returned unchanged.
    """
    unit = time_unit(field)
    if unit is None:
        return value
    found = np.asarray(value)
    return found.astype(unit)[()] if found.dtype.kind == "i" else value


def batches_of(reader: CacheReader) -> Iterator[Batch]:
    """Yield the records of a cache in the order of its partitions."""
    pages = reader.batches(list(range(reader.partition_count)))
    with contextlib.closing(pages):
        for item in pages:
            if item.batch is not None:
                yield item.batch


def record_at(schema: Schema, batch: Batch, index: int) -> dict[str, Any]:
    """Return one record of a batch: `key`, then the fields, in readable form."""
    record = {} if batch.key is None else {"key": value_at(schema.key, batch.key, index)}
    for field in schema.fields:
        record[field.name] = value_at(field, batch.columns[field.name], index)
    return record


def value_at(field: Field, column: Column, index: int) -> Any:
    """Return one value of a column in readable form; None for a null."""
    if column.valid is not None and not column.valid[index]:
        return None
    if isinstance(column, Struct):
        return {f.name: value_at(f, column.fields[f.name], index) for f in field.fields}
    if isinstance(column, Dense):
        return _readable(field, column.values[index])
    runs = runs_of(column)
    first, length = int(runs.starts[index]), int(runs.lengths[index])
    items = runs.items
    if field.fields or not isinstance(items, Dense):
        element = field.fields[0] if field.fields else Field(field.name, TypeCode.STRING, BYTES)
        return [value_at(element, items, i) for i in range(first, first + length)]
    run = items.values[first : first + length]
    if field.dtype != BYTES:
        return _readable(field, run)
    blob = run.tobytes()
    return blob if field.is_blob else blob.decode("utf-8", "replace")


def _readable(field: Field, value: Any) -> Any:
    """Return a number as Python's own, an enum by its name; times and arrays as NumPy's."""
    if time_unit(field) is not None:
        return as_times(field, value)
    if field.labels is not None:
        names = [field.labels.get(number, number) for number in np.ravel(value).tolist()]
        return names if value.ndim else names[0]
    return value if value.ndim else value.item()
