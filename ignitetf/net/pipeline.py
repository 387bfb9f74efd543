"""Requests in flight: sent ahead over one connection, their answers taken oldest first.

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
    """The requests of one channel whose answers are still to come; `len` counts them.

    Args:
        channel: The channel; nobody else sends on it meanwhile.
        limit: The most requests that stay unanswered; `send` receives the oldest answers beyond it.
    """

    def __init__(self, channel: Channel, limit: float = math.inf) -> None:
        self.channel = channel
        self._limit = limit
        self._ids: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._ids)

    def send(self, op: OpCode, *buffers: Any) -> None:
        """Send a request; raises as `Channel.receive` for those before it that are answered."""
        self._ids.append(self.channel.send(op, *buffers))
        while len(self._ids) > self._limit:
            self.receive()

    def receive(self) -> memoryview:
        """The answer to the oldest request, which counts as answered whatever is raised."""
        return self.channel.receive(self._ids.popleft())

    def drain(self) -> None:
        """Receive all answers."""
        while self._ids:
            self.receive()


class Pipeline:
    """Requests in flight that are sent again on another connection where one breaks.

    For requests that may be repeated. Not for several threads.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pending: deque[tuple[OpCode, Sequence[Any]]] = deque()
        # The first of the pending requests, as many as were sent over the present connection.
        self._sent: InFlight | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def submit(self, op: OpCode, *buffers: Any) -> None:
        """Send a request; its buffers must stay as they are until its answer was taken."""
        self._pending.append((op, buffers))
        retry(self._client.settings, lambda _: self._send())

    def take(self) -> memoryview:
        """The answer to the oldest request."""

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
        """Give the connection back, or close it while answers are still to come."""
        sent, self._sent = self._sent, None
        self._pending.clear()
        if sent is None:
            return
        if len(sent):
            sent.channel.close()
        else:
            self._client.release(sent.channel)

    def abort(self) -> None:
        """Close the connection: after an interruption nobody knows what is in flight."""
        self._reset()
        self._pending.clear()

    def rest(self) -> None:
        """Give the connection back when nothing is in flight."""
        if not self._pending:
            self.close()

    def _send(self) -> InFlight:
        """Send what is pending and was not sent over the present connection."""
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
