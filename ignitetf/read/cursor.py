"""`Cursor`: the pages of one partition from one connection.

client -> **cursor** -> scan

A node answers the request for a page once it has assembled the page. So the next page is requested
as soon as an answer begins: the node prepares one page while another is on its way. Whether there
is a next page is only known at the end of an answer, but a page that is not full is the last one.
If the last page is full, the node refuses the request for another one; that error is received and
ignored.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ignitetf.errors import IgniteTFError, ServerError
from ignitetf.net.channel import Channel
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import (
    Page,
    count_in_head,
    cursor_in_head,
    read_first_page,
    read_first_sql_page,
    read_page,
)
from ignitetf.wire.requests import cursor_request

__all__ = ["Cursor", "Times"]


@dataclass
class Times:
    """Where the time of scans went, in seconds, summed over their readers.

    Attributes:
        wait: Nothing of the next answer had arrived.
        receive: Answers were arriving.
        decode: Pages were being decoded.
        starved: The consumer waited for a page; the rest of the time is its own work.
        began: When the last scan began, in seconds of `time.monotonic`; 0 before the first.
    """

    wait: float = 0.0
    receive: float = 0.0
    decode: float = 0.0
    starved: float = 0.0
    began: float = 0.0

    def add(self, other: Times) -> None:
        """Add the times of another reader."""
        self.wait += other.wait
        self.receive += other.receive
        self.decode += other.decode
        self.starved += other.starved

    def since(self, earlier: Times) -> Times:
        """Return the difference to `earlier`, an earlier copy of these times."""
        return Times(
            self.wait - earlier.wait,
            self.receive - earlier.receive,
            self.decode - earlier.decode,
            self.starved - earlier.starved,
            self.began,
        )


class Cursor:
    """The pages of one query, in order.

    Args:
        channel: The connection that the query was sent on.
        op: QUERY_SCAN or QUERY_SQL_FIELDS.
        page_rows: Entries of every page but the last.
        request: Id of the query's request.
        times: Receives the time spent waiting and receiving.
    """

    def __init__(
        self, channel: Channel, op: OpCode, page_rows: int, request: int, times: Times
    ) -> None:
        self._channel = channel
        self._is_sql = op == OpCode.QUERY_SQL_FIELDS
        self._page_rows = page_rows
        self._request: int | None = request
        self._times = times
        self._id: int | None = None
        self._started = False

    def page(self) -> Page:
        """Return the next page; the one after it has been requested if there can be one.

        Raises:
            IgniteTFError: As `Channel.receive`.
        """
        request, self._request = self._request, None
        assert request is not None
        begin, waited = time.monotonic(), self._channel.waited_s
        body = self._channel.receive(request, on_head=self._ask_early)
        waited = self._channel.waited_s - waited
        self._times.wait += waited
        self._times.receive += time.monotonic() - begin - waited
        page = self._read(body)
        if page.more and self._request is None:
            self._ask()
        return page

    def finish(self) -> bool:
        """Receive the answer to a request for a page beyond the last one.

        Returns:
            Whether the connection can still be used.
        """
        if self._request is None:
            return True
        try:
            self._channel.receive(self._request)
        except ServerError:
            pass
        except IgniteTFError:
            return False
        return True

    def _ask(self) -> None:
        assert self._id is not None
        op = OpCode.QUERY_SQL_FIELDS_PAGE if self._is_sql else OpCode.QUERY_SCAN_PAGE
        self._request = self._channel.send(op, cursor_request(self._id))

    def _ask_early(self, head: memoryview) -> None:
        at = 0
        if self._id is None:
            self._id = cursor_in_head(head)
            # The first answer starts with the cursor's id and, for SQL, the number of columns.
            at = 12 if self._is_sql else 8
        if self._id is not None and count_in_head(head, at) >= self._page_rows:
            self._ask()

    def _read(self, body: memoryview) -> Page:
        if self._started:
            return read_page(body)
        self._started = True
        if self._is_sql:
            self._id, _, page = read_first_sql_page(body)
        else:
            self._id, page = read_first_page(body)
        return page
