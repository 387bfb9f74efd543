"""`ServiceTimes`: the time that a node and a reader need for a page, measured or assumed.

a cache for a moment -> **service times** -> sizing
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from ignitetf import Client, open_rows
from ignitetf.bench.bare import Scans
from ignitetf.bench.rows import Profile, drop_rows, fill_cache
from ignitetf.bench.workloads import Workload
from ignitetf.explore.cluster import data_regions
from ignitetf.settings import Settings

__all__ = ["ServiceTimes", "assumed_times", "measure_times", "page_bytes_of"]

_CACHE: Final = "IGNITETF_PLAN"
_MEASURED_BYTES: Final = 160 << 20
_PARTITIONS: Final = 8
_ROUNDS: Final = 5
_CALLS: Final = 30
# Bytes of a page, which has at least one row.
_PAGE_BYTES: Final = 4 << 20
# The window of a connection.
_LEAST_WINDOW = 8 << 20
# Used if nothing can be measured: about the times of one connection on a machine with 2 cores.
_NODE_BYTES_PER_S: Final = 2e9
_DECODE_BYTES_PER_S: Final = 8e9
_ROUND_TRIP_S: Final = 0.0003


@dataclass(frozen=True)
class ServiceTimes:
    """The times for a page.

    Attributes:
        page_bytes: Bytes of a page.
        page_s: Seconds for a node to make a page and one connection to receive it.
        decode_s: Seconds for a reader to convert it to columns.
        round_trip_s: Seconds of a request with an empty answer.
        measured: True if they were measured on this cluster; otherwise they are assumed.
    """

    page_bytes: int
    page_s: float
    decode_s: float
    round_trip_s: float
    measured: bool = False

    @property
    def node_bytes_per_s(self) -> float:
        """Bytes per second of one node that serves one page after the other."""
        return self.page_bytes / self.page_s

    @property
    def reader_bytes_per_s(self) -> float:
        """Bytes per second of one connection, which always has further requests under way."""
        return self.page_bytes / (self.page_s + self.decode_s)

    @property
    def window_bytes(self) -> int:
        """Bytes that a connection has under way: 8 MB plus the bytes of two round trips."""
        of_round_trips = 2 * self.reader_bytes_per_s * self.round_trip_s
        return int(min(_LEAST_WINDOW + of_round_trips, Settings.ahead_bytes))


def page_bytes_of(row_bytes: int) -> int:
    """Return the approximate bytes of a page of rows of `row_bytes`: one or more whole rows."""
    return max(1, _PAGE_BYTES // row_bytes) * row_bytes


def assumed_times(row_bytes: int) -> ServiceTimes:
    """Return assumed times, for use without a cluster to measure."""
    nbytes = page_bytes_of(row_bytes)
    return ServiceTimes(
        nbytes, nbytes / _NODE_BYTES_PER_S, nbytes / _DECODE_BYTES_PER_S, _ROUND_TRIP_S
    )


def measure_times(client: Client, workload: Workload) -> ServiceTimes | None:
    """Measure with rows of the workload, in a temporary cache.

    A bare socket receives them page by page, so the times are those of a node that serves one page
    after the other. The additional time of a reader is the time for making columns.

    Returns:
        The times; None if the node has no room for a few pages.
    """
    used, most = data_regions(client).get("default", (0, 0))
    page = page_bytes_of(workload.row_bytes)
    nbytes = max(2 * page, _MEASURED_BYTES)
    if most and nbytes > (most - used) // 2:
        return None
    rows = max(2, nbytes // workload.row_bytes)
    profile = Profile(rows, workload.row_bytes, rows)
    try:
        fill_cache(client, profile, _PARTITIONS, _CACHE)
        scans = Scans(client, _CACHE, workload.row_bytes, page)
        opened = open_rows(_CACHE, client=client, shard=(0, 1))
        bare_s, whole_s = [], []
        for _ in range(_ROUNDS):
            bare_s.append(scans.drain()[1])
            begin = time.perf_counter()
            with opened.batches() as batches:
                for _batch in batches:
                    pass
            whole_s.append(time.perf_counter() - begin)
        # Use the shortest time: other load on the machine can only increase it.
        page_s = min(bare_s) / scans.pages
        decode_s = max(0.0, min(whole_s) / scans.pages - page_s)
        nbytes = scans.nbytes // scans.pages
        return ServiceTimes(nbytes, page_s, decode_s, _round_trip_s(client), measured=True)
    finally:
        drop_rows(client, _CACHE)


def _round_trip_s(client: Client) -> float:
    """Return the seconds of a small request."""
    seconds = []
    for _ in range(_CALLS):
        begin = time.perf_counter()
        client.cache_size(_CACHE)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
