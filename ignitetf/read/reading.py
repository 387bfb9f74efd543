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
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf._core import UNIT, Landing, UnitState
from ignitetf.errors import DataChanged, IgniteTFError, SchemaError
from ignitetf.net.client import cache_id
from ignitetf.net.flow import Flow, Requests, requests_of
from ignitetf.read.error_context import Place
from ignitetf.read.keys import Keys, Numbers
from ignitetf.read.landing import Left, RowLayout
from ignitetf.read.page_decoder import PageDecoder
from ignitetf.read.scan_thread import owners_of
from ignitetf.read.unit_reading import UnitBatch
from ignitetf.read.usage import add_read, add_wait
from ignitetf.wire.blocks import block_schema, unpack_blocks
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.datatypes import INTEGERS
from ignitetf.wire.frames import Page
from ignitetf.wire.objects import find_rows
from ignitetf.wire.requests import batch_head, scan_requests
from ignitetf.wire.schema import Batch, Schema

if TYPE_CHECKING:
    from ignitetf.read.reader import CacheReader

__all__ = ["KeyReading", "Permutation", "ScanReading", "count_entries"]

# About as many bytes as a group of rows has: little memory, used again, stays in the cache.
_GROUP_BYTES: Final = 1 << 20
_MOST_GROUP_ROWS: Final = 65_536
# Groups are cut where TensorFlow can take them over without a copy.
_ALIGNED_ROWS: Final = 64
# A page lasts as long as a round trip at this rate, but has at least and at most so many bytes.
_PAGE_RATE: Final = 200e6
_LEAST_PAGE: Final = 2 << 20
_MOST_PAGE: Final = 16 << 20
_MOST_PAGE_ROWS: Final = 65_536
# Groups that may be filled before the consumer takes them, at least.
_AHEAD: Final = 8
# A node answers requests in parallel: measured best at 128 rows of 784 bytes; benchmarks/README.md.
_REQUEST_BYTES: Final = 128 << 10
_MOST_KEYS: Final = 2048
# Key, headers and footers of an entry, in addition to its values.
_ENTRY_BYTES: Final = 64
_INT_BYTES: Final = 4


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
        self, reader: CacheReader, stored: Schema, name_of: Callable[[int], int | None]
    ) -> None:
        self._reader = reader
        self._stored_bytes = max(1.0, reader.entry_bytes * reader.block_rows)
        self._rows = _group_rows(self._stored_bytes)
        self._layout: RowLayout = reader.row_layout(stored, self._rows)
        self._left = Left(self._rows)
        self._decoder = PageDecoder(
            reader.client, reader.name, stored, reader.registry, retry_s=reader.retry.budget_s
        )
        self._name_of = name_of  # a unit's partition, for messages
        self._counted = 0  # units whose rows were counted

    def _groups(
        self,
        units: NDArray[Any],
        requests: Requests,
        owners: tuple[Sequence[int], Callable[[bool], Mapping[int, uuid.UUID]]],
        landing: Landing,
    ) -> Generator[tuple[int, Batch], None, None]:
        """Yield the first place and the rows of each group."""
        reader = self._reader
        flow = Flow(
            reader.client, reader.name, landing, units, requests, *owners, self,
            retry_s=reader.retry.budget_s,
        )  # fmt: skip
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
                left = self._left.take(taken[0] // self._rows)
                yield taken[0], self._layout.batch(taken, left)
        times.wait += flow.traffic.wait_s

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
        self._decoder.with_types(self._layout.learn, type_id, schema_id, flags)

    def leave(self, unit: int, entries: bytes, places: NDArray[np.int64]) -> None:
        """Decode entries that the core has left, and place them."""
        page = Page(len(places), False, np.frombuffer(entries, np.uint8))
        found = self._decoder.one(self._name_of(unit), page, first=self._row_of(unit, places))
        (batch,) = found.parts
        self._left.add(places, batch)

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
        super().__init__(reader, self._stored(), lambda u: int(self._partitions[u]))
        self._ends = sorted(ends)
        self._permutation = permutation
        self._units = self._new_units()
        self._records = np.zeros(len(self._partitions), np.int64)  # of each, in blocks
        self._wanted = self._wanted_keys()

    def _stored(self) -> Schema:
        """Return what lands: rows, or blocks of them, whose columns are arrays."""
        return block_schema(self._schema) if self._reader.is_blocks else self._schema

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
        for anew, page in selection.key_pages(reader.client, reader.retry):
            if anew:
                found.clear()
            at = find_rows(page.data, page.count, 1)[0]
            keys = reader.decoded(page.data, at, self._schema.key)
            found.append(marks_of(self._schema, keys))
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
        wanted = 0.0 if delay == float("inf") else _PAGE_RATE * delay
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
            bodies = scan_requests(cache_id(reader.cache), page_rows, partitions)
            return requests_of(OpCode.QUERY_SCAN, bodies)
        assert reader.selection is not None
        bodies_of = reader.selection.query(page_rows).bodies
        return requests_of(OpCode.QUERY_SQL_FIELDS, bodies_of(partitions))

    def _owners(self, anew: bool) -> Mapping[int, uuid.UUID]:
        reader = self._reader
        query = reader.scan_query(1)
        if self._is_sql and reader.selection is not None:
            query = reader.selection.query(1)
        return owners_of(reader.client, query, anew=anew)

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
            yield UnitBatch(self._ends.pop(0), 0, 0, None)
        if batch is not None and stop > begin:
            yield from self._own(batch if begin == place else batch[begin - place :], begin)

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
            yield UnitBatch(0, 0, len(part), own)

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
                yield UnitBatch(0, 0, len(records), own)

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
    return _EntryCount(reader, partitions).counts() if len(partitions) else []


class _EntryCount(ScanReading):
    """Counts the entries of partitions, and lands nothing but their keys."""

    def _stored(self) -> Schema:
        stored = super()._stored()
        return stored if stored.type_name is None else replace(stored, fields=())

    def _known_rows(self) -> NDArray[np.int64] | None:
        return None

    def _wanted_keys(self) -> NDArray[np.uint64] | None:
        return None

    @property
    def _is_sql(self) -> bool:
        return False

    def _compare(self, first: int, ended: NDArray[Any]) -> None:
        return

    def counts(self) -> list[int]:
        """Return the entries of each partition."""
        with contextlib.closing(self._landed()) as groups:
            for _ in groups:
                pass
        found: list[int] = self._units["done"].tolist()
        return found


class KeyReading(_Pass):
    """Reads the rows of some keys, in their order.

    Args:
        reader: The cache.
        keys: Its keys.
        numbers: The numbers of the keys, int64 `[n]`; none of them twice.
    """

    def __init__(self, reader: CacheReader, keys: Keys, numbers: Numbers) -> None:
        super().__init__(reader, reader.schema, lambda _: None)
        self._keys = keys
        self._numbers = numbers
        row_bytes = int(reader.entry_bytes) + _ENTRY_BYTES
        self._row_bytes = row_bytes
        self._size = max(1, min(_MOST_KEYS, _REQUEST_BYTES // row_bytes))

    @staticmethod
    def can_read(reader: CacheReader) -> bool:
        """Whether the keys of a cache come back as the bytes that were requested."""
        schema, options = reader.schema, reader.options
        fits = schema.key.type in INTEGERS or schema.key.type in (TypeCode.STRING, TypeCode.UUID)
        return fits and options.on_change == "error" and not reader.is_blocks

    def batches(self) -> Generator[Batch, None, None]:
        """Yield the rows, in order.

        Raises:
            DataChanged: Some rows are gone.
        """
        total = len(self._numbers)
        if not total:
            return
        order, nodes = self._order()
        numbers = self._numbers if order is None else self._numbers[order]
        partitions = self._keys.partitions(numbers, self._reader.partition_count)
        units, bounds = self._new_units(order, nodes)
        objects = self._keys.objects(numbers)
        key_at = self._key_bounds(objects, total)
        requests = self._requests(objects, key_at, bounds)
        landing = self._landing(units, total, total, places=order, keys=objects, key_at=key_at)
        firsts = units["base"]
        of = np.zeros(len(units), np.int64) if partitions is None else partitions[firsts]
        owners = (of.tolist(), self._owners)
        with contextlib.closing(self._groups(units, requests, owners, landing)) as groups:
            for _, batch in groups:
                own = self._reader.without_nulls(batch, None)
                if len(own):
                    yield own

    def _owners(self, anew: bool) -> Mapping[int, uuid.UUID]:
        return owners_of(self._reader.client, self._reader.scan_query(1), anew=anew)

    def _order(self) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
        """Return the rows in the order in which they are requested, and the node of each.

        Those of one request have the same owner. None for one node.
        """
        owners = self._owners(False)
        if not owners:
            return None, None
        partitions = self._keys.partitions(self._numbers, self._reader.partition_count)
        if partitions is None:
            return None, None
        number_of = {node: i for i, node in enumerate(sorted(set(owners.values())))}
        table = np.full(self._reader.partition_count, -1, np.int64)
        for partition, node in owners.items():
            table[partition] = number_of[node]
        nodes = table[partitions]
        # Within stretches of the order, so that rows arrive about when they are needed.
        stretch = 8 * self._size * max(1, len(number_of))
        block = np.arange(len(nodes)) // stretch
        order = np.lexsort((nodes, block))
        return order, (block * (len(number_of) + 1) + nodes)[order]

    def _new_units(
        self, order: NDArray[np.int64] | None, nodes: NDArray[np.int64] | None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        total = len(self._numbers)
        bounds = np.arange(0, total, self._size)
        if nodes is not None:
            changes = np.flatnonzero(np.diff(nodes)) + 1
            runs = np.concatenate(([0], changes, [total]))
            bounds = np.concatenate(
                [np.arange(a, b, self._size) for a, b in itertools.pairwise(runs)]
            )
        bounds = np.concatenate((bounds, [total]))
        units = np.zeros(len(bounds) - 1, UNIT)
        units["lane"] = -1
        units["base"], units["rows"] = bounds[:-1], np.diff(bounds)
        units["first"] = bounds[:-1]
        if order is not None:
            units["first"] = np.minimum.reduceat(order, bounds[:-1])
        units["expected"] = units["rows"] * self._row_bytes
        return units, bounds

    def _key_bounds(self, objects: bytes, total: int) -> NDArray[np.int64]:
        """Return where each key begins, and where the last one ends, int64 `[n + 1]`."""
        if self._reader.schema.key.type != TypeCode.STRING:
            return np.arange(total + 1, dtype=np.int64) * (len(objects) // total)
        bounds = np.zeros(total + 1, np.int64)
        at = 0
        for number in range(total):
            at += 5 + int.from_bytes(objects[at + 1 : at + 5], "little")
            bounds[number + 1] = at
        return bounds

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

    def other_count(self, unit: int, found: int) -> IgniteTFError:
        """Return the error of a request some of whose keys the cache does not have."""
        reader = self._reader
        error = DataChanged(
            f"{reader.name}: rows are gone since the keys were read",
            hint="they were removed, or lost with a node that had no backup;"
            " on_change='warn' reads on",
            cache=reader.name,
        )
        try:
            with reader.explained():
                raise error
        except IgniteTFError as found_error:
            return found_error

    def other_keys(self, unit: int) -> IgniteTFError:
        """Return the error of rows that changed between two connections; keys are not compared."""
        raise AssertionError("requests of keys are repeated as a whole")
