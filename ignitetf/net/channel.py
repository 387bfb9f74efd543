"""`Channel`: one connection to one node, carrying frames of bytes under time limits.

handshake -> **channel** -> frames of bytes

A channel that times out or breaks is closed for good, so a late answer can never be mistaken for
the next one. Request ids are compared as well.

`Incoming` receives with few calls and few copies. A large answer is received into its own memory,
by one call that waits for all of it. Small answers are received together, as many as have arrived,
and are used without a copy: a call for each would cost more than the bytes.

`part` closes a connection that still has answers under way, without harm to the node. Bytes that
arrive at a closed socket trigger a reset. A node serves its connections with a few threads, four on
most machines. A thread that receives a reset sleeps for a second, and all its other connections, of
any client, wait. So `part` first shuts down only our sending side. It then discards what the node
still sends until the node has closed its side, which it does at once.

Source: Apache Ignite 2.17.0, `GridNioServer`, by thread dumps of a node that was slow to answer.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import ssl
import struct
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NoReturn

from ignitetf.errors import (
    ConnectError,
    RequestTimeout,
    ServerError,
    WireError,
)
from ignitetf.net.failures import server_error
from ignitetf.net.handshake import cause, open_connection
from ignitetf.settings import Settings
from ignitetf.threads import start
from ignitetf.wire.answers import read_error
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import (
    LENGTH_BYTES,
    AnswerHead,
    read_answer_head,
    read_answer_length,
    request_head,
)

__all__ = [
    "Channel",
    "Delay",
    "Incoming",
    "Progress",
    "Requester",
    "is_ended",
    "limit_socket",
    "part",
    "readable",
]

# An idle channel keeps only the buffers that would be costly to allocate again.
_RESTING_BLOCK_BYTES: Final = 1 << 20
_RESTING_BYTES: Final = 32 << 20
# Buffers passed to one sendmsg call; Linux accepts 1,024.
_SEND_PARTS: Final = 256


class Delay:
    """The time of the quickest request so far, an estimate of a round trip.

    It is measured on requests that are sent anyway.

    Attributes:
        seconds: Its seconds; 0 before the first answer.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count a request that was answered after `seconds`."""
        self.seconds = min(self.seconds or seconds, seconds)


class Requester(ABC):
    """Sends requests and receives their answers: a connection, or a thread's part in one."""

    @abstractmethod
    def send(self, op: OpCode | int, *buffers: Any) -> int:
        """Send a request made of contiguous buffers and return its request id."""

    @abstractmethod
    def receive(self, request_id: int, *, timeout_s: float | None = None) -> memoryview:
        """Return the body of the answer to `request_id`; see `Channel.receive`."""

    def call(
        self, op: OpCode | int, body: bytes | bytearray = b"", *, timeout_s: float | None = None
    ) -> memoryview:
        """Send one request and return the body of its answer, which the caller owns."""
        return self.receive(self.send(op, body), timeout_s=timeout_s)


