"""Converts batches of columns to flat arrays, NumPy and Arrow; does not import TensorFlow.

schema -> **export** -> rows -> TensorFlow, PyTorch, JAX, pandas, Polars, ...

Each field is a small tree of nodes: dense values, text, runs of another node, or a struct of nodes.
For TensorFlow a node copies the columns of several batches once into leaf arrays. Their memory is
64-byte aligned, so that TensorFlow can use it without another copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import MissingExtra
from ignitetf.read.options import MASK_SUFFIX, NullPolicy
from ignitetf.wire.arrow import array_of, arrow_field, meant_type, stream_of
from ignitetf.wire.buffers import ALIGNMENT, BufferPool
from ignitetf.wire.columns import Batch, Column, Dense, Runs, Struct
from ignitetf.wire.datatypes import Family, family_of
from ignitetf.wire.schema import BYTES, Field, Schema

__all__ = [
    "DenseNode",
    "Node",
    "Ragged",
    "RunsNode",
    "StructNode",
    "TextNode",
    "TextStore",
    "arrow_form",
    "arrow_stream",
    "columns_of",
    "count_of",
    "element_tree",
    "key_tree",
    "record_of",
    "to_arrow",
    "to_numpy",
]

# If at least this share of a range is wanted, the whole range is copied, not value by value.
_LEAST_SHARE = 1 / 32
# Other fields of the first and the last record are probably within this many bytes.
_MARGIN = 1024
_NOTHING: Final = np.empty(0, np.uint8)


class _Window(NamedTuple):
    """Bytes `first` to `end` of a buffer; keeping the buffer keeps its id from being reused."""

    first: int
    end: int
    base: int
    buffer: Any


class TextStore:
    """The bytes of the text columns of a page; starts and lengths of the values are kept apart.

    Passing values one by one costs a Python object each, ten times as much as the bytes of a short
    string. The columns of one page share a buffer, which is added once for all of them.
    """

    def __init__(self) -> None:
        self._parts: list[NDArray[np.uint8]] = []
        self._size = 0
        self._windows: dict[int, _Window] = {}

    def add(self, column: Runs) -> NDArray[np.int64]:
        """Return the start of each value in the concatenated `halves`, int64 [n]."""
        values, starts, lengths = column.values, column.starts, column.lengths
        if len(starts) == 0:
            return starts
        first, end = int(starts.min()), int((starts + lengths).max())
        known = self._windows.get(id(values))
        if known is not None and known.first <= first and end <= known.end:
            return starts + (known.base - known.first)
        base = self._size
        if int(lengths.sum()) < _LEAST_SHARE * (end - first):
            self._append(np.frombuffer(b"".join(column.to_bytes()), np.uint8))
            return np.cumsum(lengths) - lengths + base
        first, end = max(0, first - _MARGIN), min(values.nbytes, end + _MARGIN)
        part, before = _from_aligned(np.ascontiguousarray(values).view(np.uint8)[first:end])
        base += before
        self._windows[id(values)] = _Window(first, end, base, values)
        self._append(part)
        return starts + (base - first)

    def halves(self, pool: BufferPool) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return all bytes as two arrays: the first part, and the rest (copied if several)."""
        first, *others = self._parts or [_NOTHING]
        if len(others) <= 1:
            return first, others[0] if others else _NOTHING
        return first, np.concatenate(others, out=pool.take(self._size - len(first)))

    def _append(self, part: NDArray[np.uint8]) -> None:
        self._parts.append(part)
        self._size += len(part)


@dataclass(frozen=True)
class DenseNode:
    """Values of one dtype and shape: one leaf `[n, *shape]`."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of a value."""
        return math.prod(self.shape) * self.dtype.itemsize

    def pack(
        self, columns: Sequence[Column], pool: BufferPool, texts: TextStore | None
    ) -> Iterator[NDArray[Any]]:
        """Yield one array of all records; copied unless TensorFlow can use the memory directly."""
        arrays = [column.values for column in columns if isinstance(column, Dense)]
        if len(arrays) == 1 and (whole := _ready(arrays[0], self.dtype)) is not None:
            yield whole.reshape(len(whole), *self.shape)
            return
        shape = (sum(len(a) for a in arrays), *self.shape)
        out = pool.take(shape[0] * self.nbytes).view(self.dtype).reshape(shape)
        at = 0
        for array in arrays:
            out[at : at + len(array)] = array.reshape(len(array), *self.shape)
            at += len(array)
        yield out


@dataclass(frozen=True)
class TextNode:
    """Strings or blobs: one leaf `[n]` of `bytes`, or two leaves with starts and lengths."""

    def pack(
        self, columns: Sequence[Column], pool: BufferPool, texts: TextStore | None
    ) -> Iterator[NDArray[Any]]:
        """Yield one object array of all records, or int64 starts and lengths in `texts`."""
        runs = [column for column in columns if isinstance(column, Runs)]
        if texts is not None:
            yield np.concatenate([texts.add(column) for column in runs])
            yield np.concatenate([column.lengths for column in runs])
            return
        yield np.concatenate([column.to_objects() for column in runs])


