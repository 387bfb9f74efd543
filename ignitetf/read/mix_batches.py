"""Reads the rows of several components in the order of their mixture.

mix order + lookups -> **mix batches** -> mixture

Each component has a lookup of its own, whose requests run ahead. The places of an epoch are read in
groups: of each group every component fetches its rows, and they are put into the places of the
group as they arrive.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from ignitetf.read.fetch import MOST_GROUPS
from ignitetf.read.key_order import KeyOrder
from ignitetf.read.keys import Numbers
from ignitetf.read.lookup import Lookup, check_total
from ignitetf.read.mix_order import MixOrder
from ignitetf.read.plan import Position, Shard
from ignitetf.read.reader import CacheReader
from ignitetf.read.window import Filling, inverse
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.concat import concat
from ignitetf.wire.schema import Batch, Column

__all__ = ["SOURCE", "read_mix", "source_of"]

# The column that tells the component; no field has this name.
SOURCE: Final = "/source"
# Of small rows a group has no more than so many: their places and numbers are kept for a while.
_MOST_ROWS: Final = 1 << 14
# Components run ahead by different numbers of groups, which should not be computed again for each.
_KEPT_GROUPS: Final = MOST_GROUPS + 16


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
    lookups = [Lookup(reader, keys.keys, BufferPool()) for reader, keys in components]
    step = _group_rows(order, lookups)

    @functools.lru_cache(maxsize=_KEPT_GROUPS)
    def group(start: int) -> tuple[Numbers, Numbers]:
        places = slices.places(start, min(start + step, rows))
        return order.rows_at(position.epoch, places)

    def wanted(component: int) -> Iterator[Numbers]:
        for start in range(0, rows, step):
            source, numbers = group(start)
            yield np.unique(numbers[source == component])

    pool = BufferPool()
    with contextlib.ExitStack() as stack:
        streams = {}
        for number, (reader, keys) in enumerate(components):
            if order.shares[number].rows:
                check_total(reader, keys.keys)
                batches = lookups[number].groups(wanted(number))
                streams[number] = stack.enter_context(contextlib.closing(batches))
        for start in range(0, rows, step):
            arrived = {number: list(next(stream)) for number, stream in streams.items()}
            yield from _group(*group(start), arrived, pool, with_keys)


def _group_rows(order: MixOrder, lookups: Sequence[Lookup]) -> int:
    """Return the rows of a group: as many as each component hands over at once, by its share."""
    pages = sum(
        share.rows / order.total / lookup.group_rows
        for share, lookup in zip(order.shares, lookups, strict=True)
    )
    return max(1, min(_MOST_ROWS, round(1 / pages)))


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
