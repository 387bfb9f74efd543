"""The baseline of reads: a bare socket that drains the same scans.

It parses only the entry counts of the pages and receives every page into the same buffer, which a
`Channel` cannot do. Its time begins once it is connected: a login takes a node 0.1 s, and readers
keep their connections.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from ignitetf.errors import ConnectError, RequestTimeout, WireError
from ignitetf.net.client import Client, cache_id
from ignitetf.net.handshake import open_connection
from ignitetf.read.reader import CacheReader
from ignitetf.settings import Settings
from ignitetf.wire.answers import read_long
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import (
    LENGTH_BYTES,
    count_in_head,
    read_answer_head,
    read_answer_length,
    request_head,
)
from ignitetf.wire.requests import cursor_request, scan_request

__all__ = ["Scans", "drain", "new_buffer", "owners_of"]

_BUFFER_BYTES: Final = 64 << 20


class Scans:
    """The scans of a data set, to be drained as often as wanted.

    All of them share one buffer, because allocating one each time would cost as much as a small
    scan.

    Args:
        reader: Reads the data set: which partitions have rows, and how large its pages are.

    Attributes:
        depth: Partitions that the reader of the data set would ask for ahead.
    """

    def __init__(self, reader: CacheReader) -> None:
        every = list(range(reader.partition_count))
        counts = reader.partition_counts(every)
        # Skip partitions that the manifest lists as empty, as the data set does.
        partitions = [p for p, count in zip(every, counts, strict=True) if count]
        client, page_size = reader.client, reader.page_size()
        self.depth = reader.scan_query(page_size).pipelined
        owners = owners_of(client, reader.cache, partitions)
        self._given = client.settings, owners, reader.cache, page_size, new_buffer()

    def drain(self, ahead: int = 0) -> tuple[int, float]:
        """Drain the scans; see the function `drain`."""
        return drain(*self._given, ahead)

    def pages(self) -> Generator[int, None, None]:
        """Yield the number of entries of each page, asking ahead as the data set does."""
        settings, owners, cache, page_size, buffer = self._given
        for address, partitions in owners.items():
            with _opened(address, settings) as sock:
                drained = _Drain(sock, buffer, cache_id(cache), page_size)
                yield from drained.pages(partitions, self.depth)


def owners_of(client: Client, cache: str, partitions: Sequence[int]) -> dict[str, list[int]]:
    """Return the partitions by the address of the node that owns them."""
    seeds = client.settings.addresses
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


def new_buffer() -> memoryview:
    """Return a buffer for any page; the system provides its memory only as it is written to."""
    return np.empty(_BUFFER_BYTES, np.uint8).data


def drain(
    settings: Settings,
    owners: dict[str, list[int]],
    cache: str,
    page_size: int,
    buffer: memoryview,
    ahead: int = 0,
) -> tuple[int, float]:
    """Scan the partitions over one bare socket to each node, one node after the other.

    Args:
        settings: Its time limits.
        owners: Partitions by address.
        cache: Name of the cache.
        page_size: Entries in a page.
        buffer: From `new_buffer`; all pages are received into it.
        ahead: Partitions whose first page is requested while another one is being received. With 0,
            each page is requested after the previous one has arrived.

    Returns:
        The number of entries, and the seconds that it took.
    """
    rows, took_s = 0, 0.0
    for address, partitions in owners.items():
        with _opened(address, settings) as sock:
            begin = time.perf_counter()
            drained = _Drain(sock, buffer, cache_id(cache), page_size)
            rows += sum(drained.pages(partitions, ahead))
            took_s += time.perf_counter() - begin
    return rows, took_s


@contextlib.contextmanager
def _opened(address: str, settings: Settings) -> Generator[socket.socket, None, None]:
    sock, _ = open_connection(address, settings)
    with sock:
        _limit(sock, settings.request_timeout_s)
        try:
            yield sock
        except (BlockingIOError, TimeoutError) as error:
            raise RequestTimeout(
                f"{address}: no answer within {settings.request_timeout_s:g} s"
            ) from error


def _limit(sock: socket.socket, seconds: float) -> None:
    """Limit the time of each receive.

    The kernel does it if it can, so that a single call can wait for a whole page.
    """
    if sys.platform in ("linux", "darwin") and not isinstance(sock, ssl.SSLSocket):
        sock.settimeout(None)
        whole = int(seconds)
        packed = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)
    else:
        sock.settimeout(seconds)


class _Drain:
    """Scans over one connection. Answers arrive in any order and are counted as they come."""

    def __init__(self, sock: socket.socket, buffer: memoryview, cache: int, page_size: int) -> None:
        self._sock = sock
        self._buffer = buffer
        self._cache = cache
        self._page_size = page_size
        self._request = 0
        self._cursors: dict[int, int | None] = {}  # of each unanswered request; None: a new scan

    def pages(self, partitions: Iterable[int], ahead: int) -> Iterator[int]:
        """Yield the number of entries of each page of the partitions."""
        waiting = deque(partitions)
        while waiting or self._cursors:
            while waiting and len(self._cursors) <= ahead:
                body = scan_request(self._cache, self._page_size, waiting.popleft())
                self._ask(OpCode.QUERY_SCAN, body, None)
            yield self._answer()

    def _ask(self, op: OpCode, body: bytes, cursor: int | None) -> None:
        self._request += 1
        self._cursors[self._request] = cursor
        self._sock.sendall(request_head(len(body), op, self._request) + body)

    def _answer(self) -> int:
        size = _receive(self._sock, self._buffer)
        head = read_answer_head(self._buffer)
        if head.failed:
            raise WireError("the node answered a scan with an error")
        cursor, body = self._cursors.pop(head.request_id), self._buffer[head.begin : size]
        if cursor is None:
            cursor, body = read_long(body, "a scan"), body[8:]
        if body[-1]:
            self._ask(OpCode.QUERY_SCAN_PAGE, cursor_request(cursor), cursor)
        return count_in_head(body, 0)


def _receive(sock: socket.socket, buffer: memoryview) -> int:
    """Receive a frame into the buffer and return its length."""
    _fill(sock, buffer[:LENGTH_BYTES])
    size = read_answer_length(buffer)
    if size > len(buffer):
        raise WireError(f"a page of {size} bytes is larger than the buffer")
    _fill(sock, buffer[:size])
    return size


def _fill(sock: socket.socket, view: memoryview) -> None:
    # Each call over TLS returns a record of at most 16 KB.
    flags = 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_WAITALL
    at = 0
    while at < len(view):
        count = sock.recv_into(view[at:], len(view) - at, flags)
        if not count:
            raise ConnectError("the node closed the connection")
        at += count
