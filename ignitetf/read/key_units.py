"""`KeyUnits`: one pass over partitions whose large rows are asked for by key.

keys, lookup -> **key units** -> reader -> batches

A node makes one page of a scan at a time, but answers requests by key in parallel. Where rows are
large, and a load has given out their keys, so that it is known which ones each partition has, they
are read faster that way, and from one partition as fast as from many. The rows, and their order,
are those of a scan.

Source: Apache Ignite 2.17.0, `CacheDataTree.compare`: a partition is in the order of the hash codes
of its keys, which for whole numbers from 0 to 2^31 are these numbers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ignitetf.net.at_hand import nodes_at_hand
from ignitetf.read.entries import VIEWED_BYTES
from ignitetf.read.fetch import MOST_BYTES
from ignitetf.read.keys import IntegerKeys, Numbers
from ignitetf.read.lookup import Lookup
from ignitetf.read.options import MOST_NEAR_READERS
from ignitetf.read.placing import Placing
from ignitetf.read.unit_reading import UnitBatch
from ignitetf.wire.buffers import BufferPool

if TYPE_CHECKING:
    from ignitetf.read.reader import CacheReader

__all__ = ["KeyUnits"]

# Of larger rows, a few fill a page, and of several at once a node would run out of heap.
_MOST_ROW_BYTES: Final = 4 << 20
_MOST_KEYS: Final = 1 << 31
# Connections, of all processes, of each of which a node may have 24 MB of answers in its heap.
_MOST_ASKING: Final = 10


class _Group(NamedTuple):
    """Rows that are asked for at once.

    Attributes:
        unit: Index of the last one of their partitions.
        first: Number of the first row since the last end.
        numbers: The numbers of their keys.
        is_last: Whether an end follows.
    """

    unit: int
    first: int
    numbers: Numbers
    is_last: bool


def _links(reader: CacheReader) -> int:
    """Return over how many connections one of the processes that read receives."""
    cores = os.cpu_count() or 1
    return max(1, max(2, min(MOST_NEAR_READERS, cores // 2)) // reader.options.shards)


class KeyUnits:
    """Reads partitions once.

    Args:
        reader: The cache, of which `can_read` is true.
        partitions: What to read, in this order.
        ends: Indexes into the partitions, ascending, at whose end a batch must end.
    """

    def __init__(self, reader: CacheReader, partitions: Sequence[int], ends: Sequence[int]) -> None:
        self._reader = reader
        self._ends = frozenset(ends)
        numbers = reader.own_numbers
        assert numbers is not None and reader.own_keys is not None
        self._keys = IntegerKeys(reader.schema, reader.own_keys)
        self._units = [numbers[partition] for partition in partitions]

    @staticmethod
    def can_read(reader: CacheReader) -> bool:
        """Whether the rows can be asked for by key, and that is faster, as things are now.

        Not from several nodes, each of which makes a page meanwhile (on three, rows of 300 KB and
        1 MB in 16 partitions came 0.7 times as fast); nor where many processes share the heap of a
        node, or fewer bytes are to be held than this takes. Asks the cluster for the number of
        entries: where others have added some, only a scan finds them.
        """
        options, count = reader.options, reader.own_keys
        if options.selects or reader.split is not None or reader.is_blocks or count is None:
            return False
        if not VIEWED_BYTES <= reader.entry_bytes <= _MOST_ROW_BYTES or count >= _MOST_KEYS:
            return False
        if any(field.nullable for field in reader.schema.fields) or reader.own_numbers is None:
            return False
        if options.shards * _links(reader) > _MOST_ASKING:
            return False
        if reader.client.settings.ahead_bytes < MOST_BYTES:
            return False
        if not Placing.can_place(reader, IntegerKeys(reader.schema, count)):
            return False
        return len(nodes_at_hand(reader.client)) == 1 and reader.entry_count() == count

    def batches(self) -> Generator[UnitBatch, None, None]:
        """Yield the batches, and the marks of the ends."""
        reader = self._reader
        pools = reader.window_pools
        pool = pools.pop() if pools else BufferPool()
        lookup = Lookup(reader, self._keys, pool, self._missing, _links(reader))
        groups = list(self._groups(lookup.group_rows))
        try:
            with contextlib.closing(lookup.groups(group.numbers for group in groups)) as found:
                for group, batches in zip(groups, found, strict=True):
                    first = group.first
                    for batch in batches:
                        yield UnitBatch(group.unit, first, len(batch), batch)
                        first += len(batch)
                    if group.is_last:
                        yield UnitBatch(group.unit, first, 0, None)
        finally:
            pools.append(pool)

    def _groups(self, size: int) -> Iterator[_Group]:
        """Yield the groups of so many rows each, the last one before an end may have fewer."""
        begin, last = 0, len(self._units) - 1
        for end in sorted({*self._ends, last}):
            numbers = np.concatenate(self._units[begin : end + 1])
            for first in range(0, max(1, len(numbers)), size):
                is_last = end in self._ends and first + size >= len(numbers)
                yield _Group(end, first, numbers[first : first + size], is_last)
            begin = end + 1

    def _missing(self, numbers: Numbers) -> None:
        """Report rows that are gone, as a scan would."""
        reader = self._reader
        partitions = self._keys.partitions(numbers, reader.partition_count)
        assert partitions is not None
        for partition, gone in zip(*np.unique(partitions, return_counts=True), strict=True):
            counts = reader.changes.known_rows(np.array([partition]))
            assert counts is not None
            reader.changes.check_count(int(partition), int(counts[0] - gone))
