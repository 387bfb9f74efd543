"""The chunk cache: file content as numbered chunks, with several requests in flight.

store -> **chunks** -> client

Key: a UUID of content id and chunk number (its hash spreads consecutive chunks over the
partitions). Value: a byte array of 4 bytes CRC-32 (little-endian) followed by the data.

A put is answered only when the primary and all backups have it, so there is nothing to flush
later. With chunks of 1 MiB and six puts in flight this was as fast as a data streamer could be
(1,230 MB/s, against 1,380 of bare puts and 1,390 of a bare streamer, on one machine with two
cores), and after a lost connection only the chunks of a window must be sent again. How many are in
flight is decided by `net.exchange`.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ignitetf.crc import crc32
from ignitetf.errors import WireError
from ignitetf.fs.path import os_error
from ignitetf.fs.records import Extent
from ignitetf.net.client import Client, cache_id
from ignitetf.net.exchange import Exchange
from ignitetf.net.failures import retry
from ignitetf.threads import held
from ignitetf.wire.answers import damaged, read_sized, sized_at, uuid_at
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.frames import Page, read_first_page, read_page
from ignitetf.wire.requests import (
    batch_request,
    cache_request,
    cursor_request,
    encode_uuid,
    scan_request,
    sized_head,
)

__all__ = ["CHUNK_BYTES", "ChunkCache", "ContentReader", "ContentWriter", "as_bytes"]

CHUNK_BYTES: Final = 1 << 20
_KEPT_CHUNKS: Final = 2
# A first read of this many chunks counts as the beginning of a sequential one.
_BULK_CHUNKS: Final = 4
# Each step of a sequential read multiplies the read-ahead by this factor. On a distant link a step
# takes a round trip; on a near one a few steps fill the whole window.
_READ_AHEAD_FACTOR: Final = 8
_REMOVE_BATCH: Final = 512
_CHECKSUM_BYTES: Final = 4
_SCAN_PAGE: Final = 8  # entries, each with a whole chunk


def as_bytes(view: memoryview) -> memoryview:
    """Return a view of the same memory as bytes, as a local file takes an array of any type.

    Raises:
        TypeError: It is not contiguous.
    """
    if not view.nbytes:
        return memoryview(b"")  # one with a length of zero cannot be cast
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _put_head(cache: int, content: int, number: int, size: int, checksum: int) -> bytes:
    """Return the bytes that precede the data in the request that stores a chunk of `size` bytes."""
    value = sized_head(TypeCode.BYTE_ARRAY, _CHECKSUM_BYTES + size)
    head = cache_request(cache, encode_uuid(content, number), value)
    return head + checksum.to_bytes(_CHECKSUM_BYTES, "little")


_KEY_BYTES: Final = len(encode_uuid(0, 0))
_HEAD_BYTES: Final = len(_put_head(0, 0, 0, 0, 0))


class ChunkCache:
    """The chunks of one file system."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.id = cache_id(name)
        self.make_room: Callable[[], object] = lambda: None  # called if memory is full

    def remove(self, content_id: str, numbers: Iterable[int]) -> None:
        """Remove chunks of one content; missing ones are ignored."""
        self.remove_all((content_id, number) for number in numbers)

    def remove_all(self, chunks: Iterable[tuple[str, int]]) -> None:
        """Remove chunks, given as (content id, number); missing ones are ignored."""
        keys = (encode_uuid(int(content, 16), number) for content, number in chunks)
        while batch := list(itertools.islice(keys, _REMOVE_BATCH)):
            self._remove_keys(batch_request(self.id, batch))

    def _remove_keys(self, request: bytes) -> None:
        retry(self.client.settings, lambda _: self.client.call(OpCode.CACHE_REMOVE_KEYS, request))

    def count(self) -> int:
        """Return the number of chunks of all files."""
        return self.client.cache_size(self.name)

    def scan(self) -> Iterator[tuple[str, int]]:
        """Yield the content id and number of every chunk; reads the whole cache."""
        with self.client.channel() as channel:
            body = channel.call(OpCode.QUERY_SCAN, scan_request(self.id, _SCAN_PAGE))
            cursor, page = read_first_page(body)
            yield from _scanned_keys(page)
            while page.more:
                body = channel.call(OpCode.QUERY_SCAN_PAGE, cursor_request(cursor))
                page = read_page(body)
                yield from _scanned_keys(page)