class Channel(Requester):
    """A connection for raw requests, for use by one thread at a time.

    Requests may be sent ahead. The node works on them concurrently and answers in any order; early
    answers are kept until `receive` returns them. Any failure other than an error answer closes the
    channel.

    Attributes:
        delay: The quickest of its requests and its handshake; other channels may share it.
    """

    def __init__(self, address: str, settings: Settings, delay: Delay | None = None) -> None:
        """Connect to `address`; see `open_connection` for the errors."""
        self.settings = settings
        self._sock, self.peer = open_connection(address, settings)
        self.address, self._process = address, os.getpid()
        self.node_id = self.peer.node_id
        self.features = self.peer.features
        self.topology_version: tuple[int, int] | None = None
        self.closed = False
        self._gone = False  # the socket is closed, or another thread closes it
        self.delay = Delay() if delay is None else delay
        if not settings.username:  # checking a password takes the node 0.1 s
            self.delay.add(self.peer.seconds)
        self._request_id = 0
        # The ids of unanswered requests, and when each was sent.
        self._waiting: dict[int, float] = {}
        self._early: dict[int, tuple[AnswerHead, memoryview]] = {}
        self._buffers = BufferPool()
        self._incoming = Incoming(self._sock, self._buffers)
        self._set_limit(settings.request_timeout_s)

    def __repr__(self) -> str:
        return f"<Channel {self.address}{' closed' if self.closed else ''}>"

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def send(self, op: OpCode | int, *buffers: Any) -> int:
        """Send a request made of contiguous buffers and return its request id."""
        views = [memoryview(b).cast("B") for b in buffers]
        head, number = self._head(op, sum(map(len, views)))
        self._waiting[number] = time.monotonic()  # before another thread can receive the answer
        self._send([memoryview(head), *views])
        return number

    def send_all(self, op: OpCode | int, bodies: Iterable[bytes]) -> list[int]:
        """Send several requests with these bodies at once and return their ids."""
        heads = [(*self._head(op, len(body)), body) for body in bodies]
        sent_at = time.monotonic()
        self._waiting.update((number, sent_at) for _, number, _ in heads)
        self._send([memoryview(part) for head, _, body in heads for part in (head, body)])
        return [number for _, number, _ in heads]

    def _head(self, op: OpCode | int, nbytes: int) -> tuple[bytes, int]:
        """Return the head of the next request, and its id."""
        self._request_id += 1
        return request_head(nbytes, op, self._request_id), self._request_id

    def _send(self, parts: list[memoryview]) -> None:
        self._check_open()
        try:
            if sum(map(len, parts)) <= 1 << 16:
                self._sock.sendall(b"".join(parts))
            else:
                self._send_parts(parts)
        except OSError as error:
            raise self._broken(error, "sending") from error
        except BaseException:
            self.close()
            raise

    def receive(self, request_id: int, *, timeout_s: float | None = None) -> memoryview:
        """Return the body of the answer to `request_id`, keeping other answers that arrive first.

        Args:
            request_id: As returned by `send`.
            timeout_s: Limit in seconds until the answer begins, and for each further 64 KiB.

        Returns:
            A view of a buffer that is not reused while any view of it is alive.

        Raises:
            RequestTimeout: The limit passed; the channel is closed.
            ConnectError: The connection was lost; the channel is closed.
            WireError: The answer breaks the protocol; the channel is closed.
            ServerError: The server answered with an error; the channel stays open.
        """
        self.begin_exchange(timeout_s)
        with self._explained():
            while (answer := self._early.pop(request_id, None)) is None:
                head, frame = self._frame()
                self._early[head.request_id] = head, frame
        return self._body(*answer)

    def receive_any(
        self, *, timeout_s: float | None = None
    ) -> tuple[int, memoryview | ServerError]:
        """Return the next answer to arrive, or its error, with the id of its request.

        Args:
            timeout_s: As in `receive`.

        Raises:
            IgniteTFError: As `receive`, except for errors of the server.
        """
        self.begin_exchange(timeout_s)
        with self._explained():
            if self._early:
                head, frame = self._early.pop(next(iter(self._early)))
            else:
                head, frame = self._frame()
        try:
            return head.request_id, self._body(head, frame)
        except ServerError as error:
            return head.request_id, error

    @property
    def has_bytes(self) -> bool:
        """True if bytes of an answer were received already, so the socket does not report them."""
        return bool(self._early) or self._incoming.has_bytes

    @property
    def file_number(self) -> int:
        """The socket's file descriptor."""
        return self._sock.fileno()

    # For the core, which sends and receives by itself

    @property
    def socket_number(self) -> int:
        """The socket's file descriptor if its bytes are plain frames; -1 for TLS."""
        return self._incoming.socket_number

    def begin_exchange(self, timeout_s: float | None = None) -> None:
        """Set the time limit in seconds, None for the setting's; raises if the channel is closed."""
        self._check_open()
        self._set_limit(self.settings.request_timeout_s if timeout_s is None else timeout_s)

    def exchanged(self, sent: Iterable[int], answered: Iterable[int]) -> None:
        """Record the ids of the sent requests, and the ids of the answered ones."""
        self._waiting.update(dict.fromkeys(sent, time.monotonic()))
        for number in answered:
            self._waiting.pop(number, None)

    def fail(self, error: Exception) -> NoReturn:
        """Close the channel because of this failure, and raise it as an error that explains it."""
        with self._explained():
            raise error

    def receive_some(self, view: memoryview) -> int:
        """Wait for bytes, receive at most `len(view)` of them, and return how many."""
        return self._incoming.receive_some(view)

    def send_bytes(self, data: bytes) -> None:
        """Send requests as they are; raises OSError."""
        self._sock.sendall(data)

    @property
    def ended(self) -> bool:
        """True if an idle channel is dead because the node has closed it."""
        return self.closed or is_ended(self._sock)

    @property
    def idle(self) -> bool:
        """True if every request has been answered and received, so the channel can be reused."""
        return not self.closed and not self._waiting and not self._early

    def shrink(self) -> None:
        """Release most buffers until the channel is used again."""
        self._incoming.rest()
        self._buffers.shrink(_RESTING_BLOCK_BYTES, _RESTING_BYTES)

    def close(self) -> None:
        """Close the connection, which also ends its cursors on the server."""
        if self._gone:
            return
        # A forked child must not end the connection of its parent.
        whole = not (self._waiting or self._early) or os.getpid() != self._process
        self.closed = self._gone = True
        with contextlib.suppress(OSError):
            if whole:
                self._sock.close()
            else:
                part(self._sock)

    def abort(self) -> None:
        """Wake a thread that is blocked in `receive`; called from another thread."""
        self.closed = True
        _interrupt_reads(self._sock)

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectError(f"{self.address}: the connection is closed")

    def _set_limit(self, limit_s: float) -> None:
        if limit_s == self._incoming.limit_s:
            return
        self._incoming.limit_s = limit_s
        limit_socket(self._sock, limit_s)

    def _send_parts(self, parts: list[memoryview]) -> None:
        if isinstance(self._sock, ssl.SSLSocket) or not hasattr(self._sock, "sendmsg"):
            for part in parts:
                self._sock.sendall(part)
            return
        while parts:
            sent = self._sock.sendmsg(parts[:_SEND_PARTS])
            while parts and sent >= len(parts[0]):
                sent -= len(parts[0])
                parts.pop(0)
            if parts and sent:
                parts[0] = parts[0][sent:]

    def _frame(self) -> tuple[AnswerHead, memoryview]:
        """Wait for the next answer, and return its head and its bytes with the head."""
        incoming = self._incoming
        length = read_answer_length(incoming.peek(LENGTH_BYTES))
        incoming.skip(LENGTH_BYTES)
        try:
            frame = incoming.take(length)
        except MemoryError as error:
            raise WireError(f"no memory for an answer of {length} bytes") from error
        head = read_answer_head(frame)
        if (sent_at := self._waiting.pop(head.request_id, None)) is None:
            raise WireError(f"answer to request {head.request_id}, which was not requested")
        self.delay.add(time.monotonic() - sent_at)
        return head, frame

    def _body(self, head: AnswerHead, frame: memoryview) -> memoryview:
        if head.topology is not None:
            self.topology_version = head.topology
        body = frame[head.begin :]
        if not head.failed:
            return body
        try:
            status, message = read_error(body)
        except WireError as error:
            self.close()
            raise error.at(self.address) from error
        raise server_error(status, message, address=self.address)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Close the channel at any failure, and explain it."""
        try:
            yield
        except WireError as error:
            self.close()
            raise error.at(self.address) from error
        except OSError as error:
            raise self._broken(error, "waiting for an answer") from error
        except BaseException:
            # For example Ctrl-C in the middle of a frame: the bytes that follow are meaningless.
            self.close()
            raise

    def _broken(self, error: OSError, doing: str) -> ConnectError | RequestTimeout:
        self.close()
        if isinstance(error, (TimeoutError, BlockingIOError)):
            return RequestTimeout(
                f"{self.address}: no answer within {self._incoming.limit_s:g} s while {doing}",
                hint="the node may be overloaded or paused; --timeout sets the limit",
                address=self.address,
            )
        return ConnectError(
            f"{self.address}: connection lost while {doing}: {cause(error)}",
            hint="is the node still running?",
            address=self.address,
        )


def is_ended(sock: socket.socket) -> bool:
    """Return True if the peer has hung up; call it only while no answer is outstanding."""
    try:
        return bool(readable([sock.fileno()], 0))
    except (OSError, ValueError):
        return True


def readable(numbers: Collection[int], wait_s: float) -> set[int]:
    """Wait until file descriptors have bytes to read; return the readable ones.

    Args:
        numbers: File descriptors of sockets.
        wait_s: Seconds to wait, at most; less than 0 counts as 0.
    """
    wait_s = max(0.0, wait_s)
    if hasattr(select, "poll"):
        poll = select.poll()
        for number in numbers:
            poll.register(number, select.POLLIN)
        return {number for number, _ in poll.poll(1000 * wait_s)}
    return set(select.select(list(numbers), [], [], wait_s)[0])


# Receiving

# With kernel time limits one call receives a whole page without the GIL; elsewhere Python polls.
_KERNEL_LIMITS: Final = sys.platform in ("linux", "darwin")
# One receive call waits for at most this much, so that its time limit measures progress.
_RECEIVE_BYTES: Final = 8 << 20
# A transfer with fewer bytes than this within a time limit has stopped.
_PROGRESS_BYTES: Final = 64 << 10
# An answer of at most this size is small.
_SMALL_BYTES: Final = 128 << 10
_BLOCK_BYTES: Final = 512 << 10


def limit_socket(sock: socket.socket, seconds: float) -> None:
    """Limit the time of each call on a socket.

    The kernel keeps the limit if it can, so that one call can wait for a whole page. After
    `seconds` without progress a call raises BlockingIOError (the kernel) or TimeoutError.
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
    """Ends a transfer that trickles: a minimum of bytes must arrive within each time limit.

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
        waits: True if one call can wait for many bytes, under a time limit that the kernel keeps.
        limit_s: Seconds in which some bytes must arrive.
    """

    def __init__(self, sock: socket.socket, buffers: BufferPool) -> None:
        self.waits = _waits(sock)
        self.limit_s = 0.0
        self._sock = sock
        self._buffers = buffers
        # Bytes from `begin` to `end` were received and not yet taken.
        self._block = memoryview(b"")
        self._begin = self._end = 0
        self._small = True  # the last answer was

    def peek(self, nbytes: int) -> memoryview:
        """Wait for the next few bytes, `nbytes`, and return them without taking them."""
        self._fill(nbytes)
        return self._block[self._begin : self._begin + nbytes]

    def receive_some(self, view: memoryview) -> int:
        """Wait for bytes, receive at most `len(view)` of them, and return how many."""
        return self._receive(view, whole=False)

    @property
    def socket_number(self) -> int:
        """The socket's file descriptor if its bytes are plain frames; otherwise -1."""
        return self._sock.fileno() if self.waits else -1

    @property
    def has_bytes(self) -> bool:
        """True if bytes were received, by us or by TLS, and not yet taken."""
        sock = self._sock
        return self._end > self._begin or (isinstance(sock, ssl.SSLSocket) and sock.pending() > 0)

    def skip(self, nbytes: int) -> None:
        """Take bytes that `peek` returned."""
        self._begin += nbytes

    def take(self, nbytes: int) -> memoryview:
        """Wait for the next answer, `nbytes` long, and return it.

        Returns:
            A view of memory that is not reused while any view of it is alive.

        Raises:
            OSError: The connection broke, or a time limit passed.
            MemoryError: There is not enough memory.
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
        """Receive until `nbytes` bytes are here; after a small answer, all that have arrived."""
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
        """Move the bytes not yet taken to a new block with room for `nbytes` bytes."""
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


# The end

# Time to wait for a node that does not close its side.
_PARTING_S: Final = 1.0
# The same at the end of the program.
_AT_EXIT_S: Final = 0.5
_PIECE_BYTES: Final = 1 << 16

_parting: set[threading.Thread] = set()


def part(sock: socket.socket) -> None:
    """Close a socket as soon as the node has closed its side, in a thread; returns at once.

    At the very end of the program no thread can start, and this call waits itself.
    """
    try:
        sock.shutdown(socket.SHUT_WR)
        thread = threading.Thread(target=_part, args=(sock,), name="ignitetf-parting", daemon=True)
        _parting.add(thread)
        if not start(thread):
            _part(sock)
    except OSError:  # lost already
        sock.close()


def _interrupt_reads(sock: socket.socket) -> None:
    """Wake a thread that waits on a socket, so that it closes it; returns at once.

    Shutting down our sending side makes the node close its side at once, which ends the wait.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        timer = threading.Timer(_PARTING_S, _shut, (sock,))
        timer.daemon = True
        if not start(timer):
            _shut(sock)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _part(sock: socket.socket) -> None:
    until = time.monotonic() + _PARTING_S
    piece = bytearray(_PIECE_BYTES)
    with contextlib.suppress(OSError), sock:
        while (left := until - time.monotonic()) > 0:
            sock.settimeout(left)
            if not sock.recv_into(piece):
                break
    _parting.discard(threading.current_thread())


def _wait_at_exit() -> None:
    until = time.monotonic() + _AT_EXIT_S
    for thread in list(_parting):
        with contextlib.suppress(RuntimeError):
            thread.join(max(0.0, until - time.monotonic()))


atexit.register(_wait_at_exit)
