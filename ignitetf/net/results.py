"""The rows of one statement, page by page, over their own connection: `Result`, `SqlResult`.

pool, statements -> **results** -> client, dbapi

The node frees what a statement holds after the last page, after `close`, or when the connection
ends. But a node of 2.17 keeps a page that is requested while the connection closes. So pages are
requested ahead only if the caller wants all of them, and `close` waits for a page that was
requested.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import (
    ConfigError,
    ConnectError,
    IgniteTFError,
    MissingExtra,
    RequestTimeout,
    SchemaError,
    ServerError,
    SqlError,
    WireError,
)
from ignitetf.net.channel import Channel
from ignitetf.net.common import Line
from ignitetf.net.failures import QUERY, is_node_overloaded, late, of_statement, retry
from ignitetf.net.pool import Pool
from ignitetf.net.statements import (
    PAGE_ROWS,
    fitting_rows,
    read_objects,
    statement_request,
    wait_seconds,
)
from ignitetf.notebook import remark, table
from ignitetf.sql.tokens import count_parameters, is_query
from ignitetf.threads import start
from ignitetf.wire.arrow import stream_of
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import Page, join_pages, read_named_sql_page, read_page
from ignitetf.wire.objects import Bytes, Positions, find_rows
from ignitetf.wire.requests import cursor_request, parameter_list
from ignitetf.wire.sql_arrays import ArrowForm, Unreadable, Values, decode_values, sampled
from ignitetf.wire.types import TypeRegistry

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Result", "SqlResult", "execute", "only_value"]

_UPDATED: Final = ["UPDATED"]
_ARROW: Final = "columns of Arrow need pyarrow"
# Rows that a notebook shows.
_SHOWN_ROWS: Final = 20
# If all pages are wanted, this many bytes are decoded at a time.
_GATHERED_BYTES: Final = 1 << 20


class Result:
    """A statement and its result; for use by one thread, except for `abort`.

    Args:
        pool: Lends the connection.
        statement: The statement.

    Attributes:
        statement: The text that is sent to the node.
        columns: Names of the columns; empty if the statement returns no rows.
        update_count: Rows that were changed; None for a query.
    """

    def __init__(self, pool: Pool, statement: str) -> None:
        self.statement = statement
        self.columns: list[str] = []
        self.update_count: int | None = None
        self._pool = pool
        # Held while the connection is given back, so that `abort` never ends another user's.
        self._lock = threading.Lock()
        self._channel: Channel | Line | None = pool.acquire_line()
        self._registry = TypeRegistry(pool.zone)
        self._cursor = 0
        self._pending_page: int | None = None
        self._more = False
        self._page: Page | None = None
        self._cut = False
        # Runs the query again with larger pages, before a row was returned.
        self._again: Callable[[], Page | None] | None = None
        # Pages that were decoded to inspect them, and not yet returned.
        self._first: list[list[Values]] = []

    def begin(
        self,
        params: Sequence[Any],
        *,
        schema: str,
        page_rows: int | None,
        timeout_s: float | None,
        only_query: bool = False,
    ) -> None:
        """Send the statement, and wait for its first page.

        Args:
            params: Values for its parameters.
            schema: SQL schema for names without one.
            page_rows: Rows per page; None takes a number that fills the link for a round trip, for
                which a query may run twice.
            timeout_s: Limit for the statement, after which the node cancels it; None means no
                limit.
            only_query: Let the node refuse a statement that is not a query.

        Raises:
            ConfigError: A parameter or the limit cannot be sent.
            SqlError: The node refused or cancelled the statement.
            RequestTimeout: No answer arrived; the connection was dropped.
        """
        assert self._channel is not None
        with self._name_statement_in_errors():
            request = functools.partial(
                statement_request, self._pool, self.statement, params, schema
            )
            first = request(page_rows or PAGE_ROWS, timeout_s, only_query)
            wait_s, began = wait_seconds(self._pool, timeout_s), time.monotonic()
            page = self._receive_first_page(
                self._channel.send(OpCode.QUERY_SQL_FIELDS, first), wait_s
            )
            seconds = time.monotonic() - began
            if page_rows is None and page.more and is_query(self.statement):
                small = page

                def again(whole: bool) -> Page | None:
                    rows = fitting_rows(self._pool, small, seconds, whole=whole)
                    if rows is None:
                        return None
                    begun = self._replace_cursor if whole else self._rerun
                    return begun(request(rows, timeout_s, only_query), wait_s)

                if (larger := again(False)) is not None:
                    page = larger
                else:
                    self._again = functools.partial(again, True)
            self._page = page
            self._took(page)
        if self.columns == _UPDATED and not is_query(self.statement):
            counts = [count for values in self.pages() for count in values[0].to_python()]
            if not counts or any(type(count) is not int for count in counts):
                raise WireError(f"damaged answer: {counts} instead of the number of changed rows")
            self.update_count, self.columns = sum(counts), []

    def _receive_first_page(self, number: int, wait_s: float) -> Page:
        """Receive the answer to this request, and return the first page of the statement."""
        assert self._channel is not None
        body = self._channel.receive(number, timeout_s=wait_s)
        self._cursor, self.columns, page = read_named_sql_page(body)
        return page

    def _rerun(self, request: bytes, wait_s: float) -> Page:
        """Close the cursor (no row was returned yet), and run the query again with this request."""
        assert self._channel is not None
        closed = self._channel.send(OpCode.RESOURCE_CLOSE, cursor_request(self._cursor))
        number = self._channel.send(OpCode.QUERY_SQL_FIELDS, request)
        self._channel.receive(closed)
        return self._receive_first_page(number, wait_s)

    def _replace_cursor(self, request: bytes, wait_s: float) -> Page | None:
        """Run the query again with this request; replace the cursor if the columns are the same.

        Returns None if the columns changed or the table was dropped; then the old cursor stays
        open.
        """
        assert self._channel is not None
        number = self._channel.send(OpCode.QUERY_SQL_FIELDS, request)
        try:
            body = self._channel.receive(number, timeout_s=wait_s)
        except ServerError:
            return None
        cursor, columns, page = read_named_sql_page(body)
        is_same = columns == self.columns
        if is_same:
            cursor, self._cursor = self._cursor, cursor
        # The node itself closes a cursor after its last page.
        if is_same or page.more:
            self._channel.call(OpCode.RESOURCE_CLOSE, cursor_request(cursor))
        return page if is_same else None

    def _rerun_with_large_pages(self) -> None:
        """Run the query again with larger pages if that pays and no second page was requested."""
        again, self._again = self._again, None
        is_taken = self._page is None and not self._first
        if again is None or is_taken or not self._more or self._pending_page is not None:
            return
        with self._name_statement_in_errors():
            if (page := again()) is not None:
                self._first.clear()
                self._page = page
                self._took(page)

    def rows_in(self, nbytes: int) -> int:
        """Return how many rows, as large as the first ones, fit; 0 if no further page follows."""
        if self._page is None or not self._more:
            return 0
        return nbytes * self._page.count // max(1, self._page.data.nbytes)

    def pages(self, *, ahead: bool = False) -> Iterator[list[Values]]:
        """Yield the remaining pages, each as one `Values` per column.

        Args:
            ahead: The caller wants all pages: request the next page before the present one is
                decoded, and decode small ones together.

        Raises:
            SqlError: The result was closed before its last row.
        """
        if ahead:
            self._rerun_with_large_pages()
        pages = iter(lambda: self._next(ahead), None)
        pages = _join_small_pages(pages) if ahead else pages
        while True:
            if self._first:
                yield self._first.pop(0)
            elif (page := next(pages, None)) is None:
                break
            elif page.count:
                rows = find_rows(page.data, page.count, len(self.columns))
                yield [self._values(page.data, at) for at in rows]
        if self._cut:
            raise SqlError(
                "the result was closed before its last row",
                hint="read it inside its 'with' block, or call fetchall()",
                statement=self.statement,
            )

    def first_page(self) -> list[Values] | None:
        """Return the next page without consuming it; None if there is none."""
        if not self._first:
            self._first += itertools.islice(self.pages(), 1)
        return self._first[0] if self._first else None

    def arrow_form(self, pa: Any) -> ArrowForm:
        """Return the Arrow types of the columns, found in the first of the remaining pages.

        A column without a value there is null, or text if further pages follow.
        """
        first, ended = sampled(self.pages())
        self._first[:0] = first
        return ArrowForm(pa, self.columns, first, pa.null() if ended else pa.large_string())

    def __arrow_c_schema__(self) -> object:
        """Return the types of the columns as an Arrow schema (PyCapsule)."""
        return self.arrow_form(
            MissingExtra.module("pyarrow", _ARROW, "arrow")
        ).schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the remaining rows as an Arrow stream (PyCapsule), a page at a time.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        pa = MissingExtra.module("pyarrow", _ARROW, "arrow")
        form = self.arrow_form(pa)
        return stream_of(pa, form.schema, form.batches(self.pages()), requested_schema)

    def _values(self, data: Bytes, at: Positions) -> Values:
        try:
            return decode_values(data, at, self._registry)
        except Unreadable:
            objects = read_objects(self._pool, data, at, self._registry, self.statement)
            return Values.of_objects(objects)

    def _next(self, ahead: bool) -> Page | None:
        page, self._page = self._page, None
        if page is None and self._more:
            self._again = None
            self._request_page()
            page = self._receive()
            ahead = True  # a caller that reads a second page is likely to read the third
        if ahead and self._more:
            self._request_page()
        return page

    def _request_page(self) -> None:
        if self._pending_page is None and self._channel is not None:
            request = cursor_request(self._cursor)
            self._pending_page = self._channel.send(OpCode.QUERY_SQL_FIELDS_PAGE, request)

    def _receive(self) -> Page:
        """Return the page that was requested."""
        if self._channel is None or self._pending_page is None:
            raise ConnectError("the result was closed", hint="execute the statement again")
        number, self._pending_page = self._pending_page, None
        with self._name_statement_in_errors():
            page = read_page(self._channel.receive(number))
            self._took(page)
        return page

    @contextlib.contextmanager
    def _name_statement_in_errors(self) -> Iterator[None]:
        """End the result with an error that names the statement, if a request fails."""
        try:
            yield
        except ServerError as error:
            # A refused statement leaves nothing on the node. A page that could not be built may
            # leave its cursor, with all that the query holds in the heap, until the connection
            # ends.
            leaves = self._more or is_node_overloaded(error)
            (self._close_channel if leaves else self._release_channel)()
            raise of_statement(error, self.statement) from error
        except ConfigError:
            self._release_channel()
            raise
        except RequestTimeout as error:
            self._close_channel()
            raise late(error, self.statement) from error
        except BaseException:
            self._close_channel()
            raise

    def _took(self, page: Page) -> None:
        """Give the connection back after the last page."""
        self._more = page.more
        if not page.more:
            self._release_channel()

    # For people

    def __repr__(self) -> str:
        kind = type(self).__name__
        if self.update_count is not None:
            return f"<{kind}: {self.update_count:,} rows changed>"
        return f"<{kind} with the columns {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        return self.shown_html(())

    def shown_html(self, begun: Iterable[tuple[Any, ...]]) -> str:
        """Return the next rows as HTML for notebooks; neither reads from the node nor takes a row.

        Args:
            begun: Rows that were decoded and not yet returned; they are shown first.
        """
        if self.update_count is not None:
            return remark(f"{self.update_count:,} rows changed")
        rows = list(itertools.islice(begun, _SHOWN_ROWS + 1))
        if len(rows) <= _SHOWN_ROWS and (self._first or self._page is not None):
            page = self.first_page() or []
            following = zip(*(values.to_python() for values in page), strict=True)
            rows += itertools.islice(following, _SHOWN_ROWS + 1 - len(rows))
        more = len(rows) > _SHOWN_ROWS or self._more
        count = len(rows[:_SHOWN_ROWS])
        said = f"the next {count:,} rows; more follow" if more else f"{count:,} rows"
        if not rows:
            said = "more rows follow" if more else "no rows left to read"
        return table(self.columns, rows[:_SHOWN_ROWS], note=said)

    # The end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Discard the remaining rows, and close the cursor on the node."""
        self._cut = self._cut or bool(self._first) or self._page is not None or self._more
        self._page = None
        self._first.clear()
        with contextlib.suppress(IgniteTFError):
            if self._pending_page is not None:
                self._receive()
            if self._channel is not None:
                self._channel.call(OpCode.RESOURCE_CLOSE, cursor_request(self._cursor))
                self._release_channel()
        self._more = False
        self._close_channel()

    def abort(self) -> None:
        """Raise ConnectError in the thread that waits for this result; callable from any thread."""
        with self._lock:
            if self._channel is not None:
                self._channel.abort()

    def _release_channel(self) -> None:
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            self._pool.release_line(channel)

    def _close_channel(self) -> None:
        with self._lock:
            channel, self._channel, self._pending_page = self._channel, None, None
        if channel is not None:
            channel.close()

    def __del__(self) -> None:
        if self.__dict__.get("_channel") is not None:
            with contextlib.suppress(Exception):
                if self._pending_page is None or self._channel is None:
                    self._close_channel()
                else:
                    _close_cursor_later(self._channel, self._pending_page, self._cursor)


