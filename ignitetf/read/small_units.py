"""`SmallUnits`: units of a single small page, of which many are requested at a time.

page requests, channel, units -> **small units** -> collector

A node answers the requests of one connection in any order. Answers that come early wait, where they
were received, for those before them. Of several nodes, each over a connection of its own, units are
taken in the order of all of them, into the same columns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from ignitetf.errors import IgniteTFError, WireError
from ignitetf.net.places import Source
from ignitetf.read.collector import Collector
from ignitetf.read.cursor import Times
from ignitetf.read.options import PAGE_BYTES
from ignitetf.read.page_query import Query
from ignitetf.read.page_requests import PageRequests
from ignitetf.wire.frames import request_frames
from ignitetf.wire.rowends import RowsEnd
from ignitetf.wire.units import Depth, UnitAnswers

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
        source: Where it leads.
        units: Index and partition of each, in order.
        has_more: Whether there are others behind them.
    """

    def __init__(self, link: Link, collector: Collector, depth: Depth, links: int) -> None:
        self._requests = link.requests
        self.source = link.source
        self.channel = channel = link.requests.channel
        self.answers = UnitAnswers(
            collector.pool,
            _MOST_BYTES,
            depth,
            links=links,
            socket=channel.socket_number,
            limit_s=channel.settings.request_timeout_s,
        )
        self.units: list[tuple[int, int]] = []
        self.has_more = False
        self._numbers: list[int] = []  # the id of the request for each
        self._told = 0, 0  # units whose requests, and answers, the channel knows of

    def begin(self, query: Query, most: int) -> None:
        """Take over what was asked for, and so many further units."""
        channel, answers = self.channel, self.answers
        channel.begin_exchange()
        asked, unasked = self._requests.lend(most)
        sent, numbers = [request for _, _, request in asked], channel.request_ids(len(unasked))
        bodies = query.bodies([partition for _, partition in unasked])
        assert not isinstance(bodies, Sequence)
        answers.put_back(channel.take_bytes())
        answers.expect(sent, numbers, request_frames(query.op, numbers.start, bodies))
        for number, request in enumerate(sent):
            if (frame := channel.early_answer(request)) is not None:
                answers.give(number, frame)
        self.units = [*((unit, partition) for unit, partition, _ in asked), *unasked]
        self._numbers, self._told = [*sent, *numbers], (len(sent), 0)
        self.has_more = self._requests.has_unasked

    def tell(self) -> None:
        """Let the channel know what was sent and what was taken."""
        (asked, taken), answers = self._told, self.answers
        self._told = answers.asked, answers.next
        numbers = self._numbers
        self.channel.exchanged(numbers[asked : answers.asked], numbers[taken : answers.next])

    def give_back(self) -> None:
        """Leave the units, and what has come of them, to the requests and their channel."""
        if self.channel.closed:
            return
        here, asked = self.answers.next, self.answers.asked
        placed = set(self.answers.placed.tolist())
        answers, rest = self.answers.rest()
        for request, frame in answers:
            self.channel.return_answer(request, memoryview(bytes(frame)))
        self.channel.return_bytes(rest)
        sent = [(*self.units[n], self._numbers[n]) for n in range(here, asked) if n not in placed]
        self.channel.exchanged((), (self._numbers[number] for number in placed))
        self._requests.return_units(sent, self.units[asked:])


