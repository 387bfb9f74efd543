"""`ScanThread`: receives the pages of its units in order, over one connection, ahead of a consumer.

page requests, small units, collector -> **scan thread** -> scan

Of small units, many first pages are requested at a time. Rows are taken apart as they arrive, and
handed over about a page at a time, because a hand-over between threads costs as much as receiving a
small page does.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ignitetf.errors import IgniteTFError
from ignitetf.net.at_hand import nodes_at_hand, partitions_at_hand
from ignitetf.net.client import Client
from ignitetf.net.failures import is_asked_too_much
from ignitetf.net.retry import HEAP, READ, Backoff
from ignitetf.net.together import together
from ignitetf.read.collector import Collector, PagePlace, Portion
from ignitetf.read.cursor import Times
from ignitetf.read.nearest import nearest_nodes
from ignitetf.read.page_query import Query, RetryPolicy, UnitPage
from ignitetf.read.page_requests import PageRequests
from ignitetf.read.small_units import Link, SmallUnits
from ignitetf.read.usage import add_wait
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import Page

__all__ = ["RUN_SHARE", "ScanThread", "WholeUnit", "owners_of"]

log = logging.getLogger(__name__)

# A consumer that waits gets what is there from this share of a run on.
RUN_SHARE: Final = 2
# Units of one page are handed over as received in portions of at most so many.
_MOST_UNITS: Final = 512
_MOST_WHOLE_BYTES: Final = 256 << 10
# Rows are not held back for longer than this while more are arriving.
_HELD_S: Final = 0.05


class WholeUnit(NamedTuple):
    """A unit with its only page, as received."""

    place: PagePlace
    page: Page


def owners_of(client: Client, query: Query, *, anew: bool = False) -> dict[int, uuid.UUID]:
    """Return the node to read each partition from; empty if it makes no difference.

    Args:
        client: The connection.
        query: What is read.
        anew: Whether an earlier answer of the cluster has led nowhere.
    """
    nodes = nodes_at_hand(client, anew=anew)
    if len(nodes) < 2:
        return {}
    found = partitions_at_hand(client, query.name, anew=anew)
    if query.op != OpCode.QUERY_SCAN:  # SQL by partition is always answered by the primary
        return found.owners
    return nearest_nodes(client, query.name, nodes, found)


Item = UnitPage | Portion | list[WholeUnit]


@dataclass(frozen=True)
class Share:
    """The units of one thread.

    Attributes:
        units: Index and partition of each.
        new_collector: Makes what takes their rows; None to hand over all pages as received.
        is_only: Whether these are all units. If not, units of a single page are handed over as
            received, because rows are to be collected in the order of all units. If so, small ones
            are read over a connection to each node that has some.
    """

    units: Sequence[tuple[int, int]]
    new_collector: Callable[[], Collector] | None
    is_only: bool


class ScanThread(threading.Thread):
    """One connection, or one to each node: receives the pages of units in order, up to some bytes.

    Args:
        client: The cluster.
        query: What to request.
        share: The units, and what becomes of their pages.
        retry: How long to try to replace a lost connection.
        owners: The node to read each partition from, for the first connection; None if unknown.
    """

    def __init__(
        self,
        client: Client,
        query: Query,
        share: Share,
        retry: RetryPolicy,
        owners: dict[int, uuid.UUID] | None,
    ) -> None:
        super().__init__(name=f"ignitetf-read-{query.name}", daemon=True)
        self._client = client
        self._query = query
        self._units = deque(share.units)
        self._new_collector = share.new_collector
        self._is_only = share.is_only
        self._retry = retry
        self._owners = owners  # for the first connection
        self._ready = threading.Condition()
        self._buffer: deque[Item | BaseException] = deque()
        self._buffered_bytes = 0
        self._taken: deque[WholeUnit] = deque()  # by the consumer, in one portion
        self._whole: list[WholeUnit] = []
        self._whole_bytes = 0
        self._held_since = 0.0  # since when there is something to hand over; 0 for nothing
        self._stop_asked = threading.Event()
        self._links: list[Link] = []  # none before the first unit, and after a failure
        self._link_of: dict[int, Link] = {}  # by partition
        self._small: SmallUnits | None = None
        self._places = True  # rows of small units that come before their turn
        self._backoff, self._heap_backoff = Backoff(READ), Backoff(HEAP)
        self._starving = False  # the consumer is waiting
        self.times = Times()
        self.taken = Times()

    # The consumer's side

    @property
    def has_next(self) -> bool:
        """Whether `take` has something to return at once."""
        return bool(self._taken or self._buffer)

    def take(self) -> UnitPage | Portion | WholeUnit:
        """Wait for what comes next and return it; raises what ended the thread."""
        if not self._taken:
            item = self._take()
            if not isinstance(item, list):
                return item
            self._taken.extend(item)
        return self._taken.popleft()

    def _take(self) -> Item:
        with self._ready:
            if not self._buffer:
                self._starving = True
                begin = time.monotonic()
                self._ready.wait_for(lambda: self._buffer)
                starved = time.monotonic() - begin
                self._starving = False
                self.taken.starved += starved
                add_wait(starved)
            item = self._buffer.popleft()
            if isinstance(item, BaseException):
                raise item
            self._buffered_bytes -= _nbytes(item)
            self._ready.notify_all()
        return item

    def stop(self) -> None:
        """End the thread once the answers it must not leave behind have arrived."""
        with self._ready:
            self._stop_asked.set()
            self._ready.notify_all()

    def ask_ahead(self) -> None:
        """Ask for the first units, if they are small, before the thread starts.

        What fails is tried again by the thread.
        """
        if not self._asks_many:
            return
        try:
            self._connect()
        except BaseException as error:
            self._drop()
            if not isinstance(error, IgniteTFError):
                raise

    # The thread's side

    @functools.cached_property
    def _collector(self) -> Collector | None:
        return None if self._new_collector is None else self._new_collector()

    @property
    def _asks_many(self) -> bool:
        """Whether units of a single small page may be asked for many at a time."""
        return self._new_collector is not None and self._is_only and self._query.has_small_units

    def run(self) -> None:
        """Read all units; an error that ends it early is passed to the consumer."""
        try:
            while self._units and not self._stop_asked.is_set():
                self._read_next()
            self._hand_over(whole=True)
        except BaseException as error:
            try:
                self._drop()
            finally:  # the consumer waits for this
                with self._ready:
                    self._buffer.append(error)
                    self._ready.notify_all()
        if self._units:
            self._drop()
        for link in self._links:
            self._client.release(link.requests.channel)

    def _read_next(self) -> None:
        """Read the next unit, or several small ones."""
        delivered = 0
        while not self._stop_asked.is_set():
            unit, partition = self._units[0]
            try:
                if delivered == 0 and self._read_small():
                    return
                delivered = self._try_unit(unit, partition, delivered)
                self._units.popleft()
                return
            except IgniteTFError as error:
                if self._units:  # of small ones, some may be done
                    partition = self._units[0][1]
                self._drop()
                if self._collector is not None:
                    self._collector.abandon()
                if self._stop_asked.is_set():
                    return
                delivered = getattr(error, "_delivered", delivered)
                self._hand_over()
                self._wait_to_retry(error, partition, delivered)

    def _read_small(self) -> bool:
        """Read the next units if they have a single small page each; returns whether it did."""
        query = self._query
        if not self._asks_many:
            return False
        self._connect()
        collector = self._collector
        if collector is None or not collector.takes_units:
            return False
        if self._small is None:
            query = query.shared(len(self._links))
            self._small = SmallUnits(self._links, query, collector, self.times, self._places)
        count, goes_on = self._small.take(_HELD_S)
        for _ in range(count):
            self._units.popleft()
        if count:
            self._progress()
            self._hand_over_if_due()
        if not goes_on and self._small.has_placed:
            self._places = False  # this may happen again soon
            self._drop()
        elif not goes_on:
            self._small.give_back()
        return goes_on or count > 0

    def _try_unit(self, unit: int, partition: int, delivered: int) -> int:
        """Read a unit from its first page; the first `delivered` pages count as replays."""
        number = 0
        try:
            requests, source = self._link(partition)
            requests.ask_more()
            requests.begin()
            collector = self._collector
            while True:
                is_again = number < delivered
                place = PagePlace(unit, partition, number, is_again, source)
                taker = None if collector is None else collector.taker(place)
                page, nbytes = requests.page(taker)
                self._collect(place, page, nbytes, is_whole=number == 0 and not page.more)
                number += 1
                self._hand_over_if_due()
                if not is_again:  # replays are no progress: they come with each new try
                    self._progress()
                if not page.more or self._stop_asked.is_set():
                    break
        except IgniteTFError as error:
            error._delivered = max(delivered, number)  # type: ignore[attr-defined]
            raise
        if not page.more and not requests.end():
            self._drop()
        return number

    def _collect(self, place: PagePlace, page: Page, nbytes: int, is_whole: bool) -> None:
        """Collect the rows of a page, or hand the page over as received."""
        collector = self._collector
        if collector is None:
            replay = place.number if place.is_again else -1
            self._put(UnitPage(place.unit, page, replay))
            if not page.more:
                self._put(UnitPage(place.unit, None))
            return
        is_taken = nbytes > 0 and not page.data.nbytes  # by the collector, as it arrived
        is_small = nbytes <= _MOST_WHOLE_BYTES and not is_taken
        is_next = not self._is_only and collector.is_empty  # nothing here goes before it
        if is_next and is_whole and is_small and not place.is_again:
            self._whole.append(WholeUnit(place, page))
            self._whole_bytes += nbytes
        else:
            self._hand_over_whole()
            begin = time.monotonic()
            collector.add(place, page, nbytes, last=not page.more)
            self.times.decode += time.monotonic() - begin

    def _hand_over_if_due(self) -> None:
        collector = self._collector
        if collector is None:
            return
        if collector.ended or self._is_due(collector):
            self._hand_over()
        elif collector.is_full:
            self._hand_over(only_full=True)

    def _is_due(self, collector: Collector) -> bool:
        """Whether to hand over what there is, however little it may be."""
        now, nbytes = time.monotonic(), collector.nbytes + self._whole_bytes
        if not self._held_since:
            self._held_since = now
        run_bytes = self._query.run_bytes
        waiting = self._whole or (self._starving and not self._buffer)
        return (
            nbytes >= (run_bytes // RUN_SHARE if waiting else 2 * run_bytes)
            or len(self._whole) >= _MOST_UNITS
            or now - self._held_since > _HELD_S
        )

    def _hand_over(self, whole: bool = False, only_full: bool = False) -> None:
        """Hand over what was received since the last time."""
        self._hand_over_whole()
        collector = self._collector
        if collector is not None and not collector.is_empty:
            self._put(collector.portion(whole or collector.ended, only_full))
        self._held_since = 0.0

    def _hand_over_whole(self) -> None:
        if self._whole:
            whole, self._whole, self._whole_bytes = self._whole, [], 0
            self._put(whole)

    def _link(self, partition: int) -> Link:
        """Return the connection to read a unit over, which is opened if there is none."""
        self._connect()
        return self._link_of[partition]

    def _connect(self) -> None:
        """Open the connections if there are none: of units that are not small, a single one."""
        if self._links:
            return
        owners = self._owners_now()
        first = owners.get(self._units[0][1])
        parts = {first: list(self._units)}
        if self._asks_many and owners:
            parts = {}
            for unit in self._units:
                parts.setdefault(owners.get(unit[1]), []).append(unit)
        self._link_of.clear()
        query = self._query.shared(len(parts))
        opening = (functools.partial(self._open, query, *part) for part in parts.items())
        together(self._client, *opening)

    def _open(
        self, query: Query, owner: uuid.UUID | None, units: Sequence[tuple[int, int]]
    ) -> None:
        """Open the connection to a node for its units."""
        channel = self._client.acquire(owner)
        requests = PageRequests(channel, query, units, self.times)
        link = Link(requests, self._client.source_of(channel))
        if self._asks_many:  # at once: the node has work while there is memory to be made
            requests.ask_units(query.pipelined)
        self._links.append(link)
        self._link_of.update(dict.fromkeys((partition for _, partition in units), link))

    def _owners_now(self) -> dict[int, uuid.UUID]:
        owners, self._owners = self._owners, None
        if owners is not None:
            return owners
        if self._backoff.failures > 1:  # whoever was nearest failed again
            return self._client.partition_map(self._query.name).owners
        return owners_of(self._client, self._query, anew=True)

    def _put(self, item: Item) -> None:
        """Pass to the consumer, then wait until there is room for more."""
        with self._ready:
            self._buffer.append(item)
            self._buffered_bytes += _nbytes(item)
            self._ready.notify_all()
            while self._buffered_bytes > self._query.buffer_bytes and not self._stop_asked.is_set():
                self._ready.wait()

    def _progress(self) -> None:
        self._backoff.progress()
        self._heap_backoff.progress()

    def _wait_s(self, error: IgniteTFError) -> float | None:
        """Return how long to wait before reading on; None to give up."""
        if not is_asked_too_much(error):
            return self._backoff.wait_s(error, self._retry.budget_s)
        self._query = replace(self._query, pipelined=0)
        return self._heap_backoff.wait_s(error)

    def _wait_to_retry(self, error: IgniteTFError, partition: int, delivered: int) -> None:
        # After the last unit, there is nothing that could be read again.
        wait = self._wait_s(error) if self._units else None
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
        """Close the connections, and with them the cursors on the nodes.

        First waits until all requested queries are answered: if a connection closes before the node
        (2.17) has started its query, the node starts it afterwards and keeps the cursor until it is
        shut down.
        """
        links, self._links = self._links, []
        small, self._small = self._small, None
        if small is not None:
            small.give_back()
        for link in links:
            link.requests.drain()
            link.requests.channel.close()


def _nbytes(item: Item) -> int:
    if isinstance(item, list):
        return sum(unit.page.data.nbytes for unit in item)
    return item.nbytes
