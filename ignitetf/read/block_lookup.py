"""Rows of blocks in their global order.

block order -> **block lookup** -> entries -> rows

The blocks that have wanted rows of a window are fetched a few at a time, and each row goes to its
place as soon as it is here. So memory holds the rows of a window that are handed over, and the
blocks that are on their way. Each worker of several reads nearly all blocks, for its part of each.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import WireError
from ignitetf.read.block_order import BlockOrder
from ignitetf.read.entries import Entries
from ignitetf.read.fetch import Received
from ignitetf.read.key_order import Slices
from ignitetf.read.keys import Numbers
from ignitetf.read.plan import Position, Shard
from ignitetf.read.reader import CacheReader
from ignitetf.read.usage import add_read
from ignitetf.read.window import Filling, inverse, piece_rows
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.concat import concat
from ignitetf.wire.schema import Batch

__all__ = ["read_blocks"]

# Key, headers and footers of an entry, beside its rows.
_ENTRY_BYTES: Final = 128


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
        self._decode = reader.block_decoder()
        # If the number of rows is certain, each row goes to its place as soon as it arrives.
        options = reader.options
        self._certain = options.on_change == "error" and not options.raw_nulls

    def batches(self, position: Position, shard: Shard) -> Generator[Batch, None, None]:
        reader, blocks = self._reader, self._order.blocks
        mean_rows = self._order.total / max(1, len(blocks.rows))
        entry_bytes = int(reader.entry_bytes * mean_rows) + _ENTRY_BYTES
        group = max(1, reader.page_bytes // entry_bytes)
        waiting: deque[_Wanted] = deque()

        def groups() -> Iterator[Numbers]:
            for wanted in self._windows(position, shard):
                waiting.append(wanted)
                for start in range(0, len(wanted.blocks), group):
                    yield wanted.blocks[start : start + group]

        entries = Entries(reader, blocks.keys, entry_bytes)
        rest: Batch | None = None
        with contextlib.closing(entries.pages(groups())) as pages:
            found = self._found(pages)
            # `waiting` is filled while the first group of a window is asked for.
            for first in found:
                wanted = waiting.popleft()
                rest = yield from self._window(wanted, first, found, rest)

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

    def _found(
        self, pages: Iterator[tuple[Numbers, list[Received]]]
    ) -> Iterator[tuple[int, Batch | None]]:
        """Yield key and records of each block that was asked for, in that order; None if gone."""
        for numbers, found in pages:
            keys = self._order.blocks.keys.values(numbers).tolist()
            here: dict[int, Batch] = {}
            for page, source in found:
                arrived, batches = self._decode(page)
                add_read(source, sum(map(len, batches)), page.data.nbytes)
                here.update(zip(arrived.tolist(), batches, strict=True))
            if not here.keys() <= set(keys):
                raise WireError(f"{self._reader.name}: blocks that were not asked for")
            yield from ((key, here.get(key)) for key in keys)

    def _window(
        self,
        wanted: _Wanted,
        first: tuple[int, Batch | None],
        found: Iterator[tuple[int, Batch | None]],
        rest: Batch | None,
    ) -> Generator[Batch, None, Batch | None]:
        """Yield the rows of a window; returns those that are handed over with the next one."""
        filling = Filling(wanted.places, self._pool, rest) if self._certain else None
        parts: list[Batch] = []
        places: list[NDArray[np.int64]] = []
        for i, number in enumerate(wanted.blocks.tolist()):
            key, block = first if i == 0 else next(found)
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


def _sorted(parts: Sequence[Batch], places: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
    """Yield rows in the order of their places, which need not be complete."""
    if not parts:
        return
    whole = concat(parts)
    order = np.argsort(np.concatenate(places), kind="stable")
    step = piece_rows(len(whole), whole.nbytes)
    for start in range(0, len(whole), step):
        yield whole[order[start : start + step]]
