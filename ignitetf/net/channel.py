"""One connection to one node, carrying frames of bytes under time limits.

handshake -> **Channel** -> frames of bytes

A channel that times out or breaks is closed for good, so a late answer can never be mistaken for
the next one. Request ids are compared as well.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ignitetf.errors import (
    ConnectError,
    IgniteTFError,
    RequestTimeout,
    ServerError,
    WireError,
)
from ignitetf.net.failures import server_error
from ignitetf.net.handshake import open_connection
from ignitetf.net.incoming import Incoming, Through
from ignitetf.net.parting import hang_up, part
from ignitetf.net.refusals import cause
from ignitetf.net.round_trips import RoundTrips
from ignitetf.settings import Settings
from ignitetf.wire.answers import read_error, read_int
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import (
    COUNTED_HEAD_BYTES,
    LENGTH_BYTES,
    MAX_HEAD_BYTES,
    AnswerHead,
    read_answer_head,
    read_answer_length,
    read_counted_head,
    request_frames,
    request_head,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Channel", "Receive", "is_ended"]

# An idle channel keeps only the buffers that would be costly to allocate again.
_RESTING_BLOCK_BYTES: Final = 1 << 20
_RESTING_BYTES: Final = 32 << 20
# Buffers passed to one sendmsg call; Linux accepts 1,024.
_SEND_PARTS: Final = 256
_BEGIN_BYTES: Final = MAX_HEAD_BYTES + 32  # the head and the beginning of the body

OnHead = Callable[[int, memoryview, int], Through | None]
# Receives the bytes of an answer, so many, as they arrive.
Receive = Callable[[Incoming, int], None]
Room = Callable[[int, int, int], memoryview | Receive]


class Channel:
    """A connection for raw requests, for use by one thread at a time.

    Requests may be sent ahead. The node works on them concurrently and answers in any order; early
    answers are kept until they are asked for. Any failure other than an error answer closes the
    channel.

    Attributes:
        waited_s: Total seconds spent waiting for the first byte of an answer.
        round_trips: What each `call` and the handshake took are added to these.
    """

    def __init__(
        self, address: str, settings: Settings, round_trips: RoundTrips | None = None
    ) -> None:
        """Connect to `address`; see `open_connection` for the errors."""
        self.settings = settings
        self._sock, self.peer = open_connection(address, settings)
        self.address, self._process = address, os.getpid()
        self.node_id = self.peer.node_id
        self.features = self.peer.features
        self.topology_version: tuple[int, int] | None = None
        self.closed = False
        self._gone = False  # the socket is closed, or is another's to close
        self.waited_s = 0.0
        self.round_trips = RoundTrips() if round_trips is None else round_trips
        if not settings.username:  # a login takes the node long by itself
            self.round_trips.add(self.peer.seconds)
        self._request_id = 0
        self._waiting: set[int] = set()
        self._early: dict[int, tuple[AnswerHead, memoryview]] = {}
        self._buffers = BufferPool()
        self._incoming = Incoming(self._sock, self._buffers)
        if self._incoming.waits:
            self._sock.settimeout(None)
        self._set_limit(settings.request_timeout_s)

    def __repr__(self) -> str:
        return f"<Channel {self.address}{' closed' if self.closed else ''}>"

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def call(
        self, op: OpCode | int, body: bytes | bytearray = b"", *, timeout_s: float | None = None
    ) -> memoryview:
        """Send one request and return the body of its answer, which the caller owns."""
        begin = time.monotonic()
        answer = self.receive(self.send(op, body), timeout_s=timeout_s)
        self.round_trips.add(time.monotonic() - begin)
        return answer

    def send(self, op: OpCode | int, *buffers: Any) -> int:
        """Send a request made of contiguous buffers and return its request id."""
        views = [memoryview(b).cast("B") for b in buffers]
        head, number = self._head(op, sum(map(len, views)))
        self._waiting.add(number)  # before another thread can receive the answer
        self._send([memoryview(head), *views])
        return number

    def send_all(self, op: OpCode | int, bodies: Sequence[bytes] | NDArray[np.void]) -> list[int]:
        """Send several requests at once and return their ids.

        Of small requests this costs hardly more than sending one of them.

        Args:
            op: What they ask for.
            bodies: Their bodies; an array for those of one size.
        """
        if not isinstance(bodies, Sequence):
            ids = self.request_ids(len(bodies))
            self._send([memoryview(request_frames(op, ids.start, bodies))])
            self._waiting.update(ids)
            return list(ids)
        heads = [self._head(op, len(body)) for body in bodies]
        pairs = zip(heads, bodies, strict=True)
        self._send([memoryview(part) for (head, _), body in pairs for part in (head, body)])
        numbers = [number for _, number in heads]
        self._waiting.update(numbers)
        return numbers

    def request_ids(self, count: int) -> range:
        """Return the ids of so many requests, which are yet to be sent."""
        first = self._request_id + 1
        self._request_id += count
        return range(first, first + count)

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

    def receive(
        self,
        request_id: int,
        *,
        timeout_s: float | None = None,
        on_head: OnHead | None = None,
    ) -> memoryview:
        """Return the body of the answer to `request_id`, keeping other answers that arrive first.

        Args:
            request_id: As returned by `send`.
            timeout_s: Limit in seconds until the answer begins, and for each further 64 KiB.
            on_head: Called for each answer that arrives, but for errors, with the id of its
                request, the first bytes of its body (up to 32, fewer if it is shorter) and the
                length of it, while the rest is still arriving: so that a request that depends on
                them can go out early, and so that the body of the answer to `request_id` can be
                taken as it arrives, by what this returns.

        Returns:
            A view of a buffer that is not reused while any view of it is alive. Of a body that was
            taken as it arrived, the bytes behind those.

        Raises:
            RequestTimeout: The limit passed; the channel is closed.
            ConnectError: The connection was lost; the channel is closed.
            WireError: The answer breaks the protocol; the channel is closed.
            ServerError: The server answered with an error; the channel stays open.
        """
        self._check_open()
        self._set_limit(self.settings.request_timeout_s if timeout_s is None else timeout_s)
        with self._explained():
            while (answer := self._early.pop(request_id, None)) is None:
                head, frame = self._frame(request_id, on_head)
                if head.request_id not in self._waiting:
                    raise WireError(f"answer to request {head.request_id}, which was not asked")
                self._waiting.discard(head.request_id)
                self._early[head.request_id] = head, frame
        return self._body(*answer)

    def receive_any(
        self, *, timeout_s: float | None = None
    ) -> tuple[int, memoryview | ServerError]:
        """Return the answer that comes next, or the error that it is, with the id of its request.

        Args:
            timeout_s: As in `receive`.

        Raises:
            IgniteTFError: As `receive`, but for errors of the server.
        """
        self._check_open()
        self._set_limit(self.settings.request_timeout_s if timeout_s is None else timeout_s)
        with self._explained():
            if self._early:
                number = next(iter(self._early))
                head, frame = self._early.pop(number)
            else:
                head, frame = self._frame(0, None)
                if head.request_id not in self._waiting:
                    raise WireError(f"answer to request {head.request_id}, which was not asked")
                self._waiting.discard(head.request_id)
        try:
            return head.request_id, self._body(head, frame)
        except ServerError as error:
            return head.request_id, error

    @property
    def has_bytes(self) -> bool:
        """Whether bytes of an answer are here, of which the socket does not tell any more."""
        return bool(self._early) or self._incoming.has_bytes

    @property
    def file_number(self) -> int:
        """The socket's file descriptor."""
        return self._sock.fileno()

    # For `SmallUnits`, which sends and receives by itself

    @property
    def socket_number(self) -> int:
        """The socket's file descriptor, if the bytes on it are those of frames; else -1."""
        return self._incoming.socket_number

    def send_frames(self, frames: memoryview) -> None:
        """Send requests as they are, with their heads."""
        self._send([frames])

    def begin_exchange(self) -> None:
        """Leave sending and receiving to the caller, who says by `exchanged` what became of it."""
        self._check_open()
        self._set_limit(self.settings.request_timeout_s)

    def exchanged(self, sent: Iterable[int], answered: Iterable[int]) -> None:
        """Know what the caller has sent and received: the ids of these requests."""
        self._waiting.update(sent)
        self._waiting.difference_update(answered)

    def fail(self, error: Exception) -> NoReturn:
        """Close the channel because of what happened to the caller, and raise that, explained."""
        with self._explained():
            raise error

    def receive_some(self, view: memoryview) -> int:
        """Wait for some bytes, at most so many, and return how many came."""
        return self._incoming.receive_some(view)

    def send_bytes(self, data: bytes) -> None:
        """Send requests as they are; raises OSError."""
        self._sock.sendall(data)

    def take_bytes(self) -> memoryview:
        """Take the bytes that have been received and belong to no answer yet."""
        return self._incoming.take_here()

    def return_bytes(self, data: memoryview) -> None:
        """Have bytes, which are copied, received again before all others."""
        self._incoming.return_bytes(data)

    def early_answer(self, request_id: int) -> memoryview | None:
        """Take an answer, with its head, that arrived while another was waited for; else None."""
        found = self._early.pop(request_id, None)
        return None if found is None else found[1]

    def return_answer(self, request_id: int, frame: memoryview) -> None:
        """Keep an answer, with its head, for `receive`."""
        self._waiting.discard(request_id)
        self._early[request_id] = read_answer_head(frame), frame

    def next_answer(self, room: Room, *, timeout_s: float | None = None) -> int:
        """Receive whichever answer comes next, into memory of the caller.

        Args:
            room: Called with the request id, the answer's first number (int32) and the bytes that
                follow it; returns the memory for these, a view of exactly so many bytes, or what
                receives them as they arrive.
            timeout_s: As in `receive`.

        Returns:
            The request id.

        Raises:
            IgniteTFError: As `receive`.
        """
        self._check_open()
        self._set_limit(self.settings.request_timeout_s if timeout_s is None else timeout_s)
        with self._explained(ServerError):
            return self._next_answer(room)

    def _next_answer(self, room: Room) -> int:
        beginning = memoryview(bytearray(COUNTED_HEAD_BYTES))
        begin = time.monotonic()
        self._incoming.receive_into(beginning)
        self.waited_s += time.monotonic() - begin
        length, answered, plain, number = read_counted_head(beginning)
        if answered not in self._waiting:
            raise WireError(f"answer to request {answered}, which was not asked")
        received = COUNTED_HEAD_BYTES - LENGTH_BYTES
        if not plain:
            # It has a longer head, or is an error: what is behind that is received once more.
            frame = self._buffers.take(length).data
            frame[:received] = beginning[LENGTH_BYTES:]
            self._incoming.receive_into(frame[received:])
            self._waiting.discard(answered)
            body = self._body(read_answer_head(frame), frame)
            number, received = read_int(body, "its first number"), length - (len(body) - 4)
            self._incoming.return_bytes(body[4:])
        place = room(answered, number, length - received)
        if isinstance(place, memoryview):
            self._incoming.receive_into(place)
        else:
            place(self._incoming, length - received)
        self._waiting.discard(answered)
        return answered

    def memory(self, nbytes: int) -> memoryview:
        """Return memory that is not reused while any view of it is alive."""
        return self._buffers.take(nbytes).data

    @property
    def ended(self) -> bool:
        """Whether an idle channel is dead because the other side has hung up."""
        return self.closed or is_ended(self._sock)

    @property
    def idle(self) -> bool:
        """Whether every request has been answered and received, so the channel can be reused."""
        return not self.closed and not self._waiting and not self._early

    @property
    def unanswered(self) -> int:
        """Number of requests whose answer has not arrived as a whole."""
        return len(self._waiting)

    def shrink(self) -> None:
        """Release most buffers until the channel is used again."""
        self._incoming.rest()
        self._buffers.shrink(_RESTING_BLOCK_BYTES, _RESTING_BYTES)

    def close(self) -> None:
        """Close the connection, which also ends its cursors and streamers on the server."""
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
        hang_up(self._sock)

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectError(f"{self.address}: the connection is closed")

    def _set_limit(self, limit_s: float) -> None:
        if limit_s == self._incoming.limit_s:
            return
        self._incoming.limit_s = limit_s
        if self._incoming.waits:
            whole = int(limit_s)
            packed = struct.pack("@ll", whole, int((limit_s - whole) * 1e6))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, packed)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, packed)
        else:
            self._sock.settimeout(limit_s)

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

    def _frame(self, request_id: int, on_head: OnHead | None) -> tuple[AnswerHead, memoryview]:
        incoming = self._incoming
        begin = time.monotonic()
        length = read_answer_length(incoming.peek(LENGTH_BYTES))
        self.waited_s += time.monotonic() - begin
        incoming.skip(LENGTH_BYTES)
        if on_head is not None:
            first = incoming.peek(min(length, _BEGIN_BYTES))
            head = read_answer_head(first)
            if not head.failed:
                through = on_head(head.request_id, first[head.begin :], length - head.begin)
                if through is not None and head.request_id == request_id:
                    return self._hand_on(head, length, through)
        try:
            frame = incoming.take(length)
        except MemoryError as error:
            raise WireError(f"no memory for an answer of {length} bytes") from error
        return read_answer_head(frame), frame

    def _hand_on(
        self, head: AnswerHead, length: int, through: Through
    ) -> tuple[AnswerHead, memoryview]:
        lead = head.begin + through.lead
        self._incoming.skip(lead)
        through.receive(self._incoming, length - lead - through.tail)
        return AnswerHead(head.request_id, False, head.topology, 0), self._incoming.take(
            through.tail
        )

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
    def _explained(self, *harmless: type[IgniteTFError]) -> Iterator[None]:
        """Close the channel at any failure, but for these errors."""
        try:
            yield
        except harmless:
            raise
        except WireError as error:
            self.close()
            raise error.at(self.address) from error
        except IgniteTFError:
            # Already explained: `on_head` sends the next request, which may itself fail.
            self.close()
            raise
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
    """Whether the peer has hung up, given that no answer is outstanding and so nothing is due."""
    try:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([sock], [], [], 0)[0])
    except (OSError, ValueError):
        return True
