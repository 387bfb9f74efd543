"""`RoundTrips`: how far a cluster is, by the quickest requests so far.

channel -> **round trips** -> pool, distance

They cost no request of their own. The time of one says little: the first ones of a process take
milliseconds by themselves, and tenths of a second where eight processes begin on two cores. But a
link takes the same time twice, and a busy machine seldom does.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["FAR_S", "RoundTrips"]

# A link on which a request takes so long counts as distant.
FAR_S: Final = 0.005

_KEPT: Final = 2
# The first requests over links of 10 and 50 ms each way differed by up to a quarter.
_SHARE: Final = 1.3


class RoundTrips:
    """The times of the quickest two requests; one that two threads add at once may be missed."""

    def __init__(self) -> None:
        self._quickest: tuple[float, ...] = ()

    def add(self, seconds: float) -> None:
        """Count a request that took so many seconds, from sending it to its answer."""
        self._quickest = tuple(sorted((*self._quickest, seconds))[:_KEPT])

    @property
    def quickest_s(self) -> float:
        """Seconds of the quickest one; infinite before the first."""
        return self._quickest[0] if self._quickest else math.inf

    @property
    def agree(self) -> bool:
        """Whether both took about the same time."""
        times = self._quickest
        return len(times) == _KEPT and times[-1] <= _SHARE * times[0]
