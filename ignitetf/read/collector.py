"""`Collector`: the rows of pages, in order, as batches that go on across pages and partitions.

cursor, scan thread -> page decoder, builder -> **collector** -> scan -> unit reading

A page that arrives is taken apart piece by piece by a `BatchBuilder`. Rows in a form that it does
not know, and all rows where there is no builder, are decoded as a page; small pages are joined
first, because a page of a few rows costs as much as one of thousands. So are pages of long texts and
blobs that have come before their turn: their bytes are no longer in the processor's cache, and
columns that are views of the page save the copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import IgniteTFError
from ignitetf.net.places import Source
from ignitetf.read.changes import KeyMark
from ignitetf.read.cursor import Receive, Taker
from ignitetf.read.error_context import RowPlaces
from ignitetf.read.page_decoder import Decoded, PageDecoder
from ignitetf.read.page_query import Ends
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.builder import BatchBuilder, Position
from ignitetf.wire.frames import Page
from ignitetf.wire.objects import Bytes
from ignitetf.wire.page_reader import Arrival, PageReader
from ignitetf.wire.schema import Batch, Column
from ignitetf.wire.units import UnitAnswers, UnitReader

__all__ = ["Collector", "PagePlace", "PageRecord", "Portion", "UnitsRecord"]

# A larger page is worth more than the copy that joins it to others.
_MOST_JOINED_BYTES: Final = 256 << 10
# Columns that are views begin another batch; of a smaller page a copy costs less than that.
_LEAST_VIEWED_BYTES: Final = 1 << 20
# Of shorter rows, finding them takes as long as copying them.
_LEAST_VIEWED_ROW: Final = 8 << 10
# No memory has so many rows.
_NEVER: Final = 1 << 62

KnownRows = Callable[[NDArray[np.int64]], NDArray[np.int64] | None]


class PagePlace(NamedTuple):
    """Where a page belongs.

    Attributes:
        unit: Index of its partition into the requested ones.
        partition: The partition.
        number: Number of the page since the unit was begun, or begun anew.
        is_again: Whether its entries were delivered before.
        source: Where it came from.
    """

    unit: int
    partition: int
    number: int = 0
    is_again: bool = False
    source: Source | None = None


class PageRecord(NamedTuple):
    """What is known of a page whose rows were collected.

    Attributes:
        place: Where it belongs.
        rows: Its records.
        mark: The `KeyMark` of the unit's keys up to its end.
        nbytes: Bytes of its entries.
        last: Whether the unit ends with it.
    """

    place: PagePlace
    rows: int
    mark: int
    nbytes: int
    last: bool


class UnitsRecord(NamedTuple):
    """What is known of adjacent units of a single page each, whose rows were collected.

    Attributes:
        unit: Index of the last one.
        partitions: The partition of each.
        rows: The records of each.
        marks: The checksum of the keys of each.
        nbytes: Bytes of all their entries.
        sources: Where they came from, with the records and the bytes from there.
    """

    unit: int
    partitions: NDArray[np.int64]
    rows: NDArray[np.int64]
    marks: NDArray[np.int64]
    nbytes: int
    sources: Sequence[tuple[Source | None, int, int]]


@dataclass(frozen=True)
class Portion:
    """Pages that were collected, and rows that are ready.

    Attributes:
        pages: The pages, in order.
        parts: The rows, in order. Those of the last pages may follow in a later portion.
        end: Whether the rows of all pages have been handed over with this portion.
    """

    pages: list[PageRecord | UnitsRecord]
    parts: list[Batch]
    end: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the pages."""
        return sum(page.nbytes for page in self.pages)

    @property
    def unit(self) -> int:
        """Index of the unit of the last page; -1 if there is none."""
        if not self.pages:
            return -1
        last = self.pages[-1]
        return last.unit if isinstance(last, UnitsRecord) else last.place.unit

    @property
    def ended_units(self) -> int:
        """Number of units of which the last page is among these."""
        return sum(
            len(page.rows) if isinstance(page, UnitsRecord) else page.last for page in self.pages
        )


@dataclass
class _Arrived:
    """A page whose entries a builder has taken.

    Attributes:
        begin: Where its rows begin in the builder.
        count: Its entries.
        rows: Those that were taken, from the front.
        rest: The bytes of all others; None if there are none.
    """

    begin: Position
    count: int
    rows: int = 0
    rest: Bytes | None = None


