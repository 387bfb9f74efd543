"""How many bytes are on their way at once, by the distance of the cluster.

pool -> **distance** -> read, load, fs, results

Who waits for an answer before the next request gets one answer for each round trip. So on a distant
link so many bytes are under way that they fill it: two gigabytes for each second of the round trip,
since what waits on the node for its turn counts too, up to a limit of memory that is a setting. The
round trip is the time of the quickest request so far, which costs no request of its own, but where
a data set is opened and the requests so far do not agree (`is_far`).
"""

from __future__ import annotations

import math
from typing import Final

from ignitetf.net.pool import Pool
from ignitetf.net.round_trips import FAR_S
from ignitetf.wire.codes import OpCode

__all__ = ["bytes_ahead", "is_far", "times"]

_BYTES_A_SECOND: Final = 2e9
# A busy node on the same machine answers one of so many within FAR_S, nearly always.
_TRIES: Final = 10


def is_far(pool: Pool) -> bool:
    """Return whether the link is distant, for a choice that lasts.

    While that is in doubt, requests are made only to find out; each takes a round trip.

    Args:
        pool: The connections.

    Raises:
        IgniteTFError: As `Pool.call`.
    """
    for _ in range(_TRIES):
        if pool.quickest_s < FAR_S or pool.round_trips.agree:
            break
        pool.call(OpCode.CACHE_GET_NAMES)
    return pool.quickest_s >= FAR_S


def bytes_ahead(pool: Pool) -> int:
    """Return how many bytes to have on their way; 0 where the link is near, or nothing is known."""
    if not FAR_S <= pool.quickest_s < math.inf:
        return 0
    return int(min(pool.settings.ahead_bytes, pool.quickest_s * _BYTES_A_SECOND))


def times(pool: Pool, nbytes: int, near: int, most: int) -> int:
    """Return how many things of this size to have on their way.

    Args:
        pool: The connections.
        nbytes: Size of one.
        near: Their number on a near link, and the least.
        most: The largest number.
    """
    return max(near, min(most, bytes_ahead(pool) // max(1, nbytes)))
