"""Joins batches into one, and packs the values of a column without gaps.

batches -> **concat** -> blocks, shuffled windows, batches of an exact size
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.wire.encoders import copy_runs
from ignitetf.wire.schema import Batch, Column

__all__ = ["compact", "concat", "concat_columns"]


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
        return Column(np.concatenate([np.asarray(c.values) for c in columns]), valid=valid)
    packed = [compact(c) for c in columns]
    ends = np.cumsum([int(offsets[-1]) for _, offsets in packed])
    shifts = [0, *ends[:-1].tolist()]
    bounds = [offsets[:-1] + shift for (_, offsets), shift in zip(packed, shifts, strict=True)]
    offsets = np.concatenate([*bounds, ends[-1:]])
    return Column.from_offsets(_concat_values([v for v, _ in packed]), offsets, valid)


def _concat_values(values: Sequence[NDArray[Any] | Column]) -> NDArray[Any] | Column:
    arrays = [v for v in values if isinstance(v, np.ndarray)]
    if len(arrays) == len(values):
        return np.concatenate(arrays)
    # Lists without any item are an array where others are a column.
    return concat_columns([v if isinstance(v, Column) else Column(v) for v in values])
