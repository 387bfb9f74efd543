"""`UnitReading`: one pass over partitions, whose entries are counted and compared on the way.

scan, collector -> **unit reading** -> reader -> batches

A batch goes on across partitions; it is cut only where the caller wants an end.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ignitetf.errors import SchemaError
from ignitetf.net.binary_types import fetch_ahead
from ignitetf.read.collector import Collector, PageRecord, Portion, UnitsRecord
from ignitetf.read.error_context import RowPlaces
from ignitetf.read.page_query import Ends, Query
from ignitetf.read.scan import scan_portions
from ignitetf.read.usage import add_read
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.keysets import KeySet
from ignitetf.wire.schema import Batch

if TYPE_CHECKING:
    from ignitetf.read.reader import CacheReader

__all__ = ["UnitBatch", "UnitReading"]

# A batch that is handed over between threads costs a millisecond, whatever is in it. Those of small
# units have a page at first, as a consumer waits for the first one, then up to so many bytes.
_SMALL_UNITS_BATCH: Final = 16 << 20


@dataclass(frozen=True)
class UnitBatch:
    """A batch of one partition, or of adjacent ones.

    Attributes:
        unit: Index into the requested partitions; of several that of the last one.
        first: Number of the batch's first record within its partition, before nulls are dropped;
            of several that of the first record since the last end.
        count: Records of the partitions in it, before nulls are dropped; 0 at an end.
        batch: The records.
    """

    unit: int
    first: int
    count: int
    batch: Batch | None


class UnitReading:
    """Reads partitions once.

    Args:
        reader: The cache.
        partitions: What to read, in this order.
        ends: Indexes into the partitions, ascending, at whose end a batch must end.
    """

    def __init__(self, reader: CacheReader, partitions: Sequence[int], ends: Sequence[int]) -> None:
        self._reader = reader
        self._partitions = partitions
        self._ends = frozenset(ends)
        self._rows = 0  # of all units that have ended
        self._first = 0  # rows handed over since the last end
        self._waiting = RowPlaces()  # rows that are yet to be handed over
        # Of the present unit: rows delivered so far, and their mark; rows that came again.
        self._unit_rows = self._unit_mark = self._again = 0

    def batches(self) -> Generator[UnitBatch, None, None]:
        """Yield the batches, and the marks of the ends."""
        reader = self._reader
        if not reader.is_blocks:
            fetch_ahead(reader.client, reader.registry, reader.schema.type_id)
        query, keys = self._query()
        with contextlib.ExitStack() as pools:
            size = self._expected(keys)
            portions = scan_portions(
                reader.client,
                query,
                self._partitions,
                functools.partial(self._new_collector, pools, query, keys),
                list(self._ends),
                readers=reader.options.readers,
                retry=reader.retry,
            )
            with contextlib.closing(portions):
                for portion in portions:
                    yield from self._portion(portion)
            reader.changes.check_size(size, self._rows)
            if reader.selection is not None:
                reader.check_entries()

    def _query(self) -> tuple[Query, KeySet | None]:
        reader = self._reader
        page, selection = reader.page_size(), reader.selection
        if selection is not None and selection.condition.by_row:
            return reader.adapted(selection.query(page)), None
        keys = None if selection is None else selection.keys(reader.client, reader.retry)
        return reader.adapted(reader.scan_query(page)), keys

    def _new_collector(
        self, pools: contextlib.ExitStack, query: Query, keys: KeySet | None, ends: Ends
    ) -> Collector:
        """Return a collector; its memory is given back when `pools` is closed."""
        reader = self._reader
        pool = reader.page_pools.pop() if reader.page_pools else BufferPool()
        pools.callback(reader.page_pools.append, pool)
        growth = _SMALL_UNITS_BATCH // reader.page_bytes if query.has_small_units else 1
        doublings = max(1, growth).bit_length() - 1
        return reader.collector(keys, pool, ends, doublings)

    def _expected(self, keys: KeySet | None) -> int | None:
        """Return how many records there must be; None if that is not known, or counted by unit."""
        reader = self._reader
        if len(self._partitions) != reader.partition_count:
            return None
        if keys is not None:
            return len(keys)
        # For blocks only the manifest knows the number of rows.
        known = reader.changes.has_counts or reader.is_blocks or reader.selection is not None
        return None if known else reader.entry_count()

    def _portion(self, portion: Portion) -> Iterator[UnitBatch]:
        unit = portion.unit
        for page in portion.pages:
            if isinstance(page, UnitsRecord):
                self._count_units(page)
            else:
                self._count(page)
        for part in portion.parts:
            if len(part):
                own = self._own(part)
                if own is not None:
                    yield UnitBatch(unit, self._first, len(part), own)
                self._first += len(part)
        if portion.end and unit in self._ends:
            yield UnitBatch(unit, self._first, 0, None)
            self._first = 0

    def _count_units(self, units: UnitsRecord) -> None:
        """Compare whole units with what was there before."""
        reader = self._reader
        for source, rows, nbytes in units.sources:
            add_read(source, rows, nbytes)
            self._rows += rows
        self._waiting.add_all(units.partitions, units.rows)
        if reader.selection is None:
            reader.changes.check_units(units.partitions, units.rows, units.marks)

    def _count(self, page: PageRecord) -> None:
        """Compare a page, and at its end a unit, with what was there before."""
        changes, place = self._reader.changes, page.place
        if place.number == 0:
            self._again = 0
        if place.is_again:
            self._again += page.rows
            if self._again >= self._unit_rows or page.last:
                delivered = self._unit_rows, self._unit_mark
                changes.check_again(place.partition, delivered, (self._again, page.mark))
        else:
            self._waiting.add(place.partition, self._unit_rows, page.rows)
            self._unit_rows, self._unit_mark = self._unit_rows + page.rows, page.mark
            add_read(place.source, page.rows, page.nbytes)
        if not page.last:
            return
        self._rows += self._unit_rows
        if self._reader.selection is None:
            changes.check_count(place.partition, self._unit_rows)
            changes.check_keys(place.partition, page.mark)
        self._unit_rows = self._unit_mark = self._again = 0

    def _own(self, part: Batch) -> Batch | None:
        """Return the rows of the split, without nulls as the policy says; None if there are none.

        Raises:
            SchemaError: A record is null; names its partition.
        """
        try:
            own = self._own_of(part, None)
        except SchemaError:
            # Again one by one, so that the error names the partition.
            begin = 0
            for partition, _, rows in self._waiting.of(len(part)):
                self._own_of(part[begin : begin + rows], partition)
                begin += rows
            raise
        self._waiting.drop(len(part))
        return own

    def _own_of(self, part: Batch, partition: int | None) -> Batch | None:
        reader = self._reader
        own = part if reader.split is None else reader.split.rows_of(reader.schema, part)
        return reader.without_nulls(own, partition) if len(own) else None
