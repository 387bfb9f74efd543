"""Values as frameworks of tables store them: texts as `str`.

rows -> **plain** -> huggingface, ray
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ignitetf.read.export import count_of, record_of
from ignitetf.read.rows import EpochRows
from ignitetf.wire.codes import TypeCode

__all__ = ["flat_columns", "text_names", "value_of"]


def text_names(rows: EpochRows) -> set[str]:
    """Return the names of the columns that are texts, not bytes."""
    import pyarrow as pa

    names = {field.name for field in pa.schema(rows) if pa.types.is_large_string(field.type)}
    # Arrow has the bytes of a text key.
    has_text_key = rows.reader.schema.key.type is TypeCode.STRING and "key" not in rows.values
    return names | {"key"} if has_text_key else names


def value_of(value: Any, is_text: bool) -> Any:
    """Return a value; a text as `str`."""
    return value.decode() if is_text and isinstance(value, bytes) else value


def flat_columns(columns: dict[str, Any], rows: EpochRows) -> dict[str, Any]:
    """Return columns of rows by name: arrays of numbers as they are, others as lists of values."""
    if not rows.plain:
        columns = {"key": columns["key"], **columns["val"]}
    texts, count = text_names(rows), count_of(columns)
    return {name: _listed(column, count, name in texts) for name, column in columns.items()}


def _listed(column: Any, count: int, is_text: bool) -> Any:
    if isinstance(column, np.ndarray) and column.dtype != object:
        return column
    return [value_of(record_of({"": column}, number)[""], is_text) for number in range(count)]
