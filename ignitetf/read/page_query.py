"""`Query`: how partitions are requested and decoded, and what a scan yields.

**page query** -> scan thread -> scan -> reader
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ignitetf.net.places import Source
from ignitetf.read.cursor import Times
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import Page

__all__ = [
    "PagesDecoder",
    "Query",
    "RetryPolicy",
    "UnitPage",
    "UnitRun",
    "pipeline_depth",
    "requested_bytes",
]

# Of the 128 cursors that a connection may have; each is closed by the last page of its unit.
_MAX_PIPELINED: Final = 120


class PagesDecoder(Protocol):
    """Decodes pages, for one thread."""

    def one(self, partition: int, page: Page, /) -> Any:
        """Decode a page of a partition."""

    def joined(self, partitions: Sequence[int], pages: Sequence[Page], /) -> Any:
        """Decode the only pages of several partitions."""


class _AsReceived:
    """Leaves pages as they are."""

    def one(self, partition: int, page: Page) -> Page:
        return page

    def joined(self, partitions: Sequence[int], pages: Sequence[Page]) -> list[Page]:
        return list(pages)


@dataclass(frozen=True)
class Query:
    """How to request one partition.

    Attributes:
        op: QUERY_SCAN or QUERY_SQL_FIELDS.
        body: Partition to request body.
        name: Cache, for messages.
        page_rows: Entries of every page but the last of a unit.
        pipelined: Units whose first page is requested at once on one connection.
        buffer_bytes: A reader stops receiving while more bytes than this are waiting.
        run_bytes: Units of one page that are next to each other are decoded together until they
            have so many bytes; 0 decodes each alone.
        decoder: Makes what decodes the pages, for one thread.
        times: Receives the times of each scan that has ended.
    """

    op: OpCode
    body: Callable[[int], bytes]
    name: str
    page_rows: int
    pipelined: int = 1
    buffer_bytes: int = 2 << 20
    run_bytes: int = 0
    decoder: Callable[[], PagesDecoder] = _AsReceived
    times: Times = field(default_factory=Times)


@dataclass(frozen=True)
class RetryPolicy:
    """How long to try to replace a lost connection.

    Attributes:
        budget_s: Seconds without a new page until the error is raised; 0 never retries.
    """

    budget_s: float = 60.0


@dataclass(frozen=True)
class UnitPage:
    """One page of one unit.

    Attributes:
        unit: Index into the requested units.
        page: What the query's decoder made of the page; None marks the end of the unit.
        replay: Number of this page among those delivered before, -1 for a new page.
        nbytes: Bytes of the page.
        source: Where it came from.
    """

    unit: int
    page: Any
    replay: int = -1
    nbytes: int = 0
    source: Source | None = None


@dataclass(frozen=True)
class UnitRun:
    """All entries of several adjacent units, each of which had a single page.

    Attributes:
        unit: Index of the first one into the requested units.
        page: What the query's decoder made of the pages.
        nbytes: Bytes of each page.
        sources: Where each came from.
    """

    unit: int
    page: Any
    nbytes: list[int]
    sources: list[Source | None]


def requested_bytes(unit_bytes: float, page_bytes: int) -> int:
    """Return about how many bytes one connection has asked for at a time."""
    if not 0 < unit_bytes < page_bytes:
        return page_bytes
    return max(1, int(unit_bytes * pipeline_depth(unit_bytes, page_bytes)))


def pipeline_depth(unit_bytes: float, page_bytes: int) -> int:
    """Return how many units to request at once so that together they are about one page.

    At least two, so that the node starts on the next unit before the last page of one is here.
    """
    if unit_bytes <= 0:
        return _MAX_PIPELINED
    return int(max(2, min(_MAX_PIPELINED, page_bytes // unit_bytes)))
