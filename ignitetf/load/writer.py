"""Writes column batches into a cache over several connections; stored once flushed.

source -> Batch -> **writer** -> cache

Threads encode batches and send them in requests of about 2 MB, as many unanswered as the
windows of their connections allow (`net.exchange`), so that encoding, the network and the node work
in parallel.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ignitetf.errors import IgniteTFError, RequestTimeout
from ignitetf.load.route import find_route
from ignitetf.load.sender import POLL_S, Flush, Job, Sender, Totals, Work, WorkQueue
from ignitetf.net.client import Client
from ignitetf.tables.typenames import binary_type_requests
from ignitetf.wire.codes import OpCode
from ignitetf.wire.columns import Batch
from ignitetf.wire.schema import Schema

__all__ = ["Totals", "Work", "Writer", "register_types"]

# Smaller requests cost both sides more for the same rows, and of larger ones few fit a window.
REQUEST_BYTES: Final = 2 << 20
_SENDERS: Final = 2
_QUEUED_BATCHES: Final = 2
# How long an abandoned load waits for the node to finish what it has received.
_GIVE_UP_S: Final = 15.0
_LAST_WAIT_S: Final = 5.0
_AT_ONCE_S: Final = 0.5


def register_types(client: Client, schema: Schema) -> None:
    """Register the binary types of a schema with the cluster."""
    for request in binary_type_requests(schema):
        client.call(OpCode.BINARY_TYPE_PUT, request)


class Writer:
    """Writes batches of one schema into one cache; a context manager, for one thread.

    Leaving the block normally stores everything. Leaving it with an error drops what was not sent
    and waits until the node has finished the rest. Ctrl-C or a signal skips that wait, except with a
    data streamer, whose end a node has to see.
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
        overwrite: bool = True,
        senders: int | None = None,
        request_bytes: int = REQUEST_BYTES,
        streamer: bool = False,
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
            overwrite: Whether a row replaces one with the same key. False is for an empty cache,
                where it saves the search for an older row.
            senders: Number of threads; None takes two, or one for each node that owns rows.
            request_bytes: Size of a request, unless a single row is larger.
            streamer: Whether to use the data streamer instead of `put_all` if the server has it;
                see `sender` for its drawbacks.
            check_lease: Called before each request; raises if the cache belongs to someone else by
                now.
        """
        schema = schema.in_zone(client.zone)
        entry_schema = schema if entry_schema is None else entry_schema.in_zone(client.zone)
        self.client, self.cache, self.schema = client, cache, schema
        self._job = Job(
            client,
            cache,
            schema,
            entry_schema,
            overwrite=overwrite,
            streamer=streamer,
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
        """What was handed to the node; all of it is stored after `flush`."""
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
            # Ctrl-C during `flush` or `_end`, perhaps while they wait for a thread.
            at_once = True
            raise
        finally:
            self._give_up(at_once=at_once)

    def write(self, work: Work | Batch) -> None:
        """Queue rows for writing; blocks while the node is behind.

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
            IgniteTFError: Something could not be written.
        """
        limit_s = self._job.flush_timeout_s
        barrier = self._job.flushing = Flush(threading.Barrier(len(self._senders)))
        for sender in self._senders:
            self._put(barrier, sender.queue)
        deadline = time.monotonic() + limit_s + self.client.settings.request_timeout_s
        while not barrier.done.wait(POLL_S):
            self._job.check()
            if time.monotonic() > deadline:
                raise RequestTimeout(
                    f"cache {self.cache!r}: not stored within {limit_s:g} s",
                    hint="is the node overloaded? --idle-timeout sets the limit",
                )
        self._job.check()

    def _make_senders(self, count: int | None) -> list[Sender]:
        """Make the senders; each node of the route has a queue, or else all senders share one."""
        job = self._job
        if self._route is None:
            targets = _targets(self._nodes, _SENDERS if count is None else count)
            self._queues = [WorkQueue(max(_QUEUED_BATCHES, len(targets) // 2))]
            return [Sender(job, node, self._queues[0]) for node in targets]
        pairs = [(node, WorkQueue(_QUEUED_BATCHES)) for node in self._route.nodes]
        self._queues = [waiting for _, waiting in pairs]
        return [Sender(job, node, waiting) for node, waiting in pairs]

    def _put(self, item: Work | Flush | None, waiting: WorkQueue) -> None:
        while True:
            self._job.check()
            with contextlib.suppress(queue.Full):
                return waiting.put(item, timeout=POLL_S)

    def _end(self) -> None:
        """Let the threads finish and close their streams; raises what prevents that."""
        for sender in self._senders:
            self._put(None, sender.queue)
        self._join(self._job.flush_timeout_s)
        self._job.check()

    def _give_up(self, *, at_once: bool) -> None:
        """End any threads that are left, whatever they wait for; after `_end` there are none."""
        self._job.fail(IgniteTFError("the load was given up"))
        if at_once and not self._job.streamer:
            self._join(0.0, _AT_ONCE_S)
        else:
            self._join(_GIVE_UP_S)

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
