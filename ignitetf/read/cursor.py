"""`Cursor`: the pages of one partition, each requested before the one before it is here.

frames -> **cursor** -> page requests

A node answers the request for a page once it has assembled the page. So the next page is requested
as soon as an answer begins: the node prepares one page while another is on its way. Whether there
is a next page is only known at the end of an answer, but a page that is not full is the last one.
If the last page is full, the node refuses the request for another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ignitetf.net.channel import Channel
from ignitetf.net.incoming import SMALL_BYTES, Through
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import (
    COUNT_BYTES,
    MORE_BYTES,
    Page,
    count_in_head,
    cursor_in_head,
    read_first_page,
    read_first_sql_page,
    read_page,
    read_page_end,
)
from ignitetf.wire.page_reader import Arrival
from ignitetf.wire.requests import cursor_request

__all__ = ["Cursor", "Receive", "Taker", "Times"]

# Receives so many bytes, and leaves nothing of them.
Receive = Callable[[Arrival, int], None]
# Called with the number of entries of a page that arrives: returns what receives these.
Taker = Callable[[int], Receive]


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
        op: QUERY_SCAN or QUERY_SQL_FIELDS.
        page_rows: Entries of every page but the last.
        request: Id of the query's request.

    Attributes:
        requests: Ids of the requests for its next pages, in order; two at most.
        nbytes: Bytes of the entries of the last page.
        early_bytes: Bytes of pages that arrived while those of other queries were read.
    """

    def __init__(self, op: OpCode, page_rows: int, request: int) -> None:
        self._is_sql = op == OpCode.QUERY_SQL_FIELDS
        self._page_rows = page_rows
        self.requests: deque[int] = deque([request])
        self._id: int | None = None
        self._seen = 0  # pages whose head has been seen
        self._read = 0
        self._taken: int | None = None  # entries of a page that were taken as they arrived
        self.nbytes = 0
        self.early_bytes = 0

    def ask(self, channel: Channel) -> int:
        """Request the page behind those that were requested; returns the request's id."""
        assert self._id is not None
        op = OpCode.QUERY_SQL_FIELDS_PAGE if self._is_sql else OpCode.QUERY_SCAN_PAGE
        request = channel.send(op, cursor_request(self._id))
        self.requests.append(request)
        return request

    def see(self, head: memoryview) -> bool:
        """Look at the beginning of the next page; returns whether there may be one behind it."""
        # A page may have been read without a look at its beginning.
        self._seen = max(self._seen, self._read)
        at = self._count_at(self._seen)
        self._seen += 1
        if self._id is None:
            self._id = cursor_in_head(head)
        return self._id is not None and count_in_head(head, at) >= self._page_rows

    def through(self, head: memoryview, nbytes: int, taker: Taker) -> Through | None:
        """Return what takes the page that begins like this, if `taker` does."""
        at = self._count_at(self._read)
        count, lead = count_in_head(head, at), at + COUNT_BYTES
        rest = nbytes - lead - MORE_BYTES
        # A small answer is here at once, together with others; a damaged one is told as such.
        if nbytes <= SMALL_BYTES or not 0 < count <= rest:
            return None
        self._taken, self.nbytes = count, rest
        return Through(lead, MORE_BYTES, taker(count))

    def read(self, body: memoryview) -> Page:
        """Return the next page, given the answer to the request for it.

        Returns:
            The page; `data` is empty if its entries were taken as they arrived.
        """
        first, self._read = self._read == 0, self._read + 1
        if self._taken is not None:
            page, self._taken = read_page_end(body, self._taken), None
            return page
        if not first:
            page = read_page(body)
        elif self._is_sql:
            self._id, _, page = read_first_sql_page(body)
        else:
            self._id, page = read_first_page(body)
        self.nbytes = page.data.nbytes
        return page

    def _count_at(self, page: int) -> int:
        """Where the number of entries stands in an answer."""
        # The first answer starts with the cursor's id and, for SQL, the number of columns.
        return 0 if page else 12 if self._is_sql else 8
