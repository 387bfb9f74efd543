"""Requests in flight over several connections, where one would carry too little.

requests -> **lines** -> pipelines -> channels

A connection carries what its TCP window holds in each round trip, some megabytes. So on a distant
link a deep line of requests gets more connections, which open while the first one is in use.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from ignitetf.net.client import Client
from ignitetf.net.distance import times
from ignitetf.net.pipeline import Pipeline
from ignitetf.net.together import open_ahead
from ignitetf.wire.codes import OpCode

__all__ = ["Lines"]

_MOST_CONNECTIONS: Final = 8
# What a connection holds on its way with the limits of Linux.
_CONNECTION_BYTES: Final = 8 << 20
# So many unanswered requests are a sign that more follow.
_DEEP: Final = 4
# Connections that are left for other requests meanwhile, like those of a transaction.
_LEFT: Final = 1


class Lines:
    """Requests that are answered oldest first; `len` counts those without an answer.

    Like a `Pipeline`: only for requests that may be repeated, and for one thread.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._begin()

    def _begin(self) -> None:
        self._lines = [Pipeline(self._client)]
        # The line of each unanswered request.
        self._order: deque[Pipeline] = deque()
        self._most = times(self._client, _CONNECTION_BYTES, 1, _MOST_CONNECTIONS)
        self._opening = False

    def __len__(self) -> int:
        return len(self._order)

    def submit(self, op: OpCode, *buffers: Any) -> None:
        """Send a request, whose buffers must not change until its answer has been taken."""
        line = self._next_line()
        self._order.append(line)
        line.submit(op, *buffers)

    def next_answer(self) -> memoryview:
        """Return the answer to the oldest request; after an error it stays the oldest."""
        body = self._order[0].next_answer()
        self._order.popleft()
        return body

    def close(self) -> None:
        """Release the connections; those with outstanding answers are closed."""
        for line in self._lines:
            line.close()
        self._begin()

    def abort(self) -> None:
        """Close the connections, as after an interruption it is unknown what is in flight."""
        for line in self._lines:
            line.abort()
        self._begin()

    def close_if_idle(self) -> None:
        """Release the connections if nothing is in flight."""
        if not self._order:
            self.close()

    def _next_line(self) -> Pipeline:
        """Return the line with the fewest requests, a new one if a connection is there for it."""
        if len(self._order) >= _DEEP and len(self._lines) < self._most:
            if self._client.idle_count > _LEFT:
                self._lines.append(Pipeline(self._client))
            elif not self._opening:
                self._opening = True
                open_ahead(self._client, self._most - len(self._lines) + _LEFT)
        return min(self._lines, key=len)
