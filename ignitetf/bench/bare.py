"""Bare sockets with the thin client protocol and no parsing, which show a cluster's best rates.

client -> **requests over sockets** -> rows and seconds

Every page is received into the same buffer, and only its head is parsed. A pass that requests ahead
sends the request for a scan's next page as soon as the head of a page has arrived, since an earlier
pass has counted the rows. The clock starts once a socket is connected: a login takes a node 0.1 s,
and readers keep their connections.

Source: Apache Ignite 2.17.0, binary client protocol.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pyignite.utils import cache_id

from ignitetf import Client
from ignitetf.errors import ConnectError, RequestTimeout, WireError

__all__ = ["PAGE_BYTES", "Entries", "Scans", "call", "send_ahead", "sockets"]

PAGE_BYTES: Final = 4 << 20
# Bytes requested but not yet received by a pass that requests ahead, and its maximum of scans.
_AHEAD_BYTES: Final = 8 << 20
_MOST_AHEAD: Final = 100
_BUFFER_BYTES: Final = 64 << 20
# Bytes of an entry in addition to its values: key, type, field offsets.
_ENTRY_BYTES: Final = 60
# Size of one request with entries; number of connections to a node, and of requests on each.
_REQUEST_BYTES: Final = 4 << 20
_REQUEST_ENTRIES: Final = 8192
_CONNECTIONS: Final = 2
_UNANSWERED: Final = 3

_REQUEST: Final = struct.Struct("<ihq")  # length, operation, request id
_ANSWER: Final = struct.Struct("<iqh")  # length, request id, flags
_FAILED, _TOPOLOGY, _TOPOLOGY_BYTES = 1, 2, 12
_COUNT: Final = struct.Struct("<i")
_NULL: Final = 101
_KEEP_BINARY: Final = 1
_PUT_ALL, _SCAN, _SCAN_PAGE, _STREAM_START, _STREAM_DATA = 1004, 2000, 2001, 8000, 8001
_STREAM_KEEP_BINARY, _STREAM_END = 0x04, 0x18  # flush and close
_STREAM_ENTRIES: Final = 4096


@contextlib.contextmanager
def sockets(client: Client, addresses: Iterable[str]) -> Generator[list[socket.socket], None, None]:
    """Open a socket to each address; a socket's timeout becomes RequestTimeout."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(client.open_socket(address)) for address in addresses]
        try:
            yield found
        except (BlockingIOError, TimeoutError) as error:
            limit_s = client.settings.request_timeout_s
            raise RequestTimeout(f"a node did not answer within {limit_s:g} s") from error


def call(sock: socket.socket, op: int, body: bytes) -> bytes:
    """Send one request and return the body of its answer."""
    _send_request(sock, op, 0, body)
    _, left = _head(sock, memoryview(bytearray(_ANSWER.size)))
    found = bytearray(left)
    _fill(sock, memoryview(found))
    return bytes(found)


def send_ahead(
    sock: socket.socket, op: int, requests: Iterable[Sequence[Any]], unanswered: int
) -> None:
    """Send requests, each given as buffers of its body, and drop their answers.

    Args:
        sock: The connection; no requests are open before and after.
        op: The operation.
        requests: The bodies.
        unanswered: Maximum number of unanswered requests.
    """
    waiting, scratch = 0, memoryview(bytearray(1 << 20))
    for number, buffers in enumerate(requests):
        _send_request(sock, op, number, *buffers)
        waiting += 1
        if waiting >= unanswered:
            _skip(sock, scratch)
            waiting -= 1
    for _ in range(waiting):
        _skip(sock, scratch)