@dataclass(frozen=True)
class RunsNode:
    """Lists of different lengths: the leaves of their items, then lengths `[n]` int64."""

    item: Node
    step: int = 1

    def pack(
        self, columns: Sequence[Column], pool: BufferPool, texts: TextStore | None
    ) -> Iterator[NDArray[Any]]:
        """Yield the items of all records in sequence, then the number of items of each record."""
        found = [self.items_of(column) for column in columns]
        yield from self.item.pack([items for items, _ in found], pool, texts)
        lengths = [np.diff(offsets) for _, offsets in found]
        yield np.concatenate(lengths) if lengths else np.empty(0, np.int64)

    def items_of(self, column: Column) -> tuple[Column, NDArray[np.int64]]:
        """Return the items of all records in one column, and offsets in items."""
        assert isinstance(column, Runs)
        items, offsets = column.compact()
        if isinstance(items, Dense) and isinstance(self.item, DenseNode):
            items = Dense(items.values.reshape(-1, *self.item.shape))
        return items, offsets // self.step


@dataclass(frozen=True)
class StructNode:
    """A nested object or map: the leaves of its fields in order."""

    fields: tuple[tuple[str, Node], ...]

    def pack(
        self, columns: Sequence[Column], pool: BufferPool, texts: TextStore | None
    ) -> Iterator[NDArray[Any]]:
        """Yield the leaves of every field."""
        for name, node in self.fields:
            parts = [column.fields[name] for column in columns if isinstance(column, Struct)]
            yield from node.pack(parts, pool, texts)


Node = DenseNode | TextNode | RunsNode | StructNode


def _from_aligned(part: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
    """Return the bytes extended back to the previous aligned address, and how many were added.

    TensorFlow can then use them without a copy. They are returned unchanged if their underlying
    memory does not reach back that far.
    """
    whole: Any = part
    while (base := whole.base) is not None:
        base = base.obj if isinstance(base, memoryview) else base
        if not isinstance(base, np.ndarray) or base.dtype != np.uint8 or base.ndim != 1:
            break
        whole = base
    before = part.ctypes.data % ALIGNMENT
    at = part.ctypes.data - whole.ctypes.data
    return (whole[at - before : at + len(part)], before) if before <= at else (part, 0)


def _ready(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return the values if TensorFlow can use them without a copy, otherwise None."""
    if values.dtype != dtype:
        return None
    aligned = values.flags.c_contiguous and values.ctypes.data % ALIGNMENT == 0
    return values if aligned else None


def node_for(field: Field) -> Node:
    """Return the node that converts a field; the module `columns` describes the column of each type."""
    family = family_of(field.type)
    if family is Family.OBJECT:
        return StructNode(tuple((f.name, node_for(f)) for f in field.fields))
    if family is Family.MAP:
        return StructNode(tuple((f.name, RunsNode(node_for(f))) for f in field.fields))
    if field.fields:
        return RunsNode(node_for(field.fields[0]))
    if family is Family.UUID and field.dtype != BYTES:
        return DenseNode(np.dtype("<u8"), (2,))
    rest = tuple(n for n in field.shape[1:] if n is not None)
    if field.dtype.kind == "M":
        return DenseNode(np.dtype("<i8"), ())  # a timestamp in the declared unit
    if field.dtype == BYTES:
        return RunsNode(TextNode()) if field.shape else TextNode()
    if field.ragged:
        return RunsNode(DenseNode(field.dtype, rest), step=int(np.prod(rest, dtype=np.int64)))
    if field.shape and family is not Family.ARRAY:
        return RunsNode(DenseNode(field.dtype, rest))
    return DenseNode(field.dtype, tuple(n for n in field.shape if n is not None))


def key_tree(schema: Schema, nulls: NullPolicy) -> Node:
    """Return the node of the keys; composite keys have the masks of their fields under `mask`."""
    node = node_for(schema.key)
    if nulls != "mask" or not isinstance(node, StructNode):
        return node
    masks = ((name + MASK_SUFFIX, DenseNode(np.dtype("?"), ())) for name, _ in node.fields)
    return StructNode(tuple(sorted((*node.fields, *masks), key=lambda item: item[0])))


def element_tree(schema: Schema, nulls: NullPolicy) -> dict[str, Node]:
    """Return the nodes by column name, including masks, sorted by name."""
    nodes: dict[str, Node] = {f.name: node_for(f) for f in schema.fields}
    if nulls == "mask":
        nodes |= {f.name + MASK_SUFFIX: DenseNode(np.dtype("?"), ()) for f in schema.fields}
    return dict(sorted(nodes.items()))


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
        plain: True if values are not objects; `val` is then itself a column.
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

    Strings and blobs become `large_binary`, tensors nested fixed-size lists, lists `large_list`.

    With `fields` the schema is for other libraries. Texts, decimals and UUIDs are then
    `large_string`, and times are Arrow's, in UTC without a zone. Each column's metadata names its
    field, so that a load stores the same types.

    Args:
        nodes: The columns.
        fields: The fields of the value, for a schema for other libraries.

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

    Numbers and the bytes of blobs share memory with the page if they are contiguous in it.
    """
    pa = MissingExtra.module("pyarrow", "arrow() needs pyarrow", "arrow")
    columns = batch.columns if batch.key is None else {"key": batch.key, **batch.columns}
    return pa.record_batch(
        [array_of(pa, columns[field.name], field.type) for field in form], schema=form
    )


def arrow_stream(form: Any, batches: Iterator[Batch], requested_schema: object | None) -> object:
    """Return rows as an Arrow stream (PyCapsule), for other libraries.

    Args:
        form: The result of `arrow_form`.
        batches: The rows.
        requested_schema: The argument of the PyCapsule protocol.
    """
    pa = MissingExtra.module("pyarrow", "an Arrow stream needs pyarrow", "arrow")
    return stream_of(pa, form, (to_arrow(batch, form) for batch in batches), requested_schema)


def _type(pa: Any, node: Node) -> Any:
    """Return the Arrow type of a node's columns."""
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