def _scanned_keys(page: Page) -> list[tuple[str, int]]:
    """Return the content ids and numbers of the chunks in a page."""
    at, body = 0, page.data.data
    found = []
    with damaged("chunks of a file system"):
        for _ in range(page.count):
            content, number = divmod(uuid_at(body, at + 1).int, 1 << 64)
            found.append((f"{content:016x}", number))
            _, _, at = sized_at(body, at + _KEY_BYTES)
    return found


class ContentWriter:
    """Appends bytes to new content. Not thread-safe.

    Attributes:
        content_id: Id of the content.
        chunk_bytes: Size of a chunk.
        size: Bytes accepted so far.
    """

    def __init__(self, cache: ChunkCache, content_id: str, chunk_bytes: int) -> None:
        self.content_id = content_id
        self.chunk_bytes = chunk_bytes
        self.size = 0
        self._cache = cache
        self._content = int(content_id, 16)
        self._puts = Exchange(cache.client, self._stored_chunk, make_room=lambda: cache.make_room())
        self._number = 0
        self._filled = 0
        self._stored = 0  # bytes of the current chunk that are already in the cache
        self._free: list[bytearray] = []
        self._buffer: bytearray | None = None

    @property
    def chunks(self) -> int:
        """Number of chunks, including an unfinished one."""
        return self._number + (1 if self._filled else 0)

    def write(self, data: memoryview) -> None:
        """Append a copy of the bytes."""
        at, total = 0, len(data)
        while at < total:
            if self._buffer is None:
                self._buffer = self._take_buffer()
            count = min(total - at, self.chunk_bytes - self._filled)
            begin = _HEAD_BYTES + self._filled
            self._buffer[begin : begin + count] = data[at : at + count]
            self._filled += count
            self.size += count
            at += count
            if self._filled == self.chunk_bytes:
                self._send()
                self._buffer, self._number = None, self._number + 1
                self._filled = self._stored = 0

    def flush(self) -> None:
        """Block until all bytes are stored, on the primary and all backups."""
        if self._filled > self._stored:
            self._send()
            self._stored = self._filled
        self._puts.finish()
        self._puts.close()

    def abandon(self) -> None:
        """Drop the requests in flight."""
        self._puts.close()
        self._buffer = None

    def _take_buffer(self) -> bytearray:
        return self._free.pop() if self._free else bytearray(_HEAD_BYTES + self.chunk_bytes)

    def _send(self) -> None:
        assert self._buffer is not None
        view = memoryview(self._buffer)[: _HEAD_BYTES + self._filled]
        checksum = crc32(view[_HEAD_BYTES:])
        view[:_HEAD_BYTES] = _put_head(
            self._cache.id, self._content, self._number, self._filled, checksum
        )
        self._puts.send(self._buffer, OpCode.CACHE_PUT, view)

    def _stored_chunk(self, buffer: bytearray, _: memoryview) -> None:
        if buffer is not self._buffer:
            self._free.append(buffer)


@dataclass(frozen=True)
class _Piece:
    """The part of one chunk that belongs to a file.

    Attributes:
        content: Content id as a number.
        number: Number of the chunk.
        low: Offset in the chunk of the first byte that belongs to the file.
        high: Offset after the last such byte.
    """

    content: int
    number: int
    low: int
    high: int


def _pieces(extents: Sequence[Extent]) -> list[_Piece]:
    found = []
    for extent in extents:
        content, at = int(extent.content_id, 16), extent.start
        while at < extent.end:
            number, low = divmod(at, extent.chunk_bytes)
            high = min(extent.chunk_bytes, low + extent.end - at)
            found.append(_Piece(content, number, low, high))
            at += high - low
    return found


