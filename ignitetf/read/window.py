"""Reorders rows: writes each row to its place in a window when it arrives.

pages -> **window** -> batches, lookup

Dense columns are copied once, from the page to the row's place, into memory that is reused for
later windows. Slices of this memory are passed on without a copy. TensorFlow can use slices without
a copy only if they are aligned. So the last rows of a window that do not fill an aligned slice are
moved to the front of the next window. Columns of runs are collected, and sorted once the window is
complete.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import DataChanged
from ignitetf.read.options import PAGE_BYTES
from ignitetf.wire.buffers import ALIGNED_ROWS, BufferPool
from ignitetf.wire.columns import Batch, Column, Dense, concat_columns, values_of

__all__ = ["MANY_ROWS", "Filling", "inverse", "piece_rows"]

# With fewer rows than this, rounding to a multiple of the alignment is not worth it.
MANY_ROWS: Final = 16 * ALIGNED_ROWS
_KEY: Final = ""


class Filling:
    """A window that is being filled.

    Args:
        places: The place in the window of each row, in the order in which they arrive.
        pool: Memory for the columns.
        head: Rows to yield before those of the window; `batches` of the last window returned them.
    """

    def __init__(
        self, places: NDArray[np.int64], pool: BufferPool, head: Batch | None = None
    ) -> None:
        self._places = places
        self._head = _columns(head) if head is not None else {}
        self._ahead = len(head) if head is not None else 0
        self._pool = pool
        self._dense: dict[str, NDArray[Any]] = {}
        self._runs: dict[str, list[Column]] = {}
        self._names: list[str] = []
        self._rows = 0

    def add(self, batch: Batch) -> None:
        """Add the next rows.

        Raises:
            DataChanged: More rows arrive than the window should have.
        """
        places = self._places[self._rows : self._rows + len(batch)]
        self._rows += len(batch)
        if len(places) < len(batch):
            raise self._row_count_error()
        columns = _columns(batch)
        self._names = list(columns)
        for name, column in columns.items():
            if not isinstance(column, Dense) or column.values.dtype.hasobject:
                self._runs.setdefault(name, []).append(column)
                continue
            if name not in self._dense:
                self._dense[name] = self._room(name, column.values)
            _scatter(self._dense[name][self._ahead :], places, column.values)

    def batches(self, last: bool) -> Generator[Batch, None, Batch | None]:
        """Yield the rows in the window's order: all at once without a copy, or in pages with runs.

        Args:
            last: True if this is the last window.

        Returns:
            Up to 63 remaining rows for the head of the next window. They are a copy, because a view
            would prevent the memory of this window from being reused.

        Raises:
            DataChanged: Fewer rows arrived than the window should have.
        """
        if self._rows != len(self._places):
            raise self._row_count_error()
        runs = {name: concat_columns(parts) for name, parts in self._runs.items()}
        if runs:
            index = inverse(self._places)
            runs = {name: column[index] for name, column in runs.items()}
        nbytes = sum(a.nbytes for a in self._dense.values()) + sum(c.nbytes for c in runs.values())
        rows = self._ahead + self._rows
        rest = 0 if last or runs or rows < MANY_ROWS else rows % ALIGNED_ROWS
        # Data that are already in memory are passed on at once, because each transfer has a cost.
        step = piece_rows(rows, nbytes) if runs else max(1, rows)
        for start in range(0, rows - rest, step):
            yield self._piece(slice(start, min(start + step, rows - rest)), runs)
        return self._rest(slice(rows - rest, rows)) if rest else None

    def _rest(self, part: slice) -> Batch:
        columns: dict[str, Column] = {
            name: Dense(self._dense[name][part].copy()) for name in self._names
        }
        return Batch(columns.pop(_KEY, None), columns)

    def _piece(self, part: slice, runs: dict[str, Column]) -> Batch:
        columns = {
            name: Dense(self._dense[name][part]) if name in self._dense else runs[name][part]
            for name in self._names
        }
        return Batch(columns.pop(_KEY, None), columns)

    def _room(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        shape = (self._ahead + len(self._places), *values.shape[1:])
        size = int(np.prod(shape, dtype=np.int64)) * values.dtype.itemsize
        room = self._pool.take(size).view(values.dtype).reshape(shape)
        if self._ahead:
            room[: self._ahead] = values_of(self._head[name])
        return room

    def _row_count_error(self) -> DataChanged:
        return DataChanged(
            f"{self._rows} rows of a window of {len(self._places)}",
            hint="entries were added or removed; on_change='warn' reads on",
        )


def piece_rows(rows: int, nbytes: int) -> int:
    """Return the number of rows of equal pieces of about a page; a multiple of 64 for many rows."""
    pieces = max(1, round(nbytes / PAGE_BYTES))
    size = -(-rows // pieces)
    return -(-size // ALIGNED_ROWS) * ALIGNED_ROWS if size >= MANY_ROWS else max(1, size)


def inverse(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the inverse of a permutation: `inverse(order)[order[i]]` is i."""
    found = np.empty_like(order)
    found[order] = np.arange(len(order))
    return found


def _columns(batch: Batch) -> dict[str, Column]:
    """Return all columns by name, including the key."""
    return dict(batch.columns) if batch.key is None else {**batch.columns, _KEY: batch.key}


def _scatter(target: NDArray[Any], places: NDArray[np.int64], values: NDArray[Any]) -> None:
    """Assign `target[places] = values`; a row of several items is moved as a single item."""
    width = int(np.prod(values.shape[1:], dtype=np.int64)) * values.dtype.itemsize
    if values.ndim == 1 or width == 0 or not values[:1].flags.c_contiguous:
        target[places] = values
        return
    kind = f"V{width}"
    flat = values.reshape(len(values), -1)
    target.reshape(len(target), -1).view(kind)[:, 0][places] = flat.view(kind)[:, 0]
