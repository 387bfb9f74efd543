"""Column batches into a cache: encoded, sent over several connections, stored when flushed.

source -> Batch -> **writer** -> cache

Each connection has a thread that encodes a batch and sends it in requests of about 1 MB, a few
of them unanswered at a time, so that encoding, the network and the node work at once.

Rows go through `put_all`, to the nodes that own them. The data streamer (ops 8000, 8001) can be
asked for; a batch that it acknowledged is stored only once a flush was answered. It is no faster
here, and a client that dies in the middle of it can take the node along: Ignite interrupts the
threads that work for a lost client's streamer, and a thread of that pool ends by that, which the
node takes for a reason to halt.

Source: Apache Ignite 2.17.0, `ClientDataStreamerStartRequest`, `ClientDataStreamerAddDataRequest`.
"""

from __future__ import annotations

import contextlib
import queue
import struct
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.client import Client, cache_id
from ignitetf.errors import IgniteTFError, RequestTimeout, ServerError, ServerOverloaded
from ignitetf.load.route import find_route
from ignitetf.sql import statement
from ignitetf.transport import Channel, damaged
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.checksum import checksum
from ignitetf.wire.codes import OpCode, Status, StreamerFlag, TypeCode
from ignitetf.wire.encode import encode_entries
from ignitetf.wire.register import binary_type_requests
from ignitetf.wire.schema import Batch, Schema

__all__ = ["Totals", "Work", "Writer", "register_types"]

_Counts = NDArray[np.int64] | None

REQUEST_BYTES: Final = 1 << 20
IN_FLIGHT: Final = 3
CONNECTIONS: Final = 2
# Bytes that the node collects for another node before it sends them on. The protocol counts
# entries; a buffer of too many bytes costs more than one of too few.
NODE_BUFFER_BYTES: Final = 4 << 20
_MIN_NODE_BUFFER: Final = 4
_MAX_NODE_BUFFER: Final = 8192
_QUEUED_BATCHES: Final = 2
_POLL_S: Final = 0.1
# A load that is given up waits so long for the node to be done with what it has.
_GIVE_UP_S: Final = 15.0
_LAST_WAIT_S: Final = 5.0
# Of a full data region Ignite leaves a few pages free.
_FULL: Final = 0.9


@dataclass
class Totals:
    """What was written: rows, bytes of their entries, checksum, rows by partition."""

    rows: int = 0
    nbytes: int = 0
    checksum: int = 0
    partition_rows: NDArray[np.int64] | None = None

    def add(self, rows: int, nbytes: int, checksum: int, counts: _Counts) -> None:
        """Take in some rows."""
        self.rows += rows
        self.nbytes += nbytes
        self.checksum = (self.checksum + checksum) % (1 << 64)
        known = self.partition_rows
        self.partition_rows = None if known is None or counts is None else known + counts


@dataclass(frozen=True)
class Work:
    """Rows to be written, and how they become entries.

    Attributes:
        rows: The rows, as they are counted.
        entries: Makes the records to be stored of them, in the writer's thread; None: the rows.
    """

    rows: Batch
    entries: Callable[[Batch], Batch] | None = None


def register_types(client: Client, schema: Schema) -> None:
    """Make the binary types of a schema known to the cluster."""
    for request in binary_type_requests(schema):
        client.call(OpCode.BINARY_TYPE_PUT, request)


def memory_full(client: Client) -> ServerOverloaded | None:
    """The error to tell when a data region of the node is full; None when none is.

    A failed update answers with the keys alone, so that the reason must be looked for.
    """
    sizes: dict[str, dict[str, int]] = {}
    with contextlib.suppress(IgniteTFError):
        for name, value in client.sql(statement("memory")).fetchall():
            region, _, kind = name.removeprefix("io.dataregion.").rpartition(".")
            sizes.setdefault(region, {})[kind] = int(value)
    for region, size in sizes.items():
        used, most = size.get("TotalUsedSize", 0), size.get("MaxSize", 0)
        if used > _FULL * most > 0:
            return ServerOverloaded(
                f"the node's memory is full: {used >> 20:,} of {most >> 20:,} MB of the data"
                f" region {region!r} are in use",
                hint="give the node more memory, or remove data",
            )
    return None


