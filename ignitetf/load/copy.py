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
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from ignitetf.errors import IgniteTFError, ServerError
from ignitetf.load.writer import REQUEST_BYTES
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client, cache_id
from ignitetf.net.exchange import Exchange, Repeat
from ignitetf.net.failures import FAILURES, HEAP, LOAD, Backoff, is_full, is_node_overloaded
from ignitetf.net.topology import scan_bytes, scans_at_once
from ignitetf.net.window import LEAST_BYTES, ByteWindow, first_bytes, widened
from ignitetf.tables.room import memory_full
from ignitetf.threads import run_parallel
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.columns import copy_runs
from ignitetf.wire.encode import EncodedPage
from ignitetf.wire.frames import Page, read_first_page, read_page
from ignitetf.wire.objects import Bytes, Positions, find_rows, gather, unwrap
from ignitetf.wire.requests import batch_head, cursor_request, scan_request

__all__ = ["copy_entries"]

log = logging.getLogger(__name__)

_PAGE_BYTES: Final = 1 << 20
_MOST_ENTRIES: Final = 1 << 16
_SHARES: Final = 2
# A node allows 128 cursors per connection.
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
        entries: Approximate number of entries, from which the number of requests under way follows.
        make: Creates the target while the first entries are read.
        check_lease: Called before each request; raises if the lease on the target was lost.
    """
    window = first_bytes(client, widened(client))
    pace = _pace(window, partitions, entry_bytes, entries)
    copy = _Copy(client, source, target, pace, check_lease)
    shares = [range(i, partitions, pace.shares) for i in range(pace.shares)]
    runs = [functools.partial(copy.run, share) for share in shares]
    with _explained(client), copy.fail_together():
        run_parallel(functools.partial(copy.make, make), *runs)


class _Pace(NamedTuple):
    """Limits of the requests of a copy at a time, in addition to the byte windows.

    Attributes:
        shares: Shares of the partitions, each with a connection to read from.
        ahead: Partitions of a share that may be read at a time.
        page_entries: Entries of a page.
        page_bytes: Expected bytes of a page of a partition.
    """

    shares: int
    ahead: int
    page_entries: int
    page_bytes: int


def _pace(window: int, partitions: int, entry_bytes: int, entries: int) -> _Pace:
    """Return the pace of a copy; its shares are limited by the rows and by the node's heap.

    A node prepares one page of a partition at a time. So the pages of all partitions that are read
    at a time fill a window.
    """
    unit_entries = entries / partitions
    entry_bytes = max(1, entry_bytes)
    fit = scans_at_once(scan_bytes(entry_bytes, unit_entries))
    most = max(entries * entry_bytes // LEAST_BYTES, partitions // _MOST_AHEAD)
    shares = max(1, min(partitions, most, fit, _SHARES))
    ahead = max(1, min(_MOST_AHEAD, fit // shares, partitions // shares))
    page_bytes = max(_PAGE_BYTES, window // ahead)
    page_entries = max(1, min(page_bytes // entry_bytes, _MOST_ENTRIES))
    expected = int(max(1.0, min(page_entries, unit_entries) * entry_bytes))
    return _Pace(shares, ahead, page_entries, expected)


@contextlib.contextmanager
def _explained(client: Client) -> Iterator[None]:
    """Report a full node as the cause of a failed update; its own error only names keys."""
    try:
        yield
    except ServerError as error:
        if is_full(error) and (found := memory_full(client)) is not None:
            raise found from error
        raise


class _Copy:
    """Copies partitions; several threads may call `run` at the same time."""

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
        # Held by a share during its retry, so that shares are retried one at a time.
        self._alone = threading.Lock()

    def make(self, make: Callable[[], object]) -> None:
        """Create the target; all calls of `run` wait for it before they write."""
        try:
            with self.fail_together():
                make()
        finally:
            self._made.set()

    @contextlib.contextmanager
    def fail_together(self) -> Iterator[None]:
        """Make all calls of `run` return soon if the block raises an error."""
        try:
            yield
        except BaseException:
            self._failed = True
            raise

    def run(self, partitions: range) -> None:
        """Copy these partitions; an error makes all other calls return soon.

        If the node has no heap left, or a connection is lost (a node without heap closes it),
        incomplete partitions are copied again, one share at a time.
        """
        left = dict.fromkeys(partitions)
        heap, other = Backoff(HEAP), Backoff(LOAD)
        turn: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        with self.fail_together():
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
        """Wait until a retry may succeed; raises the error if no retry can."""
        if is_node_overloaded(error):
            wait_s = heap.wait_s(error)
        else:
            wait_s = other.wait_s(error, self._client.settings.idle_timeout_s)
        if wait_s is None:
            raise error
        log.warning("copy: %s; retrying in %.1f s", error, wait_s)
        time.sleep(wait_s)

    def _share(self, left: dict[int, None]) -> None:
        """Copy partitions, and remove from `left` those that are stored."""
        # Unanswered put requests of partitions that were read to the end.
        unanswered, ended = Counter[int](), set[int]()

        def stored(partition: int, _: object) -> None:
            unanswered[partition] -= 1
            end(partition)

        def end(partition: int) -> None:
            if partition in ended and not unanswered[partition]:
                left.pop(partition, None)

        puts = Exchange(self._client, stored, repeat=Repeat.REFUSED)
        with contextlib.closing(puts), self._client.channel() as reading:
            try:
                with contextlib.closing(self._pages(reading, list(left))) as pages:
                    for partition, page in pages:
                        self._made.wait()
                        if self._failed:
                            return
                        for count, views in unwrapped(page).pieces(REQUEST_BYTES):
                            self._check_lease()
                            head = batch_head(self._target, count)
                            unanswered[partition] += 1
                            puts.send(partition, OpCode.CACHE_PUT_ALL, head, *views)
                        if not page.more:
                            ended.add(partition)
                            end(partition)
                puts.finish()
            except FAILURES:
                reading.close()  # also closes the cursors, which hold rows in the heap
                with contextlib.suppress(IgniteTFError):
                    puts.finish()  # stored entries are not copied again
                raise

    def _pages(
        self, channel: Channel, partitions: Sequence[int]
    ) -> Generator[tuple[int, Page], None, None]:
        """Yield the pages of partitions as they arrive; `more` is false for the last of each."""
        window = ByteWindow(self._client, widened(self._client))
        remaining, pending = deque(partitions), dict[int, _PendingPage]()
        # Cursors of partitions whose next page is not requested yet.
        open_: deque[tuple[int, int]] = deque()

        def request_page(partition: int, cursor: int | None) -> None:
            if cursor is None:
                request = scan_request(self._source, self._pace.page_entries, partition)
                number = channel.send(OpCode.QUERY_SCAN, request)
            else:
                number = channel.send(OpCode.QUERY_SCAN_PAGE, cursor_request(cursor))
            pending[number] = _PendingPage(partition, cursor, time.monotonic())

        def request_ahead() -> None:
            while not pending or len(pending) * self._pace.page_bytes < window.size:
                if open_:
                    request_page(*open_.popleft())
                elif remaining and len(pending) < self._pace.ahead:
                    request_page(remaining.popleft(), None)
                else:
                    return

        try:
            while True:
                request_ahead()
                if not pending:
                    return
                number, body = channel.receive_any()
                one = pending.pop(number)
                if isinstance(body, ServerError):
                    raise body
                window.answered(one.sent_at, body.nbytes)
                cursor = one.cursor
                if cursor is None:
                    cursor, page = read_first_page(body)
                else:
                    page = read_page(body)
                if page.more:
                    open_.append((one.partition, cursor))
                request_ahead()
                yield one.partition, page
        finally:
            # If a node starts a query after its connection was closed, it keeps the cursor.
            while pending and not channel.closed:
                with contextlib.suppress(IgniteTFError):
                    pending.pop(channel.receive_any()[0], None)


class _PendingPage(NamedTuple):
    """A requested page; the first page of a partition has no cursor yet."""

    partition: int
    cursor: int | None
    sent_at: float


def unwrapped(page: Page) -> EncodedPage:
    """Return a page of an answer, converted to the form of a request."""
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
    """Return the start and length of each object without its wrapper."""
    inner = unwrap(data, at)
    sizes = ends - at
    wrapped = np.flatnonzero((data[at] == TypeCode.WRAPPED) & (data[inner] == TypeCode.OBJECT))
    sizes[wrapped] = gather(data, inner[wrapped] + _OBJECT_LENGTH_AT, "<i4")
    return inner, sizes
