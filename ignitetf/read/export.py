"""Converts batches of columns to NumPy arrays and Arrow record batches, without TensorFlow.

leaves -> **export** -> PyTorch, JAX, pandas, Polars, ...
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import MissingExtra
from ignitetf.read.leaves import Dense, Node, Runs, Struct
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.concat import FIELD_METADATA, bytes_array, fixed_array, list_array
from ignitetf.wire.datatypes import Family, family_of
from ignitetf.wire.schema import Batch, Column, Field

__all__ = [
    "Ragged",
    "arrow_schema",
    "arrow_stream",
    "columns_of",
    "count_of",
    "record_of",
    "to_arrow",
    "to_numpy",
]


class Ragged(NamedTuple):
    """Lists of different lengths: record i is `values[offsets[i] : offsets[i + 1]]`."""

    values: Any
    offsets: NDArray[np.int64]


def to_numpy(column: Column, node: Node) -> Any:
    """Convert a column to NumPy.

    Returns:
        Dense: an array `[n, *shape]`, a view of the page if its records have equal lengths. Text:
            an object array `[n]` of `bytes`. Lists: `Ragged`. Objects and maps: a dict.
    """
    if isinstance(node, Dense):
        assert isinstance(column.values, np.ndarray)
        return column.values.reshape(len(column.values), *node.shape)
    if isinstance(node, Struct):
        assert isinstance(column.values, dict)
        return {name: to_numpy(column.values[name], inner) for name, inner in node.fields}
    if isinstance(node, Runs):
        values, offsets = _items(column, node)
        return Ragged(to_numpy(values, node.item), offsets)
    return column.to_objects()


def columns_of(batch: Batch, key: Node, values: dict[str, Node], plain: bool) -> dict[str, Any]:
    """Return a batch as NumPy columns: `{"key": column, "val": {FIELD: column}}`.

    Args:
        batch: The records.
        key: The structure of the key.
        values: The structure of each field.
        plain: Whether values are no objects; `val` is then itself a column.
    """
    assert batch.key is not None
    found = {name: to_numpy(batch.columns[name], node) for name, node in values.items()}
    return {"key": to_numpy(batch.key, key), "val": found["val"] if plain else found}


def count_of(columns: Any) -> int:
    """Return the number of records in the columns that `columns_of` returns."""
    if isinstance(columns, dict):
        return count_of(next(iter(columns.values())))
    return len(columns.offsets) - 1 if isinstance(columns, Ragged) else len(columns)


def record_of(columns: Any, number: int) -> Any:
    """Return one record of the columns that `columns_of` returns, in the same structure."""
    if isinstance(columns, dict):
        return {name: record_of(column, number) for name, column in columns.items()}
    if isinstance(columns, Ragged):
        return _part(columns.values, int(columns.offsets[number]), int(columns.offsets[number + 1]))
    return columns[number]


def _part(columns: Any, start: int, stop: int) -> Any:
    if isinstance(columns, dict):
        return {name: _part(column, start, stop) for name, column in columns.items()}
    if isinstance(columns, Ragged):
        return Ragged(columns.values, columns.offsets[start : stop + 1])
    return columns[start:stop]


def to_arrow(batch: Batch, key: Node, nodes: dict[str, Node]) -> Any:
    """Return a `pyarrow.RecordBatch` with the column `key` and one column per field.

    Strings and blobs become `large_binary`, tensors nested fixed-size lists, lists `large_list`.
    Numbers and the bytes of blobs share memory with the page where they are contiguous in it.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingExtra.of("arrow() needs pyarrow", "arrow", error) from error
    rows = len(batch)
    columns = {"key": _arrow(pa, batch.key, key, rows)} if batch.key is not None else {}
    columns |= {name: _arrow(pa, batch.columns[name], node, rows) for name, node in nodes.items()}
    return pa.record_batch(list(columns.values()), names=list(columns))


def arrow_schema(empty: Any, fields: Sequence[Field]) -> object:
    """Return the schema of `arrow_stream` as a PyCapsule."""
    return _typed(empty, {field.name: field for field in fields}).schema.__arrow_c_schema__()


def arrow_stream(
    empty: Any, batches: Iterator[Any], fields: Sequence[Field], requested_schema: object | None
) -> object:
    """Return record batches as an Arrow stream (PyCapsule), for other libraries.

    Texts, decimals and UUIDs are `large_string` in it, times are Arrow's, in UTC without a zone.
    Each column notes the field that it is, so that a load of the stream stores the same types.

    Args:
        empty: A batch without rows, which tells the columns.
        batches: The batches, as `to_arrow` makes them.
        fields: The fields.
        requested_schema: As the protocol has it.
    """
    import pyarrow as pa

    by_name = {field.name: field for field in fields}
    typed = (_typed(batch, by_name) for batch in batches)
    reader = pa.RecordBatchReader.from_batches(_typed(empty, by_name).schema, typed)
    return reader.__arrow_c_stream__(requested_schema)


def _typed(batch: Any, fields: Mapping[str, Field]) -> Any:
    import pyarrow as pa

    arrays, columns = [], []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        field, metadata = fields.get(name), {}
        if field is not None:
            array = _as_stored(pa, field, array)
            metadata[FIELD_METADATA] = json.dumps(field.to_json()).encode()
        arrays.append(array)
        columns.append(pa.field(name, array.type, nullable=False, metadata=metadata))
    return pa.record_batch(arrays, schema=pa.schema(columns))


def _as_stored(pa: Any, field: Field, array: Any) -> Any:
    """Return texts as such, and the integers of a time as one."""
    family = family_of(field.type)
    if pa.types.is_large_binary(array.type):
        texts = family in (Family.TEXT, Family.DECIMAL, Family.UUID)
        return array.cast(pa.large_string()) if texts else array
    if field.type is TypeCode.STRING_ARRAY and pa.types.is_large_list(array.type):
        return array.cast(pa.large_list(pa.large_string()))
    if not pa.types.is_int64(array.type):
        return array
    if family is Family.TIMESTAMP:
        unit = np.datetime_data(field.dtype)[0] if field.dtype.kind == "M" else "ns"
        return array.cast(pa.timestamp(unit))
    if field.type is TypeCode.DATE:
        return array.cast(pa.timestamp("ms"))
    if field.type is TypeCode.TIME:
        return array.cast(pa.int32()).cast(pa.time32("ms"))
    return array


def _arrow(pa: Any, column: Column, node: Node, rows: int) -> Any:
    if isinstance(node, Dense):
        assert isinstance(column.values, np.ndarray)
        return fixed_array(pa, column.values, node.shape)
    if isinstance(node, Struct):
        assert isinstance(column.values, dict)
        parts = [_arrow(pa, column.values[name], inner, rows) for name, inner in node.fields]
        fields = [
            pa.field(name, part.type) for (name, _), part in zip(node.fields, parts, strict=True)
        ]
        return pa.Array.from_buffers(pa.struct(fields), rows, [None], children=parts)
    if isinstance(node, Runs):
        values, offsets = _items(column, node)
        inner = _arrow(pa, values, node.item, int(offsets[-1]))
        return list_array(pa, inner, offsets)
    return bytes_array(pa, column, pa.large_binary())


def _items(column: Column, node: Runs) -> tuple[Column, NDArray[np.int64]]:
    """Return the items of all records in one column, and offsets in items."""
    values, offsets = column.compact()
    if isinstance(values, np.ndarray):
        shape = node.item.shape if isinstance(node.item, Dense) else ()
        values = Column(values.reshape(-1, *shape))
    return values, offsets // node.step
