"""`UnitReading`: one pass over partitions, whose entries are counted and compared on the way.

scan, page decoder -> **unit reading** -> reader -> batches

Entries of several small partitions make one batch; it is cut only where the caller wants an end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ignitetf.errors import SchemaError
from ignitetf.read.page_decoder import Decoded, cut
from ignitetf.read.page_query import Query, UnitPage, UnitRun
from ignitetf.read.scan import scan_runs
from ignitetf.read.usage import add_read
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.keysets import KeySet
from ignitetf.wire.schema import Batch

if TYPE_CHECKING:
    from ignitetf.read.reader import CacheReader

__all__ = ["UnitBatch", "UnitReading"]


@dataclass(frozen=True)
class UnitBatch:
    """A batch of one partition, or of adjacent ones.

    Attributes:
        unit: Index into the requested partitions; of several that of the last one.
        first: Number of the batch's first record within its partition, before nulls are dropped;
            0 for several.
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
        self._ends = ends
        self._next_end = 0  # index into `ends`
        self._rows = 0
        # Of the present unit: records so far, the mark of each page, and pages that came again.
        self._unit, self._first, self._again = -1, 0, 0
        self._marks: list[int] = []

    def batches(self) -> Generator[UnitBatch, None, None]:
        """Yield the batches, and the marks of the ends."""
        reader = self._reader
        pool = reader.page_pools.pop() if reader.page_pools else BufferPool()
        try:
            query, keys = self._query(pool)
            size = self._expected(keys)
            pages = scan_runs(
                reader.client,
                query,
                self._partitions,
                readers=reader.options.readers,
                retry=reader.retry,
            )
            with contextlib.closing(pages):
                for item in pages:
                    yield from self._run(item) if isinstance(item, UnitRun) else self._page(item)
            reader.changes.check_size(size, self._rows)
        finally:
            reader.page_pools.append(pool)

    def _query(self, pool: BufferPool) -> tuple[Query, KeySet | None]:
        reader = self._reader
        page, selection = reader.page_size(), reader.selection
        keys: KeySet | None = None
        if selection is None or not selection.condition.by_row:
            query = reader.scan_query(page)
            keys = None if selection is None else selection.keys(reader.client, reader.retry)
        else:
            query = selection.query(page)
        schema = reader.schema if reader.split is None else reader.split.scanned(reader.schema)
        decoder = partial(reader.decoder, keys, schema, pool)
        run_bytes = reader.page_bytes
        return replace(query, decoder=decoder, times=reader.times, run_bytes=run_bytes), keys

    def _expected(self, keys: KeySet | None) -> int | None:
        """Return how many records there must be; None if that is not known, or counted by unit."""
        reader = self._reader
        if len(self._partitions) != reader.partition_count:
            return None
        if keys is not None:
            return len(keys)
        # For blocks only the manifest knows the number of rows.
        known = reader.changes.counts or reader.is_blocks or reader.selection is not None
        return None if known else reader.entry_count()

    def _page(self, item: UnitPage) -> Iterator[UnitBatch]:
        if item.unit != self._unit:
            self._unit, self._first, self._marks = item.unit, 0, []
        if item.page is None:
            yield from self._end_of_unit()
            return
        reader, partition = self._reader, self._partitions[item.unit]
        found: Decoded = item.page
        if item.replay >= 0:
            reader.changes.check_again(partition, self._marks, item.replay, found.marks[0])
            self._again = item.replay + 1
            return
        self._again = 0
        self._marks += found.marks
        add_read(item.source, sum(found.counts), item.nbytes)
        for part in found.parts:
            if (count := len(part)) == 0:
                continue
            own = self._own(part, partition)
            if own is not None:
                yield UnitBatch(item.unit, self._first, count, own)
            self._first += count

    def _end_of_unit(self) -> Iterator[UnitBatch]:
        changes, partition = self._reader.changes, self._partitions[self._unit]
        if 0 < self._again < len(self._marks):
            changes.check_again(partition, self._marks, len(self._marks), 0)
        self._check(partition, self._first, self._marks)
        yield from self._end(self._unit, self._first)

    def _check(self, partition: int, rows: int, marks: Sequence[int]) -> None:
        self._rows += rows
        if self._reader.selection is None:
            self._reader.changes.check_count(partition, rows)
            self._reader.changes.check_keys(partition, marks)

    def _end(self, unit: int, rows: int) -> Iterator[UnitBatch]:
        if self._next_end < len(self._ends) and self._ends[self._next_end] == unit:
            self._next_end += 1
            yield UnitBatch(unit, rows, 0, None)

    def _run(self, item: UnitRun) -> Iterator[UnitBatch]:
        found: Decoded = item.page
        units = range(item.unit, item.unit + len(found.counts))
        for unit, rows, mark in zip(units, found.counts, found.marks, strict=True):
            self._check(self._partitions[unit], rows, [mark])
        for source in set(item.sources):
            at = [i for i, one in enumerate(item.sources) if one == source]
            rows, nbytes = (sum(each[i] for i in at) for each in (found.counts, item.nbytes))
            add_read(source, rows, nbytes)
        groups = self._groups(units)
        sizes = [sum(found.counts[unit - item.unit] for unit in group) for group in groups]
        for group, parts in zip(groups, cut(found.parts, sizes), strict=True):
            counts = [found.counts[unit - item.unit] for unit in group]
            first = 0
            for part in parts:
                own = self._own_of(part, group, counts, first)
                if own is not None:
                    begin = first if len(group) == 1 else 0
                    yield UnitBatch(group[-1], begin, len(part), own)
                first += len(part)
            yield from self._end(group[-1], first)

    def _groups(self, units: range) -> list[range]:
        """Return the units between ends."""
        groups, begin, at = [], units.start, self._next_end
        while begin < units.stop:
            end = self._ends[at] + 1 if at < len(self._ends) else units.stop
            groups.append(range(begin, min(end, units.stop)))
            begin, at = groups[-1].stop, at + 1
        return groups

    def _own_of(self, part: Batch, units: range, counts: Sequence[int], first: int) -> Batch | None:
        """Return what `_own` does of a part of several units, which begins at row `first`."""
        if len(units) == 1:
            return self._own(part, self._partitions[units[0]])
        try:
            return self._own(part, None)
        except SchemaError:
            # Again one by one, so that the error names the partition.
            for unit, piece in _pieces(part, units, counts, first):
                self._own(piece, self._partitions[unit])
            raise

    def _own(self, part: Batch, partition: int | None) -> Batch | None:
        """Return the rows of the split, without nulls as the policy says; None if there are none."""
        reader = self._reader
        own = part if reader.split is None else reader.split.rows_of(reader.schema, part)
        return reader.without_nulls(own, partition) if len(own) else None


def _pieces(
    part: Batch, units: range, counts: Sequence[int], first: int
) -> Iterator[tuple[int, Batch]]:
    """Yield the rows of each unit in a part that begins at row `first` of them all."""
    begin = 0
    for unit, count in zip(units, counts, strict=True):
        low, high = max(begin - first, 0), min(begin + count - first, len(part))
        if low < high:
            yield unit, part[low:high]
        begin += count
