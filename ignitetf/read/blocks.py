"""The global order of rows that are stored in blocks, and the reading of rows in that order.

manifest, key order -> **blocks** -> reading -> rows

Each epoch permutes the blocks. Consecutive blocks make a window of a limited number of bytes, and
the rows of each window are permuted. Both permutations are computed from seed and epoch, so any
place can be looked up. Memory holds only the number of rows of each block, nothing for each row.

The blocks that contain wanted rows of a window are fetched by key, and each row is written to its
place when it arrives. So memory holds the rows of the window that is passed on, and the blocks that
are being received. With several workers, each worker reads nearly all blocks and uses its part of
each.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.read.key_order import KeyOrder, Permutation, Slices, StepOrder
from ignitetf.read.keys import IntegerKeys, Numbers, RecordContext
from ignitetf.read.lookup import KeyReading
from ignitetf.read.reader import CacheReader
from ignitetf.read.scan_order import MOST_PLANNED, OrderName, Position, ScanOrder, Shard
from ignitetf.read.window import Filling, inverse, piece_rows
from ignitetf.tables.catalog import Manifest
from ignitetf.wire.blocks import BLOCK_KEY, BlockKeys, block_schema, unpack_blocks
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.columns import Batch, concat, values_of
from ignitetf.wire.schema import Schema

__all__ = ["BlockOrder", "RowOrder", "StoredBlocks", "read_blocks"]


@dataclass(frozen=True, eq=False)
class StoredBlocks:
    """The blocks of a data set, numbered partition after partition.

    Attributes:
        keys: Their keys.
        rows: Rows in each, int64 [blocks].
        row_bytes: Bytes of a row.
    """

    keys: IntegerKeys
    rows: NDArray[np.int64]
    row_bytes: float

    @classmethod
    def of(cls, manifest: Manifest) -> StoredBlocks:
        """Return the blocks of a data set in the block layout.

        Raises:
            ConfigError: The manifest does not say how many rows each block has.
        """
        facts = manifest.options
        rows = np.array(facts.block_rows, np.int64)
        if len(rows) != sum(facts.blocks) or int(rows.sum()) != manifest.rows:
            raise ConfigError(
                f"{manifest.name}: the rows of each block are not known, since it was loaded by an"
                " earlier version of ignitetf",
                hint="load it again with --if-exists replace, or take order='scan'",
                cache=manifest.name,
            )
        keys = BlockKeys(len(facts.blocks), facts.blocks).handed_out()
        schema = Schema(None, BLOCK_KEY, ())
        row_bytes = manifest.nbytes / max(1, manifest.rows)
        return cls(IntegerKeys(schema, len(rows), keys), rows, row_bytes)

    @functools.cached_property
    def firsts(self) -> NDArray[np.int64]:
        """Number of the first row of each block."""
        return np.cumsum(self.rows) - self.rows

    @functools.cached_property
    def digest(self) -> str:
        """A checksum of the rows of all blocks, in order."""
        return f"{zlib.crc32(self.rows.astype('<i8').tobytes()):08x}"


@dataclass(frozen=True, eq=False)
class _EpochBlocks:
    """The blocks of an epoch, laid end to end.

    Attributes:
        order: Their numbers in the order of the epoch.
        ends: Rows up to the end of each.
        windows: Rows before each window, and at last all rows.
    """

    order: NDArray[np.int64]
    ends: NDArray[np.int64]
    windows: NDArray[np.int64]


@dataclass(frozen=True)
class BlockOrder(StepOrder):
    """The order of rows that are stored in blocks; without a seed, the stored order.

    Attributes:
        blocks: The blocks.
        window_bytes: Upper limit for a window of more than one block.
        seed: Seed of the permutations.
    """

    blocks: StoredBlocks
    window_bytes: int
    seed: int | None = None

    @property
    def name(self) -> OrderName:
        """`global`."""
        return "global"

    @property
    def total(self) -> int:
        """The number of rows."""
        return int(self.blocks.rows.sum())

    def layout(self, epoch: int) -> _EpochBlocks:
        """Return the blocks of an epoch in their order."""
        limit = int(self.window_bytes / max(1.0, self.blocks.row_bytes))
        return _layout(self.blocks, self.seed, epoch, limit)

    def layout_rows(self, epoch: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for each place the index of its row among the rows of `layout`."""
        if self.seed is None:
            return places
        windows = self.layout(epoch).windows
        window = np.searchsorted(windows, places, side="right") - 1
        # Places ascend except for repeated rows, so this costs hardly more than one pass.
        by_window = np.argsort(window, kind="stable")
        cuts = np.flatnonzero(np.diff(window[by_window])) + 1
        found = np.empty_like(places)
        for at in np.split(by_window, cuts):
            if not len(at):
                continue
            number = int(window[at[0]])
            first, rows = int(windows[number]), int(windows[number + 1] - windows[number])
            permutation = _permutation(rows, self.seed, epoch, number)
            found[at] = first + permutation(places[at] - first)
        return found

    def numbers(self, epoch: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the row at each place; rows are numbered as they are stored."""
        if self.seed is None:
            return places
        layout = self.layout(epoch)
        at = self.layout_rows(epoch, places)
        of = np.searchsorted(layout.ends, at, side="right")
        block = layout.order[of]
        return self.blocks.firsts[block] + self.blocks.rows[block] + at - layout.ends[of]


# Any order of the rows of a data set.
RowOrder = ScanOrder | KeyOrder | BlockOrder


@functools.lru_cache(maxsize=4)
def _layout(blocks: StoredBlocks, seed: int | None, epoch: int, limit: int) -> _EpochBlocks:
    count = len(blocks.rows)
    order = np.arange(count, dtype=np.int64)
    if seed is not None:
        order = Permutation(count, seed, epoch)(order)
    sizes = blocks.rows[order]
    ends = np.cumsum(sizes)
    windows, at = [0], 0
    while at < count:
        fitting = int(np.searchsorted(ends, windows[-1] + limit, side="right"))
        at = max(at + 1, fitting)
        windows.append(int(ends[at - 1]))
    return _EpochBlocks(order, ends, np.array(windows, np.int64))


@functools.lru_cache(maxsize=8)
def _permutation(count: int, seed: int, epoch: int, window: int) -> Permutation:
    return Permutation(count, seed, epoch, window)


@dataclass(frozen=True)
class _Wanted:
    """The rows that a worker needs from the blocks of a window.

    Attributes:
        blocks: Numbers of the blocks, in the order of the requests.
        bounds: The rows needed from block i are `rows[bounds[i] : bounds[i + 1]]`.
        rows: Numbers of the rows within their blocks, ascending in each block.
        places: Place of each of the rows in the worker's part of the window.
        last: True if the epoch ends with these rows.
    """

    blocks: Numbers
    bounds: NDArray[np.int64]
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    last: bool


def read_blocks(
    reader: CacheReader, order: BlockOrder, position: Position, shard: Shard
) -> Generator[Batch, None, None]:
    """Yield the remaining rows of a worker from a position on, in order.

    Raises:
        DataChanged: A block was removed or has other rows, unless `on_change` allows that.
        PartitionLost: A partition has lost all owners.
        SchemaError: A record does not match the schema; names cache, key and field.
    """
    pools = reader.window_pools
    pool = pools.pop() if pools else BufferPool(order.window_bytes)
    try:
        with reader.explained():
            blocks = len(order.blocks.rows)
            size = reader.client.settled_size(reader.cache, blocks)
            reader.changes.check_size(blocks, size, "after the load")
            yield from _Reading(reader, order, pool).batches(position, shard)
    finally:
        pools.append(pool)


class _Reading:
    """Reads windows, one after the other."""

    def __init__(self, reader: CacheReader, order: BlockOrder, pool: BufferPool) -> None:
        self._reader = reader
        self._order = order
        self._pool = pool
        # If the number of rows is certain, each row is written to its place when it arrives.
        options = reader.options
        self._certain = options.on_change == "error" and not options.raw_nulls

    def batches(self, position: Position, shard: Shard) -> Generator[Batch, None, None]:
        rest: Batch | None = None
        windows = self._windows(position, shard)
        while planned := _planned(windows):
            with contextlib.closing(self._found(planned)) as found:
                for wanted in planned:
                    rest = yield from self._window(wanted, found, rest)

    def _windows(self, position: Position, shard: Shard) -> Iterator[_Wanted]:
        """Yield the rows that a worker needs from each window in which it has rows left."""
        order = self._order
        slices = order.slices(position, shard)
        rows, start = len(slices), 0
        for end in order.layout(position.epoch).windows[1:].tolist():
            stop = slices.rows_before(end) if end > slices.first else 0
            if stop > start:
                yield self._wanted(position.epoch, slices, start, stop, last=stop == rows)
                start = stop

    def _wanted(self, epoch: int, slices: Slices, start: int, stop: int, *, last: bool) -> _Wanted:
        layout = self._order.layout(epoch)
        at = self._order.layout_rows(epoch, slices.places(start, stop))
        first = int(at.min())
        # If a worker needs all rows of a range, as a single worker does, inverting the order is
        # faster than sorting.
        whole = int(at.max()) - first + 1 == len(at)
        places = inverse(at - first) if whole else np.argsort(at, kind="stable")
        at = at[places]
        of = np.searchsorted(layout.ends, at, side="right")
        begins = np.concatenate(([0], np.flatnonzero(np.diff(of)) + 1))
        number = layout.order[of]
        rows = at - layout.ends[of] + self._order.blocks.rows[number]
        return _Wanted(number[begins], np.append(begins, len(at)), rows, places, last)

    def _found(self, planned: Sequence[_Wanted]) -> Generator[Batch | None, None, None]:
        """Yield the records of each needed block, in request order; None for a removed block."""
        reader, keys = self._reader, self._order.blocks.keys
        numbers = np.concatenate([wanted.blocks for wanted in planned])
        cuts = np.cumsum([0, *(len(wanted.blocks) for wanted in planned)]).tolist()
        names = [field.name for field in reader.schema.fields]
        reading = KeyReading(
            reader, keys, numbers, cuts=cuts, on_missing=lambda _: None,
            stored=block_schema(reader.schema),
        )  # fmt: skip
        asked = iter(keys.values(numbers).tolist())
        with contextlib.closing(reading.entries()) as entries:
            for blocks in entries:
                records = unpack_blocks(reader.schema, blocks, names)
                with RecordContext(reader.name, None):
                    found = values_of(blocks.key).tolist()
                    for key, block in zip(found, records, strict=True):
                        while next(asked) != key:
                            yield None
                        yield block
        for _ in asked:
            yield None

    def _window(
        self,
        wanted: _Wanted,
        found: Iterator[Batch | None],
        rest: Batch | None,
    ) -> Generator[Batch, None, Batch | None]:
        """Yield the rows of a window; returns the rows that are yielded with the next window."""
        filling = Filling(wanted.places, self._pool, rest) if self._certain else None
        parts: list[Batch] = []
        places: list[NDArray[np.int64]] = []
        keys = self._order.blocks.keys.values(wanted.blocks)
        for i, number in enumerate(wanted.blocks.tolist()):
            block, key = next(found), int(keys[i])
            expected = int(self._order.blocks.rows[number])
            self._reader.changes.check_block(key, None if block is None else len(block), expected)
            if block is None:
                continue
            part = slice(int(wanted.bounds[i]), int(wanted.bounds[i + 1]))
            rows, to = wanted.rows[part], wanted.places[part]
            if len(block) < expected:
                rows, to = rows[rows < len(block)], to[rows < len(block)]
            batch = block if len(rows) == len(block) else block[rows]
            batch = self._reader.without_nulls(batch, None)
            if filling is not None:
                filling.add(batch)
            else:
                parts.append(batch)
                places.append(to)
        if filling is not None:
            return (yield from filling.batches(wanted.last))
        yield from _sorted(parts, places)
        return None


def _planned(windows: Iterator[_Wanted]) -> list[_Wanted]:
    """Return the next windows, which are read together."""
    found, rows = list[_Wanted](), 0
    while rows < MOST_PLANNED and (wanted := next(windows, None)) is not None:
        found.append(wanted)
        rows += len(wanted.rows)
    return found


def _sorted(parts: Sequence[Batch], places: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
    """Yield rows in the order of their places; some places may have no row."""
    if not parts:
        return
    whole = concat(parts)
    order = np.argsort(np.concatenate(places), kind="stable")
    step = piece_rows(len(whole), whole.nbytes)
    for start in range(0, len(whole), step):
        yield whole[order[start : start + step]]
