"""`SqlResult`: the rows of one SQL statement.

pyclient -> **results** -> client
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from typing import Any

from pyignite.exceptions import CacheError

from ignitetf.errors import IgniteTFError
from ignitetf.pyclient import translated

__all__ = ["SqlResult"]


class SqlResult:
    """Rows of one statement, fetched page by page as they are iterated.

    Attributes:
        columns: Names of the columns.
        update_count: Rows changed by a DML statement, None for a query.
    """

    def __init__(self, cursor: Any, statement: str) -> None:
        self._cursor = cursor
        self._statement = statement
        with translated(statement):
            self.columns: list[str] = list(next(cursor, []))
        self.update_count: int | None = None
        if self.columns == ["UPDATED"]:
            self.update_count = int(next(iter(self), (0,))[0])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while True:
            with translated(self._statement):
                row = next(self._cursor, None)
            if row is None:
                return
            yield tuple(_plain(v) for v in row)

    def __enter__(self) -> SqlResult:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        with self:
            return list(self)

    def close(self) -> None:
        """Close the cursor on the node; harmless when it is exhausted."""
        with contextlib.suppress(IgniteTFError, CacheError, OSError):
            self._cursor.close()


def _plain(value: Any) -> Any:
    """A timestamp as one datetime; pyignite gives it in two parts."""
    if (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], datetime.datetime)
        and isinstance(value[1], int)
    ):
        return value[0].replace(microsecond=value[0].microsecond // 1000 * 1000 + value[1] // 1000)
    return value
