"""Rows as pages of columns: pages of a result as received, other rows collected into pages.

result, rows -> **paged** -> output, files

Rows are written by columns, which costs a tenth of writing them one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ignitetf.net.results import SqlResult
    from ignitetf.wire.sql_arrays import Values

__all__ = ["Counted", "Limited", "Paged", "ResultPages", "Rows", "paged"]

_ROWS: Final = 1024
_BYTES: Final = 1 << 20


@runtime_checkable
class Rows(Protocol):
    """Rows as tuples with named columns."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows, each a sequence of values."""


class Paged(ABC):
    """Rows with named columns, in pages.

    Attributes:
        columns: Names of the columns.
    """

    columns: Sequence[str]

    @abstractmethod
    def pages(self) -> Iterator[list[Values]]:
        """Yield the pages, each as the values of its columns."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for page in self.pages():
            yield from zip(*(values.to_python() for values in page), strict=True)


def paged(rows: Rows) -> Paged:
    """Return rows in pages."""
    return rows if isinstance(rows, Paged) else _Gathered(rows)


class _Gathered(Paged):
    """Single rows, collected in pages; a page of large rows has fewer."""

    def __init__(self, rows: Rows) -> None:
        self.columns = rows.columns
        self._rows = rows

    def pages(self) -> Iterator[list[Values]]:
        from ignitetf.wire.sql_arrays import Values

        source = iter(self._rows)
        while group := _group(source):
            yield [Values.of_objects(list(column)) for column in zip(*group, strict=True)]


def _group(source: Iterator[Any]) -> list[Any]:
    group: list[Any] = []
    size = 0
    for row in islice(source, _ROWS):
        group.append(row)
        size += sum(len(value) for value in row if isinstance(value, (str, bytes)))
        if size >= _BYTES:
            break
    return group


class ResultPages(Paged):
    """The rows of a statement.

    Args:
        result: The statement.
        whole: True if all rows will be read, so that pages may be requested ahead.
    """

    def __init__(self, result: SqlResult, *, whole: bool = False) -> None:
        self.columns = result.columns
        self._result = result
        self._whole = whole

    def pages(self) -> Iterator[list[Values]]:
        """Yield the pages as they arrive."""
        return self._result.pages(ahead=self._whole)


class Limited(Paged):
    """The first rows of a result; calls `more` with their number if more rows exist."""

    def __init__(self, rows: Rows, limit: int, more: Callable[[int], None]) -> None:
        """Take at most `limit` rows."""
        self._rows = paged(rows)
        self.columns = rows.columns
        self._limit = limit
        self._more = more

    def pages(self) -> Iterator[list[Values]]:
        """Yield the pages, the last one cut."""
        left = self._limit
        for page in self._rows.pages():
            count = page[0].count
            if left:
                yield page if count <= left else [values.first(left) for values in page]
            if count > left:
                self._more(self._limit)
                return
            left -= count


class Counted(Paged):
    """Rows that are counted while they are read.

    Attributes:
        count: Number of rows read so far.
    """

    def __init__(self, rows: Rows, advance: Callable[[int], None] = lambda rows: None) -> None:
        """Call `advance` with the number of rows since its last call, page by page."""
        self._rows = paged(rows)
        self.columns = rows.columns
        self.count = 0
        self._advance = advance

    def pages(self) -> Iterator[list[Values]]:
        """Yield the pages."""
        for page in self._rows.pages():
            self.count += page[0].count
            self._advance(page[0].count)
            yield page
