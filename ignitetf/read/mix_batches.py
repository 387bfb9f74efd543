"""Reads the rows of several components in the order of their mixture.

mix order + readings -> **mix batches** -> mixture

Each component is read by itself, ahead of what is handed over. The places of an epoch are read in
groups: every component reads its rows of each group once, and they are put into the places of the
group.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from ignitetf.read.batches import check_total, cut_batches
from ignitetf.read.key_order import KeyOrder
from ignitetf.read.keys import Numbers
from ignitetf.read.mix_order import MixOrder
from ignitetf.read.options import PAGE_BYTES
from ignitetf.read.plan import Position, Shard
from ignitetf.read.reader import CacheReader
from ignitetf.read.reading import KeyReading
from ignitetf.read.window import Filling, inverse
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.concat import concat
from ignitetf.wire.schema import Batch, Column

__all__ = ["SOURCE", "read_mix", "source_of"]

# The column that tells the component; no field has this name.
SOURCE: Final = "/source"
# Of small rows a group has no more than so many: their places and numbers are kept for a while.
_MOST_ROWS: Final = 1 << 14
# Rows that are planned at a time, and groups of them that are kept, since each component asks for
# them.
_MOST_PLANNED: Final = 1 << 18


def source_of(batch: Batch) -> Numbers:
    """Return the component of each row of a batch, int64."""
    values = batch.columns[SOURCE].values
    assert isinstance(values, np.ndarray)
    return values


def read_mix(
    components: Sequence[tuple[CacheReader, KeyOrder]],
    order: MixOrder,
    position: Position,
    shard: Shard,
    with_keys: bool,
) -> Generator[Batch, None, None]:
    """Yield the rows that a worker has left of a mixture, with the column `SOURCE`.

    Raises:
        DataChanged: A row is gone, or the size of a cache is not that of its keys.
    """
    slices = order.slices(position, shard)
    rows = len(slices)
    step = _group_rows(order, components)
    groups = max(1, _MOST_PLANNED // step)

    @functools.lru_cache(maxsize=2 * groups + 2)
    def group(start: int) -> tuple[Numbers, Numbers]:
        places = slices.places(start, min(start + step, rows))
        return order.rows_at(position.epoch, places)

    def component_parts(number: int) -> Generator[list[Batch], None, None]:
        """Yield the rows of a component for each group, once each, by ascending number."""
        reader, keys = components[number]
        for first in range(0, rows, step * groups):
            wanted = [
                np.unique(numbers[source == number])
                for source, numbers in map(
                    group, range(first, min(first + step * groups, rows), step)
                )
            ]
            sizes = list(map(len, wanted))
            cuts = np.cumsum([0, *sizes]).tolist()
            every = np.concatenate(wanted)
            reading = KeyReading(reader, keys.keys, every, cuts=cuts).batches()
            with contextlib.closing(
                cut_batches(reading, (size for size in sizes if size))
            ) as parts:
                for size in sizes:
                    yield next(parts) if size else []

    pool = BufferPool()
    with contextlib.ExitStack() as stack:
        streams = {}
        for number, (reader, keys) in enumerate(components):
            if order.shares[number].rows:
                check_total(reader, keys.keys)
                streams[number] = stack.enter_context(contextlib.closing(component_parts(number)))
        for start in range(0, rows, step):
            arrived = {}
            for number, stream in streams.items():
                with components[number][0].explained():
                    arrived[number] = next(stream)
            yield from _group(*group(start), arrived, pool, with_keys)


def _group_rows(order: MixOrder, components: Sequence[tuple[CacheReader, KeyOrder]]) -> int:
    """Return the rows of a group: about a page of the components' rows, by their shares."""
    row_bytes = sum(
        share.rows / order.total * max(1.0, reader.entry_bytes)
        for share, (reader, _) in zip(order.shares, components, strict=True)
    )
    return int(max(1, min(_MOST_ROWS, PAGE_BYTES // row_bytes)))


def _group(
    source: Numbers,
    numbers: Numbers,
    arrived: Mapping[int, list[Batch]],
    pool: BufferPool,
    with_keys: bool,
) -> Iterator[Batch]:
    """Yield the rows of a group in their order."""
    places, parts = list[Numbers](), list[Batch]()
    for component in np.unique(source).tolist():
        own = np.flatnonzero(source == component)
        once, which = np.unique(numbers[own], return_inverse=True)
        if len(once) < len(own):
            # A row that the group has several times is fetched once.
            parts.append(concat(arrived[component])[which])
            places.append(own)
        else:
            parts += arrived[component]
            places.append(own[inverse(which)])
    filling = Filling(np.concatenate(places), pool)
    for part in parts:
        filling.add(part if with_keys else Batch(None, part.columns))
    at = 0
    for batch in filling.batches(last=True):
        mark = Column(source[at : at + len(batch)])
        at += len(batch)
        yield Batch(batch.key, {**batch.columns, SOURCE: mark})
