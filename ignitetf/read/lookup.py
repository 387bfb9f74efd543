"""Rows by the numbers of their keys, in the order asked for.

key order -> **lookup** -> entries -> rows

The entries of a group of keys arrive in any order. They are decoded together, matched with the keys
asked for, and put in that order by one copy of each column. Large rows are not copied: their values
go to their places as they arrive (`placing`), or are handed over as views of what has arrived.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import DataChanged, WireError
from ignitetf.read.entries import VIEWED_BYTES, Entries, parts
from ignitetf.read.fetch import Parts, Received, Request
from ignitetf.read.keys import Keys, Numbers
from ignitetf.read.placing import Placed, Placing
from ignitetf.read.usage import add_read
from ignitetf.read.window import Filling, inverse, piece_rows
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.concat import concat
from ignitetf.wire.schema import Batch

if TYPE_CHECKING:
    from ignitetf.read.reader import CacheReader

__all__ = ["Lookup", "check_total"]

log = logging.getLogger(__name__)

# Key, headers and footers of an entry, beside its values.
_ENTRY_BYTES: Final = 64
# Of rows whose size is not known.
_SOME_BYTES: Final = 256


class Lookup:
    """Reads rows of a cache by the numbers of their keys.

    Args:
        reader: The cache.
        keys: Its keys.
        pool: Memory for the rows that are handed over.
        on_missing: Called with the numbers of keys that the cache does not have; if it returns,
            their rows are left out. By default the `on_change` of the reader decides.
        links: Connections to each node.
    """

    def __init__(
        self,
        reader: CacheReader,
        keys: Keys,
        pool: BufferPool,
        on_missing: Callable[[Numbers], None] | None = None,
        links: int = 1,
    ) -> None:
        self._reader = reader
        self._keys = keys
        self._entry_bytes = int(reader.entry_bytes or _SOME_BYTES) + _ENTRY_BYTES
        self._entries = Entries(reader, keys, self._entry_bytes, links)
        self._decode = reader.decoder().one
        self._placing: Placing | None = None
        if self._entry_bytes >= VIEWED_BYTES and Placing.can_place(reader, keys):
            self._placing = Placing(reader, pool)
        self._pool = pool
        self._on_missing = on_missing or self._changed

    @property
    def group_rows(self) -> int:
        """Rows that are best handed over at once: about a page; many are a multiple of 64."""
        rows = max(1, self._reader.page_bytes // self._entry_bytes)
        if self._entry_bytes >= VIEWED_BYTES:
            return rows
        return piece_rows(rows, rows * self._entry_bytes)

    def batches(self, groups: Iterable[Numbers]) -> Generator[Batch, None, None]:
        """Yield the rows of all groups of key numbers, in their order; see `groups`."""
        with contextlib.closing(self.groups(groups)) as found:
            for batches in found:
                yield from batches

    def groups(self, groups: Iterable[Numbers]) -> Generator[Iterator[Batch], None, None]:
        """Yield an iterator of the rows of each group of key numbers, in their order.

        Args:
            groups: Numbers of keys, no number twice in a group; a group may be empty. Groups are
                taken ahead.

        Raises:
            DataChanged: A key is missing, unless `on_change` lets it pass.
            SchemaError: A record does not fit; names cache, key and field.
        """
        with contextlib.closing(self._entries.groups(groups, self._sink)) as found:
            for numbers, sink in found:
                if isinstance(sink, Parts):
                    yield self._ordered(sink.pages(), numbers)
                else:
                    yield self._placed(sink, numbers)

    def _sink(self, requests: Sequence[Request], links: int) -> Parts | Placed:
        placed = None if self._placing is None else self._placing.sink(requests)
        return parts(requests, links) if placed is None else placed

    def _placed(self, sink: Placed, numbers: Numbers) -> Iterator[Batch]:
        """Yield the rows of one group, which are where they belong."""
        if not sink.is_whole:
            # A row is missing, or in another form: read again, as what it is will be told there.
            with contextlib.closing(self._entries.pages([numbers])) as found:
                for _, pages in found:
                    yield from self._ordered(pages, numbers)
            return
        sink.count()
        batch = self._reader.without_nulls(sink.batch(), None)
        yield from _in_order([batch], self._places(self._marks(batch), numbers))

    def rows(self, numbers: Numbers) -> Batch:
        """Return the rows of these key numbers, in their order; numbers may be repeated.

        Raises:
            DataChanged: As `batches`.
        """
        once, places = np.unique(numbers, return_inverse=True)
        if len(once) <= self._entries.request_keys:
            parts = list(self._ordered([self._entries.page(once)], once)) if len(once) else []
        else:
            step = self.group_rows
            groups = (once[start : start + step] for start in range(0, len(once), step))
            parts = list(self.batches(groups))
        if not parts:
            return self._reader.no_rows()
        batch = concat(parts)
        if len(batch) == len(once):
            return batch[places]
        there = np.isin(self._keys.marks(once), self._marks(batch))
        present = there[places]
        return batch[(np.cumsum(there) - 1)[places[present]]]

    def _marks(self, batch: Batch) -> NDArray[np.uint64]:
        assert batch.key is not None
        return marks_of(self._reader.schema, batch.key)

    def _ordered(self, pages: Sequence[Received], numbers: Numbers) -> Iterator[Batch]:
        """Yield the rows of one group, in the order of the key numbers."""
        reader = self._reader
        batches = [b for received in pages for b in self._decode(None, received.page).parts]
        for received in pages:
            add_read(received.source, received.page.count, received.page.data.nbytes)
        arrived = [self._marks(batch) for batch in batches]  # a null in a key is none of its zeros
        batches = [reader.without_nulls(batch, None) for batch in batches]
        places = self._places(np.concatenate([*arrived, np.empty(0, np.uint64)]), numbers)
        if not batches:
            return
        if reader.options.raw_nulls:
            yield concat(batches)[inverse(places)]
            return
        if self._entry_bytes >= VIEWED_BYTES:
            yield from _in_order(batches, places)
            return
        filling = Filling(places, self._pool)
        for batch in batches:
            filling.add(batch)
        yield from filling.batches(last=True)

    def _places(self, arrived: NDArray[np.uint64], numbers: Numbers) -> Numbers:
        """Return the place of each row that arrived in the order of the key numbers."""
        wanted = self._keys.marks(numbers)
        order = np.argsort(wanted)
        if len(arrived) == len(wanted):
            places = np.empty(len(arrived), np.int64)
            mine = np.argsort(arrived)
            places[mine] = order
            if (arrived[mine] == wanted[order]).all():
                return places
        there = np.isin(wanted, arrived)
        if int(there.sum()) != len(arrived) or len(np.unique(arrived)) != len(arrived):
            raise WireError(f"{self._reader.name}: rows that were not asked for")
        self._on_missing(numbers[~there])
        return self._places(arrived, numbers[there])

    def _changed(self, numbers: Numbers) -> None:
        """Report keys that the cache does not have any more, by the reader's policy."""
        reader = self._reader
        text = f"{reader.name}: {len(numbers)} rows are gone since the keys were read"
        if reader.options.on_change == "warn":
            log.warning("%s", text)
        elif reader.options.on_change == "error":
            with reader.explained():
                raise DataChanged(
                    text,
                    hint="they were removed, or lost with a node that had no backup;"
                    " on_change='warn' reads on",
                    cache=reader.name,
                )


def _in_order(batches: Sequence[Batch], places: Numbers) -> Iterator[Batch]:
    """Yield the rows in their order, as views of the batches that they came in."""
    ends = np.cumsum([len(batch) for batch in batches])
    order = inverse(places)
    of = np.searchsorted(ends, order, side="right")
    at = order - (ends - [len(batch) for batch in batches])[of]
    # Rows that follow each other in one batch stay together.
    breaks = np.flatnonzero((np.diff(of) != 0) | (np.diff(at) != 1)) + 1
    for begin, end in itertools.pairwise([0, *breaks.tolist(), len(order)]):
        first = int(at[begin])
        yield batches[of[begin]][first : first + end - begin]


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
