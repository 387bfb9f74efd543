"""`Placing`: large rows that are asked for by key go to their places in columns as they arrive.

fetch, page reader -> **placing** -> lookup

Rows that were received somewhere else first would be copied once more, which takes as long as
receiving them, or could only be handed over one by one. Which row an answer has is known before it
arrives; that the keys are the right ones is for the consumer to check.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ignitetf.net.channel import Receive
from ignitetf.net.incoming import Incoming
from ignitetf.net.places import Source
from ignitetf.read.fetch import Answer, Request
from ignitetf.read.keys import IntegerKeys, Keys
from ignitetf.read.usage import add_read
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.builder import BatchBuilder, RowMemory
from ignitetf.wire.page_reader import PageReader
from ignitetf.wire.schema import Batch

if TYPE_CHECKING:
    from ignitetf.read.reader import CacheReader

__all__ = ["Placed", "Placing"]


class _Taker:
    """Takes rows apart for one connection."""

    def __init__(self, reader: CacheReader) -> None:
        pool = BufferPool()
        self.builder = reader.builder(pool, 0)
        decoder = reader.decoder(pool=pool)
        learn = functools.partial(decoder.with_types, self.builder.learn)
        self.pages = PageReader(self.builder, pool, learn)


class Placing:
    """Makes sinks for the groups of one reading.

    Args:
        reader: The cache.
        pool: Memory for the rows.
    """

    def __init__(self, reader: CacheReader, pool: BufferPool) -> None:
        self._reader = reader
        self._pool = pool
        self._maker = reader.builder(pool, 0)
        # By connection, each of which has a thread.
        self._takers: dict[int, _Taker] = {}
        self._has_other_rows = False

    @staticmethod
    def can_place(reader: CacheReader, keys: Keys) -> bool:
        """Whether each row of a cache has a place that its key tells."""
        if not isinstance(keys, IntegerKeys) or reader.options.raw_nulls:
            return False
        return BatchBuilder.can_aim(reader.schema)

    def sink(self, requests: Sequence[Request]) -> Placed | None:
        """Return the sink of a group; None after rows came that the builder does not know."""
        if self._has_other_rows:
            return None
        return Placed(self, sum(request.count for request in requests))

    def memory(self, rows: int) -> RowMemory:
        """Take memory for so many rows."""
        return self._maker.memory_for(self._pool, rows)

    def batch(self, memory: RowMemory, rows: int) -> Batch:
        """Return the first rows of some memory, as views."""
        return self._maker.batch_of(memory, rows)

    def read(self, memory: RowMemory, answer: Answer, incoming: Incoming, nbytes: int) -> bool:
        """Receive an answer into its rows; returns whether it was understood."""
        request = answer.request
        taker = self._takers.get(answer.link)
        if taker is None:
            taker = self._takers[answer.link] = _Taker(self._reader)
        assert request.keys is not None
        taker.builder.aim(memory, request.first, request.keys)
        _, rest = taker.pages.read(incoming, nbytes, answer.entries)
        if rest is not None:
            self._has_other_rows = True
        return rest is None


class Placed:
    """The rows of a group, in the order of its requests.

    Attributes:
        is_whole: Whether all of them have arrived, and are where they belong.
    """

    def __init__(self, placing: Placing, rows: int) -> None:
        self._placing = placing
        self._rows = rows
        self._memory = placing.memory(rows)
        self._sources: list[tuple[Source, int, int]] = []
        self.is_whole = True

    def place(self, answer: Answer) -> memoryview | Receive:
        """See `Sink`."""
        if answer.entries < answer.request.count:
            self.is_whole = False
        if not answer.nbytes:
            return memoryview(bytearray())
        return functools.partial(self._read, answer)

    def _read(self, answer: Answer, incoming: Incoming, nbytes: int) -> None:
        if not self._placing.read(self._memory, answer, incoming, nbytes):
            self.is_whole = False

    def received(self, answer: Answer) -> None:
        """See `Sink`."""
        self._sources.append((answer.source, answer.entries, answer.nbytes))

    def count(self) -> None:
        """Count what has arrived as read."""
        for source, rows, nbytes in self._sources:
            add_read(source, rows, nbytes)

    def batch(self) -> Batch:
        """Return the rows."""
        return self._placing.batch(self._memory, self._rows)
