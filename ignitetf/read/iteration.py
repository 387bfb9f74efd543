"""Iterations over rows: `Batches` reads one epoch, `Epochs` hands out one after another.

batch parts -> **iteration** -> rows, mixture, tf.data

An iteration knows its place, and the rows that it reads never change.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ignitetf.read.key_order import StepOrder
from ignitetf.read.plan import ScanOrder
from ignitetf.read.window import piece_rows
from ignitetf.wire.concat import concat
from ignitetf.wire.schema import Batch

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Batches", "Epochs", "Readable", "pages"]


class Readable(Protocol):
    """Rows that `Batches` reads: `EpochRows`, and a mixture of several; see there."""

    @property
    def order(self) -> ScanOrder | StepOrder:
        """The order of all rows."""

    def in_batches(self, batch_size: int) -> Readable:
        """Return the rows for workers that read batches of this size."""

    def column_batches(self) -> Generator[Batch, None, None]:
        """Yield columns in their stored form."""

    def batch_parts(
        self, batch_size: int | None, drop_remainder: bool
    ) -> Generator[list[Batch], None, None]:
        """Yield the rows of each batch, as the parts that it is made of."""

    def columns_of(self, batch: Batch) -> dict[str, Any]:
        """Return a batch as NumPy columns."""

    def state(self, rows_consumed: int = 0) -> dict[str, Any]:
        """Return the state of the training after `rows_consumed` rows."""


class Batches(Iterator[dict[str, Any]]):
    """Batches of an epoch as NumPy columns, and how far they have come.

    Columns are views of the page they came in if possible; see `export.to_numpy`.

    Attributes:
        consumed: Rows handed out so far.
    """

    def __init__(self, rows: Readable, batch_size: int | None, drop_remainder: bool) -> None:
        self.consumed = 0
        by_step = isinstance(rows.order, StepOrder) and rows.order.global_batch is not None
        if batch_size is None and not by_step:
            self._rows, self._batches = rows, pages(rows)
            return
        self._rows = rows if batch_size is None else rows.in_batches(batch_size)
        self._batches = _joined(self._rows.batch_parts(batch_size, drop_remainder))

    def __next__(self) -> dict[str, Any]:
        batch = next(self._batches)
        self.consumed += len(batch)
        return self._rows.columns_of(batch)

    def state(self, rows_consumed: int | None = None) -> dict[str, Any]:
        """Return the state for `resume` after so many rows; None for those handed out."""
        return self._rows.state(self.consumed if rows_consumed is None else rows_consumed)

    def close(self) -> None:
        """Stop reading; connections go back to the pool."""
        self._batches.close()

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Following(Protocol):
    """Rows that know those of the next epoch."""

    def next_epoch(self) -> Self:
        """Return the rows of the next epoch, from its beginning."""


_R = TypeVar("_R", bound=_Following)


class Epochs(Generic[_R]):
    """One epoch after another: each `take` returns the next one, whichever thread asks.

    A pipeline that is iterated repeatedly needs this memory; the rows themselves have none.
    """

    def __init__(self, first: _R) -> None:
        self._lock = threading.Lock()
        self._next = first

    def take(self) -> _R:
        """Return the rows of the next epoch; after `seek`, possibly only the rest of one."""
        with self._lock:
            rows = self._next
            self._next = rows.next_epoch()
        return rows

    def seek(self, rows: _R) -> None:
        """Make the next `take` return these rows."""
        with self._lock:
            self._next = rows


def pages(rows: Readable) -> Generator[Batch, None, None]:
    """Yield batches of about a page; a shuffled window arrives whole and is cut up."""
    with contextlib.closing(rows.column_batches()) as batches:
        for batch in batches:
            yield from batch.slices(piece_rows(len(batch), batch.nbytes))


def _joined(parts: Generator[list[Batch], None, None]) -> Generator[Batch, None, None]:
    with contextlib.closing(parts):
        for batches in parts:
            yield concat(batches)
