"""Writes column batches into a cache over several connections; `flush` waits until all is stored.

source -> Batch -> **writer** -> cache

Threads encode batches and send them in requests of about 2 MB, several in flight, as the windows of
their connections allow (`net.exchange`), so that encoding, the network and the node work in
parallel.

Rows go through `put_all` to the nodes that own them. A node forwards a row that another node owns,
which costs time and a second transfer. The route is only a hint: if a node has left since, its rows
still arrive.

Ignite's data streamer (ops 8000, 8001) is not faster here, and a client that dies while streaming
can take the node down. Ignite 2.17.0 interrupts the threads that work for a lost client's streamer.
This ends a thread of that pool, and then the node halts.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import IgniteTFError, RequestTimeout, ServerError
from ignitetf.net.client import Client, cache_id
from ignitetf.net.exchange import Exchange, Repeat
from ignitetf.tables.room import memory_full
from ignitetf.tables.typenames import binary_type_requests
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.checksum import checksum
from ignitetf.wire.codes import OpCode
from ignitetf.wire.columns import Batch
from ignitetf.wire.datatypes import INTEGERS
from ignitetf.wire.encode import EncodedPage, encode_entries
from ignitetf.wire.requests import batch_head
from ignitetf.wire.schema import Schema

__all__ = ["Flush", "Job", "Route", "Totals", "Work", "Writer", "find_route", "register_types"]

# Smaller requests cost both sides more per row; only few larger ones fit into a window.
REQUEST_BYTES: Final = 2 << 20
_SENDERS: Final = 2
_QUEUED_BATCHES: Final = 2
# Time limit of an abandoned load for the node to finish the requests it has received.
_ABANDON_S: Final = 15.0
_LAST_WAIT_S: Final = 5.0
_ABORT_S: Final = 0.5


def register_types(client: Client, schema: Schema) -> None:
    """Register the binary types of a schema with the cluster."""
    for request in binary_type_requests(schema):
        client.call(OpCode.BINARY_TYPE_PUT, request)


class Writer:
    """Writes batches of one schema into one cache; a context manager, for one thread.

    Leaving the block normally stores everything. Leaving it with an error drops unsent rows and
    waits until the node has finished the rest. Ctrl-C or a signal skips that wait.
    """

    def __init__(
        self,
        client: Client,
        cache: str,
        schema: Schema,
        *,
        entry_schema: Schema | None = None,
        partitions: int | None = None,
        nodes: Sequence[uuid.UUID] | None = None,
        senders: int | None = None,
        request_bytes: int = REQUEST_BYTES,
        check_lease: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the connections.

        Args:
            client: The client to take connections from.
            cache: Name of an existing cache.
            schema: The rows that are counted.
            entry_schema: The records that are stored, if they differ from the rows.
            partitions: Number of partitions of the cache, to count the rows of each.
            nodes: The server nodes, if they are known.
            senders: Number of threads; None takes two, or one for each node that owns rows.
            request_bytes: Size of a request, unless a single row is larger.
            check_lease: Called before each request; raises if another client took over.
        """
        schema = schema.in_zone(client.zone)
        entry_schema = schema if entry_schema is None else entry_schema.in_zone(client.zone)
        self.client, self.cache, self.schema = client, cache, schema
        self._job = Job(
            client,
            cache,
            schema,
            entry_schema,
            request_bytes=request_bytes,
            check_lease=check_lease,
        )
        if partitions is not None:
            self.totals.partition_rows = np.zeros(partitions, np.int64)
        self._nodes = [node.node_id for node in client.nodes()] if nodes is None else list(nodes)
        self._route = find_route(client, cache, schema, self._nodes)
        self._senders = self._make_senders(senders)

    @property
    def totals(self) -> Totals:
        """Totals of what was sent to the node; all of it is stored after `flush`."""
        return self._job.totals

    @totals.setter
    def totals(self, totals: Totals) -> None:
        self._job.totals = totals

    def __enter__(self) -> Writer:
        for sender in self._senders:
            sender.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        at_once = kind is not None and not issubclass(kind, Exception)
        try:
            if kind is None:
                self.flush()
                self._end()
        except Exception:
            raise
        except BaseException:
            # For example Ctrl-C, while `flush` or `_end` waits for a thread.
            at_once = True
            raise
        finally:
            self._abandon(at_once=at_once)

    def write(self, work: Work | Batch) -> None:
        """Queue rows for writing; blocks while the queue is full.

        Raises:
            IgniteTFError: Earlier rows could not be written.
        """
        work = Work(work) if isinstance(work, Batch) else work
        if self._route is None:
            self._put(work, self._queues[0])
        elif work.entries is not None:
            self._put(work, self._queues[self._route.next_place()])
        else:
            for place, rows in self._route.split(work.rows):
                self._put(Work(rows), self._queues[place])

    def flush(self) -> None:
        """Wait until everything written so far is stored.

        Raises:
            IgniteTFError: Rows could not be written.
        """
        limit_s = self._job.flush_timeout_s
        barrier = self._job.flushing = Flush(threading.Barrier(len(self._senders)))
        for sender in self._senders:
            self._put(barrier, sender.queue)
        deadline = time.monotonic() + limit_s + self.client.settings.request_timeout_s
        while not barrier.done.wait(_POLL_S):
            self._job.check()
            if time.monotonic() > deadline:
                raise RequestTimeout(
                    f"cache {self.cache!r}: not stored within {limit_s:g} s",
                    hint="is the node overloaded? --idle-timeout sets the limit",
                )
        self._job.check()

    def _make_senders(self, count: int | None) -> list[_Sender]:
        """Return the senders; each node of the route has a queue. With no route they share one."""
        job = self._job
        if self._route is None:
            targets = _targets(self._nodes, _SENDERS if count is None else count)
            self._queues = [_WorkQueue(max(_QUEUED_BATCHES, len(targets) // 2))]
            return [_Sender(job, node, self._queues[0]) for node in targets]
        pairs = [(node, _WorkQueue(_QUEUED_BATCHES)) for node in self._route.nodes]
        self._queues = [waiting for _, waiting in pairs]
        return [_Sender(job, node, waiting) for node, waiting in pairs]

    def _put(self, item: Work | Flush | None, waiting: _WorkQueue) -> None:
        while True:
            self._job.check()
            with contextlib.suppress(queue.Full):
                return waiting.put(item, timeout=_POLL_S)

    def _end(self) -> None:
        """Wait until the threads have finished; raises the error of a thread."""
        for sender in self._senders:
            self._put(None, sender.queue)
        self._join(self._job.flush_timeout_s)
        self._job.check()

    def _abandon(self, *, at_once: bool) -> None:
        """End all remaining threads, also if they wait; after `_end` none remain."""
        self._job.fail(IgniteTFError("the load was aborted"))
        if at_once:
            self._join(0.0, _ABORT_S)
        else:
            self._join(_ABANDON_S)

    def _join(self, limit_s: float, last_s: float = _LAST_WAIT_S) -> None:
        """Wait for the threads; those that take too long lose their connections."""
        self._wait(limit_s)
        for sender in self._senders:
            sender.abort()
        self._wait(last_s)

    def _wait(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        for sender in self._senders:
            sender.thread.join(max(0.0, deadline - time.monotonic()))


def _targets(nodes: Sequence[uuid.UUID], count: int) -> list[uuid.UUID | None]:
    """Return the node of each sender: the server nodes in turn if there are several."""
    if len(nodes) < 2:
        return [None] * count
    return [nodes[i % len(nodes)] for i in range(max(count, min(len(nodes), 4)))]


_Counts = NDArray[np.int64] | None

_POLL_S: Final = 0.1


@dataclass
class Totals:
    """Totals of what was written: rows, bytes of their entries, checksum, rows by partition."""

    rows: int = 0
    nbytes: int = 0
    checksum: int = 0
    partition_rows: NDArray[np.int64] | None = None

    def add(self, rows: int, nbytes: int, checksum: int, counts: _Counts) -> None:
        """Add some rows to the totals."""
        self.rows += rows
        self.nbytes += nbytes
        self.checksum = (self.checksum + checksum) % (1 << 64)
        known = self.partition_rows
        self.partition_rows = None if known is None or counts is None else known + counts


@dataclass(frozen=True)
class Work:
    """Rows to write, and how to convert them to entries.

    Attributes:
        rows: The rows that are counted.
        entries: Makes the records to store from the rows, in the sender's thread; None stores the
            rows.
    """

    rows: Batch
    entries: Callable[[Batch], Batch] | None = None


@dataclass
class Flush:
    """Makes every connection flush; once the last one has flushed, all rows are stored."""

    barrier: threading.Barrier
    done: threading.Event = field(default_factory=threading.Event)


_WorkQueue = queue.Queue[Work | Flush | None]


@dataclass
class Job:
    """Work of the connections of a writer, and their progress.

    Attributes:
        client: The client to take connections from.
        cache: Name of the cache.
        schema: The rows that are counted.
        entry_schema: The records that are stored.
        request_bytes: Size of a request, unless a single row is larger.
        check_lease: Called before each request; raises if writing is no longer allowed.
        totals: Totals of what was sent to the node.
        failed: The first error of a connection.
        flushing: The current flush, or the last one.
    """

    client: Client
    cache: str
    schema: Schema
    entry_schema: Schema
    request_bytes: int
    check_lease: Callable[[], None]
    totals: Totals = field(default_factory=Totals)
    failed: BaseException | None = None
    flushing: Flush | None = None

    def __post_init__(self) -> None:
        """Take the time limit of a flush from the settings."""
        settings = self.client.settings
        # A flush waits for all requests in flight, so it may take longer than other requests.
        self.flush_timeout_s = max(settings.idle_timeout_s, settings.request_timeout_s)
        self._lock = threading.Lock()

    def count(self, rows: Batch, page: EncodedPage) -> None:
        """Add encoded rows to the totals; called by the senders' threads."""
        counts = None
        known = self.totals.partition_rows
        if known is not None and rows.key is not None:
            partitions = partitions_of(self.schema, rows.key, len(known))
            if partitions is not None:
                counts = np.bincount(partitions, minlength=len(known))
        total = checksum(self.schema, rows, page.row_hashes)
        with self._lock:
            self.totals.add(len(rows), page.nbytes, total, counts)

    def next_item(self, waiting: _WorkQueue) -> Work | Flush | None:
        """Wait for the next item of work and return it; None ends the thread."""
        while self.failed is None:
            with contextlib.suppress(queue.Empty):
                return waiting.get(timeout=_POLL_S)
        return None

    def fail(self, error: BaseException) -> None:
        """Record the first error of a connection; the next call on the writer raises it."""
        with self._lock:
            if self.failed is None:
                self.failed = error
            if self.flushing is not None:
                self.flushing.barrier.abort()

    def check(self) -> None:
        """Raise the first error of a connection."""
        if self.failed is not None:
            raise self.failed


class _Sender:
    """A thread with its connections to one node, or to any node that answers.

    After a lost connection the load sends rows again from its journal. A sender cannot do so
    itself: a lost node may also lose rows that it had acknowledged.
    """

    def __init__(self, job: Job, node: uuid.UUID | None, work: _WorkQueue) -> None:
        self.job = job
        self.node = node
        self.queue = work
        self.thread = threading.Thread(target=self._run, name="ignitetf-writer", daemon=True)
        self._puts = Exchange[None](
            job.client, lambda _, answer: None, node=node, repeat=Repeat.REFUSED
        )
        self.buffers = BufferPool()

    def abort(self) -> None:
        """End the thread soon, also if it waits."""
        self._puts.abort()

    def _run(self) -> None:
        try:
            while (item := self.job.next_item(self.queue)) is not None:
                if isinstance(item, Work):
                    self._write(item)
                    del item
                    continue
                self._puts.finish()
                if item.barrier.wait(self.job.flush_timeout_s) == 0:
                    item.done.set()
            if self.job.failed is None:
                self._puts.finish()
        except threading.BrokenBarrierError:
            self.job.fail(RequestTimeout(f"cache {self.job.cache!r}: a flush took too long"))
        except ServerError as error:
            self.job.fail(self._cause(error))
        except BaseException as error:
            self.job.fail(error)
        finally:
            self._puts.close()

    def _write(self, work: Work) -> None:
        entries_of = work.entries or (lambda rows: rows)
        page = encode_entries(self.job.entry_schema, entries_of(work.rows), self.buffers)
        self.job.count(work.rows, page)
        for count, views in page.pieces(self.job.request_bytes):
            self.job.check_lease()
            head = batch_head(cache_id(self.job.cache), count)
            self._puts.send(None, OpCode.CACHE_PUT_ALL, head, *views)

    def _cause(self, error: ServerError) -> IgniteTFError:
        """Return the reason for refused rows; the node itself only names their keys."""
        failed = "Failed to update keys" in error.message
        return (memory_full(self.job.client) if failed else None) or error


# Each node needs a connection and a thread here; with more nodes, rows go to any of them.
_MAX_NODES: Final = 8


class Route:
    """Chooses one of several nodes for each row.

    Attributes:
        nodes: The nodes.
    """

    def __init__(self, schema: Schema, nodes: list[uuid.UUID], owners: list[uuid.UUID]) -> None:
        self.schema, self.nodes = schema, nodes
        places = {node: place for place, node in enumerate(nodes)}
        self._places = np.array([places[owner] for owner in owners], np.int64)
        self._turns = itertools.cycle(range(len(nodes)))

    def split(self, rows: Batch) -> list[tuple[int, Batch]]:
        """Split rows by node, as (index in `nodes`, rows).

        Nodes take turns if the owners are unknown.
        """
        found = None
        if rows.key is not None:
            found = partitions_of(self.schema, rows.key, len(self._places))
        if found is None:
            return [(self.next_place(), rows)]
        place = self._places[found]
        groups = [(i, np.flatnonzero(place == i)) for i in range(len(self.nodes))]
        return [(i, rows[group]) for i, group in groups if len(group)]

    def next_place(self) -> int:
        """Return the index of the next node in turn."""
        return next(self._turns)


def find_route(
    client: Client, cache: str, schema: Schema, nodes: Sequence[uuid.UUID] | None = None
) -> Route | None:
    """Return the route to a cache, or None if there is one node or the owners are unknown.

    Args:
        client: The connection.
        cache: Name of the cache.
        schema: The rows.
        nodes: The server nodes, if they are known.
    """
    known_nodes = [node.node_id for node in client.nodes()] if nodes is None else list(nodes)
    if not 2 <= len(known_nodes) <= _MAX_NODES or not _is_quick(schema):
        return None
    found = client.partition_map(cache)
    owners = [found.owners.get(partition) for partition in range(found.count)]
    known = [owner for owner in owners if owner in known_nodes]
    if not owners or len(known) < len(owners):
        return None
    return Route(schema, known_nodes, known)


def _is_quick(schema: Schema) -> bool:
    """True if key hashes can be computed for whole columns at once."""
    deciding = [
        field
        for field in schema.key.fields
        if schema.affinity_key is not None and field.name.lower() == schema.affinity_key.lower()
    ]
    return (deciding[0] if deciding else schema.key).type in INTEGERS
