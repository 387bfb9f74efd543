"""The common part of Parquet files and Arrow streams: record batches to columns, but for bad rows.

record batches -> **columns** -> Batch
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SourceError
from ignitetf.load.sources.arrow import arrow_column
from ignitetf.load.sources.arrowplain import import_pyarrow, plain_array
from ignitetf.load.sources.location import one_line, reading
from ignitetf.load.sources.tabular import Table
from ignitetf.wire.columns import Batch, Column

__all__ = ["ArrowTable"]

_HINT_VALUE = "convert or leave out the column, or leave out the row with --bad-records skip"
_FAILURES = (SourceError, ValueError)


def _plain(found: Any) -> Any:
    """Return a record batch whose arrays are plain (see `arrowplain`)."""
    pa = import_pyarrow("tables")
    arrays = [plain_array(*pair) for pair in zip(found.schema, found.columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, found.schema.names) if arrays else found


class ArrowTable(Table):
    """A table whose rows come as record batches with the columns of its schema."""

    def _converted(
        self, found: Any, first: int, max_bytes: int, hint: str
    ) -> Iterator[tuple[int, Batch]]:
        """Yield the rows of a record batch, whose first one has this number."""
        numbers = np.arange(first, first + len(found))
        with reading(self.place.name, hint):
            found = _plain(found)
            columns, numbers = self._good(found, numbers)
        if len(numbers):
            yield from self._batches_of(columns, numbers, max_bytes)

    def _good(
        self, found: Any, numbers: NDArray[np.int64]
    ) -> tuple[dict[str, Column], NDArray[np.int64]]:
        """Return columns and numbers of the rows that convert; the others are bad records."""
        try:
            return self._convert(found), numbers
        except _FAILURES:
            wrong = dict(self._wrong(found))
        for at in sorted(wrong):
            self.bad(self._row(int(numbers[at])), wrong[at], hint=_HINT_VALUE)
        good = np.setdiff1d(np.arange(len(numbers)), list(wrong))
        return self._convert(found.take(good)), numbers[good]

    def _wrong(self, found: Any, first: int = 0) -> Iterator[tuple[int, str]]:
        """Yield positions of rows that do not convert, and why; found by repeated halving."""
        try:
            self._convert(found)
        except _FAILURES as error:
            half = len(found) // 2
            if not half:
                reason = error.message if isinstance(error, SourceError) else one_line(error)
                yield first, reason
                return
            yield from self._wrong(found.slice(0, half), first)
            yield from self._wrong(found.slice(half), first + half)

    def _convert(self, found: Any) -> dict[str, Column]:
        columns = {}
        for i, field in enumerate(self._columns):
            try:
                column = arrow_column(field, found.column(i))
            except SourceError as error:
                raise SourceError(f"column {field.name}: {error.message}") from error
            except ValueError as error:
                raise SourceError(f"column {field.name}: {one_line(error)}") from error
            if column.valid is not None and not field.nullable:
                raise SourceError(f"column {field.name}: a null, and it must have none")
            columns[field.name] = column
        return columns
