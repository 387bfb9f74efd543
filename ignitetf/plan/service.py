"""`ServiceTimes`: what a node and a reader take for a page, measured or assumed.

a cache for a moment -> **service times** -> sizing, simulation
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Final

from ignitetf.bench.rows import Profile, drop_rows, make_rows, source_of
from ignitetf.bench.workloads import Workload
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import Client
from ignitetf.read.options import page_bytes_for
from ignitetf.read.rows import EpochRows, open_rows
from ignitetf.tables.room import data_regions

__all__ = ["ServiceTimes", "assumed_times", "measure_times", "page_bytes_of"]

_CACHE: Final = "IGNITETF_PLAN"
_MEASURED_BYTES: Final = 160 << 20
_PARTITIONS: Final = 8
_ROUNDS: Final = 5
_CALLS: Final = 30
# Where nothing can be measured: about what one connection has on a machine of 2 cores.
_NODE_BYTES_PER_S: Final = 2e9
_DECODE_BYTES_PER_S: Final = 8e9
_ROUND_TRIP_S: Final = 0.0003


@dataclass(frozen=True)
class ServiceTimes:
    """What a page takes.

    Attributes:
        page_bytes: Bytes of a page.
        page_s: Seconds in which a node makes a page and one connection receives it.
        decode_s: Seconds in which a reader makes columns of it.
        round_trip_s: Seconds of a request with an empty answer.
        measured: Whether they were measured on this cluster, rather than assumed.
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
        """Bytes per second of one connection, on which two requests are unanswered at a time."""
        return self.page_bytes / (self.page_s + self.decode_s + self.round_trip_s / 2)


def page_bytes_of(row_bytes: int) -> int:
    """Return about how many bytes a page of such rows has at least: whole rows, one or more."""
    return max(1, page_bytes_for(row_bytes, 0.0) // row_bytes) * row_bytes


def assumed_times(row_bytes: int) -> ServiceTimes:
    """Return times for where there is no cluster to measure."""
    nbytes = page_bytes_of(row_bytes)
    return ServiceTimes(
        nbytes, nbytes / _NODE_BYTES_PER_S, nbytes / _DECODE_BYTES_PER_S, _ROUND_TRIP_S
    )


def measure_times(client: Client, workload: Workload) -> ServiceTimes | None:
    """Measure with rows of the workload, in a cache that is removed again.

    One connection reads them, so that the times are those of a node that serves one page after the
    other, and of a client on the same machine or link.

    Returns:
        None if the node has no room for some pages.
    """
    used, most = data_regions(client).get("default", (0, 0))
    page = page_bytes_of(workload.row_bytes)
    nbytes = max(2 * page, _MEASURED_BYTES)
    if most and nbytes > (most - used) // 2:
        return None
    rows = max(2, nbytes // workload.row_bytes)
    profile = Profile(rows, workload.row_bytes, rows)
    drop_rows(client, _CACHE)  # of an interrupted run
    try:
        source = source_of(profile, lambda: make_rows(profile))
        load_dataset(source, _CACHE, client=client, partitions=_PARTITIONS)
        opened = open_rows(_CACHE, client=client, shard=(0, 1), readers=1)
        return ServiceTimes(*_page_times(opened, page), _round_trip_s(client), measured=True)
    finally:
        drop_rows(client, _CACHE)


def _page_times(opened: EpochRows, page_bytes: int) -> tuple[int, float, float]:
    """Return the bytes of a page, the seconds until it is here, and those of decoding it."""
    reader = opened.reader
    size = reader.page_size()
    pages = sum(-(-count // size) for count in reader.partition_counts(range(_PARTITIONS)))
    seconds, decode = [], []
    for number in range(_ROUNDS + 1):
        before = replace(reader.times)
        begin = time.perf_counter()
        rows = sum(len(batch) for batch in opened.column_batches())
        took, spent = time.perf_counter() - begin, reader.times.since(before)
        if number:  # the first round warms up
            seconds.append(took / pages)
            decode.append(min(spent.decode, took / 2) / pages)
    # The shortest: what others do on the machine can only make it longer.
    page, columns = min(seconds), min(decode)
    nbytes = int(rows * reader.entry_bytes / pages)
    return nbytes or page_bytes, page - columns, columns


def _round_trip_s(client: Client) -> float:
    """Return the seconds of a small request."""
    seconds = []
    for _ in range(_CALLS):
        begin = time.perf_counter()
        client.cache_size(_CACHE)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