class Writer:
    """Writes batches of one schema into one cache; a context manager, for one thread.

    Leaving the block normally stores everything; leaving it by an exception (Ctrl-C too) gives
    up what was not sent, and waits until the node is done with the rest.

    Attributes:
        totals: What was handed to the node; all of it is stored after `flush`.
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
                has it; see above for what it costs.
        """
        self.client, self.cache, self.schema = client, cache, schema
        self.entry_schema = entry_schema or schema
        self.totals = Totals()
        if partitions is not None:
            self.totals.partition_rows = np.zeros(partitions, np.int64)
        self.overwrite, self.streamer = overwrite, streamer
        self.in_flight, self.request_bytes = in_flight, request_bytes
        settings = client.settings
        # A flush waits for all that is on its way, so it may take longer than another request.
        self.flush_timeout_s = max(settings.idle_timeout_s, settings.request_timeout_s)
        self._lock = threading.Lock()
        self._failed: BaseException | None = None
        self._flushing: _Flush | None = None
        self._route = find_route(client, cache, schema)
        if self._route is not None:
            self._lines = [_Line(self, node, _Queue(_QUEUED_BATCHES)) for node in self._route.nodes]
        else:
            shared = _Queue(_QUEUED_BATCHES)
            self._lines = [_Line(self, node, shared) for node in _targets(client, connections)]

    def __enter__(self) -> Writer:
        for line in self._lines:
            line.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self._stop(clean=kind is None and self._failed is None)

    def write(self, work: Work | Batch) -> None:
        """Hand over rows; waits while the node is behind.

        Raises:
            IgniteTFError: Earlier rows could not be written.
        """
        work = Work(work) if isinstance(work, Batch) else work
        if self._route is None:
            self._put(work, self._lines[0])
        elif work.entries is not None:
            self._put(work, self._lines[self._route.turn()])
        else:
            for place, rows in self._route.split(work.rows):
                self._put(Work(rows), self._lines[place])

    def flush(self) -> None:
        """Wait until everything that was written is stored.

        Raises:
            IgniteTFError: Something could not be written.
        """
        barrier = self._flushing = _Flush(threading.Barrier(len(self._lines)))
        for line in self._lines:
            self._put(barrier, line)
        deadline = time.monotonic() + self.flush_timeout_s + self.client.settings.request_timeout_s
        while not barrier.done.wait(_POLL_S):
            self._check()
            if time.monotonic() > deadline:
                raise RequestTimeout(
                    f"cache {self.cache!r}: not stored within {self.flush_timeout_s:g} s",
                    hint="is the node overloaded? --idle-timeout sets the limit",
                )
        self._check()

    def count(self, rows: Batch, nbytes: int) -> None:
        """Add rows to the totals; called by the connections' threads."""
        counts = None
        known = self.totals.partition_rows
        if known is not None and rows.key is not None:
            partitions = partitions_of(self.schema, rows.key, len(known))
            if partitions is not None:
                counts = np.bincount(partitions, minlength=len(known))
        total = checksum(self.schema, rows)
        with self._lock:
            self.totals.add(len(rows), nbytes, total, counts)

    def take(self, waiting: _Queue) -> Work | _Flush | None:
        """The next piece of work; waits for it. None ends the thread."""
        while self._failed is None:
            with contextlib.suppress(queue.Empty):
                return waiting.get(timeout=_POLL_S)
        return None

    def fail(self, error: BaseException) -> None:
        """Note the first error of a connection, for the caller of the next method."""
        with self._lock:
            if self._failed is None:
                self._failed = error
            if self._flushing is not None:
                self._flushing.barrier.abort()

    def _put(self, item: Work | _Flush | None, line: _Line) -> None:
        while True:
            self._check()
            with contextlib.suppress(queue.Full):
                return line.queue.put(item, timeout=_POLL_S)

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _stop(self, *, clean: bool) -> None:
        if clean:
            for line in self._lines:
                self._put(None, line)
        else:
            self.fail(IgniteTFError("the load was given up"))
        deadline = time.monotonic() + (self.flush_timeout_s if clean else _GIVE_UP_S)
        for line in self._lines:
            line.thread.join(max(0.0, deadline - time.monotonic()))
        for line in self._lines:
            line.abort()
            line.thread.join(_LAST_WAIT_S)
        if clean:
            self._check()


@dataclass
class _Flush:
    """Asks every connection for a flush; the last to finish says that all is stored."""

    barrier: threading.Barrier
    done: threading.Event = field(default_factory=threading.Event)


_Queue = queue.Queue[Work | _Flush | None]


