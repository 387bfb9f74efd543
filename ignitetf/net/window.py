"""`ByteWindow`: how many bytes a connection may have under way.

pool -> **window** -> flow, exchange

The window is 4 MB, for pages of cursors 8 MB, and what arrives in twice the shortest delay. For a new
connection the rate of an earlier one is used, or a usual rate. After that the best rate seen and
the time of the quickest answer decide. The window at most doubles in a round. A node that has no
heap for what is under way halves it. The core has the same rule for reads, with these numbers.
"""

from __future__ import annotations

import math
import time
from typing import Final

from ignitetf.net.pool import Pool

__all__ = ["LEAST_BYTES", "LEAST_PAGES", "ByteWindow", "first_bytes", "widened"]

LEAST_BYTES: Final = 4 << 20
# Of pages of cursors: a node makes several side by side, each in one thread.
LEAST_PAGES: Final = 8 << 20
# Bytes per second that a new connection is expected to have.
_EXPECTED_RATE: Final = 500e6
# A shorter round is too short to measure a rate.
_LEAST_ROUND_S: Final = 1e-4


def widened(pool: Pool) -> int:
    """Double the largest window, which a refusal has halved, up to `ahead_bytes`; return it."""
    pool.most_window = min(pool.settings.ahead_bytes, 2 * pool.most_window)
    return pool.most_window


def first_bytes(pool: Pool, most: int, least: int = LEAST_BYTES) -> int:
    """Return the window of a new connection in bytes, at most `most`."""
    rate = max(pool.delivered_rate, _EXPECTED_RATE)
    return min(most, least + int(2 * rate * pool.delay.seconds))


class ByteWindow:
    """The window of one connection; for use by one thread.

    Args:
        pool: Has the shortest delay and the rate of earlier connections.
        most: The largest window.

    Attributes:
        size: Bytes that may be under way.
        rate: Bytes per second that were delivered.
    """

    def __init__(self, pool: Pool, most: int) -> None:
        self.size = first_bytes(pool, most)
        self.rate = 0.0
        self._most, self._delay_s = most, pool.delay.seconds
        # A round begins with an answer, and ends with one to a request sent after that.
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
        """Halve the window for good, since the node has no heap for more."""
        self._most = self.size = max(1, self.size // 2)
