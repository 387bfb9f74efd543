"""The rows of one statement as columns, page by page, over a connection of their own.

net channel -> **results** -> cursor

What a statement holds on the node goes with its last page, with `close`, or with its connection;
but a node of 2.17 keeps what it is asked for while the connection closes. So pages are asked for
ahead only if all are wanted, and `close` waits for what was asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ignitetf.dbapi.values import Values, decode_values
from ignitetf.errors import ConnectError, IgniteTFError, ServerError, SqlError, WireError
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client
from ignitetf.sql.tokens import is_query
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import Page, read_named_sql_page, read_page
from ignitetf.wire.objects import find_rows
from ignitetf.wire.parameters import encode_parameter
from ignitetf.wire.requests import cursor_request, sql_request
from ignitetf.wire.types import TypeRegistry

__all__ = ["Result", "run_batch", "run_statement"]

# Statements of `executemany` that are under way at a time.
_IN_FLIGHT: Final = 128
_UPDATED: Final = ["UPDATED"]


class Result:
    """What came of a statement.

    Args:
        client: The client that gets the connection back.
        channel: The connection; kept until the last page has come.
        statement: The statement, which tells changes from queries.
        body: The first answer.

    Attributes:
        statement: As the node took it.
        columns: Names of the columns; empty if the statement returns no rows.
        update_count: Rows that were changed; None for a query.
    """

    def __init__(self, client: Client, channel: Channel, statement: str, body: memoryview) -> None:
        self.statement = statement
        self._client = client
        self._channel: Channel | None = channel
        self._registry = TypeRegistry()
        self._asked: int | None = None
        self._more = False
        self._cursor, self.columns, page = read_named_sql_page(body)
        self._page: Page | None = page
        self.update_count: int | None = None
        self._took(page)
        if self.columns == _UPDATED and not is_query(statement):
            counts = [value for values in self.pages() for value in values[0].to_python()]
            self.update_count, self.columns = int(counts[0]) if counts else 0, []

    def pages(self, *, ahead: bool = False) -> Iterator[list[Values]]:
        """Yield the pages that are left, each as one `Values` for each column.

        Args:
            ahead: Ask for the next page before the present one is decoded.
        """
        while (page := self._next(ahead)) is not None:
            if page.count:
                rows = find_rows(page.data, page.count, len(self.columns))
                yield [decode_values(page.data, at, self._registry) for at in rows]

    def _next(self, ahead: bool) -> Page | None:
        page, self._page = self._page, None
        if page is None and self._more:
            self._ask()
            page = self._receive()
        if ahead and self._more:
            self._ask()
        return page

    def _ask(self) -> None:
        if self._asked is None and self._channel is not None:
            request = cursor_request(self._cursor)
            self._asked = self._channel.send(OpCode.QUERY_SQL_FIELDS_PAGE, request)

    def _receive(self) -> Page:
        """Return the page that was asked for."""
        if self._channel is None or self._asked is None:
            raise ConnectError("the result was given up", hint="execute the statement again")
        number, self._asked = self._asked, None
        try:
            page = read_page(self._channel.receive(number))
        except BaseException:
            self._drop()
            raise
        self._took(page)
        return page

    def _took(self, page: Page) -> None:
        """Give the connection back after the last page."""
        self._more = page.more
        if not page.more and self._channel is not None:
            channel, self._channel = self._channel, None
            self._client.release(channel)

    def close(self) -> None:
        """Give up the rows that are left."""
        self._page = None
        with contextlib.suppress(IgniteTFError):
            if self._asked is not None:
                self._receive()
            if self._channel is not None:
                channel, self._channel = self._channel, None
                channel.call(OpCode.RESOURCE_CLOSE, cursor_request(self._cursor))
                self._client.release(channel)
        self._more = False
        self._drop()

    def _drop(self) -> None:
        channel, self._channel, self._asked = self._channel, None, None
        if channel is not None:
            channel.close()

    def __del__(self) -> None:
        if self.__dict__.get("_channel") is not None:
            with contextlib.suppress(Exception):
                self._drop()


def run_statement(
    client: Client, statement: str, params: Sequence[Any], *, schema: str, page_rows: int,
    timeout_s: float | None, begun: Callable[[Channel], None],
) -> Result:  # fmt: skip
    """Run one statement, and wait for its first page.

    Args:
        client: Provides the connection.
        statement: The statement.
        params: Values for its parameters.
        schema: SQL schema for names without one.
        page_rows: Rows that the node sends at once.
        timeout_s: Limit for the statement, after which the node cancels it; None for none.
        begun: Called with the connection before the statement is sent.

    Raises:
        SqlError: The node refused it, or cancelled it after `timeout_s`.
        RequestTimeout: No answer came; the connection was dropped.
    """
    wait_s, milliseconds = client.settings.request_timeout_s, 0
    if timeout_s is not None:
        wait_s, milliseconds = wait_s + timeout_s, max(1, int(timeout_s * 1000))
    body = _request(statement, params, schema, page_rows, milliseconds)
    channel = client.acquire()
    try:
        begun(channel)
        answer = channel.call(OpCode.QUERY_SQL_FIELDS, body, timeout_s=wait_s)
        return Result(client, channel, statement, answer)
    except ServerError as error:
        client.release(channel)
        raise _sql_error(error, statement) from error
    except BaseException:
        channel.close()
        raise


def run_batch(
    client: Client, statement: str, rows: Sequence[Sequence[Any]], *, schema: str,
    timeout_s: float | None,
) -> int:  # fmt: skip
    """Run a statement with several rows of parameters, many at a time; return the rows changed.

    The first that fails is raised, after the answers to those that were under way have come. They
    may have taken effect, in any order.
    """
    milliseconds = 0 if timeout_s is None else max(1, int(timeout_s * 1000))
    changed = 0
    channel = client.acquire()
    try:
        for start in range(0, len(rows), _IN_FLIGHT):
            part = rows[start : start + _IN_FLIGHT]
            bodies = [_request(statement, row, schema, 1, milliseconds) for row in part]
            numbers = channel.send_all(OpCode.QUERY_SQL_FIELDS, bodies)
            changed += _count_changes(channel, numbers, statement)
    except SqlError:
        client.release(channel)
        raise
    except BaseException:
        channel.close()
        raise
    client.release(channel)
    return changed


def _count_changes(channel: Channel, numbers: Sequence[int], statement: str) -> int:
    changed, failed = 0, None
    for number in numbers:
        try:
            _, columns, page = read_named_sql_page(channel.receive(number))
        except ServerError as error:
            failed = failed or error
            continue
        if columns != _UPDATED or page.count != 1:
            raise WireError(f"the answer to a change has the columns {columns}")
        (at,) = find_rows(page.data, 1, 1)
        changed += int(decode_values(page.data, at, TypeRegistry()).to_python()[0])
    if failed is not None:
        raise _sql_error(failed, statement) from failed
    return changed


def _request(
    statement: str, params: Sequence[Any], schema: str, page_rows: int, timeout_ms: int
) -> bytes:
    values = [encode_parameter(value) for value in params]
    return sql_request(
        schema, statement, values, page_rows, timeout_ms=timeout_ms, any_statement=True
    )


def _sql_error(error: ServerError, statement: str) -> IgniteTFError:
    """Return the error with its statement; one that names its cause better stays as it is."""
    if type(error) not in (ServerError, SqlError):
        return error
    return SqlError(error.message, hint=error.hint, **{**error.fields, "statement": statement})
