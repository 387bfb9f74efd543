"""`ByteWindow`: how many bytes a connection may have under way.

pool -> **window** -> flow, exchange

The window is 4 MB (8 MB for pages of cursors) plus the bytes that arrive in twice the shortest
delay. A new connection starts with the rate of an earlier one, or with a usual rate. Then the best
rate seen and the time of the quickest answer decide. The window at most doubles in a round. It is
halved when a node has no heap for what is under way. The core uses the same rule and numbers for
reads.
"""

from __future__ import annotations

import math
import time
from typing import Final

from ignitetf.net.pool import Pool

__all__ = ["LEAST_BYTES", "LEAST_PAGES", "ByteWindow", "first_bytes", "widened"]

LEAST_BYTES: Final = 4 << 20
# For pages of cursors: a node makes several at the same time, each in one thread.
LEAST_PAGES: Final = 8 << 20
# Bytes per second that a new connection is expected to have.
_EXPECTED_RATE: Final = 500e6
# A shorter round is too short to measure a rate.
_LEAST_ROUND_S: Final = 1e-4


def widened(pool: Pool) -> int:
    """Double the largest window, up to `ahead_bytes`, after a refusal halved it; return it."""
    pool.most_window = min(pool.settings.ahead_bytes, 2 * pool.most_window)
    return pool.most_window


def first_bytes(pool: Pool, most: int, least: int = LEAST_BYTES) -> int:
    """Return the window of a new connection in bytes, at most `most`."""
    rate = max(pool.delivered_rate, _EXPECTED_RATE)
    return min(most, least + int(2 * rate * pool.delay.seconds))


class ByteWindow:
    """The window of one connection; for use by one thread.

    Args:
        pool: Provides the shortest delay and the rate of earlier connections.
        most: The largest window.

    Attributes:
        size: Bytes that may be under way.
        rate: Bytes per second that were delivered.
    """

    def __init__(self, pool: Pool, most: int) -> None:
        self.size = first_bytes(pool, most)
        self.rate = 0.0
        self._most, self._delay_s = most, pool.delay.seconds
        # A round begins with an answer, and ends with the answer to a request sent later.
        self._round_begin = math.inf
        self._round_bytes = 0

    def answered(self, sent_at: float, nbytes: int) -> None:
        """Count a request that was answered.

        Args:
            sent_at: When it was sent, by the monotonic clock.
            nbytes: Its bytes and those of its answer.
        """
        now = time.monotonic()
        self._delay_s = min(self._delay_s, now - sent_at)
        if self._round_begin == math.inf:
            self._round_begin = now
            return
        self._round_bytes += nbytes
        if sent_at < self._round_begin:
            return
        seconds = now - self._round_begin
        if seconds > _LEAST_ROUND_S:
            rate = self._round_bytes / seconds
            self.rate = rate if rate > self.rate else 0.9 * self.rate + 0.1 * rate
        self._round_begin, self._round_bytes = now, 0
        fitting = min(LEAST_BYTES, self._most) + int(2 * self.rate * self._delay_s)
        self.size = min(fitting, 2 * self.size, self._most)

    def refused(self) -> None:
        """Halve the window for good, because the node had no heap for more."""
        self._most = self.size = max(1, self.size // 2)
