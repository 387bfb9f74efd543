"""Fetches pages of partitions, in order, over several connections, through the loss of a node.

scan thread -> **scan** -> reader

The unit of work is one partition, read by its number, because a scan of a whole cache has no stable
order. Each reader is a thread with one connection that receives ahead of its consumer up to a limit
in bytes. Pages are decoded by whichever side has time: by the consumer if it had to wait, else by
the reader; units of a single page by the consumer, several at once. The consumer takes the units
strictly in the given order, so the number of readers never affects the output.

When a connection or node is lost, the unit is read again from its first page on another node. Pages
that were delivered before are marked as replays, for the consumer to compare and drop. A partition
returns its entries in the order of their key hashes on every copy, and pages of one size split it
the same way, so the replayed pages are equal as long as no key is added or removed.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

from ignitetf.errors import IgniteTFError
from ignitetf.net.client import Client
from ignitetf.net.retry import is_retryable
from ignitetf.read.cursor import Times
from ignitetf.read.error_context import forked
from ignitetf.read.page_query import Query, RetryPolicy, UnitPage, UnitRun
from ignitetf.read.scan_thread import RUN_SHARE, ScanThread, WholeUnit, owners_of

__all__ = ["assign_readers", "scan_runs", "scan_units"]

log = logging.getLogger(__name__)

# How long closing a scan waits. A reader that still expects an answer then finishes alone.
_CLOSING_S: Final = 1.0


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


def scan_runs(
    client: Client,
    query: Query,
    partitions: Sequence[int],
    *,
    readers: int = 1,
    retry: RetryPolicy | None = None,
) -> Generator[UnitPage | UnitRun, None, None]:
    """Yield all pages of the partitions, in the order of `partitions`.

    With `Query.run_bytes`, units of a single page come as a `UnitRun`, with those next to them.

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
        owners = owners_of(client, query)
    except IgniteTFError as error:
        if not is_retryable(error):
            raise
        # A node just left: the readers find the owners themselves.
        log.warning("%s: %s; the owners of its partitions are not known", query.name, error)
    shares = assign_readers(owners or {}, partitions, readers)
    policy = retry or RetryPolicy()
    streams = [
        ScanThread(client, query, [(i, partitions[i]) for i in share], policy, owners)
        for share in shares
    ]
    reader_of = {i: stream for share, stream in zip(shares, streams, strict=True) for i in share}
    process = os.getpid()
    try:
        for stream in streams:
            stream.start()
        yield from _in_order(query, [reader_of[i] for i in range(len(partitions))], process)
    finally:
        # Not in a forked child: the readers' locks may be held there, and nobody would release
        # them.
        if os.getpid() == process:
            _end(streams, query.times)


def scan_units(
    client: Client,
    query: Query,
    partitions: Sequence[int],
    *,
    readers: int = 1,
    retry: RetryPolicy | None = None,
) -> Generator[UnitPage, None, None]:
    """Yield all pages of the partitions as `scan_runs` does, each page alone."""
    alone = replace(query, run_bytes=0)
    pages = scan_runs(client, alone, partitions, readers=readers, retry=retry)
    return cast("Generator[UnitPage, None, None]", pages)


def _in_order(
    query: Query, stream_of: Sequence[ScanThread], process: int
) -> Generator[UnitPage | UnitRun, None, None]:
    """Take the pages of each unit from its stream."""
    run: list[WholeUnit] = []
    nbytes = unit = 0
    while unit < len(stream_of):
        stream = stream_of[unit]
        if run and (nbytes >= query.run_bytes or _would_wait(query, stream, nbytes)):
            yield _joined(run, stream)
            run, nbytes = [], 0
        if os.getpid() != process:
            raise forked(query.name)
        item = stream.take()
        if isinstance(item, WholeUnit):
            run.append(item)
            nbytes += item.page.data.nbytes
            unit += 1
            continue
        if run:
            yield _joined(run, stream)
            run, nbytes = [], 0
        yield item
        unit += item.page is None
    if run:
        yield _joined(run, stream_of[-1])


def _would_wait(query: Query, stream: ScanThread, nbytes: int) -> bool:
    """Whether to decode what is here instead of waiting for more."""
    return not stream.has_next and nbytes >= query.run_bytes // RUN_SHARE


def _joined(run: Sequence[WholeUnit], stream: ScanThread) -> UnitRun:
    sizes = [unit.page.data.nbytes for unit in run]
    return UnitRun(run[0].unit, stream.joined(run), sizes, [unit.source for unit in run])


def _end(streams: Sequence[ScanThread], times: Times) -> None:
    for stream in streams:
        stream.stop()
    until = time.monotonic() + _CLOSING_S
    for stream in streams:
        stream.join(max(0.0, until - time.monotonic()))
        times.add(stream.times)
        times.add(stream.taken)
