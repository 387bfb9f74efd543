"""Reads partitions once: their rows in order, or at the places of a permutation.

reading -> **scans** -> reader -> batches

Two things are compared with an earlier pass: the number of rows of each partition, and the mark of
its keys. Both depend only on the rows.
"""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf._core import UNIT, UnitState
from ignitetf.errors import IgniteTFError, SchemaError
from ignitetf.net.client import cache_id
from ignitetf.net.flow import Plan, Requests, requests_of
from ignitetf.net.topology import owners_of, scan_bytes, scans_at_once
from ignitetf.net.window import LEAST_PAGES, first_bytes
from ignitetf.read.keys import RecordContext
from ignitetf.read.reading import Reading, statement_batches
from ignitetf.read.selection import Selection
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.blocks import block_schema, unpack_blocks
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.codes import OpCode
from ignitetf.wire.columns import Batch
from ignitetf.wire.requests import scan_requests
from ignitetf.wire.schema import Field, Schema

if TYPE_CHECKING:
    from ignitetf.read.reader import CacheReader

__all__ = [
    "Permutation",
    "ScanReading",
    "UnitBatch",
    "count_entries",
    "count_keys",
    "scanned_keys",
]

_LEAST_PAGE: Final = 2 << 20
_MOST_PAGE: Final = 16 << 20
_MOST_PAGE_ROWS: Final = 65_536


@dataclass(frozen=True)
class UnitBatch:
    """Records of a partition, or the end of one.

    Attributes:
        unit: Index of the partition; the records do not go beyond its end.
        batch: The records; None marks an end.
    """

    unit: int
    batch: Batch | None

    @property
    def count(self) -> int:
        """The number of records."""
        return 0 if self.batch is None else len(self.batch)


@dataclass(frozen=True)
class Permutation:
    """The places of the rows of some partitions.

    Attributes:
        places: Place of each row, in the order of the partitions, int64 `[n]`.
        firsts: The least place of each partition's rows, or a lower one, int64 `[partitions]`.
    """

    places: NDArray[np.int64]
    firsts: NDArray[np.int64]


