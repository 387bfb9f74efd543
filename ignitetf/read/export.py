"""Converts batches of columns to NumPy arrays and Arrow record batches, without TensorFlow.

leaves -> **export** -> PyTorch, JAX, pandas, Polars, ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import MissingExtra
from ignitetf.read.leaves import DenseNode, Node, RunsNode, StructNode
from ignitetf.wire.arrow import array_of, arrow_field, meant_type, stream_of
from ignitetf.wire.columns import Batch, Column, Dense, Runs, Struct
from ignitetf.wire.schema import Field

__all__ = [
    "Ragged",
    "arrow_form",
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
    if isinstance(node, StructNode):
        assert isinstance(column, Struct)
        return {name: to_numpy(column.fields[name], inner) for name, inner in node.fields}
    if isinstance(node, RunsNode):
        items, offsets = node.items_of(column)
        return Ragged(to_numpy(items, node.item), offsets)
    if isinstance(column, Runs):
        return column.to_objects()
    assert isinstance(column, Dense) and isinstance(node, DenseNode)
    return column.values.reshape(len(column.values), *node.shape)


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


def arrow_form(nodes: Mapping[str, Node], fields: Sequence[Field] | None = None) -> Any:
    """Return the `pyarrow.Schema` of rows.

    Strings and blobs are `large_binary` in it, tensors nested fixed-size lists, lists `large_list`.
    For other libraries texts, decimals and UUIDs are `large_string` and times are Arrow's, in UTC
    without a zone, and each column notes the field that it is, so that a load stores the same types.

    Args:
        nodes: The columns.
        fields: The fields of the value, to have it for other libraries.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    pa = MissingExtra.module("pyarrow", "arrow() needs pyarrow", "arrow")
    kinds = {name: _type(pa, node) for name, node in nodes.items()}
    if fields is None:
        return pa.schema(kinds)
    by_name = {field.name: field for field in fields}
    return pa.schema(
        [
            arrow_field(pa, by_name[name], meant_type(pa, by_name[name], kind), nullable=False)
            if name in by_name
            else pa.field(name, kind, nullable=False)
            for name, kind in kinds.items()
        ]
    )


def to_arrow(batch: Batch, form: Any) -> Any:
    """Return rows as a `pyarrow.RecordBatch` with the columns of a schema; the key is `key`.

    Numbers and the bytes of blobs share memory with the page where they are contiguous in it.
    """
    pa = MissingExtra.module("pyarrow", "arrow() needs pyarrow", "arrow")
    columns = batch.columns if batch.key is None else {"key": batch.key, **batch.columns}
    return pa.record_batch(
        [array_of(pa, columns[field.name], field.type) for field in form], schema=form
    )


def arrow_stream(form: Any, batches: Iterator[Batch], requested_schema: object | None) -> object:
    """Return rows as an Arrow stream (PyCapsule), for other libraries.

    Args:
        form: As `arrow_form` returns it.
        batches: The rows.
        requested_schema: As the protocol has it.
    """
    pa = MissingExtra.module("pyarrow", "an Arrow stream needs pyarrow", "arrow")
    return stream_of(pa, form, (to_arrow(batch, form) for batch in batches), requested_schema)


def _type(pa: Any, node: Node) -> Any:
    """Return the Arrow type of columns of a node."""
    if isinstance(node, StructNode):
        return pa.struct([pa.field(name, _type(pa, inner)) for name, inner in node.fields])
    if isinstance(node, RunsNode):
        return pa.large_list(_type(pa, node.item))
    if not isinstance(node, DenseNode):
        return pa.large_binary()
    kind = pa.from_numpy_dtype(node.dtype)
    for size in reversed(node.shape):
        kind = pa.list_(kind, size)
    return kind
