"""Rows of blocks in their global order.

block order -> **block lookup** -> reading -> rows

The blocks that have wanted rows of a window are read by their keys, and each row goes to its place
as soon as it is here. So memory holds the rows of a window that are handed over, and the
blocks that are on their way. Each worker of several reads nearly all blocks, for its part of each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.read.block_order import BlockOrder
from ignitetf.read.error_context import RecordContext
from ignitetf.read.key_order import Slices
from ignitetf.read.keys import Numbers
from ignitetf.read.lookup import KeyReading
from ignitetf.read.plan import Position, Shard
from ignitetf.read.reader import CacheReader
from ignitetf.read.window import Filling, inverse, piece_rows
from ignitetf.wire.blocks import block_schema, unpack_blocks
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.concat import concat
from ignitetf.wire.schema import Batch

__all__ = ["read_blocks"]

# Rows of a plan: their places are in memory.
_MOST_PLANNED: Final = 1 << 20


@dataclass(frozen=True)
class _Wanted:
    """The rows that a worker wants of the blocks of a window.

    Attributes:
        blocks: Numbers of the blocks, in the order in which they are asked for.
        bounds: Of block i the rows `bounds[i]` to `bounds[i + 1]` of `rows` are wanted.
        rows: Numbers of the rows within their blocks, ascending in each.
        places: Place in the window's part of each of these rows.
        last: Whether the epoch ends with these.
    """

    blocks: Numbers
    bounds: NDArray[np.int64]
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    last: bool


def read_blocks(
    reader: CacheReader, order: BlockOrder, position: Position, shard: Shard
) -> Generator[Batch, None, None]:
    """Yield the rows that a worker has left from a position on, in order.

    Raises:
        DataChanged: A block is gone or has other rows, unless `on_change` lets that pass.
        PartitionLost: A partition has no owner left.
        SchemaError: A record does not fit; names cache, key and field.
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
        # If the number of rows is certain, each row goes to its place as soon as it arrives.
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
        """Yield what a worker wants of each window of which it has rows left."""
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
        at = self._order.stands_at(epoch, slices.places(start, stop))
        first = int(at.min())
        # All rows of a range, as one worker wants them: faster than to sort.
        whole = int(at.max()) - first + 1 == len(at)
        places = inverse(at - first) if whole else np.argsort(at, kind="stable")
        at = at[places]
        of = np.searchsorted(layout.ends, at, side="right")
        begins = np.concatenate(([0], np.flatnonzero(np.diff(of)) + 1))
        number = layout.order[of]
        rows = at - layout.ends[of] + self._order.blocks.rows[number]
        return _Wanted(number[begins], np.append(begins, len(at)), rows, places, last)

    def _found(self, planned: Sequence[_Wanted]) -> Generator[Batch | None, None, None]:
        """Yield the records of each block that the windows want, in their order; None if it is gone."""
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
                assert blocks.key is not None
                records = unpack_blocks(reader.schema, blocks, names)
                with RecordContext(reader.name, None):
                    found = np.asarray(blocks.key.values).tolist()
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
        """Yield the rows of a window; returns those that are handed over with the next one."""
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
    """Take windows that are read at once."""
    found, rows = list[_Wanted](), 0
    while rows < _MOST_PLANNED and (wanted := next(windows, None)) is not None:
        found.append(wanted)
        rows += len(wanted.rows)
    return found


def _sorted(parts: Sequence[Batch], places: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
    """Yield rows in the order of their places, which need not be complete."""
    if not parts:
        return
    whole = concat(parts)
    order = np.argsort(np.concatenate(places), kind="stable")
    step = piece_rows(len(whole), whole.nbytes)
    for start in range(0, len(whole), step):
        yield whole[order[start : start + step]]