def _close_cursor_later(channel: Channel | Line, asked: int, cursor: int) -> None:
    """Wait for a page that was requested, then close its cursor; in a new thread."""

    def end() -> None:
        with contextlib.suppress(IgniteTFError), channel:
            channel.receive(asked)
            channel.call(OpCode.RESOURCE_CLOSE, cursor_request(cursor))

    start(threading.Thread(target=end, name="ignitetf-result", daemon=True))


def _join_small_pages(pages: Iterator[Page]) -> Iterator[Page]:
    """Yield the pages, joining small ones."""
    parts: list[Page] = []
    size = 0
    for page in pages:
        parts.append(page)
        size += page.data.nbytes
        if size >= _GATHERED_BYTES:
            yield join_pages(parts, _allocate)
            parts, size = [], 0
    if parts:
        yield join_pages(parts, _allocate)


def _allocate(nbytes: int) -> NDArray[np.uint8]:
    return np.empty(nbytes, np.uint8)


_MIDNIGHT = datetime.time()


def execute(
    pool: Pool,
    statement: str,
    params: Sequence[Any],
    *,
    schema: str = "PUBLIC",
    page_size: int | None = None,
    timeout_s: float | None = None,
    only_query: bool = False,
) -> SqlResult:
    """Run one SQL statement; see `Client.sql` for the arguments and errors."""
    values = parameter_list(params)
    expected = count_parameters(statement)
    if expected is not None and expected != len(values):
        raise ConfigError(
            f"the statement takes {expected} parameters, {len(values)} are given",
            hint="one value for each '?', in their order",
        )

    def begun(_: object) -> SqlResult:
        result = SqlResult(pool, statement)
        result.begin(
            values,
            schema=schema,
            page_rows=page_size,
            timeout_s=timeout_s,
            only_query=only_query,
        )
        return result

    # Before its first page has arrived, a query may start again on another connection.
    return retry(pool.settings, begun, QUERY) if is_query(statement) else begun(None)


