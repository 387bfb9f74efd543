"""Fetches rows by their keys, in the order of the request.

reading, keys -> **lookup** -> access, batches, blocks, mixture
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf._core import UNIT
from ignitetf.errors import DataChanged, IgniteTFError, WireError
from ignitetf.net.client import cache_id
from ignitetf.net.flow import Plan, Requests, requests_of
from ignitetf.net.topology import owners_of
from ignitetf.read.keys import Keys, Numbers
from ignitetf.read.reading import Reading
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.codes import OpCode
from ignitetf.wire.columns import Batch
from ignitetf.wire.requests import batch_head
from ignitetf.wire.schema import Schema

if TYPE_CHECKING:
    from ignitetf.read.reader import CacheReader

__all__ = ["KeyReading"]

# A node answers several requests in parallel, so a request should not be too large. Measured: 128
# rows of 784 bytes are best; see benchmarks/README.md.
_REQUEST_BYTES: Final = 128 << 10
_MOST_KEYS: Final = 2048
# Rows are sorted by node within stretches of this many requests to each node.
_STRETCH: Final = 8
# Key, headers and footers of an entry, in addition to its values.
_ENTRY_BYTES: Final = 64
# Assumed size of a row if it is not known.
_SOME_BYTES: Final = 256

log = logging.getLogger(__name__)


class KeyReading(Reading):
    """Reads the rows of some keys, in their order.

    Args:
        reader: The cache.
        keys: Its keys.
        numbers: The numbers of the keys, int64 `[n]`.
        cuts: Ascending indexes into `numbers`; between two of them no number is repeated. None for
            only the beginning and the end.
        on_missing: Called with the numbers of keys that the cache does not have, in any thread. If
            it returns, their rows are left out. By default the reader's `on_change` decides.
        stored: Schema of the stored entries; None if they are rows.
    """

    def __init__(
        self,
        reader: CacheReader,
        keys: Keys,
        numbers: Numbers,
        *,
        cuts: Sequence[int] | None = None,
        on_missing: Callable[[Numbers], None] | None = None,
        stored: Schema | None = None,
        batch_rows: int | None = None,
    ) -> None:
        schema = reader.schema if stored is None else stored
        super().__init__(
            reader, schema, lambda _: None, most_rows=max(1, len(numbers)), batch_rows=batch_rows
        )
        self._schema = schema
        self._keys = keys
        self._numbers = numbers
        self._cuts = [0, len(numbers)] if cuts is None else cuts
        self._on_missing = on_missing or self._report_missing_keys
        self._row_bytes = int(self._stored_bytes if reader.entry_bytes else _SOME_BYTES)
        self._row_bytes += _ENTRY_BYTES
        self._size = max(1, min(_MOST_KEYS, _REQUEST_BYTES // self._row_bytes))
        self._order: NDArray[np.int64] | None = None
        self._units = np.zeros(0, UNIT)

    def batches(self) -> Generator[Batch, None, None]:
        """Yield the rows, in order.

        Raises:
            DataChanged: Some rows were removed.
        """
        for batch in self.entries():
            own = self._reader.without_nulls(batch, None)
            if len(own):
                yield own

    def entries(self) -> Generator[Batch, None, None]:
        """Yield the entries as they are stored, in order."""
        total = len(self._numbers)
        if not total:
            return
        partitions = self._keys.partitions(self._numbers, self._reader.partition_count)
        order, runs = self._by_node(partitions)
        numbers = self._numbers if order is None else self._numbers[order]
        self._order, bounds = order, self._bounds(runs)
        units = self._units = self._new_units(bounds)
        objects = self._keys.objects(numbers)
        lengths = self._keys.lengths(numbers)
        key_at = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        of = np.zeros(len(units), np.int64)
        if partitions is not None:
            of = (partitions if order is None else partitions[order])[units["base"]].astype(
                np.int64
            )
        requests = self._requests(objects, key_at, bounds)
        landing = self._landing_by_key(units, order, objects, key_at)
        plan = Plan(units, requests, of, self._owners)
        with contextlib.closing(self._groups(plan, landing)) as groups:
            for _, batch in groups:
                yield batch

    def _owners(self, refresh: bool) -> Mapping[int, uuid.UUID]:
        return owners_of(self._reader.client, self._reader.cache, refresh=refresh)

    def _by_node(
        self, partitions: NDArray[np.int32] | None
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
        """Sort the rows by the nodes that own them, within stretches of their order.

        A stretch is short, so that rows arrive about when they are needed. It does not cross a cut.

        Returns:
            The rows in the order of the requests, or None if that is the order of `numbers`; and a
            number for each, int64 `[n]`. Only rows with the same number may share a request.
        """
        at = np.arange(len(self._numbers))
        part = np.searchsorted(np.asarray(self._cuts), at, "right")
        owners = {} if partitions is None else self._owners(False)
        if not owners or partitions is None:
            return None, part
        number_of = {node: i for i, node in enumerate(sorted(set(owners.values())))}
        table = np.full(self._reader.partition_count, len(number_of), np.int64)
        for partition, node in owners.items():
            table[partition] = number_of[node]
        nodes = table[partitions]
        # Both terms grow with `at`, so equal sums mean equal terms.
        stretch = at // (_STRETCH * self._size * len(number_of)) + part
        order = np.lexsort((nodes, stretch))
        return order, (stretch * (len(number_of) + 1) + nodes)[order]

    def _bounds(self, runs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the first row of each request, and the end of the last one."""
        changes = np.flatnonzero(np.diff(runs)) + 1
        ends = np.concatenate(([0], changes, [len(runs)])).tolist()
        starts = [np.arange(a, b, self._size) for a, b in itertools.pairwise(ends)]
        return np.concatenate((*starts, [len(runs)]))

    def _new_units(self, bounds: NDArray[np.int64]) -> NDArray[Any]:
        units = np.zeros(len(bounds) - 1, UNIT)
        units["lane"] = -1
        units["base"], units["rows"] = bounds[:-1], np.diff(bounds)
        units["first"] = bounds[:-1]
        if self._order is not None:
            units["first"] = np.minimum.reduceat(self._order, bounds[:-1])
        units["expected"] = units["rows"] * self._row_bytes
        return units

    def _requests(
        self, objects: bytes, key_at: NDArray[np.int64], bounds: NDArray[np.int64]
    ) -> Requests:
        cache, view = cache_id(self._reader.cache), memoryview(objects)
        ends = key_at[bounds].tolist()
        sizes = np.diff(bounds).tolist()
        bodies = [
            b"".join((batch_head(cache, size), view[ends[i] : ends[i + 1]]))
            for i, size in enumerate(sizes)
        ]
        return requests_of(OpCode.CACHE_GET_ALL, bodies)

    def leave(
        self, unit: int, entries: bytes, places: NDArray[np.int64], absent: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Decode and place the entries that the core did not land; see `net.flow.Sink`.

        A node may return a key in other bytes than were requested; such keys are matched by mark.
        """
        if len(places):
            batch = self._decoded(unit, entries, places)
            if (unknown := np.flatnonzero(places < 0)).size:
                found, absent = self._split_absent(unit, batch[unknown], absent)
                places = places.copy()
                places[unknown] = found
            self._left.add(places, batch)
        gone = self._place(unit, absent)
        if len(gone):
            self._on_missing(self._numbers[np.sort(gone)])
            self._left.drop(gone)
        return np.concatenate((places, gone))

    def _place(self, unit: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        at = int(self._units["base"][unit]) + rows
        return at if self._order is None else self._order[at]

    def _split_absent(
        self, unit: int, batch: Batch, absent: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places of rows among the absent ones, and the rows that are still absent."""
        assert batch.key is not None
        places = self._place(unit, absent)
        wanted = self._keys.marks(self._numbers[places])
        order = np.argsort(wanted)
        arrived = marks_of(self._schema, batch.key)
        at = np.searchsorted(wanted[order], arrived)
        fits = at < len(wanted)
        fits[fits] = wanted[order][at[fits]] == arrived[fits]
        if not fits.all() or len(np.unique(at)) < len(at):
            raise WireError(f"{self._reader.name}: rows that were not requested")
        return places[order][at], np.delete(absent, order[at])

    def _report_missing_keys(self, numbers: Numbers) -> None:
        """Report keys that the cache does not have any more, according to the reader's policy."""
        reader = self._reader
        text = f"{reader.name}: {len(numbers)} rows are gone since the keys were read"
        if reader.options.on_change == "warn":
            log.warning("%s", text)
        elif reader.options.on_change == "error":
            raise DataChanged(
                text,
                hint="they were removed, or lost with a node that had no backup;"
                " on_change='warn' reads on",
                cache=reader.name,
            )

    def other_count(self, unit: int, found: int) -> IgniteTFError:
        """Never called: `leave` handles absent keys."""
        raise AssertionError("an answer has any number of the keys")

    def other_keys(self, unit: int) -> IgniteTFError:
        """Never called: a request for keys is repeated as a whole, so keys are not compared."""
        raise AssertionError("requests of keys are repeated as a whole")
