"""Requests in flight: sent ahead over one connection, answered oldest first.

requests -> **pipeline** -> channel
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from ignitetf.errors import IgniteTFError
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client
from ignitetf.net.retry import retry
from ignitetf.wire.codes import OpCode

__all__ = ["InFlight", "Pipeline"]


class InFlight:
    """The unanswered requests of one channel; `len` counts them.

    Args:
        channel: The channel, on which nobody else may send meanwhile.
        limit: Maximum number of unanswered requests; beyond it, `send` receives the oldest answers.
    """

    def __init__(self, channel: Channel, limit: float = math.inf) -> None:
        self.channel = channel
        self._limit = limit
        self._ids: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._ids)

    def send(self, op: OpCode, *buffers: Any) -> None:
        """Send a request; raises what `Channel.receive` raises for earlier answers it takes."""
        self._ids.append(self.channel.send(op, *buffers))
        while len(self._ids) > self._limit:
            self.receive()

    def receive(self) -> memoryview:
        """Return the answer to the oldest request, which counts as answered even on an error."""
        return self.channel.receive(self._ids.popleft())

    def drain(self) -> None:
        """Receive and discard all outstanding answers."""
        while self._ids:
            self.receive()


class Pipeline:
    """Requests in flight that are sent again on another connection if theirs breaks.

    Only for requests that may be repeated, and for one thread.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pending: deque[tuple[OpCode, Sequence[Any]]] = deque()
        # The leading part of the pending requests, as sent over the current connection.
        self._sent: InFlight | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def submit(self, op: OpCode, *buffers: Any) -> None:
        """Send a request, whose buffers must not change until its answer has been taken."""
        self._pending.append((op, buffers))
        retry(self._client.settings, lambda _: self._send())

    def next_answer(self) -> memoryview:
        """Return the answer to the oldest request."""

        def once(_: object) -> memoryview:
            sent = self._send()
            try:
                body = sent.receive()
            except BaseException:
                self._reset()
                raise
            self._pending.popleft()
            return body

        return retry(self._client.settings, once)

    def close(self) -> None:
        """Release the connection, or close it if answers are still outstanding."""
        sent, self._sent = self._sent, None
        self._pending.clear()
        if sent is None:
            return
        if len(sent):
            sent.channel.close()
        else:
            self._client.release(sent.channel)

    def abort(self) -> None:
        """Close the connection, as after an interruption it is unknown what is in flight."""
        self._reset()
        self._pending.clear()

    def close_if_idle(self) -> None:
        """Release the connection if nothing is in flight."""
        if not self._pending:
            self.close()

    def _send(self) -> InFlight:
        """Send the pending requests that were not yet sent over the current connection."""
        if self._sent is None:
            self._sent = InFlight(self._client.acquire())
        sent = self._sent
        try:
            for op, buffers in list(self._pending)[len(sent) :]:
                sent.send(op, *buffers)
        except IgniteTFError:
            self._reset()
            raise
        return sent

    def _reset(self) -> None:
        if self._sent is not None:
            self._sent.channel.close()
        self._sent = None