class _Line:
    """One connection and its thread."""

    def __init__(self, writer: Writer, node: uuid.UUID | None, work: _Queue) -> None:
        self.writer = writer
        self.node = node
        self.queue = work
        self.thread = threading.Thread(target=self._run, name="ignitetf-writer", daemon=True)
        self.channel: Channel | None = None
        self.stream: int | None = None
        self.buffers = BufferPool()
        self.waiting: deque[int] = deque()
        self.last: tuple[int, memoryview] | None = None
        self._aborted = False

    def abort(self) -> None:
        """End the thread soon, whatever it waits for."""
        self._aborted = True
        if self.channel is not None:
            self.channel.abort()

    def _run(self) -> None:
        try:
            self.channel = self.writer.client.acquire(self.node)
            while (item := self.writer.take(self.queue)) is not None:
                if isinstance(item, Work):
                    self._write(item)
                    del item
                    continue
                self._flush(StreamerFlag.FLUSH)
                if item.barrier.wait(self.writer.flush_timeout_s) == 0:
                    item.done.set()
            if not self._aborted and self.writer._failed is None:
                self._flush(StreamerFlag.FLUSH | StreamerFlag.CLOSE)
                self.writer.client.release(self.channel)
                self.channel = None
        except threading.BrokenBarrierError:
            self.writer.fail(RequestTimeout(f"cache {self.writer.cache!r}: a flush took too long"))
        except ServerError as error:
            self.writer.fail(self._cause(error))
        except BaseException as error:
            self.writer.fail(error)
        finally:
            if self.channel is not None:
                self._settle()
                self.channel.close()

    def _settle(self) -> None:
        """Close a stream that is given up, before its connection.

        Ignite interrupts the threads that work for a stream whose connection ends; one of them
        may die of it, and its node with it (2.17.0, `StripedExecutor`).
        """
        if self.stream is None or self._aborted:
            return
        with contextlib.suppress(IgniteTFError):
            while self.waiting:
                with contextlib.suppress(ServerError):
                    self._receive()
            self._flush(StreamerFlag.FLUSH | StreamerFlag.CLOSE)

    def _write(self, work: Work) -> None:
        entries_of = work.entries or (lambda rows: rows)
        page = encode_entries(self.writer.entry_schema, entries_of(work.rows), self.buffers)
        self.writer.count(work.rows, page.nbytes)
        if self.writer.streamer and self.stream is None:
            self._start(max(1, page.nbytes // max(1, len(page))))
        for count, entries in page.pieces(self.writer.request_bytes):
            self._send(count, entries)
            while len(self.waiting) > self.writer.in_flight:
                self._receive()

    def _start(self, entry_bytes: int) -> None:
        """Open a data streamer; without one in the server, go on with `put_all`."""
        assert self.channel is not None
        buffer = min(max(NODE_BUFFER_BYTES // entry_bytes, _MIN_NODE_BUFFER), _MAX_NODE_BUFFER)
        request = struct.pack(
            "<ibiibi",
            cache_id(self.writer.cache),
            self._flags(),
            buffer,
            buffer,
            TypeCode.NULL,
            0,
        )
        try:
            body = self.channel.call(OpCode.DATA_STREAMER_START, request)
        except ServerError as error:
            if error.fields.get("status") != Status.INVALID_OP_CODE:
                raise
            self.writer.streamer = False
            return
        with damaged("the id of a data streamer"):
            (self.stream,) = struct.unpack_from("<q", body, 0)

    def _flags(self) -> int:
        overwrite = StreamerFlag.ALLOW_OVERWRITE if self.writer.overwrite else 0
        return int(StreamerFlag.KEEP_BINARY | overwrite)

    def _send(self, count: int, entries: memoryview) -> None:
        assert self.channel is not None
        if self.stream is None:
            head = struct.pack("<ibi", cache_id(self.writer.cache), 0, count)
            self.waiting.append(self.channel.send(OpCode.CACHE_PUT_ALL, head, entries))
        else:
            self.last = count, entries
            head = struct.pack("<qbi", self.stream, self._flags(), count)
            self.waiting.append(self.channel.send(OpCode.DATA_STREAMER_ADD_DATA, head, entries))

    def _cause(self, error: ServerError) -> IgniteTFError:
        """What stopped a data streamer, whose own error does not say it.

        The rows that were sent last are put without it; that they are stored then is harmless.
        """
        if self.stream is None or self.last is None:
            failed = "Failed to update keys" in error.message
            return (memory_full(self.writer.client) if failed else None) or error
        count, entries = self.last
        head = struct.pack("<ibi", cache_id(self.writer.cache), 0, count)
        try:
            with self.writer.client.channel() as channel:
                channel.receive(channel.send(OpCode.CACHE_PUT_ALL, head, entries))
        except ServerError as found:
            return memory_full(self.writer.client) or found
        except IgniteTFError as found:
            return found
        return error

    def _receive(self) -> None:
        assert self.channel is not None
        self.channel.receive(self.waiting.popleft())

    def _flush(self, flags: int) -> None:
        assert self.channel is not None
        while self.waiting:
            self._receive()
        if self.stream is None:
            return
        request = struct.pack("<qbi", self.stream, self._flags() | int(flags), 0)
        self.channel.call(
            OpCode.DATA_STREAMER_ADD_DATA, request, timeout_s=self.writer.flush_timeout_s
        )
        if flags & StreamerFlag.CLOSE:
            self.stream = None


def _targets(client: Client, connections: int) -> list[uuid.UUID | None]:
    """The node of each connection: the server nodes in turn, where there are several."""
    nodes = client.nodes()
    if len(nodes) < 2:
        return [None] * connections
    return [nodes[i % len(nodes)].node_id for i in range(max(connections, min(len(nodes), 4)))]
