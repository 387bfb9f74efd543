"""Reads the remaining rows of a shard's epoch, in order, and cuts batches.

Scans are read in windows: each window is permuted, and the wanted rows are cut out of it. Rows by
key are read in the order of their keys' numbers. Blocks in a global order are read by `blocks`.

plan, key order, blocks + reader -> **batches** -> rows
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final

import numpy as np

from ignitetf.read.blocks import BlockOrder, RowOrder, read_blocks
from ignitetf.read.key_order import KeyOrder, Places, StepOrder
from ignitetf.read.keys import Keys, Numbers
from ignitetf.read.lookup import KeyReading
from ignitetf.read.options import PAGE_BYTES
from ignitetf.read.reader import CacheReader
from ignitetf.read.scan_order import MOST_PLANNED, Piece, Position, ScanOrder, Shard, Window
from ignitetf.read.scans import Permutation, ScanReading, UnitBatch
from ignitetf.read.window import (
    MANY_ROWS,
    Filling,
    inverse,
    piece_rows,
)
from ignitetf.wire.buffers import ALIGNED_ROWS, BufferPool
from ignitetf.wire.columns import Batch, concat, merged

__all__ = [
    "batch_count",
    "batch_parts",
    "check_total",
    "closing_batches",
    "cut_batches",
    "join_batches",
    "read_places",
    "read_rows",
]

# Batches are joined until they have this many bytes, because each transfer to TensorFlow has a
# fixed cost. A full page is passed on alone; blocks are joined until they about fill a page.
_LEAST_BYTES: Final = PAGE_BYTES * 3 // 4
# From this size on, starting another page costs less than copying the rows into this one.
_LEAST_OWN_BYTES: Final = PAGE_BYTES // 8


def read_rows(
    reader: CacheReader,
    order: RowOrder,
    position: Position,
    shard: Shard,
    batch_rows: int | None = None,
) -> Generator[Batch, None, None]:
    """Yield the remaining rows of a shard from a position on, in order.

    Args:
        reader: The cache.
        order: The order of its rows.
        position: The position to begin at.
        shard: The worker that reads.
        batch_rows: Rows of the batches that will be cut; the rows of a batch land side by side.
    """
    if isinstance(order, KeyOrder):
        slices = order.slices(position, shard)
        yield from read_places(reader, order, position.epoch, slices, batch_rows)
    elif isinstance(order, BlockOrder):
        yield from read_blocks(reader, order, position, shard)
    else:
        scan = _Scan(reader, order, position.epoch, batch_rows)
        yield from scan.batches(order.pieces(position.chain, shard))


def read_places(
    reader: CacheReader,
    order: KeyOrder,
    epoch: int,
    places: Places,
    batch_rows: int | None = None,
) -> Generator[Batch, None, None]:
    """Yield the rows at these places of an epoch, in their order."""
    check_total(reader, order.keys)
    rows = len(places)
    for start in range(0, rows, MOST_PLANNED):
        stop = min(start + MOST_PLANNED, rows)
        numbers = order.numbers(epoch, places.places(start, stop))
        with reader.explained():
            cuts = _unique(numbers) if order.even == "pad" else None
            reading = KeyReading(reader, order.keys, numbers, cuts=cuts, batch_rows=batch_rows)
            yield from reading.batches()


def _unique(numbers: Numbers) -> list[int]:
    """Return the places at which to cut numbers, so that none is repeated between two cuts."""
    ordered = np.sort(numbers)
    if (ordered[1:] != ordered[:-1]).all():
        return [0, len(numbers)]
    cuts, seen = [0], set[int]()
    for at, number in enumerate(numbers.tolist()):
        if number in seen:
            cuts.append(at)
            seen.clear()
        seen.add(number)
    return [*cuts, len(numbers)]


def check_total(reader: CacheReader, keys: Keys) -> None:
    """Compare the number of entries of a cache with the number of its keys.

    If they differ, the reader's `on_change` policy applies.
    """
    if reader.is_blocks:
        return
    if reader.selection is not None:
        reader.check_entries()
        return
    rows, when = len(keys), "when the keys were read"
    if reader.split is not None:
        rows, when = reader.contents.entries, "when it was opened"
    reader.changes.check_size(rows, reader.client.settled_size(reader.cache, rows), when)


class _Scan:
    """Reads pieces of an epoch by scans.

    Args:
        reader: The cache.
        order: The order of its rows.
        epoch: Number of the epoch.
        batch_rows: Rows of the batches that will be cut; None if it is not known.
    """

    def __init__(
        self, reader: CacheReader, order: ScanOrder, epoch: int, batch_rows: int | None
    ) -> None:
        self._reader = reader
        self._order = order
        self._epoch = epoch
        self._batch_rows = batch_rows

    def batches(self, pieces: Sequence[Piece]) -> Generator[Batch, None, None]:
        """Yield the rows of the pieces, in order."""
        order = self._order
        for piece in pieces:
            if not order.known:
                yield from self._range(piece, piece.start, piece.stop)
                continue
            own = order.own_rows(piece.shard)
            start, stop = piece.start, piece.stop
            while start < stop and own:
                # A padded shard starts over with its own first rows.
                first = start % own
                last = min(own, first + stop - start)
                yield from self._range(piece, first, last)
                start += last - first

    def _range(self, piece: Piece, start: int, stop: int) -> Iterator[Batch]:
        order = self._order
        if self._takes_more(piece.shard, stop):
            stop = sys.maxsize
        windows = order.windows(piece.shard, self._epoch)
        if order.known:
            begin = bisect_right(windows, start, key=lambda w: w.first + w.rows)
            windows = windows[begin : bisect_left(windows, stop, key=lambda w: w.first)]
            at = windows[0].first if windows else 0
        else:
            at = 0
        for batch in self._plain(windows) if order.seed is None else self._shuffled(windows):
            size = len(batch)
            low, high = max(0, start - at), min(size, stop - at) if order.known else size
            if low < high:
                yield batch if (low, high) == (0, size) else batch[low:high]
            at += size

    def _takes_more(self, shard: Shard, stop: int) -> bool:
        """True to read rows that were added after the count, too.

        A shuffle mixes added rows with the others. If it were cut at the counted number of rows,
        other rows would be lost.
        """
        order = self._order
        is_cut = not order.known or order.even is not None or stop < order.own_rows(shard)
        return not is_cut and self._reader.options.on_change != "error"

    def _plain(self, windows: Sequence[Window]) -> Iterator[Batch]:
        partitions = list(chain.from_iterable(map(attrgetter("partitions"), windows)))
        batches = self._reader.batches(partitions, (), self._batch_rows)
        with contextlib.closing(batches):
            for item in batches:
                if item.batch is not None and len(item.batch):
                    yield item.batch

    def _shuffled(self, windows: Sequence[Window]) -> Iterator[Batch]:
        reader, order = self._reader, self._order
        # If the number of rows is certain, each row is written to its place when it arrives.
        is_certain = order.known and reader.options.on_change == "error"
        if not is_certain or reader.options.raw_nulls:
            return self._permuted(windows)
        if reader.is_blocks or reader.split is not None or not reader.counts_are_exact:
            return self._filled(windows)
        return self._landed(windows)

    def _landed(self, windows: Sequence[Window]) -> Iterator[Batch]:
        """Yield permuted windows; the rows are written directly to their places."""
        at = 0
        while at < len(windows):
            last, rows = at + 1, windows[at].rows
            while last < len(windows) and rows + windows[last].rows <= MOST_PLANNED:
                rows += windows[last].rows
                last += 1
            partitions, plan = self._places(windows[at:last])
            with self._reader.explained():
                reading = ScanReading(self._reader, partitions, (), plan, self._batch_rows)
                with contextlib.closing(reading.batches()) as batches:
                    for item in batches:
                        if item.batch is not None:
                            yield item.batch
            at = last

    def _places(self, windows: Sequence[Window]) -> tuple[list[int], Permutation]:
        """Return the partitions of some windows, and the places of their rows."""
        partitions: list[int] = []
        places, firsts, base = [], list[int](), 0
        for window in windows:
            places.append(inverse(self._order.permutation(window, self._epoch)) + base)
            firsts += [base] * len(window.partitions)
            partitions += window.partitions
            base += window.rows
        return partitions, Permutation(np.concatenate(places), np.array(firsts, np.int64))

    def _filled(self, windows: Sequence[Window]) -> Iterator[Batch]:
        """Yield permuted windows; the next one is received while the current one is consumed."""
        pools = self._reader.window_pools
        pool = pools.pop() if pools else BufferPool(self._order.window_bytes)
        filling: Filling | None = None
        rest: Batch | None = None
        try:
            for number, (window, arriving) in enumerate(self._by_window(windows)):
                for batch in arriving:
                    if filling is None:
                        index = self._order.permutation(window, self._epoch)
                        filling = Filling(inverse(index), pool, rest)
                    filling.add(batch)
                if filling is not None:
                    rest = yield from filling.batches(last=number == len(windows) - 1)
                    filling = None
            if rest is not None:
                yield rest
        finally:
            filling = rest = None
            pools.append(pool)

    def _permuted(self, windows: Sequence[Window]) -> Iterator[Batch]:
        """Yield windows, each permuted once it is known how many rows it has."""
        for window, arriving in self._by_window(windows):
            parts = list(arriving)
            rows = sum(map(len, parts))
            if not rows:
                continue
            whole = concat(parts)
            parts.clear()
            actual = Window(window.partitions, window.first, rows)
            index = self._order.permutation(actual, self._epoch)
            step = piece_rows(rows, whole.nbytes)
            for start in range(0, rows, step):
                yield whole[index[start : start + step]]

    def _by_window(self, windows: Sequence[Window]) -> Iterator[tuple[Window, Iterator[Batch]]]:
        """Yield each window and its batches in scan order; the caller must consume all of them."""
        partitions = [p for w in windows for p in w.partitions]
        ends = (np.cumsum([len(w.partitions) for w in windows]) - 1).tolist()
        with contextlib.closing(self._reader.batches(partitions, ends)) as items:
            for window in windows:
                yield window, _until_end(items)


def _until_end(items: Iterator[UnitBatch]) -> Iterator[Batch]:
    for item in items:
        if item.batch is None:
            return
        yield item.batch


def join_batches(
    batches: Generator[Batch, None, None], exact_rows: int | None, drop_remainder: bool
) -> Generator[list[Batch], None, None]:
    """Join batches up to about a page, or cut them to exactly `exact_rows`.

    Pages of many rows have a multiple of `ALIGNED_ROWS` rows. For any dtype these are a multiple of
    64 bytes, so TensorFlow can cut batches out of the page without a copy. Batches that are next to
    each other in memory become one view. A batch that begins elsewhere in memory starts a new page,
    unless the current page is still small.
    """
    if exact_rows is not None:
        yield from _cut(batches, exact_rows, drop_remainder)
        return
    waiting: list[Batch] = []
    rows = nbytes = 0
    with contextlib.closing(batches):
        for batch in batches:
            parts = merged([*waiting, batch])
            large = max(nbytes, batch.nbytes) >= _LEAST_OWN_BYTES
            if len(parts) > len(waiting) > 0 and large:
                yield waiting
                rows = nbytes = 0
                parts = [batch]
            waiting = parts
            rows, nbytes = rows + len(batch), nbytes + batch.nbytes
            if nbytes < _LEAST_BYTES:
                continue
            rest, last = rows % ALIGNED_ROWS, waiting[-1]
            if rows < MANY_ROWS or rest >= len(last):
                rest = 0
            yield [*waiting[:-1], last[: len(last) - rest]]
            waiting, rows = ([last[len(last) - rest :]] if rest else []), rest
            nbytes = sum(b.nbytes for b in waiting)
        if waiting:
            yield waiting


def cut_batches(
    batches: Generator[Batch, None, None], sizes: Iterable[int]
) -> Generator[list[Batch], None, None]:
    """Yield batches of the given sizes, each as a list of its parts; the last may be shorter."""
    waiting: list[Batch] = []
    rows = 0
    with contextlib.closing(batches):
        for size in sizes:
            while rows < size and (batch := next(batches, None)) is not None:
                waiting.append(batch)
                rows += len(batch)
            if not rows:
                return
            # Only the last batch can exceed the size.
            more = max(0, rows - size)
            last = waiting.pop()
            yield [*waiting, last[: len(last) - more]]
            waiting, rows = ([last[len(last) - more :]] if more else []), more


def batch_parts(
    batches: Generator[Batch, None, None],
    order: ScanOrder | StepOrder,
    position: Position,
    shard: Shard,
    batch_size: int | None,
    drop_remainder: bool,
) -> Generator[list[Batch], None, None]:
    """Yield the batches of a shard's remaining rows, each as a list of its parts.

    Args:
        batches: The remaining rows.
        order: The order of the rows.
        position: The position of the first row.
        shard: The worker that reads.
        batch_size: Rows per batch; None for this worker's part of each global step.
        drop_remainder: Leave out an incomplete last batch.
    """
    if isinstance(order, StepOrder) and (batch_size is None or order.is_uneven(shard)):
        return cut_batches(batches, order.slices(position, shard).sizes(drop_remainder))
    return join_batches(batches, batch_size, drop_remainder)


def _cut(
    batches: Generator[Batch, None, None], exact_rows: int, drop_remainder: bool
) -> Generator[list[Batch], None, None]:
    with contextlib.closing(cut_batches(batches, itertools.repeat(exact_rows))) as parts:
        for part in parts:
            if not drop_remainder or sum(map(len, part)) == exact_rows:
                yield part


def closing_batches(batches: Generator[Batch, None, None]) -> Iterator[Batch]:
    """Yield the batches, and always close the generator when the iteration ends."""
    with contextlib.closing(batches):
        yield from batches


def batch_count(rows: int | None, size: int, drop_remainder: bool) -> int | None:
    """Return how many batches of `size` the rows make; None if the number of rows is unknown."""
    if rows is None:
        return None
    return rows // size if drop_remainder else -(-rows // size)
