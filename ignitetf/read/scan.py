"""Fetches pages of partitions, in order, over several connections, through the loss of a node.

scan thread, collector -> **scan** -> unit reading, reader

The unit of work is one partition, read by its number, because a scan of a whole cache has no stable
order. Each reader is a thread with one connection that receives, and takes rows apart, ahead of its
consumer up to a limit in bytes. Of several readers, each takes about a page of units in turn; those
of a single small page are taken apart by the consumer, since they go into the same batches, unless
the reader holds rows that go before them. Such small units of several nodes are all read by one
thread with a connection to each node, where rows can be taken apart in C. The consumer takes the
units strictly in the given order, so the number of readers never affects the output.

When a connection or node is lost, the unit is read again from its first page on another node. Pages
that were delivered before are marked as replays, for the consumer to compare and drop. A partition
returns its entries in the order of their key hashes on every copy, and pages of one size split it
the same way, so the replayed pages are equal as long as no key is added or removed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ignitetf.errors import IgniteTFError
from ignitetf.net.client import Client
from ignitetf.net.retry import is_retryable
from ignitetf.net.together import open_ahead
from ignitetf.read.collector import Collector, Portion
from ignitetf.read.cursor import Times
from ignitetf.read.error_context import forked
from ignitetf.read.page_query import Ends, Query, RetryPolicy, UnitPage
from ignitetf.read.scan_thread import RUN_SHARE, ScanThread, Share, WholeUnit, owners_of

__all__ = ["assign_readers", "scan_portions", "scan_units"]

log = logging.getLogger(__name__)

# How long closing a scan waits. A reader that still expects an answer then finishes alone.
_CLOSING_S: Final = 1.0

# Partitions are dealt out so that each reader has so many turns, if there are enough of them.
_LEAST_TURNS: Final = 4

# Makes a collector, for one thread.
NewCollector = Callable[[Ends], Collector]


def assign_readers(
    owners: Mapping[int, uuid.UUID], partitions: Sequence[int], readers: int, run: int = 1
) -> list[list[int]]:
    """Return the indices into `partitions` that each reader takes, in ascending order.

    Readers are distributed over the nodes that the partitions are read from, so that one connection
    stays with one node.

    Args:
        owners: The node to read each partition from; empty if it makes no difference.
        partitions: What is read, in order.
        readers: Connections at once.
        run: How many of a node's partitions one reader takes before the next one has its turn;
            fewer where each would have few turns.
    """
    if not owners and readers == 1:
        return [list(range(len(partitions)))]
    by_owner: dict[object, list[int]] = {}
    for index, partition in enumerate(partitions):
        by_owner.setdefault(owners.get(partition), []).append(index)
    share = max(1, readers // max(1, len(by_owner)))
    return [part for units in by_owner.values() for part in _in_turn(units, share, run)]


def _in_turn(units: Sequence[int], readers: int, run: int) -> Iterator[list[int]]:
    """Yield what each of the readers takes of these units; nothing for those without any."""
    run = max(1, min(run, len(units) // (_LEAST_TURNS * readers)))
    for first in range(0, readers * run, run):
        begins = range(first, len(units), readers * run)
        if begins:
            yield [unit for begin in begins for unit in units[begin : begin + run]]


def scan_units(
    client: Client,
    query: Query,
    partitions: Sequence[int],
    *,
    readers: int = 1,
    retry: RetryPolicy | None = None,
) -> Generator[UnitPage, None, None]:
    """Yield all pages of the partitions as received, in the order of `partitions`.

    Closing the generator at any point closes the cursors on the nodes, the connections with an
    outstanding answer, and the threads. If a node takes longer than a second to answer, its thread
    waits for it alone, within the request's time limit.

    Raises:
        IgniteTFError: What `Channel.receive` raises once it cannot be retried any more.
        ConfigError: The process was forked since the first page was requested.
    """
    scan = _Scan(client, query, partitions, readers, retry or RetryPolicy())
    with scan.reading(None, ()) as streams:
        for stream in streams:
            while True:
                item = scan.take(stream)
                assert isinstance(item, UnitPage)
                yield item
                if item.page is None:
                    break


def scan_portions(
    client: Client,
    query: Query,
    partitions: Sequence[int],
    new_collector: NewCollector,
    ends: Sequence[int],
    *,
    readers: int = 1,
    retry: RetryPolicy | None = None,
) -> Generator[Portion, None, None]:
    """Yield the rows of the partitions, in the order of `partitions`; else as `scan_units`.

    Args:
        client: The cluster.
        query: How to request a partition.
        partitions: What to read.
        new_collector: Makes what takes the rows apart, for one thread.
        ends: Indexes into the partitions: a portion ends with the last row of each.
        readers: Connections at once.
        retry: How long to try to replace a lost connection.

    Raises:
        IgniteTFError: As `scan_units`; and what the collector raises.
        ConfigError: As `scan_units`.
    """
    if not partitions:
        return
    scan = _Scan(client, query, partitions, readers, retry or RetryPolicy())
    with scan.reading(new_collector, ends) as streams:
        yield from _Merging(scan, streams, new_collector, ends).portions()


class _Scan:
    """The threads of a scan."""

    def __init__(
        self,
        client: Client,
        query: Query,
        partitions: Sequence[int],
        readers: int,
        retry: RetryPolicy,
    ) -> None:
        self._client = client
        self.query = query
        self._partitions = partitions
        self._readers = readers
        self._retry = retry
        self._process = os.getpid()

    def take(self, stream: ScanThread) -> UnitPage | Portion | WholeUnit:
        """Return what comes next from a thread."""
        if os.getpid() != self._process:
            raise forked(self.query.name)
        return stream.take()

    @contextlib.contextmanager
    def reading(
        self, new_collector: NewCollector | None, ends: Sequence[int]
    ) -> Generator[list[ScanThread], None, None]:
        """Start the threads, and end them; gives the thread of each unit."""
        self.query.times.began = time.monotonic()
        if self._client.node_count == 1:  # else each connection leads to the node of its partitions
            # One more, as what else is asked for meanwhile may still use one of them.
            open_ahead(self._client, self._readers + 1)
        owners = self._owners()
        shares = self._shares(owners or {}, new_collector, ends)
        query = self._query_of(len(shares))
        streams = [ScanThread(self._client, query, s, self._retry, owners) for s in shares]
        try:
            for stream in streams:
                stream.ask_ahead()
            for stream in streams:
                stream.start()
            stream_of = streams[:1] * len(self._partitions)
            for share, stream in zip(shares[1:], streams[1:], strict=True):
                for unit, _ in share.units:
                    stream_of[unit] = stream
            yield stream_of
        finally:
            # Not in a forked child: the readers' locks may be held there, and nobody would release
            # them.
            if os.getpid() == self._process:
                _end(streams, self.query.times)

    def _query_of(self, threads: int) -> Query:
        """Return the query for each of so many threads."""
        if threads == 1:
            return self.query
        held = max(self.query.buffer_bytes, self.query.ahead_bytes // threads)
        return replace(self.query, buffer_bytes=held)

    def _owners(self) -> dict[int, uuid.UUID] | None:
        try:
            return owners_of(self._client, self.query)
        except IgniteTFError as error:
            if not is_retryable(error):
                raise
            # A node just left: the readers find the owners themselves.
            log.warning(
                "%s: %s; the owners of its partitions are not known", self.query.name, error
            )
            return None

    def _shares(
        self,
        owners: Mapping[int, uuid.UUID],
        new_collector: NewCollector | None,
        ends: Sequence[int],
    ) -> list[Share]:
        """Return what each thread reads."""
        # About a page by one thread and then by the next: what they hand over is put in order.
        run = self.query.pipelined
        assigned = assign_readers(owners, self._partitions, self._readers, run)
        wanted = {*ends, len(self._partitions) - 1}
        if new_collector is not None and self._is_one_for_each_node(assigned, owners):
            # Made here, as it tells whether one thread can take all rows apart in C.
            collector = new_collector(Ends(wanted))
            if collector.takes_units:
                return [Share(list(enumerate(self._partitions)), lambda: collector, True)]
        shares = []
        for part in assigned:
            new = None
            if new_collector is not None:
                new = functools.partial(new_collector, Ends({*wanted, *_ends_of_runs(part)}))
            units = [(unit, self._partitions[unit]) for unit in part]
            shares.append(Share(units, new, len(assigned) == 1))
        return shares

    def _is_one_for_each_node(
        self, assigned: Sequence[Sequence[int]], owners: Mapping[int, uuid.UUID]
    ) -> bool:
        """Whether units are small, and of several nodes, each of which one reader has alone."""
        if len(assigned) < 2 or not self.query.has_small_units:
            return False
        nodes = {owners.get(self._partitions[units[0]]) for units in assigned}
        return len(nodes) == len(assigned)


def _ends_of_runs(share: Sequence[int]) -> Iterator[int]:
    """Yield the units of a share behind which a unit of another thread follows, or none."""
    return (
        unit for unit, following in itertools.zip_longest(share, share[1:]) if following != unit + 1
    )


class _Merging:
    """Puts the portions of several threads in order.

    Units that came as received are collected here, as they go into the same batches.
    """

    def __init__(
        self,
        scan: _Scan,
        stream_of: Sequence[ScanThread],
        new_collector: NewCollector,
        ends: Sequence[int],
    ) -> None:
        self._scan = scan
        self._stream_of = stream_of
        self._new_collector = new_collector
        self._ends = Ends({*ends, len(stream_of) - 1})

    @functools.cached_property
    def _collector(self) -> Collector:
        return self._new_collector(self._ends)

    def portions(self) -> Generator[Portion, None, None]:
        """Yield all portions."""
        unit, collects = 0, False
        while unit < len(self._stream_of):
            stream = self._stream_of[unit]
            if collects and self._is_due(stream):
                yield self._collector.portion(whole=False)
            item = self._scan.take(stream)
            if isinstance(item, WholeUnit):
                self._collector.add(item.place, item.page, item.page.data.nbytes, last=True)
                unit, collects = unit + 1, True
                if self._collector.ended:
                    yield self._collector.portion(whole=True)
                    collects = False
                continue
            if collects:
                yield self._collector.portion(whole=True)
                collects = False
            assert isinstance(item, Portion)
            yield item
            unit += item.ended_units

    def _is_due(self, stream: ScanThread) -> bool:
        """Whether to hand over what is here instead of waiting for more."""
        nbytes, run_bytes = self._collector.nbytes, self._scan.query.run_bytes
        waits = not stream.has_next and nbytes >= run_bytes // RUN_SHARE
        return nbytes >= run_bytes or waits


def _end(streams: Sequence[ScanThread], times: Times) -> None:
    for stream in streams:
        stream.stop()
    streams = [stream for stream in streams if stream.ident is not None]  # were started
    until = time.monotonic() + _CLOSING_S
    for stream in streams:
        stream.join(max(0.0, until - time.monotonic()))
        times.add(stream.times)
        times.add(stream.taken)