class SqlResult(Result):
    """The rows of one statement, fetched page by page during iteration.

    A DATE becomes a datetime at midnight, a TIME a timedelta; `pages` returns the original values.
    The cursor on the node is closed after the last row, by `close`, or when the result is garbage
    collected.
    """

    def __init__(self, pool: Pool, statement: str) -> None:
        super().__init__(pool, statement)
        self._rows: deque[tuple[Any, ...]] = deque()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while True:
            while self._rows:
                yield self._rows.popleft()
            if (page := next(self.pages(), None)) is None:
                return
            try:
                columns = [_moments(values.to_python()) for values in page]
            except SchemaError as error:
                raise SqlError(error.message, hint=error.hint, statement=self.statement) from error
            self._rows.extend(zip(*columns, strict=True))

    def _repr_html_(self) -> str:
        return self.shown_html(self._rows)

    def arrow_form(self, pa: Any) -> ArrowForm:
        """Return the Arrow types of the columns; raises ConfigError in the middle of a page."""
        if self._rows:
            raise ConfigError(
                "some rows of this page were read one by one", hint="read columns from the start"
            )
        return super().arrow_form(pa)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all remaining rows."""
        with self:
            return list(self)


def only_value(result: SqlResult) -> Any:
    """Return the value of a statement whose result is one row of one column, such as a count.

    Raises:
        WireError: The answer has other rows or columns.
    """
    rows = result.fetchall()
    if len(rows) != 1 or len(rows[0]) != 1:
        raise WireError(
            f"damaged answer: {len(rows)} rows of {len(result.columns)} columns instead of one value"
        )
    return rows[0][0]


def _moments(values: list[Any]) -> list[Any]:
    """Return days as datetimes, and times of day as timedeltas."""
    kinds = set(map(type, values))
    if datetime.date in kinds:
        combine = datetime.datetime.combine
        return [combine(v, _MIDNIGHT) if type(v) is datetime.date else v for v in values]
    if datetime.time in kinds:
        return [
            datetime.datetime.combine(datetime.date.min, v) - datetime.datetime.min
            if type(v) is datetime.time
            else v
            for v in values
        ]
    return values
