"""One connection of a writer, with the thread that encodes and sends.

work -> **entries -> requests** -> cache

Rows go through `put_all`, to the nodes that own them. The data streamer (ops 8000, 8001) can be
asked for; a batch that it acknowledged is stored only once a flush was answered. It is no faster
here, and a client that dies in the middle of it can take the node along: Ignite interrupts the
threads that work for a lost client's streamer, and a thread of that pool ends by that, which the
node takes for a reason to halt.

Source: Apache Ignite 2.17.0, `ClientDataStreamerStartRequest`, `ClientDataStreamerAddDataRequest`.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import Final

from ignitetf.errors import IgniteTFError, RequestTimeout, ServerError
from ignitetf.load.work import Job, Work, WorkQueue
from ignitetf.net.client import cache_id
from ignitetf.net.pipeline import InFlight
from ignitetf.tables.room import memory_full
from ignitetf.wire.answers import read_long
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.codes import OpCode, Status, StreamerFlag
from ignitetf.wire.encode import encode_entries
from ignitetf.wire.requests import batch_head, streamer_head, streamer_start_request

__all__ = ["Line"]

# Bytes that the node collects for another node before it sends them on. The protocol counts
# entries; a buffer of too many bytes costs more than one of too few.
_NODE_BUFFER_BYTES: Final = 4 << 20
_MIN_NODE_BUFFER: Final = 4
_MAX_NODE_BUFFER: Final = 8192


class Line:
    """One connection and its thread."""

    def __init__(self, job: Job, node: uuid.UUID | None, work: WorkQueue) -> None:
        self.job = job
        self.node = node
        self.queue = work
        self.thread = threading.Thread(target=self._run, name="ignitetf-writer", daemon=True)
        self.sent: InFlight | None = None
        self.stream: int | None = None
        self.buffers = BufferPool()
        self.last: tuple[int, list[memoryview]] | None = None
        self._aborted = False

    def abort(self) -> None:
        """End the thread soon, whatever it waits for."""
        self._aborted = True
        if self.sent is not None:
            self.sent.channel.abort()

    def _run(self) -> None:
        try:
            self.sent = InFlight(self.job.client.acquire(self.node), self.job.in_flight)
            while (item := self.job.take(self.queue)) is not None:
                if isinstance(item, Work):
                    self._write(item)
                    del item
                    continue
                self._flush(StreamerFlag.FLUSH)
                if item.barrier.wait(self.job.flush_timeout_s) == 0:
                    item.done.set()
            if not self._aborted and self.job.failed is None:
                self._flush(StreamerFlag.FLUSH | StreamerFlag.CLOSE)
                self.job.client.release(self.sent.channel)
                self.sent = None
        except threading.BrokenBarrierError:
            self.job.fail(RequestTimeout(f"cache {self.job.cache!r}: a flush took too long"))
        except ServerError as error:
            self.job.fail(self._cause(error))
        except BaseException as error:
            self.job.fail(error)
        finally:
            if self.sent is not None:
                self._settle(self.sent)
                self.sent.channel.close()

    def _settle(self, sent: InFlight) -> None:
        """Close a stream that is given up, before its connection.

        Ignite interrupts the threads that work for a stream whose connection ends; one of them
        may die of it, and its node with it (2.17.0, `StripedExecutor`).
        """
        if self.stream is None or self._aborted:
            return
        with contextlib.suppress(IgniteTFError):
            while len(sent):
                with contextlib.suppress(ServerError):
                    sent.receive()
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
        """Open a data streamer; without one in the server, go on with `put_all`."""
        assert self.sent is not None
        buffer = min(max(_NODE_BUFFER_BYTES // entry_bytes, _MIN_NODE_BUFFER), _MAX_NODE_BUFFER)
        request = streamer_start_request(cache_id(self.job.cache), self._flags(), buffer)
        try:
            body = self.sent.channel.call(OpCode.DATA_STREAMER_START, request)
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
        assert self.sent is not None
        self.job.check_lease()
        if self.stream is None:
            head = batch_head(cache_id(self.job.cache), count)
            self.sent.send(OpCode.CACHE_PUT_ALL, head, *views)
        else:
            self.last = count, views
            head = streamer_head(self.stream, self._flags(), count)
            self.sent.send(OpCode.DATA_STREAMER_ADD_DATA, head, *views)

    def _cause(self, error: ServerError) -> IgniteTFError:
        """What stopped a data streamer, whose own error does not say it.

        The rows that were sent last are put without it; that they are stored then is harmless.
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
        assert self.sent is not None
        self.sent.drain()
        if self.stream is None:
            return
        request = streamer_head(self.stream, self._flags() | flags, 0)
        self.sent.channel.call(
            OpCode.DATA_STREAMER_ADD_DATA, request, timeout_s=self.job.flush_timeout_s
        )
        if flags & StreamerFlag.CLOSE:
            self.stream = None