class ContentReader:
    """Reads a file at any offset, from any number of threads.

    One thread at a time reads ahead and keeps the latest chunks; meanwhile the others fetch from
    the cluster directly. The content is that of the moment when the file was opened.
    """

    def __init__(self, cache: ChunkCache, extents: Sequence[Extent], path: str) -> None:
        self.size = sum(extent.size for extent in extents)
        self._cache = cache
        self._path = path
        self._pieces = _pieces(extents)
        self._starts = []
        at = 0
        for piece in self._pieces:
            self._starts.append(at)
            at += piece.high - piece.low
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, memoryview] = OrderedDict()
        self._ahead = _ReadAhead(self)
        self._next = 0
        self._depth = 0
        self.chunk_bytes = max((extent.chunk_bytes for extent in extents), default=CHUNK_BYTES)

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill the target from an offset on, and return the number of bytes read."""
        count = max(0, min(len(target), self.size - offset))
        if count == 0:
            return 0
        first = bisect.bisect_right(self._starts, offset) - 1
        last = bisect.bisect_left(self._starts, offset + count) - 1
        if self._lock.acquire(blocking=False):
            try:
                self._sequential(first, last)
                for index in range(first, last + 1):
                    data = self._chunk(index, last)
                    self._copy(index, data, offset, target[:count])
                self._next = last + 1
            except BaseException:
                self._ahead.close()
                raise
            finally:
                self._lock.release()
        else:
            with contextlib.closing(_ReadAhead(self)) as direct:
                for index in range(first, last + 1):
                    data = direct.chunk(index, last)
                    self._copy(index, data, offset, target[:count])
        return count

    def close(self) -> None:
        """Release the connection and the chunks."""
        with held(self._lock):
            self._ahead.close()
            self._kept.clear()

    def _sequential(self, first: int, last: int) -> None:
        """Read further ahead the longer the access has been sequential."""
        if not 0 <= self._next - first <= 1:
            self._depth = 0
        elif last >= self._next > 0 or last + 1 - first >= _BULK_CHUNKS:
            self._depth = _READ_AHEAD_FACTOR * max(self._depth, last + 1 - first)

    def _chunk(self, index: int, last: int) -> memoryview:
        if index in self._kept:
            return self._kept[index]
        until = min(max(last, index + self._depth), len(self._pieces) - 1)
        data = self._ahead.chunk(index, until)
        self._kept[index] = data
        if len(self._kept) > _KEPT_CHUNKS:
            self._kept.popitem(last=False)
        return data

    def _copy(self, index: int, data: memoryview, offset: int, target: memoryview) -> None:
        begin = self._starts[index] - offset
        skip = max(0, -begin)
        part = data[skip : len(target) - begin]
        target[begin + skip : begin + skip + len(part)] = part

    def request(self, index: int) -> bytes:
        """Return the request for the chunk of a piece."""
        piece = self._pieces[index]
        return cache_request(self._cache.id, encode_uuid(piece.content, piece.number))

    def check(self, index: int, body: memoryview) -> memoryview:
        """Verify the checksum of an answer and return the bytes of the piece."""
        piece = self._pieces[index]
        where = f"chunk {piece.number} of content {piece.content:016x}"
        try:
            code, value = read_sized(body, where)
        except WireError as error:
            raise os_error(errno.EIO, self._path, f"{where} is damaged") from error
        if code is TypeCode.NULL:
            raise os_error(
                errno.ESTALE, self._path, f"{where} is gone: the file was replaced or removed"
            )
        if code is not TypeCode.BYTE_ARRAY or len(value) < _CHECKSUM_BYTES:
            raise os_error(errno.EIO, self._path, f"{where} is damaged")
        checksum, data = value[:_CHECKSUM_BYTES], value[_CHECKSUM_BYTES:]
        if crc32(data) != int.from_bytes(checksum, "little"):
            raise os_error(errno.EIO, self._path, f"{where} does not match its checksum")
        if len(data) < piece.high:
            raise os_error(errno.EIO, self._path, f"{where} is cut at {len(data)} bytes")
        return data[piece.low : piece.high]

    @property
    def cache(self) -> ChunkCache:
        """The cache that holds the chunks."""
        return self._cache


class _ReadAhead:
    """Requests consecutive chunks before they are needed."""

    def __init__(self, reader: ContentReader) -> None:
        self._reader = reader
        self._here: dict[int, memoryview] = {}
        self._gets = Exchange(reader.cache.client, self._here.__setitem__)
        # The chunks that were requested but not returned yet.
        self._asked = range(0)

    def chunk(self, index: int, until: int) -> memoryview:
        """Return the chunk of a piece, and request the following ones up to `until`."""
        if index != self._asked.start:
            self.close()
            self._asked = range(index, index)
        size = self._reader.chunk_bytes
        for number in range(self._asked.stop, until + 1):
            if number > index and not self._gets.has_room(size * len(self._here)):
                break
            request = self._reader.request(number)
            self._gets.send(number, OpCode.CACHE_GET, request, expects=size)
            self._asked = range(index, number + 1)
        while index not in self._here:
            self._gets.receive()
        body = self._here.pop(index)
        self._asked = range(index + 1, self._asked.stop)
        if not len(self._gets):
            self._gets.close()
        return self._reader.check(index, body)

    def close(self) -> None:
        """Drop the pending requests."""
        self._asked = range(0)
        self._here.clear()
        self._gets.close()
