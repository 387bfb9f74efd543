"""What a writer and its connections share: pieces of work, totals, the first error.

writer -> **work** -> lines
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.net.client import Client
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.checksum import checksum
from ignitetf.wire.encode import EncodedPage
from ignitetf.wire.schema import Batch, Schema

__all__ = ["POLL_S", "Flush", "Job", "Totals", "Work", "WorkQueue"]

_Counts = NDArray[np.int64] | None

POLL_S: Final = 0.1


@dataclass
class Totals:
    """What was written: rows, bytes of their entries, checksum, rows by partition."""

    rows: int = 0
    nbytes: int = 0
    checksum: int = 0
    partition_rows: NDArray[np.int64] | None = None

    def add(self, rows: int, nbytes: int, checksum: int, counts: _Counts) -> None:
        """Take in some rows."""
        self.rows += rows
        self.nbytes += nbytes
        self.checksum = (self.checksum + checksum) % (1 << 64)
        known = self.partition_rows
        self.partition_rows = None if known is None or counts is None else known + counts


@dataclass(frozen=True)
class Work:
    """Rows to be written, and how they become entries.

    Attributes:
        rows: The rows, as they are counted.
        entries: Makes the records to be stored of them, in the writer's thread; None: the rows.
    """

    rows: Batch
    entries: Callable[[Batch], Batch] | None = None


@dataclass
class Flush:
    """Asks every connection for a flush; the last to finish says that all is stored."""

    barrier: threading.Barrier
    done: threading.Event = field(default_factory=threading.Event)


WorkQueue = queue.Queue[Work | Flush | None]


@dataclass
class Job:
    """What the connections of a writer do, and how far they are.

    Attributes:
        client: The client to take connections from.
        cache: Name of the cache.
        schema: The rows that are counted.
        entry_schema: The records that are stored.
        overwrite: Whether a row replaces one that has its key already.
        streamer: Whether to take the data streamer, where the server has it.
        in_flight: Requests of one connection that wait for their answer.
        request_bytes: Size of a request, if one row is not larger.
        check_lease: Called before each request; raises what stands against it.
        totals: What was handed to the node.
        failed: The first error of a connection.
        flushing: The flush that is under way, or the last.
    """

    client: Client
    cache: str
    schema: Schema
    entry_schema: Schema
    overwrite: bool
    streamer: bool
    in_flight: int
    request_bytes: int
    check_lease: Callable[[], None]
    totals: Totals = field(default_factory=Totals)
    failed: BaseException | None = None
    flushing: Flush | None = None

    def __post_init__(self) -> None:
        """Take the time limit of a flush from the settings."""
        settings = self.client.settings
        # A flush waits for all that is on its way, so it may take longer than another request.
        self.flush_timeout_s = max(settings.idle_timeout_s, settings.request_timeout_s)
        self._lock = threading.Lock()

    def count(self, rows: Batch, page: EncodedPage) -> None:
        """Add rows, which are encoded, to the totals; called by the connections' threads."""
        counts = None
        known = self.totals.partition_rows
        if known is not None and rows.key is not None:
            partitions = partitions_of(self.schema, rows.key, len(known))
            if partitions is not None:
                counts = np.bincount(partitions, minlength=len(known))
        total = checksum(self.schema, rows, page.row_hashes)
        with self._lock:
            self.totals.add(len(rows), page.nbytes, total, counts)

    def take(self, waiting: WorkQueue) -> Work | Flush | None:
        """The next piece of work; waits for it. None ends the thread."""
        while self.failed is None:
            with contextlib.suppress(queue.Empty):
                return waiting.get(timeout=POLL_S)
        return None

    def fail(self, error: BaseException) -> None:
        """Note the first error of a connection, for the caller of the next method."""
        with self._lock:
            if self.failed is None:
                self.failed = error
            if self.flushing is not None:
                self.flushing.barrier.abort()

    def check(self) -> None:
        """Raise the first error of a connection."""
        if self.failed is not None:
            raise self.failed
