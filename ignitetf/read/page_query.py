"""`Query`: how partitions are requested, and the pages that a scan yields.

**page query** -> scan thread -> scan -> reader
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.read.cursor import Times
from ignitetf.read.options import PAGE_BYTES
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import Page

__all__ = [
    "Ends",
    "Query",
    "RetryPolicy",
    "UnitPage",
    "are_small",
    "pipeline_depth",
    "requested_bytes",
]

# Of the 128 cursors that a connection may have; each is closed by the last page of its unit.
_MAX_PIPELINED: Final = 120
# Units of which a page has so many, and of no more bytes than this, are small: few of them have more
# than a usual page, as one that does is received by itself.
_MANY_UNITS: Final = 4
_SMALL_BYTES: Final = PAGE_BYTES // 2
# However many connections there are, each asks for an eighth of the small units that one alone would,
# but for two at least, and no more than so many.
_EACH_OF_MANY: Final = 8


@dataclass(frozen=True)
class Query:
    """How to request one partition.

    Attributes:
        op: QUERY_SCAN or QUERY_SQL_FIELDS.
        bodies: Partitions to request bodies.
        name: Cache, for messages.
        page_rows: Entries of every page but the last of a unit.
        pipelined: Requests that are unanswered at a time on one connection, beside that of the page
            which is being received.
        has_small_units: Whether a unit is mostly a single page, and a small one (`are_small`).
        held: Small units that are asked for and whose rows were not taken, at most.
        buffer_bytes: A reader stops receiving while rows of more bytes than this are waiting.
        ahead_bytes: If there are several readers, they together may hold so much.
        early_bytes: Pages of further units are not asked for while more bytes than this came early.
        run_bytes: Rows are handed over when their pages have about so many bytes.
        times: Receives the times of each scan that has ended.
    """

    op: OpCode
    bodies: Callable[[Sequence[int]], Sequence[bytes] | NDArray[np.void]]
    name: str
    page_rows: int
    pipelined: int = 1
    has_small_units: bool = False
    held: int = 0
    buffer_bytes: int = 2 << 20
    ahead_bytes: int = 0
    early_bytes: int = 2 << 20
    run_bytes: int = PAGE_BYTES
    times: Times = field(default_factory=Times)

    def shared(self, links: int) -> Query:
        """Return the query of small units for each of so many connections of one thread.

        Together they ask for, and hold, twice as much as one, but at least some units each.
        """
        if links <= 2:
            return self
        least = max(2, min(_EACH_OF_MANY, self.pipelined // 8))
        pipelined = max(least, 2 * self.pipelined // links)
        early = max(1, 2 * (self.held - self.pipelined) // links)
        return replace(self, pipelined=pipelined, held=pipelined + early)


@dataclass(frozen=True)
class RetryPolicy:
    """How long to try to replace a lost connection.

    Attributes:
        budget_s: Seconds without a new page until the error is raised; 0 never retries.
    """

    budget_s: float = 60.0


class Ends:
    """The units with which a batch must end.

    Args:
        units: Their indexes; None for all units.
    """

    def __init__(self, units: Iterable[int] | None) -> None:
        self._order = None if units is None else sorted(units)
        self._set = frozenset(self._order or ())

    def __contains__(self, unit: int) -> bool:
        return self._order is None or unit in self._set

    def next(self, unit: int) -> int:
        """Return the first one from this unit on, which must not be the last."""
        return unit if self._order is None else self._order[bisect_left(self._order, unit)]


@dataclass(frozen=True)
class UnitPage:
    """One page of one unit, as received.

    Attributes:
        unit: Index into the requested units.
        page: The page; None marks the end of the unit.
        replay: Number of this page among those delivered before, -1 for a new page.
    """

    unit: int
    page: Page | None
    replay: int = -1

    @property
    def nbytes(self) -> int:
        """Bytes of the page."""
        return 0 if self.page is None else self.page.data.nbytes


def requested_bytes(unit_bytes: float, page_bytes: int) -> int:
    """Return about how many bytes one connection has asked for at a time."""
    if not 0 < unit_bytes < page_bytes:
        return page_bytes
    return max(1, int(unit_bytes * pipeline_depth(unit_bytes, page_bytes)))


def pipeline_depth(unit_bytes: float, page_bytes: int, readers: int = 1) -> int:
    """Return how many units to request at once so that together they are about one page.

    At least two over all connections, so that the node starts on the next unit before the last page
    of one is here. Not more of large ones, because the node takes up to 340 rows of each into its
    heap before it answers.
    """
    if unit_bytes <= 0:
        return _MAX_PIPELINED
    return int(max(2 if readers == 1 else 1, min(_MAX_PIPELINED, page_bytes // unit_bytes)))


def are_small(unit_bytes: float, page_bytes: int) -> bool:
    """Return whether units are so small that one connection keeps a node busy."""
    return unit_bytes <= _SMALL_BYTES and pipeline_depth(unit_bytes, page_bytes) >= _MANY_UNITS
