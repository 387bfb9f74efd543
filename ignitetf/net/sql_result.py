"""Runs one SQL statement: `execute`, and `SqlResult`, its rows, fetched as they are consumed.

pyclient -> **sql_result** -> client
"""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from pyignite.exceptions import CacheError

from ignitetf.errors import ConfigError, IgniteTFError, SqlError
from ignitetf.net.pyclient import PyClient, abandon, sql_arguments, translated
from ignitetf.sql.tokens import count_parameters, is_query
from ignitetf.wire.parameters import parameter_list

__all__ = ["SqlResult", "execute"]

# The node takes the limit as milliseconds in a Java int.
_LONGEST_STATEMENT_S = ((1 << 31) - 1) // 1000
_EPOCH = datetime.datetime(1970, 1, 1)
# Kinds of statements in a request; the node refuses one that is of another kind.
_ANY, _SELECT = 0, 1


def execute(
    client: PyClient,
    statement: str,
    params: Sequence[Any],
    *,
    schema: str = "PUBLIC",
    page_size: int = 1024,
    timeout_s: float | None = None,
    only_query: bool = False,
) -> SqlResult:
    """Run one SQL statement; `Client.sql` says what the arguments are and which errors come."""
    values = parameter_list(params)
    expected = count_parameters(statement)
    if expected is not None and expected != len(values):
        raise ConfigError(
            f"the statement takes {expected} parameters, {len(values)} are given",
            hint="one value for each '?', in their order",
        )
    wait_s, milliseconds = client.settings.request_timeout_s, 0
    if timeout_s is not None:
        if not 0 < timeout_s <= _LONGEST_STATEMENT_S:
            raise ConfigError(
                f"timeout_s={timeout_s}", hint=f"above 0, up to {_LONGEST_STATEMENT_S} seconds"
            )
        # Wait longer than the node's own limit, so that it can report the cancellation.
        wait_s, milliseconds = wait_s + timeout_s, max(1, int(timeout_s * 1000))
    with translated(statement), client.waiting(wait_s):
        cursor = client.sql(
            statement,
            page_size=page_size,
            query_args=sql_arguments(values) or None,
            schema=schema,
            statement_type=_SELECT if only_query else _ANY,
            include_field_names=True,
            lazy=True,
            timeout=milliseconds,
        )
    return SqlResult(cursor, statement)


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
