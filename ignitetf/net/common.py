"""`Common`: one connection that several threads use at the same time.

channel -> **common** -> pool

Requests that do not depend on each other are under way together, so they take one round trip and one
connection. Each thread has a `Line`, which sends and receives like a channel. One of the waiting
threads receives for all of them. A single thread can send several `Question`s at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeVar

from ignitetf.errors import ConnectError, IgniteTFError, RequestTimeout, ServerError
from ignitetf.net.channel import Channel, Requester, readable
from ignitetf.net.failures import is_retryable
from ignitetf.wire.codes import Feature, OpCode, Status

__all__ = ["Common", "Line", "Question", "answers_to"]

Answer = memoryview | ServerError
_MOMENT_S: Final = 1.0


class Common:
    """A connection that several threads use.

    Args:
        channel: The connection; only this object may use it meanwhile.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        # Held while bytes are sent or received: two threads must not use a TLS socket at once.
        self._io = threading.Lock()
        self._changed = threading.Condition()
        self._is_read = False
        self._answers: dict[int, Answer] = {}
        self._abandoned: set[int] = set()
        self._error: IgniteTFError | None = None

    @property
    def works(self) -> bool:
        """True if requests can be sent."""
        return self._error is None and not self.channel.closed

    def send(self, op: OpCode | int, *buffers: Any) -> int:
        """Send a request, and return its id."""
        try:
            with self._io:
                return self.channel.send(op, *buffers)
        except ConnectError as error:
            with self._changed:
                # The receiving thread will soon report why the connection was closed.
                self._changed.wait_for(lambda: self._error or not self._is_read, _MOMENT_S)
                if self._error is not None:
                    raise _lost(self._error) from error
            raise

    def receive(self, number: int, timeout_s: float | None) -> memoryview:
        """Return the answer to a request; raises as `Channel.receive`."""
        limit_s = self.channel.settings.request_timeout_s if timeout_s is None else timeout_s
        until = time.monotonic() + limit_s
        while True:
            with self._changed:
                if (answer := self._answers.pop(number, None)) is not None:
                    break
                if self._error is not None:
                    raise _lost(self._error)
                is_read, self._is_read = self._is_read, True
                if is_read and (left_s := until - time.monotonic()) > 0:
                    self._changed.wait(left_s)
                    continue
            if is_read:
                self._time_out()
            self._receive_one(until, limit_s)
        if isinstance(answer, ServerError):
            raise answer
        return answer

    def abandon(self, number: int) -> None:
        """Drop the answer to a request, even if it has not arrived yet."""
        with self._changed:
            if self._answers.pop(number, None) is None:
                self._abandoned.add(number)

    def abort(self) -> None:
        """End all waits."""
        self.channel.abort()

    def _time_out(self) -> NoReturn:
        """Drop the connection, because no answer arrived within the time limit of this thread."""
        with self._changed:
            if self._error is None:
                try:
                    self.channel.fail(TimeoutError("timed out"))
                except IgniteTFError as error:
                    self._error = error
                self._changed.notify_all()
            raise _lost(self._error)

    def _receive_one(self, until: float, limit_s: float) -> None:
        """Receive the next answer, for the thread that sent its request."""
        try:
            left_s = until - time.monotonic()
            if self.channel.closed:
                raise ConnectError(f"{self.channel.address}: the connection is closed")
            if not self.channel.has_bytes and not readable([self.channel.file_number], left_s):
                self.channel.fail(TimeoutError("timed out"))
            with self._io:
                number, answer = self.channel.receive_any(timeout_s=limit_s)
        except BaseException as error:
            with self._changed:
                self._is_read = False
                lost = ConnectError(
                    f"{self.channel.address}: the connection was closed by another thread"
                )
                earlier = self._error
                self._error = earlier or (error if isinstance(error, IgniteTFError) else lost)
                self._changed.notify_all()
            if earlier is not None and isinstance(error, Exception):
                raise _lost(earlier) from error
            if isinstance(error, OSError | ValueError) and not isinstance(error, IgniteTFError):
                raise lost from error  # another thread has closed it
            raise
        with self._changed:
            self._is_read = False
            if number in self._abandoned:
                self._abandoned.discard(number)
            else:
                self._answers[number] = answer
            self._changed.notify_all()


class Line(Requester):
    """A thread's part in a common connection."""

    def __init__(self, common: Common) -> None:
        self._common = common
        self._waiting: set[int] = set()
        self.closed = False

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Address of the node."""
        return self._common.channel.address

    @property
    def features(self) -> int:
        """The features of the node."""
        return self._common.channel.features

    def send(self, op: OpCode | int, *buffers: Any) -> int:
        """Send a request, and return its id."""
        number = self._common.send(op, *buffers)
        self._waiting.add(number)
        return number

    def receive(self, request_id: int, *, timeout_s: float | None = None) -> memoryview:
        """Return the answer to a request; raises as `Channel.receive`."""
        try:
            return self._common.receive(request_id, timeout_s)
        except ServerError:
            raise
        except BaseException:
            self.closed = True
            raise
        finally:
            self._waiting.discard(request_id)

    def close(self) -> None:
        """Drop the answers that have not arrived."""
        self.closed = True
        for number in self._waiting:
            self._common.abandon(number)
        self._waiting.clear()

    def abort(self) -> None:
        """Wake the thread that waits on this line, with an error; call it from another thread."""
        self.closed = True
        self._common.abort()


def _lost(error: IgniteTFError) -> IgniteTFError:
    """Return the error of a request whose connection was lost or dropped by another thread."""
    kind = RequestTimeout if isinstance(error, RequestTimeout) else ConnectError
    found = kind(error.message, hint=error.hint)
    found.__cause__ = error
    return found


T = TypeVar("T")


def _raised(error: ServerError) -> NoReturn:
    raise error


@dataclass(frozen=True)
class Question(Generic[T]):
    """A request that changes nothing, and how its answer is parsed.

    Attributes:
        op: The request.
        body: Its body.
        read: Parses the body of the answer.
        refused: Returns a result for an error answer, or raises the error.
        needs: A feature that the cluster must have; a cluster without it counts as refusing.
    """

    op: OpCode
    body: bytes
    read: Callable[[memoryview], T]
    refused: Callable[[ServerError], T] = _raised
    needs: Feature | None = None

    def answered(self, answer: memoryview | ServerError) -> T:
        """Return the result of an answer, which may be an error."""
        return self.refused(answer) if isinstance(answer, ServerError) else self.read(answer)


def answers_to(
    requester: Channel | Line, questions: Sequence[Question[Any]]
) -> list[memoryview | ServerError]:
    """Send questions, and return their answers or errors, in order."""
    found: list[memoryview | ServerError] = []
    for number, question in [(_send(requester, one), one) for one in questions]:
        if number is None:
            text = f"{requester.address}: the cluster is too old for {question.op.name}"
            found.append(ServerError(text, status=Status.INVALID_OP_CODE))
            continue
        try:
            found.append(requester.receive(number))
        except ServerError as error:
            if is_retryable(error):
                raise
            found.append(error)
    return found


def _send(requester: Channel | Line, question: Question[Any]) -> int | None:
    """Send a question, and return its number; None if the cluster lacks what it needs."""
    if question.needs is not None and not requester.features & question.needs:
        return None
    return requester.send(question.op, question.body)
