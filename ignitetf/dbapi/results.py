"""The rows of one statement as columns, page by page, over a connection of their own.

net channel -> **results** -> cursor

What a statement holds on the node goes with its last page, with `close`, or with its connection;
but a node of 2.17 keeps what it is asked for while the connection closes. So pages are asked for
ahead only if all are wanted, and `close` waits for what was asked.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ignitetf.dbapi.values import Values, decode_values
from ignitetf.errors import ConnectError, IgniteTFError, RequestTimeout, ServerError, WireError
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client
from ignitetf.net.failures import late, of_statement
from ignitetf.sql.tokens import is_query
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import Page, read_named_sql_page, read_page
from ignitetf.wire.objects import find_rows
from ignitetf.wire.parameters import encode_parameter
from ignitetf.wire.requests import cursor_request, sql_request
from ignitetf.wire.types import TypeRegistry

__all__ = ["Result", "run_batch"]

# Statements of a batch that are under way at a time, at most.
_IN_FLIGHT: Final = 128
_IN_FLIGHT_BYTES: Final = 4 << 20
_UPDATED: Final = ["UPDATED"]


class Result:
    """A statement and what comes of it; for use by one thread, but for `abort`.

    Args:
        client: Lends the connection.
        statement: The statement.

    Attributes:
        statement: As the node takes it.
        columns: Names of the columns; empty if the statement returns no rows.
        update_count: Rows that were changed; None for a query.
    """

    def __init__(self, client: Client, statement: str) -> None:
        self.statement = statement
        self.columns: list[str] = []
        self.update_count: int | None = None
        self._client = client
        # Held while the connection changes hands, so that `abort` never meets somebody else's.
        self._lock = threading.Lock()
        self._channel: Channel | None = client.acquire()
        self._registry = TypeRegistry()
        self._cursor = 0
        self._asked: int | None = None
        self._more = False
        self._page: Page | None = None

    def begin(
        self, params: Sequence[Any], *, schema: str, page_rows: int, timeout_s: float | None
    ) -> None:
        """Send the statement, and wait for its first page.

        Args:
            params: Values for its parameters.
            schema: SQL schema for names without one.
            page_rows: Rows that the node sends at once.
            timeout_s: Limit for the statement, after which the node cancels it; None for none.

        Raises:
            SqlError: The node refused it, or cancelled it.
            RequestTimeout: No answer came; the connection was dropped.
        """
        assert self._channel is not None
        try:
            request = _request(self.statement, params, schema, page_rows, timeout_s)
            wait_s = _wait_s(self._client, timeout_s)
            body = self._channel.call(OpCode.QUERY_SQL_FIELDS, request, timeout_s=wait_s)
            self._cursor, self.columns, self._page = read_named_sql_page(body)
            self._took(self._page)
        except ServerError as error:
            self._give_back()
            raise of_statement(error, self.statement) from error
        except RequestTimeout as error:
            self._drop()
            raise late(error, self.statement) from error
        except BaseException:
            self._drop()
            raise
        if self.columns == _UPDATED and not is_query(self.statement):
            counts = [count for values in self.pages() for count in values[0].to_python()]
            self.update_count, self.columns = int(sum(counts)), []

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
            self._took(page)
        except ServerError as error:
            self._drop()
            raise of_statement(error, self.statement) from error
        except RequestTimeout as error:
            self._drop()
            raise late(error, self.statement) from error
        except BaseException:
            self._drop()
            raise
        return page

    def _took(self, page: Page) -> None:
        """Give the connection back after the last page."""
        self._more = page.more
        if not page.more:
            self._give_back()

    # The end

    def close(self) -> None:
        """Give up the rows that are left."""
        self._page = None
        with contextlib.suppress(IgniteTFError):
            if self._asked is not None:
                self._receive()
            if self._channel is not None:
                self._channel.call(OpCode.RESOURCE_CLOSE, cursor_request(self._cursor))
                self._give_back()
        self._more = False
        self._drop()

    def abort(self) -> None:
        """Make the thread that waits for this result stop, with ConnectError."""
        with self._lock:
            if self._channel is not None:
                self._channel.abort()

    def _give_back(self) -> None:
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            self._client.release(channel)

    def _drop(self) -> None:
        with self._lock:
            channel, self._channel, self._asked = self._channel, None, None
        if channel is not None:
            channel.close()

    def __del__(self) -> None:
        if self.__dict__.get("_channel") is not None:
            with contextlib.suppress(Exception):
                self._drop()


def run_batch(
    client: Client,
    statement: str,
    rows: Iterable[Sequence[Any]],
    *,
    schema: str,
    timeout_s: float | None,
) -> int:
    """Run a statement with several rows of parameters, many at a time; return the rows changed.

    The first that fails is raised, after the answers to those that were under way have come. They
    may have taken effect, in any order.
    """
    bodies = (_request(statement, row, schema, 1, timeout_s) for row in rows)
    changed = 0
    channel = client.acquire()
    try:
        for part in _windows(bodies):
            numbers = channel.send_all(OpCode.QUERY_SQL_FIELDS, part)
            changed += _count_changes(channel, numbers, statement, _wait_s(client, timeout_s))
    except ServerError:
        client.release(channel)
        raise
    except BaseException:
        channel.close()
        raise
    client.release(channel)
    return changed


def _windows(bodies: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield requests in groups that are bounded in number and, but for the last, in bytes."""
    for first in bodies:
        part, size = [first], len(first)
        while len(part) < _IN_FLIGHT and size < _IN_FLIGHT_BYTES:
            if not (more := list(itertools.islice(bodies, 1))):
                break
            part += more
            size += len(more[0])
        yield part


def _count_changes(channel: Channel, numbers: Sequence[int], statement: str, wait_s: float) -> int:
    changed, failed = 0, None
    for number in numbers:
        try:
            _, columns, page = read_named_sql_page(channel.receive(number, timeout_s=wait_s))
        except ServerError as error:
            failed = failed or error
            continue
        except RequestTimeout as error:
            raise late(error, statement) from error
        if columns != _UPDATED or page.count != 1:
            raise WireError(f"the answer to a change has the columns {columns}")
        (at,) = find_rows(page.data, 1, 1)
        changed += int(decode_values(page.data, at, TypeRegistry()).to_python()[0])
    if failed is not None:
        raise of_statement(failed, statement) from failed
    return changed


def _request(
    statement: str, params: Sequence[Any], schema: str, page_rows: int, timeout_s: float | None
) -> bytes:
    values = [encode_parameter(value) for value in params]
    milliseconds = 0 if timeout_s is None else max(1, int(timeout_s * 1000))
    return sql_request(
        schema, statement, values, page_rows, timeout_ms=milliseconds, any_statement=True
    )


def _wait_s(client: Client, timeout_s: float | None) -> float:
    """Return how long to wait: longer than the node, so that it can report the cancellation."""
    return client.settings.request_timeout_s + (timeout_s or 0.0)