class _PartitionReading(Reading):
    """Requests partitions, each by a scan or by SQL.

    Args:
        reader: The cache.
        partitions: The partitions to read, in this order.
        stored: Schema of the stored entries.
        permutation: The places of the rows; None for the order of the partitions.
        by_sql: Selects the rows to request by SQL; None for all entries, by scans.
        counts: Entries of each partition, int64 `[n]`; None if they are not known.
        batch_rows: Rows of the batches that will be cut; None if it is not known.
    """

    _least_window = LEAST_PAGES

    def __init__(
        self,
        reader: CacheReader,
        partitions: Sequence[int],
        stored: Schema,
        permutation: Permutation | None = None,
        by_sql: Selection | None = None,
        counts: NDArray[np.int64] | None = None,
        batch_rows: int | None = None,
    ) -> None:
        self._partitions = np.asarray(partitions, np.int64)
        super().__init__(reader, stored, lambda u: int(self._partitions[u]), batch_rows=batch_rows)
        self._permutation = permutation
        self._by_sql = by_sql
        self._units = self._new_units(counts)

    @property
    def _scans_at_once(self) -> int:
        """The number of scans of the partitions that fit into a node's heap."""
        stored = self._stored_bytes
        return max(1, scans_at_once(scan_bytes(stored, self._reader.unit_bytes / stored)))

    @property
    def _connections(self) -> int:
        return min(super()._connections, self._scans_at_once)

    @property
    def _most_open(self) -> int:
        return self._scans_at_once // self._connections

    def _new_units(self, counts: NDArray[np.int64] | None) -> NDArray[Any]:
        units = np.zeros(len(self._partitions), UNIT)
        units["lane"] = -1
        row_bytes = max(self._stored_bytes, 64.0)
        if counts is None:
            units["base"], units["rows"] = -1, -1
            units["base"][:1] = 0
            expected = min(self._page_rows * row_bytes, self._reader.unit_bytes)
            units["expected"] = max(64.0, expected)
        else:
            units["rows"] = counts
            np.cumsum(counts[:-1], out=units["base"][1:])
            units["expected"] = np.maximum(np.minimum(counts, self._page_rows) * row_bytes, 64.0)
        units["first"] = units["base"]
        if self._permutation is not None:
            units["first"] = self._permutation.firsts
        return units

    @functools.cached_property
    def _page_rows(self) -> int:
        """The number of entries in a page.

        One page of each partition that is read at the same time fills the byte window.
        """
        reader = self._reader
        if reader.options.page_size is not None:
            return reader.options.page_size
        client, parts = reader.client, max(1, len(self._partitions))
        window = first_bytes(client, client.most_window, self._least_window)
        # Only partitions whose rows are needed soon are read at a time.
        near = max(2 * window, self._ahead * self._group_bytes)
        parts = min(parts, int(near / max(1.0, reader.unit_bytes)))
        # At least two pages must fit, because the next page of a partition is requested while the
        # current one arrives. Pages are limited, because each thread of a node keeps a buffer of
        # twice its largest page.
        nbytes = max(_LEAST_PAGE, min(_MOST_PAGE, window / max(2, parts)))
        return int(max(1, min(_MOST_PAGE_ROWS, nbytes // max(self._stored_bytes, 64.0))))

    def _landed(self) -> Generator[tuple[int, Batch], None, None]:
        """Yield the first place and the entries of each group."""
        units, places = self._units, None
        if self._permutation is not None:
            places = self._permutation.places
        total = int(units["rows"].sum()) if (units["rows"] >= 0).all() else -1
        is_sql = self._by_sql is not None
        next_page = OpCode.QUERY_SQL_FIELDS_PAGE if is_sql else OpCode.QUERY_SCAN_PAGE
        landing = self._landing(units, total, self._page_rows, next_page, places)
        plan = Plan(units, self._requests(), self._partitions, self._owners)
        return self._groups(plan, landing)

    def _requests(self) -> Requests:
        partitions = self._partitions.tolist()
        if self._by_sql is None:
            scans = scan_requests(cache_id(self._reader.cache), self._page_rows, partitions)
            return requests_of(OpCode.QUERY_SCAN, scans)
        statements = self._by_sql.requests(self._page_rows, partitions)
        return requests_of(OpCode.QUERY_SQL_FIELDS, statements)

    def _owners(self, refresh: bool) -> Mapping[int, uuid.UUID]:
        # Only the primary node answers SQL for a partition.
        is_sql = self._by_sql is not None
        return owners_of(self._reader.client, self._reader.cache, primary=is_sql, refresh=refresh)

    def _row_of(self, unit: int, places: NDArray[np.int64]) -> int:
        return 0 if self._permutation is not None else int(places[0] - self._units["base"][unit])

    def other_count(self, unit: int, found: int) -> IgniteTFError:
        """Return the error for a partition whose number of rows differs from the known one."""
        return self._reader.changes.other_count(int(self._partitions[unit]), found)

    def other_keys(self, unit: int) -> IgniteTFError:
        """Return the error for a partition whose keys changed between two connections."""
        return self._reader.changes.changed_while_read(int(self._partitions[unit]))


class ScanReading(_PartitionReading):
    """Reads the rows of partitions once.

    Args:
        reader: The cache.
        partitions: The partitions to read, in this order.
        ends: Ascending indexes into `partitions`; a batch must end where such a partition ends.
        permutation: The places of the rows; None for the order of the partitions. Only if the
            number of rows of each partition is known.
        batch_rows: Rows of the batches that will be cut; None if it is not known.
    """

    def __init__(
        self,
        reader: CacheReader,
        partitions: Sequence[int],
        ends: Sequence[int] = (),
        permutation: Permutation | None = None,
        batch_rows: int | None = None,
    ) -> None:
        self._schema, selection = reader.scanned_schema, reader.selection
        # Blocks land as rows whose columns are arrays.
        stored = block_schema(self._schema) if reader.is_blocks else self._schema
        by_row = selection is not None and selection.condition.by_row
        counts = None
        if selection is None and reader.options.on_change == "error" and not reader.is_blocks:
            counts = reader.changes.known_rows(np.asarray(partitions, np.int64))
        by_sql = selection if by_row else None
        super().__init__(reader, partitions, stored, permutation, by_sql, counts, batch_rows)
        self._ends = deque(sorted(ends))
        self._records = np.zeros(
            len(self._partitions), np.int64
        )  # records of each partition, for blocks
        self._wanted = None if selection is None or by_row else self._wanted_keys(selection)
        self._found = 0  # records so far
        self._in_split = 0

    def _wanted_keys(self, selection: Selection) -> NDArray[np.uint64]:
        """Return the marks, ascending, of the keys that a condition on the whole table selects."""
        found: list[NDArray[np.uint64]] = []
        for anew, batch in statement_batches(self._reader, selection, self._schema.key):
            if anew:
                found.clear()
            assert batch.key is not None
            found.append(marks_of(self._schema, batch.key))
        return np.unique(np.concatenate([*found, np.empty(0, np.uint64)]))

    def batches(self) -> Generator[UnitBatch, None, None]:
        """Yield the batches, and a `UnitBatch` without a batch at each end."""
        if not len(self._partitions):
            return
        reader, units = self._reader, self._units
        size = self._expected_size()
        with contextlib.closing(self._landed()) as groups:
            for place, batch in groups:
                yield from self._cut(place, batch)
        yield from self._cut(int(units["done"].sum()), None)
        if reader.is_blocks:
            reader.changes.check_units(self._partitions, self._records, units["mark"].copy())
        reader.changes.check_size(size, self._found)
        if reader.split is not None:
            counted = reader.row_count(self._partitions.tolist())
            reader.changes.check_size(counted, self._in_split, "when the split was counted")
        if reader.selection is not None:
            reader.check_entries()

    def _expected_size(self) -> int | None:
        """Return the expected number of records; None if each partition is checked instead."""
        reader = self._reader
        if len(self._partitions) != reader.partition_count:
            return None
        if self._wanted is not None:
            return len(self._wanted)
        known = reader.changes.has_counts or reader.is_blocks or reader.selection is not None
        return None if known else reader.entry_count()

    def _compare(self, first: int, ended: NDArray[Any]) -> None:
        if self._reader.selection is None and not self._reader.is_blocks:
            partitions = self._partitions[first : first + len(ended)]
            self._reader.changes.check_units(partitions, ended["done"].copy(), ended["mark"].copy())

    # Output to the consumer

    def _cut(self, place: int, batch: Batch | None) -> Iterator[UnitBatch]:
        """Yield the rows of a group, cut at the ends, with an end mark after each."""
        units = self._units
        stop = place + (0 if batch is None else len(batch))
        begin = place
        while self._ends:
            row = units[self._ends[0]]
            end = int(row["base"] + row["rows"])
            if row["base"] < 0 or row["rows"] < 0 or end > stop:
                break
            if end == stop and batch is not None and row["state"] != UnitState.ENDED:
                break
            if batch is not None and end > begin:
                yield from self._own(batch[begin - place : end - place], begin)
            begin = max(begin, end)
            yield UnitBatch(self._ends.popleft(), None)
        if batch is not None and stop > begin:
            yield from self._own(batch if begin == place else batch[begin - place :], begin)

    @property
    def _next_end(self) -> int:
        """The next unit at whose end a batch must end; no batch goes beyond it."""
        return self._ends[0] if self._ends else 0

    def _own(self, part: Batch, place: int) -> Iterator[UnitBatch]:
        """Yield the rows that belong to the split, after applying the policy for nulls."""
        if self._reader.is_blocks:
            yield from self._unpacked(part, place)
            return
        if self._wanted is not None:
            assert part.key is not None
            marks = marks_of(self._schema, part.key)
            part = part[np.flatnonzero(np.isin(marks, self._wanted))]
        self._found += len(part)
        if not len(part):
            return
        try:
            own = self._select_own(part, None)
        except SchemaError:
            # Repeat it for each partition, so that the error names the partition.
            for partition, rows in self._by_partition(place, len(part)):
                self._select_own(part[rows], partition)
            raise
        if own is not None:
            yield UnitBatch(self._next_end, own)

    def _unpacked(self, blocks: Batch, place: int) -> Iterator[UnitBatch]:
        """Yield the records of blocks."""
        known = self._units["base"] >= 0
        numbers = np.arange(place, place + len(blocks))
        units = np.searchsorted(self._units["base"][known], numbers, "right") - 1
        for unit, records in zip(units.tolist(), self._records_of(blocks), strict=True):
            with RecordContext(self._reader.name, int(self._partitions[unit])):
                own = self._select_own(records, int(self._partitions[unit]))
            self._records[unit] += len(records)
            self._found += len(records)
            if own is not None and len(own):
                yield UnitBatch(self._next_end, own)

    def _records_of(self, blocks: Batch) -> Iterator[Batch]:
        names = [field.name for field in self._schema.fields]
        return unpack_blocks(self._schema, blocks, names)

    def _by_partition(self, place: int, rows: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield each partition that has some of the rows, and the numbers of the rows."""
        known = self._units["base"] >= 0
        bases = self._units["base"][known]
        numbers = np.arange(place, place + rows)
        if self._permutation is not None:
            numbers = np.argsort(self._permutation.places)[numbers]
        units = np.searchsorted(bases, numbers, "right") - 1
        for unit in np.unique(units).tolist():
            yield int(self._partitions[unit]), np.flatnonzero(units == unit)

    def _select_own(self, part: Batch, partition: int | None) -> Batch | None:
        reader = self._reader
        own = part if reader.split is None else reader.split.rows_of(reader.schema, part)
        self._in_split += len(own)
        return reader.without_nulls(own, partition) if len(own) else None


def count_entries(reader: CacheReader, partitions: Sequence[int]) -> list[int]:
    """Return the entries of each partition, by a scan that keeps only the keys."""
    return _KeyScan(reader, partitions, reader.schema.key).counts() if len(partitions) else []


def count_keys(reader: CacheReader) -> list[int] | None:
    """Return the rows of each partition, counted by the keys that SQL reads; None if it cannot."""
    if reader.is_blocks or (table := reader.whole_table()) is None:
        return None
    counts = np.zeros(reader.partition_count, np.int64)
    for anew, batch in statement_batches(reader, table, reader.schema.key):
        if anew:
            counts[:] = 0
        assert batch.key is not None
        places = partitions_of(reader.schema, batch.key, len(counts))
        if places is None:
            return None
        counts += np.bincount(places, minlength=len(counts))
    found: list[int] = counts.tolist()
    return found


def scanned_keys(reader: CacheReader, key: Field) -> Generator[Batch, None, None]:
    """Yield the keys of all entries, read as `key`, without their values."""
    yield from _KeyScan(reader, range(reader.partition_count), key).keys()


class _KeyScan(_PartitionReading):
    """Reads the keys of partitions; the values may have any type."""

    def __init__(self, reader: CacheReader, partitions: Sequence[int], key: Field) -> None:
        stored = block_schema(reader.schema) if reader.is_blocks else reader.schema
        super().__init__(reader, partitions, replace(stored, type_name="", fields=(), key=key))

    def keys(self) -> Generator[Batch, None, None]:
        """Yield the keys."""
        with contextlib.closing(self._landed()) as groups:
            for _, batch in groups:
                yield batch

    def counts(self) -> list[int]:
        """Return the entries of each partition."""
        for _ in self.keys():
            pass
        found: list[int] = self._units["done"].tolist()
        return found