class SmallUnits:
    """Units that are yet to be begun, and what has come of them.

    Where it is known how many rows the units have, those that come before their turn are placed at
    once. Then the units between them can only be read anew, over other connections.

    Args:
        links: The connections; their requests have the units before the first `take`, and again
            after `give_back`.
        query: How to request a unit.
        collector: Takes the rows.
        times: Receives the time spent waiting.
        places: Whether to place rows.
    """

    def __init__(
        self,
        links: Sequence[Link],
        query: Query,
        collector: Collector,
        times: Times,
        places: bool,
    ) -> None:
        self._query = query
        self._collector = collector
        self._times = times
        self._places = places
        depth = Depth(query.pipelined * 3 // 4, query.pipelined, query.held)
        self._links = [_LinkUnits(link, collector, depth, len(links)) for link in links]
        self._reader = collector.unit_reader([link.answers for link in self._links])
        self._failure: tuple[_LinkUnits, OSError | IgniteTFError] | None = None
        # While these are here: the index and partition of each unit of all connections, in order.
        self._is_begun = False
        self._units = np.zeros((0, 2), np.int64)
        self._most = _MOST_UNITS

    def take(self, held_s: float) -> tuple[int, bool]:
        """Collect the next units, as many as fill the memory of a batch.

        Args:
            held_s: After so many seconds, return those that are here rather than waiting for more.

        Returns:
            How many were collected; and False if the next one has to be read by itself, after
            `give_back`, over other connections if some are `placed`.

        Raises:
            IgniteTFError: As `Channel.receive`, but for an error answer; and what the collector
                raises. Nothing was collected then.
        """
        reader = self._reader
        if self._is_begun and reader.next == len(self._units):
            self.give_back()
        if not self._is_begun:
            self._begin()
        self._raise_failure()
        first = reader.next
        unit = int(self._units[first, 0])
        stop = first + min(len(self._units) - first, self._collector.ends.next(unit) + 1 - unit)
        reader.begin(stop, held_s)
        begin, waited = time.monotonic(), self._waited_s()
        end = self._read()
        for number in set(reader.link_of[first : reader.next + 1].tolist()):
            self._links[number].tell()
        if reader.next > first:
            self._collect(first)
        else:
            self._raise_failure()
        waited = self._waited_s() - waited
        self._times.wait += waited
        self._times.receive += time.monotonic() - begin - waited
        return reader.next - first, end not in (RowsEnd.OTHER, RowsEnd.LARGE, RowsEnd.COUNT)

    @property
    def has_placed(self) -> bool:
        """Whether rows of units behind the next one have been placed."""
        return self._is_begun and self._reader.has_placed

    def _waited_s(self) -> float:
        return sum(link.answers.waited_s for link in self._links)

    def _read(self) -> RowsEnd:
        """Take units, and return why that ended; keeps a failure for when they are counted."""
        while True:
            end = self._reader.read()
            link = self._links[self._reader.link]
            try:
                if end is RowsEnd.BYTES:
                    link.answers.received(link.channel.receive_some)
                elif end is RowsEnd.ASK:
                    link.channel.send_frames(link.answers.due())
                else:
                    _check(link.answers.failure(end), end)
                    return end
            except (OSError, IgniteTFError) as error:
                self._failure = link, error
                return end

    def _collect(self, first: int) -> None:
        """Count units among those collected."""
        reader = self._reader
        taken, link_of = reader.taken(first, reader.next), reader.link_of[first : reader.next]
        rows, nbytes = (np.bincount(link_of, weights=taken[name]) for name in ("rows", "size"))
        sources = [
            (self._links[number].source, int(rows[number]), int(nbytes[number]))
            for number in np.flatnonzero(nbytes)
        ]
        units = self._units[first : reader.next]
        self._collector.add_units(int(units[0, 0]), units[:, 1], taken, sources)

    def _raise_failure(self) -> None:
        """Raise what was kept, as its channel explains it, which is closed; the others are not."""
        if self._failure is not None:
            link, error = self._failure
            link.channel.fail(error)

    def _begin(self) -> None:
        """Have the next units, and what has come of them."""
        links = self._links
        for link in links:
            link.begin(self._query, self._most)
        every = chain.from_iterable(link.units for link in links)
        units = np.fromiter(chain.from_iterable(every), np.int64).reshape(-1, 2)
        link_of = np.repeat(np.arange(len(links)), [len(link.units) for link in links])
        order = np.argsort(units[:, 0])
        # Of those behind the last one of a connection which has more, nobody knows the order yet.
        lasts = [link.units[-1][0] for link in links if link.has_more]
        if lasts:
            order = order[: np.searchsorted(units[order, 0], min(lasts), "right")]
        self._units = units[order]
        rows = self._collector.known_rows(self._units[:, 1]) if self._places else None
        self._reader.expect(link_of[order], rows)
        self._is_begun = True

    def give_back(self) -> None:
        """Leave the units, and what has come of them, to the requests and their channels."""
        if not self._is_begun:
            return
        for link in self._links:
            link.give_back()
        is_through = self._reader.next == len(self._units)
        self._most = min(_MOST_UNITS, 4 * self._most) if is_through else self._query.held
        self._is_begun = False


def _check(error: OSError | None, end: RowsEnd) -> None:
    if error is not None:
        raise error
    if end is RowsEnd.UNKNOWN:
        raise WireError("an answer to a request that was not asked")
