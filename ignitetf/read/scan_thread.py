"""`ScanThread`: receives the pages of its units in order, over one connection, ahead of a consumer.

cursor -> **scan thread** -> scan

Of small units, many first pages are requested at a time. A unit that has a single page is handed
over together with those that follow it, because a hand-over between threads costs as much as
receiving a small page does.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, NamedTuple

from ignitetf.errors import IgniteTFError
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client
from ignitetf.net.places import Source
from ignitetf.net.retry import READ, Backoff
from ignitetf.read.cursor import Cursor, Times
from ignitetf.read.nearest import nearest_nodes
from ignitetf.read.page_query import Query, RetryPolicy, UnitPage
from ignitetf.read.usage import add_wait
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import Page

__all__ = ["RUN_SHARE", "ScanThread", "WholeUnit", "owners_of"]

log = logging.getLogger(__name__)

# Units of one page are handed over in portions of a share of a run, or of so many units.
RUN_SHARE: Final = 4
_MOST_UNITS: Final = 512
# A larger page is worth more than the copy that joins it to others.
_MOST_JOINED_BYTES: Final = 256 << 10
# A portion is not held back for longer than this while more is arriving.
_HELD_S: Final = 0.05


class WholeUnit(NamedTuple):
    """A unit with its only page, as received."""

    unit: int
    partition: int
    page: Page
    source: Source | None


def owners_of(client: Client, query: Query) -> dict[int, uuid.UUID]:
    """Return the node to read each partition from; empty if it makes no difference."""
    nodes = client.nodes()
    if len(nodes) < 2:
        return {}
    if query.op != OpCode.QUERY_SCAN:  # SQL by partition is always answered by the primary
        return client.partition_map(query.name).owners
    return nearest_nodes(client, query.name, nodes)


@dataclass(frozen=True)
class _Undecoded:
    """A page as received, for the consumer to decode; `number` counts within its unit."""

    partition: int
    page: Page
    number: int


class ScanThread(threading.Thread):
    """One connection: receives the pages of its units in order into a bounded buffer.

    Args:
        client: The cluster.
        query: What to request.
        units: Index and partition of each unit.
        retry: How long to try to replace a lost connection.
        owners: The node to read each partition from, for the first connection; None if unknown.
    """

    def __init__(
        self,
        client: Client,
        query: Query,
        units: list[tuple[int, int]],
        retry: RetryPolicy,
        owners: dict[int, uuid.UUID] | None,
    ) -> None:
        super().__init__(name=f"ignitetf-read-{query.name}", daemon=True)
        self._client = client
        self._query = query
        self._decoder = query.decoder()
        self._taken_decoder = query.decoder()
        self._units = deque(units)
        self._retry = retry
        self._owners = owners  # for the first connection
        self._ready = threading.Condition()
        self._buffer: deque[UnitPage | list[WholeUnit] | BaseException] = deque()
        self._buffered_bytes = 0
        self._taken: deque[WholeUnit] = deque()  # by the consumer, in one portion
        # The portion that is being received, its bytes, and when it was begun.
        self._portion: list[WholeUnit] = []
        self._portion_bytes = 0
        self._portion_since = 0.0
        self._stop_asked = threading.Event()
        self._channel: Channel | None = None
        self._source: Source | None = None
        # Unit, partition, request id. No `InFlight`: the oldest goes to a cursor, which requests
        # its next page as soon as the first bytes of an answer are here.
        self._asked: deque[tuple[int, int, int]] = deque()
        self._backoff = Backoff(READ)
        self._starving = False  # the consumer had to wait for the last page it took
        self.times = Times()
        self.taken = Times()

    # The consumer's side

    @property
    def has_next(self) -> bool:
        """Whether `take` has something to return at once."""
        return bool(self._taken or self._buffer)

    def take(self) -> UnitPage | WholeUnit:
        """Wait for the next page and return it; raises what ended the thread.

        A unit of a single page comes as it was received, for `joined`, and without a mark of its
        end.
        """
        if self._taken:
            return self._taken.popleft()
        item = self._take()
        if isinstance(item, list):
            self._taken.extend(item)
            return self._taken.popleft()
        if isinstance(item.page, _Undecoded):
            found = item.page
            page = self._decode_taken(
                lambda: self._taken_decoder.one(found.partition, found.page),
                found.partition,
                found.number,
            )
            return replace(item, page=page)
        return item

    def joined(self, units: Sequence[WholeUnit]) -> Any:
        """Decode units of a single page at once."""
        partitions = [unit.partition for unit in units]
        pages = [unit.page for unit in units]
        return self._decode_taken(
            lambda: self._taken_decoder.joined(partitions, pages), partitions[0], 0
        )

    def _take(self) -> UnitPage | list[WholeUnit]:
        with self._ready:
            self._starving = not self._buffer
            if self._starving:
                begin = time.monotonic()
                self._ready.wait_for(lambda: self._buffer)
                starved = time.monotonic() - begin
                self.taken.starved += starved
                add_wait(starved)
            item = self._buffer.popleft()
            if isinstance(item, BaseException):
                raise item
            self._buffered_bytes -= _nbytes(item)
            self._ready.notify_all()
        return item

    def _decode_taken(self, decode: Callable[[], Any], partition: int, number: int) -> Any:
        while True:
            try:
                return _timed(decode, self.taken)
            except IgniteTFError as error:
                # The page is here, but looking up one of its types needs a connection.
                self._wait_to_retry(error, partition, number)

    def stop(self) -> None:
        """End the thread once the answers it must not leave behind have arrived."""
        with self._ready:
            self._stop_asked.set()
            self._ready.notify_all()

    # The thread's side

    def run(self) -> None:
        """Read all units; an error that ends it early is passed to the consumer."""
        try:
            while self._units and not self._stop_asked.is_set():
                unit, partition = self._units[0]
                self._read_unit(unit, partition)
                self._units.popleft()
            self._hand_over()
        except BaseException as error:
            self._drop()
            with self._ready:
                self._buffer.append(error)
                self._ready.notify_all()
        if self._units:
            self._drop()
        elif self._channel is not None:
            self._client.release(self._channel)

    def _read_unit(self, unit: int, partition: int) -> None:
        delivered = 0
        while not self._stop_asked.is_set():
            try:
                delivered = self._try_unit(unit, partition, delivered)
                return
            except IgniteTFError as error:
                self._drop()
                if self._stop_asked.is_set():
                    return
                delivered = getattr(error, "_delivered", delivered)
                self._hand_over()
                self._wait_to_retry(error, partition, delivered)

    def _try_unit(self, unit: int, partition: int, delivered: int) -> int:
        """Read a unit from its first page; the first `delivered` pages count as replays."""
        number = 0
        try:
            # One less until the first page is here: another request would share the node with it.
            channel = self._ask_ahead(max(1, self._query.pipelined - 1))
            _, _, request = self._asked.popleft()
            cursor = Cursor(channel, self._query.op, self._query.page_rows, request, self.times)
            while True:
                page = cursor.page()
                if number == 0:
                    self._ask_ahead(self._query.pipelined, after=1)
                    if delivered == 0 and self._is_whole(page):
                        self._backoff.progress()
                        self._hold(WholeUnit(unit, partition, page, self._source))
                        break
                    self._hand_over()
                replay = number if number < delivered else -1
                decoded = self._decoded(_Undecoded(partition, page, number))
                self._put(UnitPage(unit, decoded, replay, page.data.nbytes, self._source))
                number += 1
                if replay < 0:  # replays are no progress: they come with each new try
                    self._backoff.progress()
                if self._stop_asked.is_set():
                    return number
                if not page.more:
                    self._put(UnitPage(unit, None))
                    break
        except IgniteTFError as error:
            error._delivered = max(delivered, number)  # type: ignore[attr-defined]
            raise
        if not cursor.finish():
            self._drop()
        return number

    def _decoded(self, found: _Undecoded) -> Any:
        """Decode the page here, unless the consumer is waiting and has the time to do it."""
        if self._starving and not self._buffer:
            return found
        return _timed(lambda: self._decoder.one(found.partition, found.page), self.times)

    def _is_whole(self, page: Page) -> bool:
        limit = min(_MOST_JOINED_BYTES, self._query.run_bytes // 2)
        return bool(limit) and not page.more and page.data.nbytes <= limit

    def _hold(self, unit: WholeUnit) -> None:
        """Add a unit to the portion, and hand that over if it is large or old."""
        if not self._portion:
            self._portion_since = time.monotonic()
        self._portion.append(unit)
        self._portion_bytes += unit.page.data.nbytes
        if (
            self._portion_bytes >= self._query.run_bytes // RUN_SHARE
            or len(self._portion) >= _MOST_UNITS
            or time.monotonic() - self._portion_since > _HELD_S
        ):
            self._hand_over()

    def _hand_over(self) -> None:
        if self._portion:
            portion, self._portion, self._portion_bytes = self._portion, [], 0
            self._put(portion)

    def _ask_ahead(self, count: int, after: int = 0) -> Channel:
        """Request the first pages of the next `count` units that were not requested yet.

        Args:
            count: Units to have requested.
            after: 1 if the current unit is no longer among `_asked`.
        """
        if self._channel is None:
            self._channel = self._connect()
            self._source = self._client.source_of(self._channel)
        channel = self._channel
        if len(self._asked) <= count // 2:
            # Several at once, because each call costs as much as the node's work for some rows.
            new = list(islice(self._units, after + len(self._asked), after + count))
            if not new:
                return channel
            bodies = [self._query.body(partition) for _, partition in new]
            numbers = channel.send_all(self._query.op, bodies)
            self._asked.extend((*one, number) for one, number in zip(new, numbers, strict=True))
        return channel

    def _connect(self) -> Channel:
        partition = self._units[0][1]
        owners, self._owners = self._owners, None
        if owners is None and self._backoff.failures > 1:
            # Whoever was nearest failed again.
            owners = self._client.partition_map(self._query.name).owners
        elif owners is None:
            owners = owners_of(self._client, self._query)
        return self._client.acquire(owners.get(partition))

    def _put(self, item: UnitPage | list[WholeUnit]) -> None:
        """Pass to the consumer, then wait until there is room for more."""
        with self._ready:
            self._buffer.append(item)
            self._buffered_bytes += _nbytes(item)
            self._ready.notify_all()
            while self._buffered_bytes > self._query.buffer_bytes and not self._stop_asked.is_set():
                self._ready.wait()

    def _wait_to_retry(self, error: IgniteTFError, partition: int, delivered: int) -> None:
        wait = self._backoff.wait_s(error, self._retry.budget_s)
        if wait is None:
            # Of several partitions that were decoded at once, the error may know which it was.
            partition = error.fields.get("partition", partition)
            where = {"cache": self._query.name, "partition": partition, "pages": delivered}
            raise error.at(f"{self._query.name}, partition {partition}", **where) from error
        log.warning(
            "%s, partition %d: %s; reading on after page %d in %.1f s",
            self._query.name, partition, error, delivered, wait,
        )  # fmt: skip
        with self._ready:
            self._ready.wait_for(self._stop_asked.is_set, wait)

    def _drop(self) -> None:
        """Close the connection, and with it the cursors on the node.

        First waits until all requested queries are answered: if a connection closes before the node
        (2.17) has started its query, the node starts it afterwards and keeps the cursor until it is
        shut down.
        """
        channel, self._channel = self._channel, None
        if channel is None:
            return
        while self._asked and not channel.closed:
            _, _, request = self._asked.popleft()
            with contextlib.suppress(IgniteTFError):
                channel.receive(request)
        self._asked.clear()
        channel.close()


def _nbytes(item: UnitPage | list[WholeUnit]) -> int:
    return item.nbytes if isinstance(item, UnitPage) else sum(u.page.data.nbytes for u in item)


def _timed(decode: Callable[[], Any], times: Times) -> Any:
    begin = time.monotonic()
    decoded = decode()
    times.decode += time.monotonic() - begin
    return decoded
