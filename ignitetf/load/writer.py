"""Column batches into a cache: encoded, sent over several connections, stored when flushed.

source -> Batch -> **writer** -> cache

Each connection has a thread that encodes a batch and sends it in requests of about 1 MB, a few
of them unanswered at a time, so that encoding, the network and the node work at once.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import Final

import numpy as np

from ignitetf.errors import IgniteTFError, RequestTimeout
from ignitetf.load.route import find_route
from ignitetf.load.sender import POLL_S, Flush, Job, Sender, Totals, Work, WorkQueue
from ignitetf.net.client import Client
from ignitetf.wire.codes import OpCode
from ignitetf.wire.register import binary_type_requests
from ignitetf.wire.schema import Batch, Schema

__all__ = ["Totals", "Work", "Writer", "register_types"]

# Smaller requests cost both sides more for the same rows.
REQUEST_BYTES: Final = 4 << 20
IN_FLIGHT: Final = 3
CONNECTIONS: Final = 2
_QUEUED_BATCHES: Final = 2
# A load that is given up waits so long for the node to be done with what it has.
_GIVE_UP_S: Final = 15.0
_LAST_WAIT_S: Final = 5.0
_AT_ONCE_S: Final = 0.5


def register_types(client: Client, schema: Schema) -> None:
    """Make the binary types of a schema known to the cluster."""
    for request in binary_type_requests(schema):
        client.call(OpCode.BINARY_TYPE_PUT, request)


class Writer:
    """Writes batches of one schema into one cache; a context manager, for one thread.

    Leaving the block normally stores everything. Leaving it by an error gives up what was not
    sent, and waits until the node is done with the rest; by Ctrl-C or a signal, it does not wait
    either, unless there is a data streamer, whose end a node has to see.
    """

    def __init__(
        self,
        client: Client,
        cache: str,
        schema: Schema,
        *,
        entry_schema: Schema | None = None,
        partitions: int | None = None,
        overwrite: bool = True,
        connections: int = CONNECTIONS,
        in_flight: int = IN_FLIGHT,
        request_bytes: int = REQUEST_BYTES,
        streamer: bool = False,
        check_lease: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the connections.

        Args:
            client: The client to take connections from.
            cache: Name of the cache, which exists.
            schema: The rows that are counted.
            entry_schema: The records that are stored, where they are not the rows.
            partitions: Number of partitions of the cache, to count the rows of each.
            overwrite: Whether a row replaces one that has its key already; False is for an
                empty cache, where it leaves out the search for an older row.
            connections: Number of connections, each with a thread.
            in_flight: Requests of one connection that wait for their answer.
            request_bytes: Size of a request, if one row is not larger.
            streamer: Whether to take the data streamer instead of `put_all`, where the server
                has it; see `sender` for what it costs.
            check_lease: Called before each request; raises where the cache is somebody else's.
        """
        self.client, self.cache, self.schema = client, cache, schema
        self._job = Job(
            client,
            cache,
            schema,
            entry_schema or schema,
            overwrite=overwrite,
            streamer=streamer,
            in_flight=in_flight,
            request_bytes=request_bytes,
            check_lease=check_lease,
        )
        if partitions is not None:
            self.totals.partition_rows = np.zeros(partitions, np.int64)
        self._route = find_route(client, cache, schema)
        self._senders = self._make_senders(connections)

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
            # Ctrl-C in the middle of those, with a thread in wait for another.
            at_once = True
            raise
        finally:
            self._give_up(at_once=at_once)

    def write(self, work: Work | Batch) -> None:
        """Hand over rows; waits while the node is behind.

        Raises:
            IgniteTFError: Earlier rows could not be written.
        """
        work = Work(work) if isinstance(work, Batch) else work
        if self._route is None:
            self._put(work, self._senders[0])
        elif work.entries is not None:
            self._put(work, self._senders[self._route.next_place()])
        else:
            for place, rows in self._route.split(work.rows):
                self._put(Work(rows), self._senders[place])

    def flush(self) -> None:
        """Wait until everything that was written is stored.

        Raises:
            IgniteTFError: Something could not be written.
        """
        limit_s = self._job.flush_timeout_s
        barrier = self._job.flushing = Flush(threading.Barrier(len(self._senders)))
        for sender in self._senders:
            self._put(barrier, sender)
        deadline = time.monotonic() + limit_s + self.client.settings.request_timeout_s
        while not barrier.done.wait(POLL_S):
            self._job.check()
            if time.monotonic() > deadline:
                raise RequestTimeout(
                    f"cache {self.cache!r}: not stored within {limit_s:g} s",
                    hint="is the node overloaded? --idle-timeout sets the limit",
                )
        self._job.check()

    def _make_senders(self, connections: int) -> list[Sender]:
        """A connection to each node of the route, with a queue of its own, or some with one."""
        if self._route is not None:
            return [Sender(self._job, n, WorkQueue(_QUEUED_BATCHES)) for n in self._route.nodes]
        shared = WorkQueue(_QUEUED_BATCHES)
        return [Sender(self._job, node, shared) for node in _targets(self.client, connections)]

    def _put(self, item: Work | Flush | None, sender: Sender) -> None:
        while True:
            self._job.check()
            with contextlib.suppress(queue.Full):
                return sender.queue.put(item, timeout=POLL_S)

    def _end(self) -> None:
        """Let the threads end, which close their streams; raises what hinders them."""
        for sender in self._senders:
            self._put(None, sender)
        self._join(self._job.flush_timeout_s)
        self._job.check()

    def _give_up(self, *, at_once: bool) -> None:
        """End the threads that are left, whatever they wait for; after `_end` there are none."""
        self._job.fail(IgniteTFError("the load was given up"))
        if at_once and not self._job.streamer:
            self._join(0.0, _AT_ONCE_S)
        else:
            self._join(_GIVE_UP_S)

    def _join(self, limit_s: float, last_s: float = _LAST_WAIT_S) -> None:
        """Wait for the threads; those that take longer lose their connections."""
        self._wait(limit_s)
        for sender in self._senders:
            sender.abort()
        self._wait(last_s)

    def _wait(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        for sender in self._senders:
            sender.thread.join(max(0.0, deadline - time.monotonic()))


def _targets(client: Client, connections: int) -> list[uuid.UUID | None]:
    """The node of each connection: the server nodes in turn, where there are several."""
    nodes = client.nodes()
    if len(nodes) < 2:
        return [None] * connections
    return [nodes[i % len(nodes)].node_id for i in range(max(connections, min(len(nodes), 4)))]
