"""`RoundTrips`: the time of the quickest request so far, which is hardly more than a round trip.

channel -> **round trips** -> pool

It costs no request of its own.
"""

from __future__ import annotations

import math

__all__ = ["RoundTrips"]


class RoundTrips:
    """The time of the quickest request.

    Attributes:
        quickest_s: Its seconds; infinite before the first.
    """

    def __init__(self) -> None:
        self.quickest_s = math.inf

    def add(self, seconds: float) -> None:
        """Count a request that took so many seconds, from sending it to its answer."""
        self.quickest_s = min(self.quickest_s, seconds)
