"""`SmallUnits`: units of a single small page, of which many are requested at a time.

channel, units -> **small units** -> collector

The node answers the requests of one connection in any order. Answers that come early wait, where
they were received, for those before them.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from typing import Final

from ignitetf.errors import WireError
from ignitetf.net.channel import Channel
from ignitetf.net.places import Source
from ignitetf.read.collector import Collector
from ignitetf.read.cursor import Times
from ignitetf.read.options import PAGE_BYTES
from ignitetf.read.page_requests import Request
from ignitetf.wire.rowends import RowsEnd

__all__ = ["SmallUnits"]

# At least eight units are requested at a time where they make about a page together; some of them
# may be larger than others.
_MOST_BYTES: Final = PAGE_BYTES // 6


class SmallUnits:
    """The answers to requests for adjacent units, on one connection.

    Args:
        channel: The connection.
        source: Where it leads.
        collector: Takes the rows.
        times: Receives the time spent waiting.
    """

    def __init__(
        self, channel: Channel, source: Source | None, collector: Collector, times: Times
    ) -> None:
        self.channel = channel
        self._source = source
        self._collector = collector
        self._times = times
        self._reader = collector.unit_reader(_MOST_BYTES)
        self._reader.socket = channel.socket_number
        self._reader.limit_s = channel.settings.request_timeout_s
        self._is_begun = False
        self._failure: OSError | WireError | None = None

    def take(self, asked: deque[Request], few: int, enough: int) -> tuple[int, bool]:
        """Collect the first of the units that were asked for.

        Args:
            asked: These units.
            few: Return when no more of them than this are left.
            enough: Return when so many bytes have been collected.

        Returns:
            How many were collected; and False if the next one has to be read by itself, after
            `give_back`.

        Raises:
            IgniteTFError: As `Channel.receive`, but for an error answer; and what the collector
                raises. Nothing was collected then.
        """
        answered: list[int] = []
        begin, waited = time.monotonic(), self._reader.waited_s
        with self.channel.receiving(lambda: answered):
            self._raise_failure()
            self._begin(asked)
            self._reader.few, self._reader.enough = few, enough
            end = self._take(asked, answered)
            if not answered:
                self._raise_failure()
        waited = self._reader.waited_s - waited
        self._times.wait += waited
        self._times.receive += time.monotonic() - begin - waited
        return len(answered), end not in (RowsEnd.OTHER, RowsEnd.LARGE)

    def _take(self, asked: deque[Request], answered: list[int]) -> RowsEnd:
        """Collect units; adds their request ids, and keeps a failure for when they are counted."""
        first, partitions = asked[0][0], [partition for _, partition, _ in asked]
        most = min(len(asked), self._collector.ends.next(first) + 1 - first)
        while True:
            done = len(answered)
            end, units = self._reader.read(most - done)
            if count := len(units):
                which = partitions[done : done + count]
                self._collector.add_units(first + done, which, units, self._source)
                answered += units["request"].tolist()
            try:
                if end is RowsEnd.BYTES:
                    self._reader.received(self.channel.receive_some)
                    continue
                self._check(end)
            except (OSError, WireError) as error:
                self._failure = error
            return end

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _begin(self, asked: deque[Request]) -> None:
        """Have the answers to requests that were sent since, and what has come of them."""
        reader = self._reader
        if not self._is_begun:
            reader.put_back(self.channel.take_bytes())
            self._is_begun = True
        known = reader.waiting
        new = [request for _, _, request in islice(asked, known, None)]
        if not new:
            return
        reader.expect(new)
        for number, request in enumerate(new, known):
            if (body := self.channel.early_answer(request)) is not None:
                reader.give(number, body)

    def _check(self, end: RowsEnd) -> None:
        if (error := self._reader.failure(end)) is not None:
            raise error
        if end is RowsEnd.UNKNOWN:
            raise WireError("an answer to a request that was not asked")

    def give_back(self) -> None:
        """Leave all that has come to `Channel.receive`."""
        answers, rest = self._reader.rest()
        for request, frame in answers:
            self.channel.return_answer(request, memoryview(bytes(frame)))
        self.channel.return_bytes(rest)
        self._is_begun = False
