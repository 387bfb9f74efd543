"""Copies the entries of one cache into another, as bytes.

Ignite cannot rename a cache, so a replacement that was loaded into a staging cache is copied into
one with the final name. Objects are copied unchanged, except that answers wrap them and requests do
not.

Source: Apache Ignite 2.17.0, `BinaryWriterExImpl.writeBinaryObject` (wrapped objects).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from ignitetf.errors import IgniteTFError, ServerError
from ignitetf.load.writer import IN_FLIGHT, REQUEST_BYTES
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client, cache_id
from ignitetf.net.distance import times
from ignitetf.net.failures import is_asked_too_much, is_full
from ignitetf.net.heap import scan_bytes, scans_at_once
from ignitetf.net.pipeline import InFlight
from ignitetf.net.retry import FAILURES, HEAP, LOAD, Backoff
from ignitetf.net.together import together
from ignitetf.tables.room import memory_full
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.encode import EncodedPage
from ignitetf.wire.encoders import copy_runs
from ignitetf.wire.frames import Page, read_first_page, read_page
from ignitetf.wire.objects import Bytes, Positions, find_rows, gather, unwrap
from ignitetf.wire.requests import batch_head, cursor_request, scan_request

__all__ = ["copy_entries"]

log = logging.getLogger(__name__)

_PAGE_BYTES: Final = 4 << 20
_MOST_ENTRIES: Final = 1 << 16
# At a distance several pages are on their way together, each of a share, or larger ones.
_MOST_PAGES: Final = 8
# A connection may have 128 cursors.
_MOST_AHEAD: Final = 64
# Offset of the length in the header of a binary object.
_OBJECT_LENGTH_AT: Final = 12


def copy_entries(
    client: Client,
    source: str,
    target: str,
    *,
    partitions: int,
    entry_bytes: int,
    entries: int,
    make: Callable[[], object] = lambda: None,
    check_lease: Callable[[], None] = lambda: None,
) -> None:
    """Copy every entry of one cache into another.

    Args:
        client: The connection.
        source: The cache to read.
        target: The cache to write; entries with the same key are replaced.
        partitions: Number of partitions of the source.
        entry_bytes: Approximate size of an entry, from which the page size follows.
        entries: Approximate number of entries, from which follows how much is asked for at a time.
        make: Makes the target, while the first entries are read.
        check_lease: Called before each request; raises if the lease on the target was lost.
    """
    pace = _pace(client, partitions, entry_bytes, entries)
    copy = _Copy(client, source, target, pace, check_lease)
    shares = [range(i, partitions, pace.shares) for i in range(pace.shares)]
    runs = [functools.partial(copy.run, share) for share in shares]
    with _explained(client), copy.as_a_whole():
        together(client, functools.partial(copy.make, make), *runs)


class _Pace(NamedTuple):
    """How much of a copy is asked for at a time.

    Attributes:
        shares: Shares of the partitions, each with two connections.
        ahead: Partitions of a share whose first pages are asked for at a time.
        page_entries: Entries of a page.
        in_flight: Unanswered requests of a share.
    """

    shares: int
    ahead: int
    page_entries: int
    in_flight: int


def _pace(client: Client, partitions: int, entry_bytes: int, entries: int) -> _Pace:
    """Choose as many shares as the distance and the node's heap allow; of fewer, larger pages."""
    unit_entries = entries / partitions
    entry_bytes = max(1, entry_bytes)
    # Of small partitions a page in all.
    first_bytes = max(1.0, min(unit_entries * entry_bytes, _PAGE_BYTES))
    ahead = int(min(_MOST_AHEAD, _PAGE_BYTES // first_bytes))
    most = max(entries * entry_bytes // _PAGE_BYTES, partitions // ahead)
    fit = scans_at_once(ahead * scan_bytes(entry_bytes, unit_entries))
    pages = times(client, _PAGE_BYTES, 1, _MOST_PAGES)
    shares = max(1, min(partitions, most, fit, pages))
    page_entries = max(1, min(pages * _PAGE_BYTES // (shares * entry_bytes), _MOST_ENTRIES))
    # Of small partitions no more bytes than of large ones.
    return _Pace(shares, ahead, page_entries, max(IN_FLIGHT * pages // shares, ahead))


@contextlib.contextmanager
def _explained(client: Client) -> Iterator[None]:
    """Say of a failed update, which only names its keys, that the node is full, if it is."""
    try:
        yield
    except ServerError as error:
        if is_full(error) and (found := memory_full(client)) is not None:
            raise found from error
        raise


class _Copy:
    """Copies partitions, by calls of `run` at the same time."""

    def __init__(
        self,
        client: Client,
        source: str,
        target: str,
        pace: _Pace,
        check_lease: Callable[[], None],
    ) -> None:
        self._client, self._pace = client, pace
        self._source, self._target = cache_id(source), cache_id(target)
        self._check_lease = check_lease
        self._failed = False
        self._made = threading.Event()
        # Held by a share that begins again.
        self._alone = threading.Lock()

    def make(self, make: Callable[[], object]) -> None:
        """Make the target, for which all calls of `run` wait before they write."""
        try:
            with self.as_a_whole():
                make()
        finally:
            self._made.set()

    @contextlib.contextmanager
    def as_a_whole(self) -> Iterator[None]:
        """Let an error of the block make all calls of `run` return soon."""
        try:
            yield
        except BaseException:
            self._failed = True
            raise

    def run(self, partitions: range) -> None:
        """Copy these partitions; an error makes all other calls return soon.

        Where the node had no heap, or a connection was lost (a node without heap closes it), those
        that are not stored as a whole begin again, a share at a time.
        """
        left = deque(partitions)
        heap, other = Backoff(HEAP), Backoff(LOAD)
        turn: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        with self.as_a_whole():
            while not self._failed:
                before = len(left)
                try:
                    with turn:
                        return self._share(left)
                except FAILURES as error:
                    if len(left) < before:
                        heap.progress()
                        other.progress()
                    self._wait(heap, other, error)
                turn = self._alone

    def _wait(self, heap: Backoff, other: Backoff, error: IgniteTFError) -> None:
        """Wait until the same may succeed; raises the error if it cannot."""
        if is_asked_too_much(error):
            wait_s = heap.wait_s(error)
        else:
            wait_s = other.wait_s(error, self._client.settings.idle_timeout_s)
        if wait_s is None:
            raise error
        log.warning("copy: %s; again in %.1f s", error, wait_s)
        time.sleep(wait_s)

    def _share(self, left: deque[int]) -> None:
        with self._client.channel() as reading, self._client.channel() as writing:
            try:
                self._copy(reading, writing, left)
            except ServerError:
                reading.close()  # and the cursors, which hold rows in the heap
                raise

    def _copy(self, reading: Channel, writing: Channel, left: deque[int]) -> None:
        """Copy partitions, and take those that are stored off the front of `left`."""
        in_flight, sent = InFlight(writing, self._pace.in_flight), 0
        ends = deque[int]()  # requests up to the end of each partition of which some are unanswered
        with contextlib.closing(self._pages(reading, list(left))) as pages:
            for page in pages:
                self._made.wait()
                if self._failed:
                    return
                for count, views in unwrapped(page).pieces(REQUEST_BYTES):
                    self._check_lease()
                    head = batch_head(self._target, count)
                    in_flight.send(OpCode.CACHE_PUT_ALL, head, *views)
                    sent += 1
                if not page.more:
                    ends.append(sent)
                while ends and ends[0] <= sent - len(in_flight):
                    ends.popleft()
                    left.popleft()
        in_flight.drain()
        left.clear()

    def _pages(self, channel: Channel, partitions: Sequence[int]) -> Generator[Page, None, None]:
        """Yield the pages of partitions, in order; the last of each says that there is no more."""
        unasked, asked = iter(partitions), deque[int]()
        try:
            while True:
                for partition in islice(unasked, self._pace.ahead - len(asked)):
                    request = scan_request(self._source, self._pace.page_entries, partition)
                    asked.append(channel.send(OpCode.QUERY_SCAN, request))
                if not asked:
                    return
                cursor, page = read_first_page(channel.receive(asked.popleft()))
                while page.more:
                    asked.appendleft(channel.send(OpCode.QUERY_SCAN_PAGE, cursor_request(cursor)))
                    yield page
                    page = read_page(channel.receive(asked.popleft()))
                yield page
        finally:
            # A node keeps the cursor of a query that it begins after its connection was closed.
            while asked and not channel.closed:
                with contextlib.suppress(IgniteTFError):
                    channel.receive(asked.popleft())


def unwrapped(page: Page) -> EncodedPage:
    """Return a page of an answer in the form that a request needs."""
    data = page.data
    key_at, value_at = find_rows(data, page.count)
    ends = np.append(key_at[1:], len(data))[: page.count]
    keys, key_sizes = _objects(data, key_at, value_at)
    values, value_sizes = _objects(data, value_at, ends)
    out_ends = np.cumsum(key_sizes + value_sizes)
    out = np.empty(int(out_ends[-1]) if page.count else 0, np.uint8)
    begin = out_ends - key_sizes - value_sizes
    copy_runs(out, begin, data, keys, key_sizes)
    copy_runs(out, begin + key_sizes, data, values, value_sizes)
    return EncodedPage(out, out_ends)


def _objects(data: Bytes, at: Positions, ends: Positions) -> tuple[Positions, Positions]:
    """Return the start and length of each object without its wrapping."""
    inner = unwrap(data, at)
    sizes = ends - at
    wrapped = np.flatnonzero((data[at] == TypeCode.WRAPPED) & (data[inner] == TypeCode.OBJECT))
    sizes[wrapped] = gather(data, inner[wrapped] + _OBJECT_LENGTH_AT, "<i4")
    return inner, sizes
