"""The connections of a writer: each has a thread that takes work, encodes it and sends it.

writer -> work -> **entries -> requests** -> cache

The senders of one writer share a `Job`: what to write and how, the totals, the first error.

Rows go through `put_all` to the nodes that own them. The data streamer (ops 8000, 8001) is
optional; a batch that it acknowledged is stored only once a flush has been answered. It is no
faster here, and a client that dies while streaming can take the node down: Ignite interrupts the
threads that work for a lost client's streamer, a thread of that pool ends because of it, and the
node takes that for a reason to halt.

Source: Apache Ignite 2.17.0, `ClientDataStreamerStartRequest`, `ClientDataStreamerAddDataRequest`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import IgniteTFError, RequestTimeout, ServerError
from ignitetf.net.client import Client, cache_id
from ignitetf.net.exchange import Exchange, Repeat
from ignitetf.tables.room import memory_full
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.answers import read_long
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.checksum import checksum
from ignitetf.wire.codes import OpCode, Status, StreamerFlag
from ignitetf.wire.columns import Batch
from ignitetf.wire.encode import EncodedPage, encode_entries
from ignitetf.wire.requests import batch_head, streamer_head, streamer_start_request
from ignitetf.wire.schema import Schema

__all__ = ["POLL_S", "Flush", "Job", "Sender", "Totals", "Work", "WorkQueue"]

_Counts = NDArray[np.int64] | None

POLL_S: Final = 0.1

# Bytes that the node collects for another node before it sends them on. The protocol counts
# entries; a buffer that is too large costs more than one that is too small.
_NODE_BUFFER_BYTES: Final = 4 << 20
_MIN_NODE_BUFFER: Final = 4
_MAX_NODE_BUFFER: Final = 8192


@dataclass
class Totals:
    """What was written: rows, bytes of their entries, checksum, rows by partition."""

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
    """Rows to write, and how they become entries.

    Attributes:
        rows: The rows, as they are counted.
        entries: Makes the records to store from the rows, in the sender's thread; None stores the
            rows.
    """

    rows: Batch
    entries: Callable[[Batch], Batch] | None = None


@dataclass
class Flush:
    """Asks every connection to flush; once the last one has, everything is stored."""

    barrier: threading.Barrier
    done: threading.Event = field(default_factory=threading.Event)


WorkQueue = queue.Queue[Work | Flush | None]


@dataclass
class Job:
    """What the connections of a writer do, and their progress.

    Attributes:
        client: The client to take connections from.
        cache: Name of the cache.
        schema: The rows that are counted.
        entry_schema: The records that are stored.
        overwrite: Whether a row replaces one with the same key.
        streamer: Whether to use the data streamer if the server has it.
        request_bytes: Size of a request, unless a single row is larger.
        check_lease: Called before each request; raises if writing is no longer allowed.
        totals: What was handed to the node.
        failed: The first error of a connection.
        flushing: The current flush, or the last one.
    """

    client: Client
    cache: str
    schema: Schema
    entry_schema: Schema
    overwrite: bool
    streamer: bool
    request_bytes: int
    check_lease: Callable[[], None]
    totals: Totals = field(default_factory=Totals)
    failed: BaseException | None = None
    flushing: Flush | None = None

    def __post_init__(self) -> None:
        """Take the time limit of a flush from the settings."""
        settings = self.client.settings
        # A flush waits for everything on its way, so it may take longer than other requests.
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

    def next_item(self, waiting: WorkQueue) -> Work | Flush | None:
        """Wait for the next item of work and return it; None ends the thread."""
        while self.failed is None:
            with contextlib.suppress(queue.Empty):
                return waiting.get(timeout=POLL_S)
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


class Sender:
    """A thread, and its connections to a node, or to whichever answers.

    What a lost connection took along is the load's to send again, from its journal: it may have lost
    rows that were answered as well, with a node.
    """

    def __init__(self, job: Job, node: uuid.UUID | None, work: WorkQueue) -> None:
        self.job = job
        self.node = node
        self.queue = work
        self.thread = threading.Thread(target=self._run, name="ignitetf-writer", daemon=True)
        streams = job.streamer
        self._puts = Exchange[None](
            job.client,
            lambda _, answer: None,
            node=node,
            repeat=Repeat.NEVER if streams else Repeat.REFUSED,
            connections=1 if streams else None,
        )
        self.stream: int | None = None
        self.buffers = BufferPool()
        self.last: tuple[int, list[memoryview]] | None = None
        self._aborted = False

    def abort(self) -> None:
        """End the thread soon, whatever it is waiting for."""
        self._aborted = True
        self._puts.abort()

    def _run(self) -> None:
        try:
            while (item := self.job.next_item(self.queue)) is not None:
                if isinstance(item, Work):
                    self._write(item)
                    del item
                    continue
                self._flush(StreamerFlag.FLUSH)
                if item.barrier.wait(self.job.flush_timeout_s) == 0:
                    item.done.set()
            if not self._aborted and self.job.failed is None:
                self._flush(StreamerFlag.FLUSH | StreamerFlag.CLOSE)
        except threading.BrokenBarrierError:
            self.job.fail(RequestTimeout(f"cache {self.job.cache!r}: a flush took too long"))
        except ServerError as error:
            self.job.fail(self._cause(error))
        except BaseException as error:
            self.job.fail(error)
        finally:
            self._end_stream()
            self._puts.close()

    def _end_stream(self) -> None:
        """Close an abandoned stream before its connection is closed.

        Ignite interrupts the threads that work for a stream whose connection ends; one of them may
        die of it, and take its node with it (2.17.0, `StripedExecutor`).
        """
        if self.stream is None or self._aborted:
            return
        with contextlib.suppress(IgniteTFError):
            while len(self._puts):
                with contextlib.suppress(ServerError):
                    self._puts.receive()
            self._flush(StreamerFlag.FLUSH | StreamerFlag.CLOSE)

    def _write(self, work: Work) -> None:
        entries_of = work.entries or (lambda rows: rows)
        page = encode_entries(self.job.entry_schema, entries_of(work.rows), self.buffers)
        self.job.count(work.rows, page)
        if self.job.streamer and self.stream is None:
            self._start(max(1, page.nbytes // max(1, len(page))))
        for count, views in page.pieces(self.job.request_bytes):
            self._send(count, views)

    def _start(self, entry_bytes: int) -> None:
        """Open a data streamer; if the server has none, fall back to `put_all`."""
        buffer = min(max(_NODE_BUFFER_BYTES // entry_bytes, _MIN_NODE_BUFFER), _MAX_NODE_BUFFER)
        request = streamer_start_request(cache_id(self.job.cache), self._flags(), buffer)
        try:
            body = self._puts.channel.call(OpCode.DATA_STREAMER_START, request)
        except ServerError as error:
            if error.fields.get("status") != Status.INVALID_OP_CODE:
                raise
            self.job.streamer = False
            return
        self.stream = read_long(body, "the id of a data streamer")

    def _flags(self) -> StreamerFlag:
        overwrite = StreamerFlag.ALLOW_OVERWRITE if self.job.overwrite else StreamerFlag(0)
        return StreamerFlag.KEEP_BINARY | overwrite

    def _send(self, count: int, views: list[memoryview]) -> None:
        self.job.check_lease()
        if self.stream is None:
            head = batch_head(cache_id(self.job.cache), count)
            self._puts.send(None, OpCode.CACHE_PUT_ALL, head, *views)
        else:
            self.last = count, views
            head = streamer_head(self.stream, self._flags(), count)
            self._puts.send(None, OpCode.DATA_STREAMER_ADD_DATA, head, *views)

    def _cause(self, error: ServerError) -> IgniteTFError:
        """Find out why a data streamer failed, because its own error does not say.

        The last rows sent are written again without it; it does no harm that they are stored then.
        """
        if self.stream is None or self.last is None:
            failed = "Failed to update keys" in error.message
            return (memory_full(self.job.client) if failed else None) or error
        count, views = self.last
        head = batch_head(cache_id(self.job.cache), count)
        try:
            with self.job.client.channel() as channel:
                channel.receive(channel.send(OpCode.CACHE_PUT_ALL, head, *views))
        except ServerError as found:
            return memory_full(self.job.client) or found
        except IgniteTFError as found:
            return found
        return error

    def _flush(self, flags: StreamerFlag) -> None:
        self._puts.finish()
        if self.stream is None:
            return
        request = streamer_head(self.stream, self._flags() | flags, 0)
        self._puts.channel.call(
            OpCode.DATA_STREAMER_ADD_DATA, request, timeout_s=self.job.flush_timeout_s
        )
        if flags & StreamerFlag.CLOSE:
            self.stream = None
