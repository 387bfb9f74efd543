"""`SmallUnits`: units of a single small page, of which many are requested at a time.

page requests, channel, units -> **small units** -> collector

A node answers the requests of one connection in any order. Answers that come early wait, where they
were received, for those before them. Of several nodes, each over a connection of its own, units are
taken in the order of all of them, into the same columns.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

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

__all__ = ["Link", "SmallUnits"]

# A larger answer is received by itself.
_MOST_BYTES: Final = PAGE_BYTES
# Units taken over from the requests at a time. After some were given back fewer, as that may happen
# again soon, where every unit has a form of its own.
_MOST_UNITS: Final = 4096


class Link(NamedTuple):
    """A connection that units are read over.

    Attributes:
        requests: Those of the connection; they have its units.
        source: Where it leads.
    """

    requests: PageRequests
    source: Source | None


class _LinkUnits:
    """The next units of one connection, and what has come of them.

    Attributes:
        units: Index and partition of each, in order.
        numbers: The id of the request for each.
        next: How many were taken.
        has_more: Whether there are others behind them.
    """

    def __init__(self, link: Link, collector: Collector, depth: Depth, links: int) -> None:
        self._requests = link.requests
        self.source = link.source
        self.channel = channel = link.requests.channel
        self.reader = collector.unit_reader(_MOST_BYTES, depth, links)
        self.reader.socket = channel.socket_number
        self.reader.limit_s = channel.settings.request_timeout_s
        self.units: list[tuple[int, int]] = []
        self.numbers: list[int] = []
        self.next = 0
        self.has_more = False

    def begin(self, query: Query, most: int) -> None:
        """Take over what was asked for, and so many further units."""
        channel, reader = self.channel, self.reader
        asked, unasked = self._requests.lend(most)
        sent, numbers = [request for _, _, request in asked], channel.request_ids(len(unasked))
        bodies = query.bodies([partition for _, partition in unasked])
        assert not isinstance(bodies, Sequence)
        reader.put_back(channel.take_bytes())
        reader.expect(sent, numbers, request_frames(query.op, numbers.start, bodies))
        for number, request in enumerate(sent):
            if (frame := channel.early_answer(request)) is not None:
                reader.give(number, frame)
        self.units = [*((unit, partition) for unit, partition, _ in asked), *unasked]
        self.numbers, self.next = [*sent, *numbers], 0
        self.has_more = self._requests.has_unasked

    def exchanging(self) -> contextlib.AbstractContextManager[None]:
        """Let the channel know, at the end, what was sent and what was taken."""
        asked, first = self.reader.asked, self.next
        return self.channel.exchanging(
            lambda: (self.numbers[asked : self.reader.asked], self.numbers[first : self.next])
        )

    def give_back(self) -> None:
        """Leave the units, and what has come of them, to the requests and their channel."""
        if self.channel.closed:
            return
        here, asked = self.next, self.reader.asked
        answers, rest = self.reader.rest()
        for request, frame in answers:
            self.channel.return_answer(request, memoryview(bytes(frame)))
        self.channel.return_bytes(rest)
        sent = zip(self.units[here:asked], self.numbers[here:asked], strict=True)
        self._requests.return_units([(*unit, number) for unit, number in sent], self.units[asked:])


class SmallUnits:
    """Units that are yet to be begun, and what has come of them.

    Args:
        links: The connections; their requests have the units before the first `take`, and again
            after `give_back`.
        query: How to request a unit.
        collector: Takes the rows.
        times: Receives the time spent waiting.
    """

    def __init__(
        self, links: Sequence[Link], query: Query, collector: Collector, times: Times
    ) -> None:
        self._query = query
        self._collector = collector
        self._times = times
        depth = Depth(query.pipelined * 3 // 4, query.pipelined, query.held)
        self._links = [_LinkUnits(link, collector, depth, len(links)) for link in links]
        self._failure: tuple[_LinkUnits, OSError | IgniteTFError] | None = None
        # While these are here: the units of all connections, in order, and whose each is.
        self._is_begun = False
        self._units: list[tuple[int, int]] = []
        self._link_of: list[int] = []
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
        self._raise_failure()
        first = self._next
        begin, waited = time.monotonic(), self._waited_s()
        with contextlib.ExitStack() as exchanges:
            for link in self._links:
                exchanges.enter_context(link.exchanging())
            end = self._take(enough)
        if self._next == first:
            self._raise_failure()
        waited = self._waited_s() - waited
        self._times.wait += waited
        self._times.receive += time.monotonic() - begin - waited
        return self._next - first, end not in (RowsEnd.OTHER, RowsEnd.LARGE)

    def _waited_s(self) -> float:
        return sum(link.reader.waited_s for link in self._links)

    def _take(self, enough: int) -> RowsEnd:
        """Collect units; keeps a failure for when they are counted."""
        first, unit = self._next, self._units[self._next][0]
        stop = first + min(len(self._units) - first, self._collector.ends.next(unit) + 1 - unit)
        taken: list[tuple[int, NDArray[np.void]]] = []
        end = RowsEnd.END
        while end is RowsEnd.END and self._next < stop:
            number, first_of_run = self._link_of[self._next], self._next
            link = self._links[number]
            end, nbytes = self._read(link, self._run(stop), enough)
            enough -= nbytes
            if count := self._next - first_of_run:
                taken.append((number, link.reader.taken(link.next - count, link.next)))
        if taken:
            self._collect(first, taken)
        return end

    def _run(self, stop: int) -> int:
        """Return how many of the next units are of the same connection."""
        if len(self._links) == 1:
            return stop - self._next
        end, link_of = self._next + 1, self._link_of
        while end < stop and link_of[end] == link_of[self._next]:
            end += 1
        return end - self._next

    def _read(self, link: _LinkUnits, count: int, enough: int) -> tuple[RowsEnd, int]:
        """Take units of one connection, and return why that ended, and their bytes."""
        reader, nbytes = link.reader, 0
        while True:
            reader.enough = enough - nbytes
            end, found = reader.read(count)
            link.next += found
            self._next += found
            count, nbytes = count - found, nbytes + reader.nbytes
            try:
                if end is RowsEnd.BYTES:
                    reader.received(link.channel.receive_some)
                elif end is RowsEnd.ASK:
                    link.channel.send_frames(reader.due())
                else:
                    _check(reader.failure(end), end)
                    break
            except (OSError, IgniteTFError) as error:
                self._failure = link, error
                break
        return end, nbytes

    def _collect(self, first: int, taken: Sequence[tuple[int, NDArray[np.void]]]) -> None:
        """Count units among those collected."""
        read: dict[int, tuple[int, int]] = {}
        for number, units in taken:
            rows, nbytes = read.get(number, (0, 0))
            read[number] = rows + int(units["rows"].sum()), nbytes + int(units["size"].sum())
        sources = [(self._links[number].source, *count) for number, count in read.items()]
        partitions = [partition for _, partition in self._units[first : self._next]]
        every = np.concatenate([units for _, units in taken])
        self._collector.add_units(self._units[first][0], partitions, every, sources)

    def _raise_failure(self) -> None:
        """Raise what was kept, as its channel explains it, which is closed; the others are not."""
        if self._failure is not None:
            link, error = self._failure
            with link.exchanging():
                raise error

    def _begin(self) -> None:
        """Have the next units, and what has come of them."""
        for link in self._links:
            link.begin(self._query, self._most)
        self._next, self._is_begun = 0, True
        if len(self._links) == 1:
            self._units, self._link_of = self._links[0].units, [0] * len(self._links[0].units)
            return
        # Of those behind the last one of a connection which has more, nobody knows the order yet.
        lasts = [link.units[-1] for link in self._links if link.has_more]
        every = sorted((unit, n) for n, link in enumerate(self._links) for unit in link.units)
        every = [one for one in every if one[0] <= min(lasts)] if lasts else every
        self._units = [unit for unit, _ in every]
        self._link_of = [number for _, number in every]

    def give_back(self) -> None:
        """Leave the units, and what has come of them, to the requests and their channels."""
        if not self._is_begun:
            return
        for link in self._links:
            link.give_back()
        is_through = self._next == len(self._units)
        self._most = min(_MOST_UNITS, 4 * self._most) if is_through else self._query.held
        self._is_begun = False


def _check(error: OSError | None, end: RowsEnd) -> None:
    if error is not None:
        raise error
    if end is RowsEnd.UNKNOWN:
        raise WireError("an answer to a request that was not asked")
