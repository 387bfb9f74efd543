"""One pass over rows, through the core: a plan, its flow, and batches in the order of the plan.

plan, flow, landing -> **reading** -> reader -> batches

A plan is requests, and a place for each row that they answer. `ScanReading` requests partitions;
their rows have consecutive places, or those of a permutation. `KeyReading` requests keys. Batches
leave in the order of the places, once their rows have landed.

What is compared with an earlier pass, the number of rows of each partition and the mark of its keys,
depends on the rows and nothing else.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import itertools
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf._core import UNIT, Landing, UnitState
from ignitetf.errors import DataChanged, IgniteTFError, SchemaError, WireError
from ignitetf.net.binary_types import fetch_ahead
from ignitetf.net.client import cache_id
from ignitetf.net.flow import Flow, Requests, requests_of
from ignitetf.net.heap import scan_bytes, scans_at_once
from ignitetf.net.retry import READ, Backoff
from ignitetf.net.topology import owners_of
from ignitetf.read.error_context import Place
from ignitetf.read.keys import Keys, Numbers
from ignitetf.read.landing import Left, RowLayout
from ignitetf.read.page_decoder import PageDecoder
from ignitetf.read.queries import Selection
from ignitetf.read.usage import add_read, add_wait
from ignitetf.threads import Beside
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.blocks import block_schema, unpack_blocks
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import Page
from ignitetf.wire.requests import batch_head, scan_requests
from ignitetf.wire.schema import Batch, Field, Schema

if TYPE_CHECKING:
    from ignitetf.read.reader import CacheReader

__all__ = [
    "KeyReading",
    "Permutation",
    "ScanReading",
    "UnitBatch",
    "count_entries",
    "count_keys",
    "scanned_keys",
    "statement_batches",
]

# About as many bytes as a group of rows has: little memory, used again, stays in the cache.
_GROUP_BYTES: Final = 1 << 20
_MOST_GROUP_ROWS: Final = 65_536
# Groups are cut where TensorFlow can take them over without a copy.
_ALIGNED_ROWS: Final = 64
# So many pages last as long as a round trip at this rate; each has at least and at most so many
# bytes.
_PAGE_RATE: Final = 200e6
_PARALLEL_PAGES: Final = 8
_LEAST_PAGE: Final = 2 << 20
_MOST_PAGE: Final = 16 << 20
_MOST_PAGE_ROWS: Final = 65_536
# Groups that may be filled before the consumer takes them, at least.
_AHEAD: Final = 8
# So many are read at once, in the thread of the caller.
_FEW_GROUPS: Final = 2
# A node answers requests in parallel: measured best at 128 rows of 784 bytes; benchmarks/README.md.
_REQUEST_BYTES: Final = 128 << 10
_MOST_KEYS: Final = 2048
# Key, headers and footers of an entry, in addition to its values.
_ENTRY_BYTES: Final = 64
# Of a row whose size is not known.
_SOME_BYTES: Final = 256
# Rows in a page of a statement that reads keys.
_STATEMENT_PAGE: Final = 32_768
_INT_BYTES: Final = 4

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UnitBatch:
    """Records of a partition, or the end of one.

    Attributes:
        unit: Index of the partition at whose end they end at the latest.
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
        places: Of each row, in the order of the partitions, int64 `[n]`.
        firsts: The least place of each partition's rows, or one below it, int64 `[partitions]`.
    """

    places: NDArray[np.int64]
    firsts: NDArray[np.int64]


def _group_rows(row_bytes: float) -> int:
    """Return how many rows a group has."""
    rows = int(min(_MOST_GROUP_ROWS, _GROUP_BYTES // max(row_bytes, 16.0)))
    if rows < _ALIGNED_ROWS:
        return max(1, rows)
    return rows // _ALIGNED_ROWS * _ALIGNED_ROWS


class _Pass(abc.ABC):
    """What the passes share: they land rows of a reader, and compare what arrives."""

    def __init__(
        self,
        reader: CacheReader,
        stored: Schema,
        name_of: Callable[[int], int | None],
        most_rows: int = _MOST_GROUP_ROWS,
    ) -> None:
        self._reader = reader
        self._stored_bytes = max(1.0, reader.entry_bytes * reader.block_rows)
        # Few rows get a small group, which may be kept for long.
        self._rows = min(_group_rows(self._stored_bytes), 1 << (most_rows - 1).bit_length())
        self._layout: RowLayout = reader.row_layout(stored, self._rows)
        self._left = Left(self._rows)
        self._decoder = PageDecoder(
            reader.client, reader.name, stored, reader.registry, reader.retry_s
        )
        self._name_of = name_of  # a unit's partition, for messages
        self._type_id = stored.type_id
        self._fetching: Beside | None = None
        self._counted = 0  # units whose rows were counted

    def _groups(
        self,
        units: NDArray[Any],
        requests: Requests,
        owners: tuple[Sequence[int], Callable[[bool], Mapping[int, uuid.UUID]]],
        landing: Landing,
        retry_s: float | None = None,
    ) -> Generator[tuple[int, Batch], None, None]:
        """Yield the first place and the rows of each group."""
        reader = self._reader
        flow = Flow(
            reader.client, reader.name, landing, units, requests, *owners, self,
            connections=self._connections, most_open=self._most_open,
            is_small=self._is_small(units),
            retry_s=reader.retry_s if retry_s is None else retry_s,
        )  # fmt: skip
        self._fetching = fetch_ahead(reader.client, reader.registry, self._type_id)
        times = reader.times
        times.began = time.monotonic()
        with contextlib.closing(flow.groups()) as groups:
            while True:
                begin = time.monotonic()
                taken = next(groups, None)
                waited = time.monotonic() - begin
                times.starved += waited
                add_wait(waited)
                self._count(units, flow)
                if taken is None:
                    break
                number = taken[0] // self._rows
                left, gone = self._left.take(number), self._left.gone(number)
                if len(gone) < taken[1]:
                    yield taken[0], self._layout.batch(taken, left, gone)
        times.wait += flow.traffic.wait_s
        times.land += flow.traffic.land_s

    @property
    def _connections(self) -> int:
        """Connections to each node."""
        return -(-self._reader.options.readers // max(1, self._reader.node_count))

    @property
    def _most_open(self) -> int:
        """Scans that a connection may have open, for the sake of the node's heap."""
        stored = self._stored_bytes
        scan = scan_bytes(stored, self._reader.unit_bytes / stored)
        return scans_at_once(scan * self._connections)

    def _is_small(self, units: NDArray[Any]) -> bool:
        """Whether the rows fit into few groups."""
        rows = int(units["rows"].sum()) if (units["rows"] >= 0).all() else None
        return rows is not None and rows <= _FEW_GROUPS * self._rows

    def _landing(self, units: NDArray[Any], total: int, page_rows: int, **more: Any) -> Landing:
        group_bytes = int(self._stored_bytes * self._rows)
        scans = "keys" not in more
        is_sql = scans and self._is_sql
        next_page = OpCode.QUERY_SQL_FIELDS_PAGE if is_sql else OpCode.QUERY_SCAN_PAGE
        columns = _INT_BYTES if is_sql else 0  # their number comes before the first page
        return Landing(
            self._layout.native, units, more.get("places"), more.get("keys"), more.get("key_at"),
            total, _AHEAD, group_bytes, page_rows, scans, columns, next_page,
        )  # fmt: skip

    def _count(self, units: NDArray[Any], flow: Flow) -> None:
        """Count the units that have ended since the last time, in order."""
        first = self._counted
        still_open = np.flatnonzero(units["state"][first:] != UnitState.ENDED)
        last = first + int(still_open[0]) if len(still_open) else len(units)
        if last == first:
            return
        self._counted, ended = last, units[first:last]
        for lane in np.unique(ended["lane"]).tolist():
            own = ended[ended["lane"] == lane]
            source = flow.traffic.sources.get(lane)
            add_read(source, int(own["done"].sum()), int(own["nbytes"].sum()))
        self._compare(first, ended)

    def _compare(self, first: int, ended: NDArray[Any]) -> None:  # noqa: B027 (keys have nothing)
        """Compare units that have ended, from number `first` on, with what is known of them."""

    @property
    def _is_sql(self) -> bool:
        """Whether partitions are requested by SQL."""
        return False

    # What the flow asks

    def learn(self, type_id: int, schema_id: int, flags: int) -> None:
        """Tell the core how rows of this form are stored."""
        if self._fetching is not None:
            self._fetching.wait()
        self._decoder.with_types(self._layout.learn, type_id, schema_id, flags)

    def leave(
        self, unit: int, entries: bytes, places: NDArray[np.int64], absent: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Decode entries that the core has left, and place them; see `net.flow.Sink`."""
        self._left.add(places, self._decoded(unit, entries, places))
        return places

    def _decoded(self, unit: int, entries: bytes, places: NDArray[np.int64]) -> Batch:
        page = Page(len(places), False, np.frombuffer(entries, np.uint8))
        return self._decoder.decode(self._name_of(unit), page, self._row_of(unit, places))

    @abc.abstractmethod
    def other_count(self, unit: int, found: int) -> IgniteTFError:
        """Return the error of a unit that has another number of rows than it was said to have."""

    @abc.abstractmethod
    def other_keys(self, unit: int) -> IgniteTFError:
        """Return the error of a unit whose rows changed between two connections."""

    def _row_of(self, unit: int, places: NDArray[np.int64]) -> int:
        """Return the number in its unit of the first of these rows, for messages."""
        return 0


class ScanReading(_Pass):
    """Reads partitions once.

    Args:
        reader: The cache.
        partitions: What to read, in this order.
        ends: Indexes into the partitions, ascending, at whose end a batch must end.
        permutation: Where the rows go; None for the order of the partitions. Only where it is known
            how many rows each has.
    """

    def __init__(
        self,
        reader: CacheReader,
        partitions: Sequence[int],
        ends: Sequence[int] = (),
        permutation: Permutation | None = None,
    ) -> None:
        self._partitions = np.asarray(partitions, np.int64)
        self._schema = reader.scanned_schema
        super().__init__(reader, self._stored(reader), lambda u: int(self._partitions[u]))
        self._ends = deque(sorted(ends))
        self._permutation = permutation
        self._units = self._new_units()
        self._records = np.zeros(len(self._partitions), np.int64)  # of each, in blocks
        self._wanted = self._wanted_keys()

    def _stored(self, reader: CacheReader) -> Schema:
        """Return what lands: rows, or blocks of them, whose columns are arrays."""
        return block_schema(self._schema) if reader.is_blocks else self._schema

    @property
    def _is_sql(self) -> bool:
        return self._reader.selection is not None and not self._selects_keys

    @property
    def _selects_keys(self) -> bool:
        """Whether a condition has selected keys, and not rows of each partition."""
        selection = self._reader.selection
        return selection is not None and not selection.condition.by_row

    def _wanted_keys(self) -> NDArray[np.uint64] | None:
        """Return the marks of the keys to keep, ascending; None keeps all."""
        reader, selection = self._reader, self._reader.selection
        if selection is None or selection.condition.by_row:
            return None
        found: list[NDArray[np.uint64]] = []
        for anew, batch in statement_batches(reader, selection, self._schema.key):
            if anew:
                found.clear()
            assert batch.key is not None
            found.append(marks_of(self._schema, batch.key))
        return np.unique(np.concatenate([*found, np.empty(0, np.uint64)]))

    def _new_units(self) -> NDArray[Any]:
        reader = self._reader
        units = np.zeros(len(self._partitions), UNIT)
        units["lane"] = -1
        counts = self._known_rows()
        row_bytes = max(self._stored_bytes, 64.0)
        if counts is None:
            units["base"], units["rows"] = -1, -1
            units["base"][:1] = 0
            units["expected"] = max(64.0, min(self._page_rows * row_bytes, reader.unit_bytes))
        else:
            units["rows"] = counts
            np.cumsum(counts[:-1], out=units["base"][1:])
            units["expected"] = np.maximum(np.minimum(counts, self._page_rows) * row_bytes, 64.0)
        units["first"] = units["base"]
        if self._permutation is not None:
            units["first"] = self._permutation.firsts
        return units

    def _known_rows(self) -> NDArray[np.int64] | None:
        """Return how many entries each partition must have; None if that is not known."""
        reader = self._reader
        if reader.selection is not None or reader.options.on_change != "error" or reader.is_blocks:
            return None
        return reader.changes.known_rows(self._partitions)

    @functools.cached_property
    def _page_rows(self) -> int:
        """Entries in a page."""
        reader = self._reader
        if reader.options.page_size is not None:
            return reader.options.page_size
        delay = reader.client.quickest_s
        # The pages of several partitions come in turn.
        share = min(_PARALLEL_PAGES, max(1, len(self._partitions)))
        wanted = 0.0 if delay == float("inf") else _PAGE_RATE * delay / share
        nbytes = min(_MOST_PAGE, max(_LEAST_PAGE, wanted))
        return int(max(1, min(_MOST_PAGE_ROWS, nbytes // max(self._stored_bytes, 64.0))))

    def batches(self) -> Generator[UnitBatch, None, None]:
        """Yield the batches, and the marks of the ends."""
        if not len(self._partitions):
            return
        reader, units = self._reader, self._units
        size, self._found = self._expected_size(), 0
        with contextlib.closing(self._landed()) as groups:
            for place, batch in groups:
                yield from self._cut(place, batch)
        yield from self._cut(int(units["done"].sum()), None)
        if reader.is_blocks:
            reader.changes.check_units(self._partitions, self._records, units["mark"].copy())
        reader.changes.check_size(size, self._found)
        if reader.selection is not None:
            reader.check_entries()

    def _landed(self) -> Generator[tuple[int, Batch], None, None]:
        """Yield the first place and the entries of each group."""
        units, places = self._units, None
        if self._permutation is not None:
            places = self._permutation.places
        total = int(units["rows"].sum()) if (units["rows"] >= 0).all() else -1
        landing = self._landing(units, total, self._page_rows, places=places)
        partitions = self._partitions.tolist()
        requests = self._requests(partitions)
        return self._groups(units, requests, (partitions, self._owners), landing)

    def _requests(self, partitions: Sequence[int]) -> Requests:
        reader, page_rows = self._reader, self._page_rows
        if not self._is_sql:
            scans = scan_requests(cache_id(reader.cache), page_rows, partitions)
            return requests_of(OpCode.QUERY_SCAN, scans)
        assert reader.selection is not None
        statements = reader.selection.requests(page_rows, partitions)
        return requests_of(OpCode.QUERY_SQL_FIELDS, statements)

    def _owners(self, anew: bool) -> Mapping[int, uuid.UUID]:
        reader = self._reader
        # SQL by partition is always answered by the primary node.
        return owners_of(reader.client, reader.cache, primary=self._is_sql, anew=anew)

    def _expected_size(self) -> int | None:
        """Return how many records there must be; None if that is counted by partition."""
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

    def _row_of(self, unit: int, places: NDArray[np.int64]) -> int:
        return 0 if self._permutation is not None else int(places[0] - self._units["base"][unit])

    def other_count(self, unit: int, found: int) -> IgniteTFError:
        """Return the error of a partition that has another number of rows than is known."""
        try:
            self._reader.changes.check_count(int(self._partitions[unit]), found)
        except IgniteTFError as error:
            return error
        return DataChanged(
            f"{self._reader.name}, partition {int(self._partitions[unit])}: other keys than in an"
            " earlier epoch",
            hint="entries were added or removed since; on_change='warn' reads on",
        )

    def other_keys(self, unit: int) -> IgniteTFError:
        """Return the error of a partition whose keys changed between two connections."""
        try:
            self._reader.changes.check_again(int(self._partitions[unit]), (1, 0), (0, 0))
        except IgniteTFError as error:
            return error
        raise AssertionError("rows that differ are an error")

    # What the consumer gets

    def _cut(self, place: int, batch: Batch | None) -> Iterator[UnitBatch]:
        """Yield the rows of a group, cut at the ends, and the marks of the ends among them."""
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
        """The unit at whose end the rows that are handed over end at the latest."""
        return self._ends[0] if self._ends else 0

    def _own(self, part: Batch, place: int) -> Iterator[UnitBatch]:
        """Yield the rows of the split, without nulls as the policy says."""
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
            own = self._own_of(part, None)
        except SchemaError:
            # Again for each partition, so that the error names it.
            for partition, rows in self._by_partition(place, len(part)):
                self._own_of(part[rows], partition)
            raise
        if own is not None:
            yield UnitBatch(self._next_end, own)

    def _unpacked(self, blocks: Batch, place: int) -> Iterator[UnitBatch]:
        """Yield the records of blocks."""
        known = self._units["base"] >= 0
        numbers = np.arange(place, place + len(blocks))
        units = np.searchsorted(self._units["base"][known], numbers, "right") - 1
        for unit, records in zip(units.tolist(), self._records_of(blocks), strict=True):
            with Place(self._reader.name, int(self._partitions[unit])):
                own = self._own_of(records, int(self._partitions[unit]))
            self._records[unit] += len(records)
            self._found += len(records)
            if own is not None and len(own):
                yield UnitBatch(self._next_end, own)

    def _records_of(self, blocks: Batch) -> Iterator[Batch]:
        names = [field.name for field in self._schema.fields]
        return unpack_blocks(self._schema, blocks, names)

    def _by_partition(self, place: int, rows: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield each partition that has some of these rows, and which."""
        known = self._units["base"] >= 0
        bases = self._units["base"][known]
        numbers = np.arange(place, place + rows)
        if self._permutation is not None:
            numbers = np.argsort(self._permutation.places)[numbers]
        units = np.searchsorted(bases, numbers, "right") - 1
        for unit in np.unique(units).tolist():
            yield int(self._partitions[unit]), np.flatnonzero(units == unit)

    def _own_of(self, part: Batch, partition: int | None) -> Batch | None:
        reader = self._reader
        own = part if reader.split is None else reader.split.rows_of(reader.schema, part)
        return reader.without_nulls(own, partition) if len(own) else None


def count_entries(reader: CacheReader, partitions: Sequence[int]) -> list[int]:
    """Return the entries of each partition, by a scan that keeps only the keys."""
    return _KeyScan(reader, partitions, reader.schema.key).counts() if len(partitions) else []


def count_keys(reader: CacheReader) -> list[int] | None:
    """Return the rows of each partition, by their keys, which SQL reads; None if it cannot."""
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


class _KeyScan(ScanReading):
    """Reads the keys of partitions, whatever their values are."""

    def __init__(self, reader: CacheReader, partitions: Sequence[int], key: Field) -> None:
        self._key = key
        super().__init__(reader, partitions)

    def _stored(self, reader: CacheReader) -> Schema:
        return replace(super()._stored(reader), type_name="", fields=(), key=self._key)

    def _known_rows(self) -> NDArray[np.int64] | None:
        return None

    def _wanted_keys(self) -> NDArray[np.uint64] | None:
        return None

    @property
    def _is_sql(self) -> bool:
        return False

    def _compare(self, first: int, ended: NDArray[Any]) -> None:
        return

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


class KeyReading(_Pass):
    """Reads the rows of some keys, in their order.

    Args:
        reader: The cache.
        keys: Its keys.
        numbers: The numbers of the keys, int64 `[n]`.
        cuts: Between two of these, ascending, no number is repeated; None for the beginning and the
            end.
        on_missing: Called with the numbers of keys that the cache does not have, in any thread; if
            it returns, their rows are left out. By default the `on_change` of the reader decides.
        stored: What the entries are; None for rows.
    """

    def __init__(
        self,
        reader: CacheReader,
        keys: Keys,
        numbers: Numbers,
        *,
        cuts: Sequence[int] | None = None,
        on_missing: Callable[[Numbers], None] | None = None,
        stored: Schema | None = None,
    ) -> None:
        schema = reader.schema if stored is None else stored
        super().__init__(reader, schema, lambda _: None, max(1, len(numbers)))
        self._schema = schema
        self._keys = keys
        self._numbers = numbers
        self._cuts = [0, len(numbers)] if cuts is None else cuts
        self._on_missing = on_missing or self._changed
        self._row_bytes = int(self._stored_bytes if reader.entry_bytes else _SOME_BYTES)
        self._row_bytes += _ENTRY_BYTES
        self._size = max(1, min(_MOST_KEYS, _REQUEST_BYTES // self._row_bytes))
        self._order: NDArray[np.int64] | None = None
        self._units = np.zeros(0, UNIT)

    def batches(self) -> Generator[Batch, None, None]:
        """Yield the rows, in order.

        Raises:
            DataChanged: Some rows are gone.
        """
        for batch in self.entries():
            own = self._reader.without_nulls(batch, None)
            if len(own):
                yield own

    def entries(self) -> Generator[Batch, None, None]:
        """Yield the entries as they are stored, in order."""
        total = len(self._numbers)
        if not total:
            return
        partitions = self._keys.partitions(self._numbers, self._reader.partition_count)
        self._order, nodes = self._by_node(partitions)
        order = self._order
        numbers = self._numbers if order is None else self._numbers[order]
        units, bounds = self._new_units(nodes)
        self._units = units
        objects = self._keys.objects(numbers)
        key_at = self._key_bounds(objects, numbers)
        requests = self._requests(objects, key_at, bounds)
        landing = self._landing(units, total, total, places=order, keys=objects, key_at=key_at)
        of = np.zeros(len(units), np.int64)
        if partitions is not None:
            of = (partitions if order is None else partitions[order])[units["base"]]
        owners = (of.tolist(), self._owners)
        with contextlib.closing(self._groups(units, requests, owners, landing)) as groups:
            for _, batch in groups:
                yield batch

    def _owners(self, anew: bool) -> Mapping[int, uuid.UUID]:
        return owners_of(self._reader.client, self._reader.cache, anew=anew)

    def _by_node(
        self, partitions: NDArray[np.int32] | None
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
        """Return the rows in the order in which they are requested, and what tells them apart.

        Those of one request have the same owner. The order is None for that of the numbers.
        """
        total = len(self._numbers)
        part = np.searchsorted(np.asarray(self._cuts), np.arange(total), "right")
        owners = {} if partitions is None else self._owners(False)
        if not owners or partitions is None:
            return None, part
        number_of = {node: i for i, node in enumerate(sorted(set(owners.values())))}
        table = np.full(self._reader.partition_count, -1, np.int64)
        for partition, node in owners.items():
            table[partition] = number_of[node]
        # Within stretches of the order, so that rows arrive about when they are needed.
        stretch = 8 * self._size * max(1, len(number_of))
        changes = np.flatnonzero(np.diff(np.arange(total) // stretch, prepend=0))
        parts = np.zeros(total, np.int64)
        parts[changes] = 1
        block = np.cumsum(parts) + part
        nodes = table[partitions]
        order = np.lexsort((nodes, block))
        return order, (block * (len(number_of) + 2) + nodes)[order]

    def _new_units(self, nodes: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        total = len(self._numbers)
        changes = np.flatnonzero(np.diff(nodes)) + 1
        runs = np.concatenate(([0], changes, [total]))
        starts = [np.arange(a, b, self._size) for a, b in itertools.pairwise(runs.tolist())]
        bounds = np.concatenate((*starts, [total]))
        units = np.zeros(len(bounds) - 1, UNIT)
        units["lane"] = -1
        units["base"], units["rows"] = bounds[:-1], np.diff(bounds)
        units["first"] = bounds[:-1]
        if self._order is not None:
            units["first"] = np.minimum.reduceat(self._order, bounds[:-1])
        units["expected"] = units["rows"] * self._row_bytes
        return units, bounds

    def _key_bounds(self, objects: bytes, numbers: Numbers) -> NDArray[np.int64]:
        """Return where each key begins, and where the last one ends, int64 `[n + 1]`."""
        lengths = self._keys.lengths(numbers)
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))

    def _requests(
        self, objects: bytes, key_at: NDArray[np.int64], bounds: NDArray[np.int64]
    ) -> Requests:
        cache, view = cache_id(self._reader.cache), memoryview(objects)
        ends = key_at[bounds].tolist()
        sizes = np.diff(bounds).tolist()
        bodies = [
            b"".join((batch_head(cache, size), view[ends[i] : ends[i + 1]]))
            for i, size in enumerate(sizes)
        ]
        return requests_of(OpCode.CACHE_GET_ALL, bodies)

    def leave(
        self, unit: int, entries: bytes, places: NDArray[np.int64], absent: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Decode and place entries that the core has left; see `net.flow.Sink`.

        Keys that come back in other bytes than they were requested with are known by their marks.
        """
        if len(places):
            batch = self._decoded(unit, entries, places)
            if (unknown := np.flatnonzero(places < 0)).size:
                found, absent = self._found(unit, batch[unknown], absent)
                places = places.copy()
                places[unknown] = found
            self._left.add(places, batch)
        gone = self._place(unit, absent)
        if len(gone):
            self._on_missing(self._numbers[np.sort(gone)])
            self._left.drop(gone)
        return np.concatenate((places, gone))

    def _place(self, unit: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        at = int(self._units["base"][unit]) + rows
        return at if self._order is None else self._order[at]

    def _found(
        self, unit: int, batch: Batch, absent: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places of rows among those that are absent, and which still are."""
        assert batch.key is not None
        places = self._place(unit, absent)
        wanted = self._keys.marks(self._numbers[places])
        order = np.argsort(wanted)
        arrived = marks_of(self._schema, batch.key)
        at = np.searchsorted(wanted[order], arrived)
        fits = at < len(wanted)
        fits[fits] = wanted[order][at[fits]] == arrived[fits]
        if not fits.all() or len(np.unique(at)) < len(at):
            raise WireError(f"{self._reader.name}: rows that were not asked for")
        return places[order][at], np.delete(absent, order[at])

    def _changed(self, numbers: Numbers) -> None:
        """Report keys that the cache does not have any more, by the reader's policy."""
        reader = self._reader
        text = f"{reader.name}: {len(numbers)} rows are gone since the keys were read"
        if reader.options.on_change == "warn":
            log.warning("%s", text)
        elif reader.options.on_change == "error":
            raise DataChanged(
                text,
                hint="they were removed, or lost with a node that had no backup;"
                " on_change='warn' reads on",
                cache=reader.name,
            )

    def other_count(self, unit: int, found: int) -> IgniteTFError:
        """Keys that are absent are told by `leave`."""
        raise AssertionError("an answer has any number of the keys")

    def other_keys(self, unit: int) -> IgniteTFError:
        """Return the error of rows that changed between two connections; keys are not compared."""
        raise AssertionError("requests of keys are repeated as a whole")


class StatementReading(_Pass):
    """Reads the keys of the rows that one SQL statement finds in the whole table.

    Args:
        reader: The cache.
        selection: Table and condition.
        key: How the keys are read.
        field: A field whose value follows each key, and its column.
    """

    def __init__(
        self,
        reader: CacheReader,
        selection: Selection,
        key: Field,
        field: tuple[Field, str] | None = None,
    ) -> None:
        fields = () if field is None else (field[0],)
        schema = Schema(
            None if field else "", key, fields, key_type_name=reader.schema.key_type_name
        )
        super().__init__(reader, schema, lambda _: None)
        self._body = selection.key_query(_STATEMENT_PAGE, None if field is None else field[1])

    @property
    def _is_sql(self) -> bool:
        return True

    def batches(self) -> Generator[Batch, None, None]:
        """Yield the rows, in the order in which the cluster finds them."""
        units = np.zeros(1, UNIT)
        units["lane"], units["rows"], units["expected"] = -1, -1, _LEAST_PAGE
        landing = self._landing(units, -1, _STATEMENT_PAGE)
        requests = requests_of(OpCode.QUERY_SQL_FIELDS, [self._body])

        def owners(_: bool) -> Mapping[int, uuid.UUID]:
            return {}

        groups = self._groups(units, requests, ([0], owners), landing, retry_s=0.0)
        with contextlib.closing(groups):
            for _, batch in groups:
                yield batch

    def other_count(self, unit: int, found: int) -> IgniteTFError:
        """The number of rows is not known."""
        raise AssertionError("the number of rows is not known")

    def other_keys(self, unit: int) -> IgniteTFError:
        """A statement is made anew, not continued."""
        raise AssertionError("a statement is not continued over another connection")


def statement_batches(
    reader: CacheReader, selection: Selection, key: Field, field: tuple[Field, str] | None = None
) -> Generator[tuple[bool, Batch], None, None]:
    """Yield what `StatementReading` reads; after a lost connection it starts over.

    Yields:
        Whether it is the first batch, and the batch. Those before a first batch do not count.
    """
    selection.check_whole(reader.client)
    backoff, first = Backoff(READ), True
    while True:
        try:
            with contextlib.closing(
                StatementReading(reader, selection, key, field).batches()
            ) as batches:
                for batch in batches:
                    yield first, batch
                    first = False
            break
        except IgniteTFError as error:
            if (wait := backoff.wait_s(error, reader.retry_s)) is None:
                raise
            log.warning("%s: %s; reading again in %.1f s", reader.name, error, wait)
            time.sleep(wait)
            first = True
    selection.check_whole(reader.client)
