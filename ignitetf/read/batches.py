"""Reads what a shard has left of an epoch, in its order, and cuts batches.

Scans are read in windows, which are permuted, and of which the wanted rows are cut out; rows by key
in the order of their keys' numbers; blocks in a global order by `blocks`.

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
from ignitetf.read.plan import Piece, Position, ScanOrder, Shard, Window
from ignitetf.read.reader import CacheReader
from ignitetf.read.scans import Permutation, ScanReading
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

# Batches are joined until they have this many bytes, because each hand-over to TensorFlow has a
# cost. A full page crosses alone, blocks about as many together as fill a page.
_LEAST_BYTES: Final = PAGE_BYTES * 3 // 4
# From so many bytes on, another page costs less than the copy that adds to this one.
# Rows of a plan: their places and keys are in memory.
_MOST_PLANNED: Final = 1 << 20
_LEAST_OWN_BYTES: Final = PAGE_BYTES // 8


def read_rows(
    reader: CacheReader, order: RowOrder, position: Position, shard: Shard
) -> Generator[Batch, None, None]:
    """Yield the rows that a shard has left from a position on, in order."""
    if isinstance(order, KeyOrder):
        slices = order.slices(position, shard)
        yield from read_places(reader, order, position.epoch, slices)
    elif isinstance(order, BlockOrder):
        yield from read_blocks(reader, order, position, shard)
    else:
        yield from _by_scan(reader, order, order.pieces(position.chain, shard), position.epoch)


def read_places(
    reader: CacheReader, order: KeyOrder, epoch: int, places: Places
) -> Generator[Batch, None, None]:
    """Yield the rows at these places of an epoch, in their order."""
    check_total(reader, order.keys)
    rows = len(places)
    for start in range(0, rows, _MOST_PLANNED):
        stop = min(start + _MOST_PLANNED, rows)
        numbers = order.numbers(epoch, places.places(start, stop))
        with reader.explained():
            cuts = _unique(numbers) if order.even == "pad" else None
            yield from KeyReading(reader, order.keys, numbers, cuts=cuts).batches()


def _unique(numbers: Numbers) -> list[int]:
    """Return where to cut numbers so that none is repeated between two cuts."""
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
    """Compare the number of entries of a cache with that of its keys, by the reader's policy."""
    if reader.is_blocks:
        return
    if reader.selection is not None:
        reader.check_entries()
        return
    rows, when = len(keys), "when the keys were read"
    if reader.split is not None:
        rows, when = reader.contents.entries, "when it was opened"
    reader.changes.check_size(rows, reader.client.settled_size(reader.cache, rows), when)


def _by_scan(
    reader: CacheReader, order: ScanOrder, pieces: Sequence[Piece], epoch: int
) -> Generator[Batch, None, None]:
    for piece in pieces:
        if not order.known:
            yield from _read_range(reader, order, piece, (piece.start, piece.stop), epoch)
            continue
        own = order.own_rows(piece.shard)
        start, stop = piece.start, piece.stop
        while start < stop and own:
            # A padded shard starts over with its own first rows.
            first = start % own
            last = min(own, first + stop - start)
            yield from _read_range(reader, order, piece, (first, last), epoch)
            start += last - first


def _read_range(
    reader: CacheReader,
    order: ScanOrder,
    piece: Piece,
    wanted: tuple[int, int],
    epoch: int,
) -> Iterator[Batch]:
    start, stop = wanted
    if _takes_more(reader, order, piece.shard, stop):
        stop = sys.maxsize
    windows = order.windows(piece.shard, epoch)
    if order.known:
        begin = bisect_right(windows, start, key=lambda w: w.first + w.rows)
        windows = windows[begin : bisect_left(windows, stop, key=lambda w: w.first)]
        at = windows[0].first if windows else 0
    else:
        at = 0
    shuffled = order.seed is not None
    for batch in _windowed(reader, order, windows, epoch) if shuffled else _plain(reader, windows):
        size = len(batch)
        low, high = max(0, start - at), min(size, stop - at) if order.known else size
        if low < high:
            yield batch if (low, high) == (0, size) else batch[low:high]
        at += size


def _takes_more(reader: CacheReader, order: ScanOrder, shard: Shard, stop: int) -> bool:
    """Whether rows that were added since the rows were counted are read, too.

    A shuffle has them among the others, so that a cut would leave out others in their place.
    """
    is_cut = not order.known or order.even is not None or stop < order.own_rows(shard)
    return not is_cut and reader.options.on_change != "error"


def _plain(reader: CacheReader, windows: Sequence[Window]) -> Iterator[Batch]:
    partitions = list(chain.from_iterable(map(attrgetter("partitions"), windows)))
    with contextlib.closing(reader.batches(partitions, ())) as batches:
        for item in batches:
            if item.batch is not None and len(item.batch):
                yield item.batch


