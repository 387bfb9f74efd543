"""`Incoming`: the bytes that arrive on a connection, received with few calls and few copies.

socket -> **incoming** -> channel

A large answer is received into memory of its own, by one call that waits for all of it, or in
pieces, each of which is used while it is still in the processor's cache. Small answers are received
several at a time, as many as have arrived, and are used where they lie: a call for each would cost
more than the bytes.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
import time
from typing import Final

from ignitetf.wire.buffers import BufferPool

__all__ = ["Incoming", "Progress", "limit_socket"]

# With kernel time limits one call receives a whole page without the GIL; elsewhere Python polls.
_KERNEL_LIMITS: Final = sys.platform in ("linux", "darwin")
# One receive call waits for at most this much, so that its time limit measures progress.
_RECEIVE_BYTES: Final = 8 << 20
# A transfer with fewer bytes than this within a time limit has stopped.
_PROGRESS_BYTES: Final = 64 << 10
# Up to here an answer is small.
_SMALL_BYTES: Final = 128 << 10
_BLOCK_BYTES: Final = 512 << 10


def limit_socket(sock: socket.socket, seconds: float) -> None:
    """Limit the time of each call; the kernel does it if it can, so that one call waits for a page.

    After `seconds` without progress a call raises BlockingIOError (the kernel) or TimeoutError.
    """
    if _waits(sock):
        sock.settimeout(None)
        whole = int(seconds)
        packed = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, packed)
    else:
        sock.settimeout(seconds)


def _waits(sock: socket.socket) -> bool:
    """Return whether a call on this socket can wait for many bytes."""
    return _KERNEL_LIMITS and not isinstance(sock, ssl.SSLSocket)


class Progress:
    """Ends a transfer that trickles: each time limit must bring a minimum of bytes.

    Args:
        limit_s: The limit in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._begin = time.monotonic()
        self._count = 0

    def received(self, count: int) -> None:
        """Count bytes received; raises TimeoutError if there were too few within the limit."""
        self._count += count
        now = time.monotonic()
        if now - self._begin < self._limit_s:
            return
        if self._count < _PROGRESS_BYTES:
            raise TimeoutError(f"{self._count} bytes in {self._limit_s:g} s")
        self._begin, self._count = now, 0


class Incoming:
    """The receiving side of a socket, for one thread at a time.

    Args:
        sock: The socket. Its own time limit ends a call; see `waits` for how.
        buffers: Memory.

    Attributes:
        waits: Whether one call can wait for many bytes, under a time limit that the kernel keeps.
        limit_s: Seconds in which some bytes must arrive.
    """

    def __init__(self, sock: socket.socket, buffers: BufferPool) -> None:
        self.waits = _waits(sock)
        self.limit_s = 0.0
        self._sock = sock
        self._buffers = buffers
        # Bytes that were received and not yet taken are those from `begin` to `end`.
        self._block = memoryview(b"")
        self._begin = self._end = 0
        self._small = True  # the last answer was

    def peek(self, nbytes: int) -> memoryview:
        """Wait for the next `nbytes` bytes, a few, and return them without taking them."""
        self._fill(nbytes)
        return self._block[self._begin : self._begin + nbytes]

    def receive_some(self, view: memoryview) -> int:
        """Wait for bytes, receive at most `len(view)` of them, and return how many."""
        return self._receive(view, whole=False)

    @property
    def socket_number(self) -> int:
        """The socket's file descriptor, if the bytes on it are those of answers; else -1."""
        return self._sock.fileno() if self.waits else -1

    @property
    def has_bytes(self) -> bool:
        """Whether bytes were received, by us or by TLS, and are still to be taken."""
        sock = self._sock
        return self._end > self._begin or (isinstance(sock, ssl.SSLSocket) and sock.pending() > 0)

    def skip(self, nbytes: int) -> None:
        """Take bytes that `peek` returned."""
        self._begin += nbytes

    def take(self, nbytes: int) -> memoryview:
        """Wait for the next bytes, an answer, and return them.

        Returns:
            A view of memory that is not reused while any view of it is alive.

        Raises:
            OSError: The connection broke, or a time limit passed.
            MemoryError: There is no memory for so much.
        """
        self._small = nbytes <= _SMALL_BYTES
        if self._small:
            self._fill(nbytes)
            self._begin += nbytes
            return self._block[self._begin - nbytes : self._begin]
        # Not zeroed, and committed by the kernel as bytes arrive: a false length costs nothing.
        view = self._buffers.take(nbytes).data
        self._receive_into(view)
        return view

    def _receive_into(self, view: memoryview) -> None:
        """Wait for the next bytes until they fill `view`."""
        here = min(len(view), self._end - self._begin)
        if here:
            view[:here] = self._block[self._begin : self._begin + here]
            self._begin += here
            view = view[here:]
        progress = Progress(self.limit_s)
        while len(view):
            count = self._receive(view, whole=True)
            view = view[count:]
            if len(view):
                progress.received(count)

    def rest(self) -> None:
        """Release the block if most of it has been used and nothing in it is left to take.

        Otherwise the next bytes follow in it. A small answer that is kept keeps its block alive.
        """
        if self._begin == self._end > len(self._block) // 2:
            self._block, self._begin, self._end = memoryview(b""), 0, 0

    def _fill(self, nbytes: int) -> None:
        """Receive until `nbytes` bytes are here; after small answers, as many as have arrived."""
        if self._end - self._begin >= nbytes:
            return
        if self._begin + nbytes > len(self._block):
            self._turn(nbytes)
        progress = Progress(self.limit_s)
        while (missing := nbytes - (self._end - self._begin)) > 0:
            stop = len(self._block) if self._small else self._end + missing
            count = self._receive(self._block[self._end : stop], whole=not self._small)
            self._end += count
            if count < missing:
                progress.received(count)

    def _turn(self, nbytes: int) -> None:
        """Move what is not yet taken to a new block, with room for `nbytes` bytes."""
        block = self._buffers.take(max(_BLOCK_BYTES, nbytes)).data
        here = self._end - self._begin
        block[:here] = self._block[self._begin : self._end]
        self._block, self._begin, self._end = block, 0, here

    def _receive(self, view: memoryview, whole: bool) -> int:
        sock = self._sock
        if isinstance(sock, ssl.SSLSocket):
            # Each read returns at most one TLS record of 16 KB, so Python's overhead counts.
            # (The type stubs only know the form that returns bytes.)
            count = int(sock.read(len(view), view))
        else:
            flags = socket.MSG_WAITALL if whole and self.waits else 0
            count = sock.recv_into(view, min(len(view), _RECEIVE_BYTES), flags)
        if count == 0:
            raise ConnectionResetError("the node closed the connection")
        return count
