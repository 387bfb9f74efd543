"""`SqlResult`: the rows of one SQL statement, fetched as they are consumed.

pyclient -> **sql_result** -> client
"""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from pyignite.exceptions import CacheError

from ignitetf.errors import IgniteTFError, SqlError
from ignitetf.net.pyclient import abandon, translated
from ignitetf.sql.tokens import is_query

__all__ = ["SqlResult"]

_EPOCH = datetime.datetime(1970, 1, 1)


class SqlResult:
    """The rows of one statement, fetched page by page during iteration.

    The cursor on the node is closed after the last row, by `close`, or when the result is garbage
    collected.

    Attributes:
        columns: Names of the columns.
        update_count: Number of rows changed by a DML statement; None for a query.
    """

    def __init__(self, cursor: Any, statement: str) -> None:
        self._cursor = cursor
        self._statement = statement
        self._page: deque[tuple[Any, ...]] = deque()
        self._cut = False
        with translated(statement):
            self.columns: list[str] = list(next(cursor, []))
        self.update_count: int | None = None
        # The answer to a change looks like a query with one column of this name.
        if self.columns == ["UPDATED"] and not is_query(statement):
            self.update_count = int(next(iter(self), (0,))[0])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while self._page or self._next_page():
            yield self._page.popleft()

    def _next_page(self) -> bool:
        """Fetch the next page; False if there are no more."""
        cursor, plain = self._cursor, self._cursor.client.unwrap_binary
        with translated(self._statement):
            # Asking for the first row fetches the page; `data` holds the rows after it.
            if (row := next(cursor, None)) is None:
                if self._cut:
                    raise SqlError(
                        "the result was closed before its last row",
                        hint="read it within its 'with', or take fetchall()",
                        statement=self._statement,
                    )
                return False
            self._page.append(tuple(map(_plain, row)))
            self._page.extend(tuple(_plain(plain(v)) for v in row) for row in cursor.data)
        return True

    def __enter__(self) -> SqlResult:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all remaining rows."""
        with self:
            return list(self)

    def close(self) -> None:
        """Close the cursor on the node; does nothing if it is exhausted."""
        with contextlib.suppress(IgniteTFError, CacheError, OSError):
            self._cursor.close()
        self._cut, self._cursor.more = self._cut or bool(self._cursor.more), False

    def __del__(self) -> None:
        cursor = self.__dict__.get("_cursor")
        if cursor is not None and not sys.is_finalizing():
            abandon(cursor)


def _plain(value: Any) -> Any:
    """Convert a timestamp to a datetime in UTC.

    pyignite returns it in the local time zone, with the nanoseconds separate.
    """
    if isinstance(value, datetime.datetime):
        return _utc(value, 0)
    if (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], datetime.datetime)
        and isinstance(value[1], int)
    ):
        return _utc(*value)
    return value


def _utc(local: datetime.datetime, nanoseconds: int) -> datetime.datetime:
    # pyignite computes microseconds through a float; only its milliseconds are exact.
    millis = round(local.timestamp() * 1000)
    return _EPOCH + datetime.timedelta(milliseconds=millis, microseconds=nanoseconds // 1000)