def _windowed(
    reader: CacheReader, order: ScanOrder, windows: Sequence[Window], epoch: int
) -> Iterator[Batch]:
    """Yield permuted windows; the next one is received while the current one is consumed."""
    partitions = [p for w in windows for p in w.partitions]
    last_unit = (np.cumsum([len(w.partitions) for w in windows]) - 1).tolist()
    # If the number of rows is certain, each row goes to its place as soon as it arrives.
    certain = order.known and reader.options.on_change == "error" and not reader.options.raw_nulls
    if certain and not reader.is_blocks and reader.split is None and reader.counts_are_exact:
        yield from _landed(reader, order, windows, epoch)
        return
    pools = reader.window_pools
    pool = pools.pop() if pools else BufferPool(order.window_bytes)
    number, parts = 0, list[Batch]()
    filling: Filling | None = None
    rest: Batch | None = None
    try:
        with contextlib.closing(reader.batches(partitions, last_unit)) as batches:
            for item in batches:
                if item.batch is not None and certain:
                    if filling is None:
                        index = order.permutation(windows[number], epoch)
                        filling = Filling(inverse(index), pool, rest)
                    filling.add(item.batch)
                    continue
                if item.batch is not None:
                    parts.append(item.batch)
                    continue
                if filling is not None:
                    rest = yield from filling.batches(last=number == len(windows) - 1)
                    filling = None
                yield from _permuted(parts, order, windows[number], epoch)
                number, parts = number + 1, []
        if rest is not None:
            yield rest
    finally:
        filling = rest = None
        pools.append(pool)


def _landed(
    reader: CacheReader, order: ScanOrder, windows: Sequence[Window], epoch: int
) -> Iterator[Batch]:
    """Yield permuted windows whose rows land in their places."""
    sizes = dict(zip(order.partitions, order.counts, strict=True))
    at = 0
    while at < len(windows):
        last, rows = at + 1, windows[at].rows
        while last < len(windows) and rows + windows[last].rows <= _MOST_PLANNED:
            rows += windows[last].rows
            last += 1
        partitions: list[int] = []
        places, firsts, base = [], [], 0
        for window in windows[at:last]:
            places.append(inverse(order.permutation(window, epoch)) + base)
            firsts += [base] * len(window.partitions)
            partitions += window.partitions
            base += window.rows
        assert base == sum(sizes[p] for p in partitions)
        plan = Permutation(np.concatenate(places), np.array(firsts, np.int64))
        with reader.explained():
            reading = ScanReading(reader, partitions, (), plan)
            with contextlib.closing(reading.batches()) as batches:
                for item in batches:
                    if item.batch is not None:
                        yield item.batch
        at = last


def _permuted(parts: list[Batch], order: ScanOrder, window: Window, epoch: int) -> Iterator[Batch]:
    rows = sum(len(b) for b in parts)
    if rows == 0:
        return
    whole = concat(parts)
    parts.clear()
    actual = Window(window.partitions, window.first, rows)
    index = order.permutation(actual, epoch)
    step = piece_rows(rows, whole.nbytes)
    for start in range(0, rows, step):
        yield whole[index[start : start + step]]


def join_batches(
    batches: Generator[Batch, None, None], exact_rows: int | None, drop_remainder: bool
) -> Generator[list[Batch], None, None]:
    """Join batches up to about a page, or cut them to exactly `exact_rows`.

    Pages of many rows have a multiple of `ALIGNED_ROWS` rows. For any dtype these are a multiple of
    64 bytes, so TensorFlow can cut batches out of the page without a copy. Batches that follow each
    other in memory are one view of it; one that begins elsewhere begins another page, if the last
    one is not small.
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
    """Cut batches into others of these sizes, as the parts of each; the last may be shorter."""
    waiting: list[Batch] = []
    rows = 0
    with contextlib.closing(batches):
        for size in sizes:
            while rows < size and (batch := next(batches, None)) is not None:
                waiting.append(batch)
                rows += len(batch)
            if not rows:
                return
            # The batch that goes beyond the size is the last one.
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
    """Cut the rows that a shard has left into batches, as the parts of each.

    Args:
        batches: These rows.
        order: Their order.
        position: Where they begin.
        shard: Whose they are.
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
    """Yield the batches, and close the generator however the iteration ends."""
    with contextlib.closing(batches):
        yield from batches


def batch_count(rows: int | None, size: int, drop_remainder: bool) -> int | None:
    """Return how many batches of `size` the rows make; None if the number of rows is unknown."""
    if rows is None:
        return None
    return rows // size if drop_remainder else -(-rows // size)