class Scans:
    """The scans of a cache, which can be drained repeatedly.

    Args:
        client: The cluster.
        cache: Name of the cache, which must not change meanwhile.
        row_bytes: Bytes of a row's values, the mean if rows differ.
        page_bytes: Bytes of a page, at least a row.
        shard: The index of this reader, and the number of readers. Each has some partitions.

    Attributes:
        page_rows: Rows of a page.
        rows: Rows of the partitions.
        pages: Pages of a pass.
        nbytes: Bytes of all pages.
        ahead: Open scans of a pass in addition to the one it receives, so that enough is requested.
    """

    def __init__(
        self,
        client: Client,
        cache: str,
        row_bytes: int,
        page_bytes: int = PAGE_BYTES,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self._client = client
        self._cache = cache_id(cache)
        index, readers = shard
        self._owners = {
            address: [p for p in partitions if p % readers == index]
            for address, partitions in _owners(client, cache).items()
        }
        self._counts: dict[int, int] = {}
        # The system allocates its memory only as it is written to.
        self._buffer = memoryview(np.empty(max(_BUFFER_BYTES, 4 * page_bytes), np.uint8).data)
        self.page_rows = max(1, page_bytes // (row_bytes + _ENTRY_BYTES))
        self.rows = self.pages = self.nbytes = 0
        for partition, count, entries in self._drained(0):
            self._counts[partition] = self._counts.get(partition, 0) + count
            self.rows += count
            self.pages += 1
            self.nbytes += len(entries)
        # Skip empty partitions, as a reader with row counts does.
        self._owners = {
            address: [p for p in partitions if self._counts.get(p)]
            for address, partitions in self._owners.items()
        }
        used = sum(map(len, self._owners.values()))
        each = min(self.nbytes / self.pages, self.nbytes / used) if self.nbytes else 1.0
        self.ahead = int(min(_MOST_AHEAD, max(1, _AHEAD_BYTES // max(1.0, each))))

    def drain(self, ahead: int = 0) -> tuple[int, float]:
        """Receive all pages, one node after the other.

        Args:
            ahead: Number of additional open scans; 0 requests page by page.

        Returns:
            The number of rows, and the seconds.
        """
        rows, took_s = 0, 0.0
        for address, partitions in self._owners.items():
            with sockets(self._client, [address]) as (sock,):
                begin = time.perf_counter()
                for _, count, _ in self._scanned(sock, partitions, ahead):
                    rows += count
                took_s += time.perf_counter() - begin
        return rows, took_s

    def counts(self, ahead: int = 0) -> Generator[int, None, None]:
        """Yield the number of rows of each page as it arrives."""
        for _, count, _ in self._drained(ahead):
            yield count

    def by_owner(self) -> dict[str, list[tuple[int, bytes]]]:
        """Return the entries of all pages, and their number, by the address of their node."""
        found: dict[str, list[tuple[int, bytes]]] = {}
        for address, partitions in self._owners.items():
            with sockets(self._client, [address]) as (sock,):
                pages = self._scanned(sock, partitions, self.ahead)
                found[address] = [(count, bytes(entries)) for _, count, entries in pages]
        return found

    def _drained(self, ahead: int) -> Iterator[tuple[int, int, memoryview]]:
        for address, partitions in self._owners.items():
            with sockets(self._client, [address]) as (sock,):
                yield from self._scanned(sock, partitions, ahead)

    def _scanned(
        self, sock: socket.socket, partitions: Sequence[int], ahead: int
    ) -> Iterator[tuple[int, int, memoryview]]:
        """Yield partition, entry count and entries of each page, valid until the next page."""
        waiting, scans = deque(partitions), dict[int, _Scan]()
        while waiting or scans:
            while waiting and len(scans) <= ahead:
                scan = _Scan(waiting.popleft())
                scans[scan.partition] = scan
                _send_request(sock, _SCAN, scan.partition, self._scan_body(scan.partition))
            number, left = _head(sock, self._buffer)
            scan = scans[number]
            if not scan.cursor:
                _fill(sock, self._buffer[:8])
                scan.cursor, left = bytes(self._buffer[:8]), left - 8
            _fill(sock, self._buffer[: _COUNT.size])
            (count,) = _COUNT.unpack_from(self._buffer)
            left -= _COUNT.size
            scan.rows += count
            known = self._counts.get(scan.partition) if self.rows and ahead else None
            if known is not None and scan.rows < known:
                _send_request(sock, _SCAN_PAGE, number, scan.cursor)
            if left > len(self._buffer):
                raise WireError(f"a page of {left} bytes is larger than the buffer")
            page = self._buffer[:left]
            _fill(sock, page)
            if not page[-1]:
                del scans[number]
            elif known is None or scan.rows >= known:
                _send_request(sock, _SCAN_PAGE, number, scan.cursor)
            yield scan.partition, count, page[:-1]

    def _scan_body(self, partition: int) -> bytes:
        local = False
        return struct.pack(
            "<ibbii?", self._cache, _KEEP_BINARY, _NULL, self.page_rows, partition, local
        )


@dataclass
class _Scan:
    partition: int
    cursor: bytes = b""
    rows: int = 0


class Entries:
    """Entries of a cache as the nodes sent them, which can be stored again without encoding.

    Args:
        client: The cluster.
        cache: Cache that they are read from and stored into; the present partition owners are used.
        row_bytes: Bytes of a row's values.
    """

    def __init__(self, client: Client, cache: str, row_bytes: int) -> None:
        page_bytes = min(_REQUEST_BYTES, _REQUEST_ENTRIES * (row_bytes + _ENTRY_BYTES))
        self._client = client
        self._cache = cache_id(cache)
        self._lines = [
            (address, pages[first::_CONNECTIONS])
            for address, pages in Scans(client, cache, row_bytes, page_bytes).by_owner().items()
            for first in range(_CONNECTIONS)
        ]

    def put_all(self) -> float:
        """Send the entries with PUT_ALL to their owners, and return the seconds."""

        def send(sock: socket.socket, pages: Sequence[tuple[int, bytes]]) -> None:
            head = struct.Struct("<ibi")
            bodies = ((head.pack(self._cache, 0, count), entries) for count, entries in pages)
            send_ahead(sock, _PUT_ALL, bodies, _UNANSWERED)

        return self._time_on_all_nodes(send)

    def stream(self) -> float:
        """Send the entries through a data streamer for each connection, and return the seconds."""
        flags, buffered = _STREAM_KEEP_BINARY, _STREAM_ENTRIES
        start = struct.pack("<ibiibi", self._cache, flags, buffered, buffered, _NULL, 0)
        head = struct.Struct("<8sbi")

        def send(sock: socket.socket, pages: Sequence[tuple[int, bytes]]) -> None:
            stream = call(sock, _STREAM_START, start)
            bodies = ((head.pack(stream, flags, count), entries) for count, entries in pages)
            send_ahead(sock, _STREAM_DATA, bodies, _UNANSWERED)
            call(sock, _STREAM_DATA, head.pack(stream, flags | _STREAM_END, 0))

        return self._time_on_all_nodes(send)

    def _time_on_all_nodes(self, send: Any) -> float:
        addresses = [address for address, _ in self._lines]
        with (
            sockets(self._client, addresses) as found,
            ThreadPoolExecutor(len(found)) as pool,
        ):
            begin = time.perf_counter()
            list(pool.map(send, found, [pages for _, pages in self._lines]))
            return time.perf_counter() - begin


def _owners(client: Client, cache: str) -> dict[str, list[int]]:
    """Return the partitions by the address of their owner."""
    seeds, partitions = client.settings.addresses, range(client.partition_count(cache))
    nodes = client.nodes()
    if len(nodes) < 2:
        return {seeds[0]: list(partitions)}
    address_of = {n.node_id: min(n.addresses, key=lambda a: a not in seeds) for n in nodes}
    owners = client.partition_map(cache)
    found: dict[str, list[int]] = {}
    for partition in partitions:
        owner = owners.owner(partition)
        address = seeds[0] if owner is None else address_of[owner]
        found.setdefault(address, []).append(partition)
    return found


def _send_request(sock: socket.socket, op: int, number: int, *buffers: Any) -> None:
    body = sum(map(len, buffers))
    head = _REQUEST.pack(_REQUEST.size - 4 + body, op, number)
    if body < PAGE_BYTES >> 6:
        sock.sendall(b"".join((head, *buffers)))
        return
    for buffer in (head, *buffers):
        sock.sendall(buffer)


def _head(sock: socket.socket, buffer: memoryview) -> tuple[int, int]:
    """Receive the head of an answer; return the request's id and the bytes that follow."""
    _fill(sock, buffer[: _ANSWER.size])
    length, number, flags = _ANSWER.unpack_from(buffer)
    left = length - (_ANSWER.size - 4)
    if flags & _TOPOLOGY:
        _fill(sock, buffer[:_TOPOLOGY_BYTES])
        left -= _TOPOLOGY_BYTES
    if flags & _FAILED:
        raise WireError("a node answered a bare request with an error")
    return number, left


def _skip(sock: socket.socket, scratch: memoryview) -> None:
    """Receive an answer and discard it."""
    _, left = _head(sock, scratch)
    while left:
        part = min(left, len(scratch))
        _fill(sock, scratch[:part])
        left -= part


def _fill(sock: socket.socket, view: memoryview) -> None:
    # Each call over TLS returns a record of at most 16 KB.
    flags = 0 if isinstance(sock, ssl.SSLSocket) else getattr(socket, "MSG_WAITALL", 0)
    at = 0
    while at < len(view):
        count = sock.recv_into(view[at:], len(view) - at, flags)
        if not count:
            raise ConnectError("the node closed the connection")
        at += count
