"""Requests in flight on one connection, for chunks that are written and read ahead.

chunks -> **pipeline** -> client
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from ignitetf.errors import IgniteTFError
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client
from ignitetf.net.retry import retry
from ignitetf.wire.codes import OpCode

__all__ = ["Pipeline"]


class Pipeline:
    """Requests in flight on one connection, answered in order; sent again where that breaks.

    For requests that may be repeated. Not for several threads.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._channel: Channel | None = None
        self._pending: deque[tuple[OpCode, Sequence[Any]]] = deque()
        self._sent: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def submit(self, op: OpCode, *buffers: Any) -> None:
        """Send a request; its buffers must stay as they are until its answer was taken."""
        self._pending.append((op, buffers))
        retry(self._client.settings, lambda _: self._send())

    def take(self) -> memoryview:
        """The answer to the oldest request."""

        def once(_: object) -> memoryview:
            self._send()
            assert self._channel is not None
            try:
                body = self._channel.receive(self._sent[0])
            except IgniteTFError:
                self._reset()
                raise
            self._sent.popleft()
            self._pending.popleft()
            return body

        return retry(self._client.settings, once)

    def close(self) -> None:
        """Give the connection back, or close it while answers are still to come."""
        channel, self._channel = self._channel, None
        self._pending.clear()
        if channel is None:
            return
        if self._sent:
            self._sent.clear()
            channel.close()
        else:
            self._client.release(channel)

    def abort(self) -> None:
        """Close the connection: after an interruption nobody knows what is in flight."""
        self._reset()
        self._pending.clear()

    def rest(self) -> None:
        """Give the connection back when nothing is in flight."""
        if not self._pending:
            self.close()

    def _send(self) -> None:
        if self._channel is None:
            self._channel = self._client.acquire()
            self._sent.clear()
        try:
            for op, buffers in list(self._pending)[len(self._sent) :]:
                self._sent.append(self._channel.send(op, *buffers))
        except IgniteTFError:
            self._reset()
            raise

    def _reset(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None
        self._sent.clear()
