"""`PageRequests`: which pages are requested on a connection, in the order of the units.

cursor, channel -> **page requests** -> scan thread

A few requests are unanswered at any time, so that the node always has something to do: as soon as
an answer begins, its cursor's next page is requested, or else the first page of another unit. The
node answers in any order; what comes before its turn waits, and if that is much, its cursor does.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence

from ignitetf.errors import IgniteTFError, ServerError
from ignitetf.net.channel import Channel
from ignitetf.net.incoming import Through
from ignitetf.read.cursor import Cursor, Taker, Times
from ignitetf.read.page_query import Query
from ignitetf.wire.frames import Page

__all__ = ["PageRequests", "Request"]

Request = tuple[int, int, int]  # unit, partition, request id


class PageRequests:
    """The requests on one connection.

    Args:
        channel: The connection.
        query: What to request.
        units: Index and partition of the units to read, in order.
        times: Receives the time spent waiting and receiving.

    Attributes:
        asked: Units whose first page was requested and which are yet to be begun, in order.
    """

    def __init__(
        self, channel: Channel, query: Query, units: Sequence[tuple[int, int]], times: Times
    ) -> None:
        self.channel = channel
        self.asked: deque[Request] = deque()
        self._query = query
        self._units = deque(units)  # not asked for yet
        self._times = times
        self._cursors: dict[int, Cursor] = {}  # by the id of each unanswered request
        self._waiting: dict[int, Cursor] = {}  # of units whose first page came early
        self._present: Cursor | None = None
        self._taker: Taker | None = None
        self._early_bytes = 0

    def ask_units(self, count: int) -> None:
        """Request the first pages of so many further units, by one call."""
        new = [self._units.popleft() for _ in range(min(count, len(self._units)))]
        if not new:
            return
        bodies = self._query.bodies([partition for _, partition in new])
        numbers = self.channel.send_all(self._query.op, bodies)
        self.asked.extend((*one, number) for one, number in zip(new, numbers, strict=True))

    @property
    def has_unasked(self) -> bool:
        """Whether there are units that were not asked for."""
        return bool(self._units)

    def lend(self, most: int) -> tuple[list[Request], list[tuple[int, int]]]:
        """Give up units that are yet to be begun: those asked for, and so many that were not."""
        asked = list(self.asked)
        self.asked.clear()
        return asked, [self._units.popleft() for _ in range(min(most, len(self._units)))]

    def return_units(self, asked: Sequence[Request], unasked: Sequence[tuple[int, int]]) -> None:
        """Have units again, as `lend` returned them."""
        self.asked.extend(asked)
        self._units.extendleft(reversed(unasked))

    def ask_more(self, answered: int = 0) -> None:
        """Request the first pages of further units if few requests are unanswered.

        None while much has come early: all of it waits for a unit that is late.

        Args:
            answered: Requests whose answer has begun to arrive.
        """
        if self._early_bytes >= self._query.early_bytes:
            return
        pipelined, waiting = self._query.pipelined, self.channel.unanswered - answered
        if self._query.has_small_units:  # each may have an open cursor, though it is answered
            waiting = max(waiting, len(self.asked))
        count = pipelined + 1 - waiting
        if count > pipelined // 4:  # several by one call, if many are on their way
            self.ask_units(count)

    def begin(self) -> None:
        """Go on to the first of the units that were asked for."""
        _, _, request = self.asked.popleft()
        cursor = self._waiting.pop(request, None)
        if cursor is None:
            cursor = self._cursors[request] = self._new_cursor(request)
        self._early_bytes -= cursor.early_bytes
        self._present = cursor

    def page(self, taker: Taker | None) -> tuple[Page, int]:
        """Return the next page of the present unit, and the bytes of its entries.

        Args:
            taker: Asked for a page whose entries are still to arrive; if it takes them, `data` is
                empty.

        Raises:
            IgniteTFError: As `Channel.receive`.
        """
        cursor, self._taker = self._present, taker
        assert cursor is not None
        begin, waited = time.monotonic(), self.channel.waited_s
        request = cursor.requests.popleft()
        body = self.channel.receive(request, on_head=self._on_head)
        waited = self.channel.waited_s - waited
        self._times.wait += waited
        self._times.receive += time.monotonic() - begin - waited
        page = cursor.read(body)
        if page.more and not cursor.requests:
            self._ask_page(cursor)
        return page, cursor.nbytes

    def end(self) -> bool:
        """Go on from the present unit, after its last page.

        Returns:
            Whether the connection can still be used.
        """
        cursor, self._present = self._present, None
        assert cursor is not None
        for request in cursor.requests:  # for a page beyond the last one: an error
            self._cursors.pop(request, None)
            try:
                self.channel.receive(request, on_head=self._on_head)
            except ServerError:
                pass
            except IgniteTFError:
                return False
        return True

    def drain(self) -> None:
        """Receive the answers to all requests for first pages."""
        for _, _, request in self.asked:
            if self.channel.closed:
                return
            with contextlib.suppress(IgniteTFError):
                self.channel.receive(request)
        self.asked.clear()

    def _new_cursor(self, request: int) -> Cursor:
        return Cursor(self._query.op, self._query.page_rows, request)

    def _ask_page(self, cursor: Cursor) -> None:
        self._cursors[cursor.ask(self.channel)] = cursor

    def _on_head(self, request: int, head: memoryview, nbytes: int) -> Through | None:
        cursor = self._cursors.pop(request, None)
        if cursor is None and not self._query.has_small_units:
            cursor = self._early_cursor(request)
        if cursor is None:
            return None
        is_present, is_last = cursor is self._present, not cursor.see(head)
        if not is_present:
            cursor.early_bytes += nbytes
            self._early_bytes += nbytes
        if is_last:
            self.ask_more(answered=1)
        elif is_present or self._early_bytes < self._query.early_bytes:
            self._ask_page(cursor)
        taker = self._taker if is_present else None
        return None if taker is None else cursor.through(head, nbytes, taker)

    def _early_cursor(self, request: int) -> Cursor | None:
        """Return the cursor of a unit that is not begun, whose first page arrives; else None."""
        if all(request != asked for _, _, asked in self.asked):
            return None
        found = self._waiting[request] = self._new_cursor(request)
        return found
