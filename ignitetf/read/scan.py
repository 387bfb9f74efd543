"""Fetches pages of partitions, in order, over several connections, through the loss of a node.

cursor -> **scan** -> reader

The unit of work is one partition, read by its number, because a scan of a whole cache has no stable
order. Each reader is a thread with one connection that receives ahead of its consumer up to a limit
in bytes; of small partitions, several first pages are requested at a time. Pages are decoded by
whichever side has time: by the consumer if it had to wait, else by the reader. The consumer takes
the units strictly in the given order, so the number of readers never affects the output.

When a connection or node is lost, the unit is read again from its first page on another node. Pages
that were delivered before are marked as replays, for the consumer to compare and drop. A partition
returns its entries in the order of their key hashes on every copy, and pages of one size split it
the same way, so the replayed pages are equal as long as no key is added or removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from ignitetf.errors import ConfigError, IgniteTFError
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client
from ignitetf.net.places import Source
from ignitetf.net.retry import READ, Backoff, is_retryable
from ignitetf.read.cursor import Cursor, Times
from ignitetf.read.nearest import nearest_nodes
from ignitetf.read.usage import add_wait
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import Page

__all__ = ["Query", "RetryPolicy", "UnitPage", "assign_readers", "pipeline_depth", "scan_units"]

log = logging.getLogger(__name__)

_MAX_PIPELINED: Final = 16
# How long closing a scan waits. A reader that still expects an answer then finishes alone.
_CLOSING_S: Final = 1.0


@dataclass(frozen=True)
class Query:
    """How to request one partition.

    Attributes:
        op: QUERY_SCAN or QUERY_SQL_FIELDS.
        body: Partition to request body.
        name: Cache, for messages.
        page_rows: Entries of every page but the last of a unit.
        pipelined: Units whose first page is requested at once on one connection.
        buffer_bytes: A reader stops receiving while more bytes than this are waiting.
        decoder: Makes the function that decodes a page of a partition, for one thread.
        times: Receives the times of each scan that has ended.
    """

    op: OpCode
    body: Callable[[int], bytes]
    name: str
    page_rows: int
    pipelined: int = 1
    buffer_bytes: int = 2 << 20
    decoder: Callable[[], Callable[[int, Page], Any]] = lambda: _as_received
    times: Times = field(default_factory=Times)


@dataclass(frozen=True)
class RetryPolicy:
    """How long to try to replace a lost connection.

    Attributes:
        budget_s: Seconds without a new page until the error is raised; 0 never retries.
    """

    budget_s: float = 60.0


@dataclass(frozen=True)
class UnitPage:
    """One page of one unit.

    Attributes:
        unit: Index into the requested units.
        page: What the query's decoder made of the page; None marks the end of the unit.
        replay: Number of this page among those delivered before, -1 for a new page.
        nbytes: Bytes of the page.
        source: Where it came from.
    """

    unit: int
    page: Any
    replay: int = -1
    nbytes: int = 0
    source: Source | None = None


@dataclass(frozen=True)
class _Undecoded:
    """A page as received, for the consumer to decode; `number` counts within its unit."""

    partition: int
    page: Page
    number: int


def _as_received(partition: int, page: Page) -> Page:
    return page


def assign_readers(
    owners: Mapping[int, uuid.UUID], partitions: Sequence[int], readers: int
) -> list[list[int]]:
    """Return the indices into `partitions` that each reader takes, in ascending order.

    Readers are distributed over the nodes that the partitions are read from, so that one connection
    stays with one node.
    """
    by_owner: dict[object, list[int]] = {}
    for index, partition in enumerate(partitions):
        by_owner.setdefault(owners.get(partition), []).append(index)
    share = max(1, readers // max(1, len(by_owner)))
    return [part for units in by_owner.values() for i in range(share) if (part := units[i::share])]


def _owners(client: Client, query: Query) -> dict[int, uuid.UUID]:
    """Return the node to read each partition from; empty if it makes no difference."""
    nodes = client.nodes()
    if len(nodes) < 2:
        return {}
    if query.op != OpCode.QUERY_SCAN:  # SQL by partition is always answered by the primary
        return client.partition_map(query.name).owners
    return nearest_nodes(client, query.name, nodes)


def scan_units(
    client: Client,
    query: Query,
    partitions: Sequence[int],
    *,
    readers: int = 1,
    retry: RetryPolicy | None = None,
) -> Generator[UnitPage, None, None]:
    """Yield all pages of the partitions, in the order of `partitions`.

    Closing the generator at any point closes the cursors on the nodes, the connections with an
    outstanding answer, and the threads. If a node takes longer than a second to answer, its thread
    waits for it alone, within the request's time limit.

    Raises:
        IgniteTFError: What the decoder raises, and what `Channel.receive` raises once it cannot be
            retried any more.
        ConfigError: The process was forked since the first page was requested.
    """
    if not partitions:
        return
    query.times.began = time.monotonic()
    owners: dict[int, uuid.UUID] | None = None
    try:
        owners = _owners(client, query)
    except IgniteTFError as error:
        if not is_retryable(error):
            raise
        # A node just left: the readers find the owners themselves.
        log.warning("%s: %s; the owners of its partitions are not known", query.name, error)
    shares = assign_readers(owners or {}, partitions, readers)
    policy = retry or RetryPolicy()
    streams = [
        _Reader(client, query, [(i, partitions[i]) for i in share], policy, owners)
        for share in shares
    ]
    reader_of = {i: stream for share, stream in zip(shares, streams, strict=True) for i in share}
    process = os.getpid()
    try:
        for stream in streams:
            stream.start()
        for unit in range(len(partitions)):
            while True:
                if os.getpid() != process:
                    raise ConfigError(
                        f"{query.name}: the process was forked while it read, and the threads that"
                        " receive are its parent's",
                        hint="begin to read in the process that goes on to do so",
                    )
                item = reader_of[unit].take()
                yield item
                if item.page is None:
                    break
    finally:
        # Not in a forked child: the readers' locks may be held there, and nobody would release
        # them.
        if os.getpid() == process:
            _end(streams, query.times)


def _end(streams: Sequence[_Reader], times: Times) -> None:
    for stream in streams:
        stream.stop()
    until = time.monotonic() + _CLOSING_S
    for stream in streams:
        stream.join(max(0.0, until - time.monotonic()))
        times.add(stream.times)
        times.add(stream.taken)


class _Reader(threading.Thread):
    """One connection: receives the pages of its units in order into a bounded buffer."""

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
        self._decode = query.decoder()
        self._decode_taken = query.decoder()
        self._units = deque(units)
        self._retry = retry
        self._owners = owners  # for the first connection
        self._ready = threading.Condition()
        self._buffer: deque[UnitPage | BaseException] = deque()
        self._buffered_bytes = 0
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

    def take(self) -> UnitPage:
        """Wait for the next page and return it; raises what ended the reader."""
        with self._ready:
            self._starving = not self._buffer
            if self._starving:
                begin = time.monotonic()
                self._ready.wait_for(lambda: self._buffer)
                starved = time.monotonic() - begin
                self.taken.starved += starved
                add_wait(starved)
            item = self._buffer.popleft()
            if not isinstance(item, UnitPage):
                raise item
            self._buffered_bytes -= item.nbytes
            self._ready.notify_all()
        if isinstance(item.page, _Undecoded):
            return replace(item, page=self._decode_taken_page(item.page))
        return item

    def _decode_taken_page(self, found: _Undecoded) -> Any:
        while True:
            try:
                return _timed(self._decode_taken, found, self.taken)
            except IgniteTFError as error:
                # The page is here, but looking up one of its types needs a connection.
                self._wait_to_retry(error, found.partition, found.number)

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
                replay = number if number < delivered else -1
                decoded = self._decoded(_Undecoded(partition, page, number))
                self._put(UnitPage(unit, decoded, replay, page.data.nbytes, self._source))
                number += 1
                if replay < 0:  # replays are no progress: they come with each new try
                    self._backoff.progress()
                if self._stop_asked.is_set():
                    return number
                if not page.more:
                    break
        except IgniteTFError as error:
            error._delivered = max(delivered, number)  # type: ignore[attr-defined]
            raise
        self._put(UnitPage(unit, None))
        if not cursor.finish():
            self._drop()
        return number

    def _decoded(self, found: _Undecoded) -> Any:
        """Decode the page here, unless the consumer is waiting and has the time to do it."""
        if self._starving and not self._buffer:
            return found
        return _timed(self._decode, found, self.times)

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
        for unit, partition in islice(self._units, after + len(self._asked), after + count):
            body = self._query.body(partition)
            self._asked.append((unit, partition, channel.send(self._query.op, body)))
        return channel

    def _connect(self) -> Channel:
        partition = self._units[0][1]
        owners, self._owners = self._owners, None
        if owners is None and self._backoff.failures > 1:
            # Whoever was nearest failed again.
            owners = self._client.partition_map(self._query.name).owners
        elif owners is None:
            owners = _owners(self._client, self._query)
        return self._client.acquire(owners.get(partition))

    def _put(self, item: UnitPage) -> None:
        """Hand over a page, then wait until there is room for the next one."""
        with self._ready:
            self._buffer.append(item)
            self._buffered_bytes += item.nbytes
            self._ready.notify_all()
            while self._buffered_bytes > self._query.buffer_bytes and not self._stop_asked.is_set():
                self._ready.wait()

    def _wait_to_retry(self, error: IgniteTFError, partition: int, delivered: int) -> None:
        wait = self._backoff.wait_s(error, self._retry.budget_s)
        if wait is None:
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


def _timed(decode: Callable[[int, Page], Any], found: _Undecoded, times: Times) -> Any:
    begin = time.monotonic()
    decoded = decode(found.partition, found.page)
    times.decode += time.monotonic() - begin
    return decoded


def pipeline_depth(unit_bytes: float, page_bytes: int) -> int:
    """Return how many units to request at once so that together they are about one page.

    At least two, so that the node starts on the next unit before the last page of one is here.
    """
    if unit_bytes <= 0:
        return _MAX_PIPELINED
    return int(max(2, min(_MAX_PIPELINED, page_bytes // unit_bytes)))