class Collector:
    """Collects the rows of pages that come in order; for one thread.

    Args:
        decoder: Decodes pages.
        builder: Takes rows apart; None to decode all pages.
        run_bytes: Small pages are joined until they have about so many bytes.
        multiple: Unless a batch must end, only a multiple of so many rows is handed over.
        ends: The units with which a batch must end.
        known_rows: Returns the rows of partitions, `[n]`; None where somebody would have to count.

    Attributes:
        nbytes: Bytes of the pages since the last portion.
        ended: Whether a batch must end here.
        ends: As given.
        known_rows: As given.
    """

    def __init__(
        self,
        decoder: PageDecoder,
        builder: BatchBuilder | None,
        run_bytes: int,
        multiple: int,
        ends: Ends,
        known_rows: KnownRows = lambda _: None,
    ) -> None:
        self._decoder = decoder
        self._builder = builder
        self._most_joined = min(_MOST_JOINED_BYTES, run_bytes // 2)
        self._multiple = multiple
        self.ends = ends
        self.known_rows = known_rows
        self._reader: PageReader | None = None
        if builder is not None:
            # Not a method of this object: in a cycle, its memory would outlive it.
            learn = functools.partial(decoder.with_types, builder.learn)
            self._reader = PageReader(builder, decoder.pool, learn)
        self._arrived: _Arrived | None = None
        self._pages: list[PageRecord | UnitsRecord] = []
        self._parts: list[Batch] = []
        self._small: list[tuple[PagePlace, Page, bool]] = []
        self._waiting = RowPlaces()  # of the rows in the builder
        self._mark = KeyMark()  # of the unit that pages were recorded of last
        self.nbytes = 0
        self.ended = False

    # A page that arrives

    def taker(self, place: PagePlace) -> Taker | None:
        """Return what takes the page at this place as it arrives; None if it is to be added."""
        reader = self._reader
        if reader is None or place.is_again or self._decoder.filters:
            return None

        def taker(count: int) -> Receive:
            return functools.partial(self._read, count)

        return taker

    def _read(self, count: int, arrival: Arrival, nbytes: int) -> None:
        assert self._builder is not None and self._reader is not None
        self._arrived = page = _Arrived(self._builder.position, count)
        page.rows, page.rest = self._reader.read(arrival, nbytes, count)

    def abandon(self) -> None:
        """Take back the rows of a page that did not arrive as a whole."""
        if self._arrived is not None and self._builder is not None:
            self._builder.return_to(self._arrived.begin)
        self._arrived = None

    # A page that is here

    def add(self, place: PagePlace, page: Page, nbytes: int, last: bool) -> None:
        """Collect the rows of a page, the next one.

        Args:
            place: Where it belongs.
            page: The page, without its entries if they were taken as they arrived.
            nbytes: Bytes of its entries.
            last: Whether its unit ends with it.

        Raises:
            SchemaError: A record does not fit; names cache, partition, key and field.
        """
        arrived = self._arrived
        self.nbytes += nbytes
        self.ended = last and place.unit in self.ends
        if arrived is None and self._joins(place, page):
            self._small.append((place, page, last))
            return
        self._join()
        if place.is_again:
            found = self._decoder.one(place.partition, page)
            self._record_decoded(place, found, nbytes, last)
            return
        if arrived is None and self._builder is not None and not self._is_viewed(page):
            arrived = self._add(self._decoder.chosen(place.partition, page))
        if arrived is None:
            found = self._decoder.one(place.partition, page)
            if self._builder is not None:
                self._parts += self._built(1)
            self._record_decoded(place, found, nbytes, last)
            self._parts += found.parts
        else:
            self._add_arrived(place, arrived, nbytes, last)
        self._arrived = None

    def _is_viewed(self, page: Page) -> bool:
        """Whether columns are to be views of a page that is here, most of which is their runs."""
        assert self._builder is not None
        size = page.data.nbytes
        least = max(_LEAST_VIEWED_ROW, 2 * self._builder.dense_bytes)
        return size >= _LEAST_VIEWED_BYTES and size >= page.count * least

    def _add(self, page: Page) -> _Arrived:
        assert self._builder is not None and self._reader is not None
        self._arrived = found = _Arrived(self._builder.position, page.count)
        found.rows, found.rest = self._reader.add(page.data, page.count)
        return found

    @property
    def takes_units(self) -> bool:
        """Whether `unit_reader` and `add_units` can be used."""
        return (
            self._builder is not None and self._builder.has_dense_keys and not self._decoder.filters
        )

    @property
    def pool(self) -> BufferPool:
        """Where this collector's thread takes memory from."""
        return self._decoder.pool

    def unit_reader(self, answers: Sequence[UnitAnswers]) -> UnitReader:
        """Return what takes small units into the memory of this collector; see `UnitReader`."""
        assert self._builder is not None
        return UnitReader(self._builder, answers)

    def add_units(
        self,
        first: int,
        partitions: NDArray[np.int64],
        units: NDArray[np.void],
        sources: Sequence[tuple[Source | None, int, int]],
    ) -> None:
        """Count adjacent units among those collected, whose rows a `UnitReader` has taken.

        Args:
            first: Index of the first one; a batch must not end but with the last one.
            partitions: The partition of each.
            units: What `UnitReader.taken` returned of them.
            sources: As in `UnitsRecord`.
        """
        nbytes, last = int(units["size"].sum()), first + len(units) - 1
        self._pages.append(
            UnitsRecord(last, partitions, units["rows"], units["mark"], nbytes, sources)
        )
        self._waiting.add_all(partitions, units["rows"])
        self.nbytes += nbytes
        self.ended = last in self.ends

    def _joins(self, place: PagePlace, page: Page) -> bool:
        small = page.data.nbytes <= self._most_joined
        return small and self._builder is None and not place.is_again

    def _join(self) -> None:
        """Decode the small pages that have been collected."""
        if not self._small:
            return
        small, self._small = self._small, []
        found = self._decoder.joined([p.partition for p, _, _ in small], [p for _, p, _ in small])
        pages = zip(small, found.counts, found.keys, strict=True)
        for (place, page, last), rows, keys in pages:
            self._record(place, rows, keys, page.data.nbytes, last)
        self._parts += found.parts

    def _record(
        self, place: PagePlace, rows: int, keys: Iterable[Column], nbytes: int, last: bool
    ) -> None:
        if place.number == 0:
            self._mark = KeyMark()
        for key in keys:
            self._mark.add(key)
        self._pages.append(PageRecord(place, rows, self._mark.value, nbytes, last))

    def _record_decoded(self, place: PagePlace, found: Decoded, nbytes: int, last: bool) -> None:
        self._record(place, sum(found.counts), found.keys[0], nbytes, last)

    def _add_arrived(self, place: PagePlace, page: _Arrived, nbytes: int, last: bool) -> None:
        assert self._builder is not None
        keys = list(self._builder.keys_since(page.begin))
        parts: list[Batch] = []
        if page.rest is not None:
            rest = Page(page.count - page.rows, False, page.rest)
            parts = self._decoder.one(place.partition, rest, first=page.rows).parts
            keys += [part.key for part in parts if part.key is not None]
        self._record(place, page.count, keys, nbytes, last)
        self._waiting.add(place.partition, 0, page.rows)
        if parts:
            self._parts += self._built(1)
            self._parts += parts

    # Handing over

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to hand over."""
        return not (self._pages or self._small or self._waiting.has_rows)

    @property
    def is_full(self) -> bool:
        """Whether a whole batch is ready."""
        return self._builder is not None and self._builder.is_full

    def portion(self, whole: bool, only_full: bool = False) -> Portion:
        """Return what was collected since the last one.

        Args:
            whole: Return all rows; otherwise those that are left over from a multiple come with the
                next portion.
            only_full: Leave rows in memory that is not full for a later portion.

        Raises:
            SchemaError: As `add`.
        """
        self._join()
        parts, self._parts = self._parts, []
        if self._builder is not None:
            parts += self._built(1 if whole else _NEVER if only_full else self._multiple)
        pages, self._pages, self.nbytes = self._pages, [], 0
        ended, self.ended = whole and self.ended, False
        return Portion(pages, parts, ended)

    def _built(self, multiple: int) -> Iterator[Batch]:
        """Yield what the builder has; names the partition in an error."""
        assert self._builder is not None
        done = 0
        try:
            for batch in self._builder.take(multiple):
                done += len(batch)
                yield batch
        except IgniteTFError as error:
            self._pages.clear()  # without their rows they must not count as read
            record = int(error.fields.get("record") or 0)
            partition, row = self._waiting.find(done + record) or (None, record)
            with self._decoder.place(partition, row - record):
                raise
        self._waiting.drop(done)
