"""`Exchange`: requests of one kind, made and answered in Python, many under way at a time.

requests -> window -> **exchange** -> sink

It has one connection, or up to four if a TCP connection carries less in a round trip than its
window here. The windows limit the bytes under way (`window`). Answers reach the sink in any order.
When a connection is lost, exactly the unanswered requests are sent again over another one, unless
`repeat` says otherwise. A request that a node had no heap for is sent again, with half as many
bytes under way.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ignitetf.errors import ConnectError, IgniteTFError, RequestTimeout, ServerError
from ignitetf.net.channel import Channel, readable
from ignitetf.net.failures import HEAP, ROOM, Backoff, Tries, is_node_overloaded, is_retryable
from ignitetf.net.pool import Pool
from ignitetf.net.window import ByteWindow, first_bytes, widened
from ignitetf.threads import start
from ignitetf.wire.codes import OpCode

__all__ = ["Exchange", "Repeat"]

log = logging.getLogger(__name__)
Tag = TypeVar("Tag")

_MOST_CONNECTIONS: Final = 4
# Bytes that a TCP connection can have under way with the default limits of Linux.
_CONNECTION_BYTES: Final = 8 << 20
# Another connection is added only if the last one raised the rate by this factor.
_PAYS: Final = 1.1
# The cost of a request for a node, in addition to its bytes.
_REQUEST_BYTES: Final = 4096


class Repeat(enum.Enum):
    """Which failed requests are sent again."""

    NEVER = "never"
    REFUSED = "what a node had no heap for"
    ALWAYS = "and what a lost connection, or a change of the cluster, took along"


@dataclass
class _Request(Generic[Tag]):
    tag: Tag
    op: OpCode
    buffers: Sequence[Any]
    nbytes: int
    sent_at: float = 0.0


class _Lane(Generic[Tag]):
    """A connection and its unanswered requests."""

    def __init__(self, channel: Channel, window: ByteWindow) -> None:
        self.channel, self.window = channel, window
        self.waiting: dict[int, _Request[Tag]] = {}
        self.nbytes = 0
        # When the last answer arrived, or the first unanswered request was sent.
        self.heard_at = 0.0

    @property
    def has_room(self) -> bool:
        return self.nbytes < self.window.size

    def send(self, request: _Request[Tag]) -> None:
        now = time.monotonic()
        request.sent_at = now
        if not self.waiting:
            self.heard_at = now
        number = self.channel.send(request.op, *request.buffers)
        self.waiting[number] = request
        self.nbytes += request.nbytes

    def receive(self, limit_s: float) -> tuple[_Request[Tag], memoryview | ServerError]:
        number, answer = self.channel.receive_any(timeout_s=limit_s)
        request = self.waiting.pop(number)
        self.nbytes -= request.nbytes
        self.heard_at = time.monotonic()
        self.window.answered(request.sent_at, request.nbytes)
        return request, answer


class Exchange(Generic[Tag]):
    """Requests under way to one node, or to any node; for one thread, except for `abort`.

    Args:
        client: Lends the connections.
        sink: Called with the tag of each request and its answer.
        node: The node; None takes any.
        repeat: Which failed requests are sent again.
        refused: Called with the tag of a request and its error answer; None raises the error.
        make_room: Called after a full node refused a request, before it is sent again; None
            raises the error.
        limit_s: Seconds in which some answer must begin; None takes the setting.
        connections: Maximum number of connections; None takes four.
    """

    def __init__(
        self,
        client: Pool,
        sink: Callable[[Tag, memoryview], object],
        *,
        node: uuid.UUID | None = None,
        repeat: Repeat = Repeat.ALWAYS,
        refused: Callable[[Tag, ServerError], object] | None = None,
        make_room: Callable[[], object] | None = None,
        limit_s: float | None = None,
        connections: int | None = None,
    ) -> None:
        settings = client.settings
        self._client, self._sink, self._node = client, sink, node
        self._repeat, self._refused, self._make_room = repeat, refused, make_room
        self._limit_s = settings.request_timeout_s if limit_s is None else limit_s
        self._most_connections = connections or _MOST_CONNECTIONS
        self._most_bytes = settings.ahead_bytes
        self._most_window = widened(client)
        self._lanes: list[_Lane[Tag]] = []
        # Requests that are not under way.
        self._queue: deque[_Request[Tag]] = deque()
        self._tries, self._heap, self._full = Tries(settings), Backoff(HEAP), Backoff(ROOM)
        self._waited_at = 0.0
        # The rate when the last connection was added.
        self._rate = 0.0
        self._openings: list[_Opening] = []
        self._aborted = False

    def __len__(self) -> int:
        """Return the number of requests without an answer."""
        return len(self._queue) + sum(len(lane.waiting) for lane in self._lanes)

    def has_room(self, kept: int = 0) -> bool:
        """Return whether a request can be sent at once.

        Args:
            kept: Bytes of answers that the caller still holds; they count as under way.
        """
        under_way = kept + sum(lane.nbytes for lane in self._lanes)
        if under_way < self._room():
            return True
        return self._another_lane() is not None and under_way < self._room()

    def _room(self) -> int:
        if not self._lanes:
            return max(1, first_bytes(self._client, self._most_window))
        return max(1, min(self._most_bytes, sum(lane.window.size for lane in self._lanes)))

    def send(self, tag: Tag, op: OpCode, *buffers: Any, expects: int = 0) -> None:
        """Send a request; if the windows are full, receive answers first.

        Args:
            tag: Passed to the sink.
            op: The request.
            *buffers: Its body; they must not change until it is answered.
            expects: Expected size of its answer in bytes.

        Raises:
            IgniteTFError: An earlier request failed.
        """
        nbytes = sum(memoryview(one).nbytes for one in buffers)
        self._queue.append(_Request(tag, op, buffers, _REQUEST_BYTES + nbytes + expects))
        with self._close_if_interrupted():
            self._send_queued()
            while self._queue:
                self._receive()

    def receive(self) -> None:
        """Wait until a request is answered; returns at once if none is under way.

        Raises:
            IgniteTFError: The request failed.
        """
        before = len(self)
        with self._close_if_interrupted():
            while len(self) == before > 0:
                self._receive()

    def finish(self) -> None:
        """Wait until all requests are answered; raises the error of the first that failed."""
        while len(self):
            self.receive()

    def close(self) -> None:
        """Release the connections; those with requests under way are closed."""
        self._queue.clear()
        for opening in self._openings:
            opening.end()
        self._openings, self._rate = [], 0.0
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            self._client.delivered_rate = lane.window.rate or self._client.delivered_rate
            if lane.waiting:
                lane.channel.close()
            else:
                self._client.release(lane.channel)

    def abort(self) -> None:
        """Make the thread that uses it stop waiting soon; called from another thread."""
        self._aborted = True
        for lane in list(self._lanes):
            lane.channel.abort()

    @contextlib.contextmanager
    def _close_if_interrupted(self) -> Iterator[None]:
        """Close the connections after Ctrl-C, because the bytes under way on them are unknown."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            for lane in self._lanes:
                lane.channel.close()
            self.close()
            raise

    # Sending

    def _send_queued(self) -> None:
        """Send queued requests while the windows have room."""
        while self._queue and (lane := self._free_lane()) is not None:
            request = self._queue.popleft()
            try:
                lane.send(request)
            except IgniteTFError as error:
                if self._repeat is Repeat.ALWAYS:
                    self._queue.appendleft(request)
                self._requeue_unanswered(lane, error)

    def _free_lane(self) -> _Lane[Tag] | None:
        """Return a connection with room for another request; None if there is none."""
        while not self._lanes:
            try:
                return self._open()
            except (ConnectError, RequestTimeout) as error:
                if self._repeat is not Repeat.ALWAYS:
                    raise
                self._wait(error)
        under_way = sum(lane.nbytes for lane in self._lanes)
        if under_way >= self._most_bytes and under_way:
            return None
        lane = min(self._lanes, key=lambda one: one.nbytes)
        if lane.has_room or not lane.waiting:
            return lane
        return self._another_lane()

    def _open(self) -> _Lane[Tag]:
        return self._add(self._client.acquire(self._node))

    def _add(self, channel: Channel) -> _Lane[Tag]:
        lane = _Lane[Tag](channel, ByteWindow(self._client, self._most_window))
        self._lanes.append(lane)
        if self._aborted:
            channel.abort()
        return lane

    def _another_lane(self) -> _Lane[Tag] | None:
        """Return a new connection if one has been opened; start to open more if that pays."""
        for opening in self._openings:
            if (channel := opening.take()) is not None:
                self._openings.remove(opening)
                return self._add(channel)
        if not self._lanes or self._openings:
            return None
        rate = sum(lane.window.rate for lane in self._lanes)
        if len(self._lanes) > 1 and rate < _PAYS * self._rate:
            return None
        largest = max(lane.window.size for lane in self._lanes)
        wanted = min(self._most_connections, -(-largest // _CONNECTION_BYTES))
        if wanted > len(self._lanes):
            self._rate = rate
            missing = range(len(self._lanes), wanted)
            self._openings = [_Opening(self._client, self._node) for _ in missing]
        return None

    # Receiving

    def _receive(self) -> None:
        """Receive an answer, pass it to the sink and send queued requests; or handle a failure."""
        lane = self._next_lane()
        if lane is not None:
            try:
                request, answer = lane.receive(self._limit_s)
            except IgniteTFError as error:
                self._requeue_unanswered(lane, error)
            else:
                self._answered(lane, request, answer)
        self._send_queued()

    def _next_lane(self) -> _Lane[Tag] | None:
        """Wait for bytes of an answer; return their connection, or None if there is none."""
        busy = [lane for lane in self._lanes if lane.waiting]
        if len(busy) <= 1:
            return busy[0] if busy else None
        busy.sort(key=lambda lane: lane.heard_at)
        for lane in busy:
            if lane.channel.has_bytes:
                return lane
        wait_s = busy[0].heard_at + self._limit_s - time.monotonic()
        ready = readable([lane.channel.file_number for lane in busy], wait_s)
        for lane in busy:
            if lane.channel.file_number in ready:
                return lane
        try:
            busy[0].channel.fail(TimeoutError("timed out"))
        except RequestTimeout as error:
            self._requeue_unanswered(busy[0], error)
        return None

    def _answered(
        self, lane: _Lane[Tag], request: _Request[Tag], answer: memoryview | ServerError
    ) -> None:
        if not isinstance(answer, ServerError):
            if request.sent_at > self._waited_at:
                for backoff in (self._tries, self._heap, self._full):
                    backoff.progress()
            self._sink(request.tag, answer)
        elif self._is_repeated(lane, request, answer):
            self._queue.appendleft(request)
        elif self._refused is not None:
            self._refused(request.tag, answer)
        else:
            raise answer

    def _is_repeated(self, lane: _Lane[Tag], request: _Request[Tag], error: ServerError) -> bool:
        """Return whether to send a request again after this error; if so, wait before."""
        heap = is_node_overloaded(error)
        if self._repeat is Repeat.NEVER or not (
            heap
            or (self._make_room is not None and ROOM.passes(error))
            or (self._repeat is Repeat.ALWAYS and is_retryable(error))
        ):
            return False
        if request.sent_at <= self._waited_at:
            return True  # sent before the last wait, so this error is not a new one
        limit_s = self._client.settings.idle_timeout_s
        if heap:
            lane.window.refused()
            self._most_window = self._client.most_window = lane.window.size
            wait_s = self._heap.wait_s(error, limit_s)
        elif self._make_room is not None and ROOM.passes(error):
            if (wait_s := self._full.wait_s(error)) is not None:
                self._make_room()
        else:
            self._wait(error)
            return True
        if wait_s is None:
            return False
        log.warning("%s; retrying in %.1f s", error, wait_s)
        time.sleep(wait_s)
        self._waited_at = time.monotonic()
        return True

    def _requeue_unanswered(self, lane: _Lane[Tag], error: IgniteTFError) -> None:
        """Queue the unanswered requests of a lost connection; raises the error if it is final."""
        self._lanes.remove(lane)
        lane.channel.close()
        if self._repeat is not Repeat.ALWAYS or self._aborted:
            raise error
        self._queue.extendleft(reversed(lane.waiting.values()))
        self._wait(error)

    def _wait(self, error: IgniteTFError) -> None:
        self._tries.wait(error)
        self._waited_at = time.monotonic()


class _Opening:
    """A connection that is opened while others are in use."""

    def __init__(self, client: Pool, node: uuid.UUID | None) -> None:
        self._client, self._node = client, node
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._ended = False
        # A daemon, so that the program does not wait for it after Ctrl-C.
        start(threading.Thread(target=self._open, name="ignitetf-opening", daemon=True))

    def _open(self) -> None:
        with contextlib.suppress(IgniteTFError):
            channel = self._client.acquire(self._node)
            with self._lock:
                if not self._ended:
                    self._channel = channel
                    return
            self._client.release(channel)

    def take(self) -> Channel | None:
        """Return the connection once it is open; None before that, and after the first call."""
        with self._lock:
            channel, self._channel = self._channel, None
        return channel

    def end(self) -> None:
        """Release the connection once it is open."""
        with self._lock:
            self._ended = True
            channel, self._channel = self._channel, None
        if channel is not None:
            self._client.release(channel)
