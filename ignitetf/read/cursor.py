"""`Cursor`: the pages of one partition from one connection.

client -> **cursor** -> scan

A node answers the request for a page once it has put the page together. So the next page is asked
for as soon as an answer begins: while one is on its way, the node works on the other. Whether
there is a next page stands at the end of an answer, but a page that is not full is the last one.
After a full one that was the last the node refuses the request for another, which is taken and
forgotten.
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
        wait: No byte of the next answer was here.
        receive: Answers came in.
        decode: Pages were taken apart.
        starved: The consumer waited for a page; the rest of its time is its own.
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
        """What was added after `earlier`, a copy of these times as they were then."""
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
        channel: Where it was sent.
        op: QUERY_SCAN or QUERY_SQL_FIELDS.
        page_rows: Entries of every page but the last.
        request: Id of the query's request.
        times: Takes how long was waited and received.
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
        """The next page; the one after it was asked for, if there can be one.

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
        """Take the answer to a request for a page that does not exist.

        Returns:
            Whether the connection can be used further.
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
            # The first answer has the cursor's id, and of SQL the number of columns, before it.
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
