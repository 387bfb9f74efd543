"""Joins batches into one, and packs the values of a column without gaps.

batches -> **concat** -> blocks, shuffled windows, batches of an exact size
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import WireError
from ignitetf.wire.encoders import copy_runs, in_milliseconds
from ignitetf.wire.schema import Batch, Column

__all__ = [
    "FIELD_METADATA",
    "bytes_array",
    "compact",
    "concat",
    "concat_columns",
    "fixed_array",
    "list_array",
    "merged",
    "validity",
]

# The metadata of an Arrow field in which the field that it was is kept, as JSON.
FIELD_METADATA: Final = b"ignitetf"


def validity(pa: Any, valid: NDArray[np.bool_] | None) -> Any:
    """Return the buffer that marks which values are there; None if all are."""
    return None if valid is None or valid.all() else pa.array(valid).buffers()[1]


def bytes_array(pa: Any, column: Column, kind: Any) -> Any:
    """Return texts or blobs as `kind`: `large_string` or `large_binary`."""
    values, offsets = column.compact()
    assert isinstance(values, np.ndarray)
    data = pa.py_buffer(np.ascontiguousarray(values))
    buffers = [validity(pa, column.valid), pa.py_buffer(offsets), data]
    found = pa.Array.from_buffers(kind, len(column), buffers)
    if kind == pa.large_string():
        try:
            found.validate(full=True)
        except pa.ArrowInvalid as error:
            raise WireError(
                f"a text is not UTF-8, as Arrow wants it: {error}",
                hint="take fetchall() where a text has half of a surrogate pair",
            ) from error
    return found


def list_array(
    pa: Any, items: Any, offsets: NDArray[np.int64], valid: NDArray[np.bool_] | None = None
) -> Any:
    """Return lists as `large_list`: list i is `items[offsets[i] : offsets[i + 1]]`."""
    buffers = [validity(pa, valid), pa.py_buffer(offsets)]
    kind = pa.large_list(items.type)
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[items])


def fixed_array(
    pa: Any,
    values: NDArray[Any],
    shape: Sequence[int],
    valid: NDArray[np.bool_] | None = None,
) -> Any:
    """Return arrays `[n, ...]` as nested lists of fixed sizes `shape`; numbers, if that is ()."""
    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for axis in reversed(range(len(shape))):
        kind = pa.list_(array.type, shape[axis])
        count = len(values) * int(np.prod(shape[:axis], dtype=np.int64))
        # `from_arrays` cannot infer the number of lists of length 0.
        buffers = [validity(pa, valid) if axis == 0 else None]
        array = pa.Array.from_buffers(kind, count, buffers, children=[array])
    return array


def compact(column: Column) -> tuple[NDArray[Any] | Column, NDArray[np.int64]]:
    """Do the same as `Column.compact`, but copy run by run if a copy is needed."""
    assert column.starts is not None and column.lengths is not None
    values = column.values
    if not isinstance(values, np.ndarray):
        return column.compact()
    offsets = np.concatenate(([0], np.cumsum(column.lengths, dtype=np.int64)))
    first = int(column.starts[0]) if len(column) else 0
    if np.array_equal(column.starts, offsets[:-1] + first):
        return values[first : first + int(offsets[-1])], offsets
    size = values.itemsize
    out = np.empty(int(offsets[-1]), values.dtype)
    flat = np.ascontiguousarray(values).view(np.uint8)
    sizes = column.lengths * size
    copy_runs(out.view(np.uint8), offsets[:-1] * size, flat, column.starts * size, sizes)
    return out, offsets


def merged(batches: Sequence[Batch]) -> list[Batch]:
    """Return the same rows in fewer batches: those that follow each other in memory are one."""
    found: list[Batch] = []
    for batch in batches:
        both = _merge(found[-1], batch) if found else None
        if both is None:
            found.append(batch)
        else:
            found[-1] = both
    return found


def _merge(left: Batch, right: Batch) -> Batch | None:
    """Return two batches as one view of memory; None if the second does not follow the first."""
    if left.key is None or right.key is None or left.columns.keys() != right.columns.keys():
        return None
    key = _merge_columns(left.key, right.key)
    if key is None:
        return None
    columns = {}
    for name, column in left.columns.items():
        both = _merge_columns(column, right.columns[name])
        if both is None:
            return None
        columns[name] = both
    return Batch(key, columns)


def _merge_columns(left: Column, right: Column) -> Column | None:
    if left.valid is not None or right.valid is not None:
        return None
    if left.starts is None or right.starts is None:
        values = _merge_arrays(left.values, right.values)
        return None if values is None else Column(values)
    if left.values is not right.values or left.lengths is None or right.lengths is None:
        return None
    starts, lengths = (
        _merge_arrays(left.starts, right.starts),
        _merge_arrays(left.lengths, right.lengths),
    )
    return None if starts is None or lengths is None else Column(left.values, starts, lengths)


def _merge_arrays(left: Any, right: Any) -> NDArray[Any] | None:
    """Return two arrays as one view, if the second follows the first in the same memory."""
    if not (isinstance(left, np.ndarray) and isinstance(right, np.ndarray)):
        return None
    base = left.base
    if not isinstance(base, np.ndarray) or base is not right.base or not base.flags.c_contiguous:
        return None
    contiguous = left.flags.c_contiguous and right.flags.c_contiguous
    if not contiguous or left.ctypes.data + left.nbytes != right.ctypes.data:
        return None
    shape = (len(left) + len(right), *left.shape[1:])
    return np.ndarray(shape, left.dtype, base.data, left.ctypes.data - base.ctypes.data)


def concat(batches: Sequence[Batch]) -> Batch:
    """Join batches with the same columns into one; a single batch is returned as it is."""
    if len(batches) == 1:
        return batches[0]
    keys = [b.key for b in batches if b.key is not None]
    columns = {
        name: concat_columns([b.columns[name] for b in batches]) for name in batches[0].columns
    }
    return Batch(concat_columns(keys) if keys else None, columns)


def concat_columns(columns: Sequence[Column]) -> Column:
    """Join several columns of the same form into one."""
    valid = None
    if any(c.valid is not None for c in columns):
        marks = [np.ones(len(c), bool) if c.valid is None else c.valid for c in columns]
        valid = np.concatenate(marks)
    first = columns[0].values
    if isinstance(first, dict):
        parts = [c.values for c in columns if isinstance(c.values, dict)]
        return Column({n: concat_columns([p[n] for p in parts]) for n in first}, valid=valid)
    if columns[0].starts is None:
        return Column(_joined([np.asarray(c.values) for c in columns]), valid=valid)
    packed = [compact(c) for c in columns]
    ends = np.cumsum([int(offsets[-1]) for _, offsets in packed])
    shifts = [0, *ends[:-1].tolist()]
    bounds = [offsets[:-1] + shift for (_, offsets), shift in zip(packed, shifts, strict=True)]
    offsets = np.concatenate([*bounds, ends[-1:]])
    return Column.from_offsets(_concat_values([v for v, _ in packed]), offsets, valid)


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Join arrays; timestamps in nanoseconds take the form of those that these cannot count."""
    wide = next((a.dtype for a in arrays if a.dtype.names is not None), None)
    if wide is None or all(a.dtype == wide for a in arrays):
        return np.concatenate(arrays)
    return np.concatenate([a if a.dtype == wide else in_milliseconds(a) for a in arrays])


def _concat_values(values: Sequence[NDArray[Any] | Column]) -> NDArray[Any] | Column:
    arrays = [v for v in values if isinstance(v, np.ndarray)]
    if len(arrays) == len(values):
        return _joined(arrays)
    # Lists without any item are an array where others are a column.
    return concat_columns([v if isinstance(v, Column) else Column(v) for v in values])
