"""`SmallUnits`: units of a single small page, of which many are requested at a time.

page requests, channel, units -> **small units** -> collector

The node answers the requests of one connection in any order. Answers that come early wait, where
they were received, for those before them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from ignitetf.errors import IgniteTFError, WireError
from ignitetf.net.places import Source
from ignitetf.read.collector import Collector
from ignitetf.read.cursor import Times
from ignitetf.read.options import PAGE_BYTES
from ignitetf.read.page_query import Query
from ignitetf.read.page_requests import PageRequests
from ignitetf.wire.frames import request_frames
from ignitetf.wire.rowends import RowsEnd
from ignitetf.wire.units import Depth

__all__ = ["SmallUnits"]

# Some units may be larger than others.
_MOST_BYTES: Final = PAGE_BYTES
# Units taken over from the requests at a time. After some were given back fewer, as that may happen
# again soon, where every unit has a form of its own.
_MOST_UNITS: Final = 4096


class SmallUnits:
    """Units that are yet to be begun on one connection, and what has come of them.

    Args:
        requests: Those of the connection; has these units before the first `take`, and again after
            `give_back`.
        query: How to request a unit.
        source: Where the connection leads.
        collector: Takes the rows.
        times: Receives the time spent waiting.
    """

    def __init__(
        self,
        requests: PageRequests,
        query: Query,
        source: Source | None,
        collector: Collector,
        times: Times,
    ) -> None:
        self._requests = requests
        self._channel = channel = requests.channel
        self._query = query
        self._source = source
        self._collector = collector
        self._times = times
        depth = Depth(query.pipelined * 3 // 4, query.pipelined, query.held)
        self._reader = collector.unit_reader(_MOST_BYTES, depth)
        self._reader.socket = channel.socket_number
        self._reader.limit_s = channel.settings.request_timeout_s
        self._failure: OSError | IgniteTFError | None = None
        # While these are here: the units in order, the id of the request for each, and how many
        # were collected.
        self._is_begun = False
        self._units: list[tuple[int, int]] = []
        self._numbers: list[int] = []
        self._next = 0
        self._most = _MOST_UNITS

    def take(self, enough: int) -> tuple[int, bool]:
        """Collect the next units.

        Args:
            enough: Return when so many bytes have been collected.

        Returns:
            How many were collected; and False if the next one has to be read by itself, after
            `give_back`.

        Raises:
            IgniteTFError: As `Channel.receive`, but for an error answer; and what the collector
                raises. Nothing was collected then.
        """
        if self._is_begun and self._next == len(self._units):
            self.give_back()
        if not self._is_begun:
            self._begin()
        first, asked, reader = self._next, self._reader.asked, self._reader
        begin, waited = time.monotonic(), reader.waited_s
        with self._channel.exchanging(
            lambda: (self._numbers[asked : reader.asked], self._numbers[first : self._next])
        ):
            self._raise_failure()
            reader.enough = enough
            end = self._take()
            if self._next == first:
                self._raise_failure()
        waited = reader.waited_s - waited
        self._times.wait += waited
        self._times.receive += time.monotonic() - begin - waited
        return self._next - first, end not in (RowsEnd.OTHER, RowsEnd.LARGE)

    def _take(self) -> RowsEnd:
        """Collect units; keeps a failure for when they are counted."""
        unit = self._units[self._next][0]
        stop = self._next + min(
            len(self._units) - self._next, self._collector.ends.next(unit) + 1 - unit
        )
        while True:
            first = self._next
            end, units = self._reader.read(stop - first)
            if count := len(units):
                self._next += count
                which = [partition for _, partition in self._units[first : self._next]]
                self._collector.add_units(self._units[first][0], which, units, self._source)
            try:
                if end is RowsEnd.BYTES:
                    self._reader.received(self._channel.receive_some)
                elif end is RowsEnd.ASK:
                    self._channel.send_frames(self._reader.due())
                else:
                    self._check(end)
                    return end
            except (OSError, IgniteTFError) as error:
                self._failure = error
                return end

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _begin(self) -> None:
        """Have the next units, and what has come of them."""
        channel, reader = self._channel, self._reader
        asked, unasked = self._requests.lend(self._most)
        sent, numbers = [request for _, _, request in asked], channel.request_ids(len(unasked))
        bodies = self._query.bodies([partition for _, partition in unasked])
        assert not isinstance(bodies, Sequence)
        reader.put_back(channel.take_bytes())
        reader.expect(sent, numbers, request_frames(self._query.op, numbers.start, bodies))
        for number, request in enumerate(sent):
            if (frame := channel.early_answer(request)) is not None:
                reader.give(number, frame)
        self._units = [*((unit, partition) for unit, partition, _ in asked), *unasked]
        self._numbers, self._next, self._is_begun = [*sent, *numbers], 0, True

    def _check(self, end: RowsEnd) -> None:
        if (error := self._reader.failure(end)) is not None:
            raise error
        if end is RowsEnd.UNKNOWN:
            raise WireError("an answer to a request that was not asked")

    def give_back(self) -> None:
        """Leave the units, and what has come of them, to the requests and their channel."""
        if not self._is_begun:
            return
        here, asked = self._next, self._reader.asked
        answers, rest = self._reader.rest()
        for request, frame in answers:
            self._channel.return_answer(request, memoryview(bytes(frame)))
        self._channel.return_bytes(rest)
        sent = zip(self._units[here:asked], self._numbers[here:asked], strict=True)
        self._requests.return_units([(*unit, number) for unit, number in sent], self._units[asked:])
        is_through = here == len(self._units)
        self._most = min(_MOST_UNITS, 4 * self._most) if is_through else self._query.held
        self._is_begun = False
