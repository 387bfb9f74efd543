"""Handles equal keys in a data set of blocks as the cache handles them in a data set of rows.

fill -> **equal keys** -> check, manifest

In the row layout, the cache keeps one row per key by itself. In the block layout, a partition can
have several rows with one key, in one block or in several. So if the keys of a load can be equal,
the stored keys are read back, one partition at a time. This also works for a load that several
processes continued. A new load with equal keys is then refused; after an append only the last row
of each key is kept.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.load.journal import Journal, equal_keys_error
from ignitetf.load.writer import Work, Writer
from ignitetf.net.binary_types import with_types
from ignitetf.net.client import Client, cache_id
from ignitetf.tables.lease import Lease
from ignitetf.wire.blocks import BlockDecoder, BlockKeys, block_schema, encode_longs, pack_blocks
from ignitetf.wire.codes import OpCode
from ignitetf.wire.columns import Batch, Column, Dense, Struct, runs_of
from ignitetf.wire.frames import Page, read_entries
from ignitetf.wire.requests import batch_head
from ignitetf.wire.schema import Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["Ascending", "settle_equal_keys"]

# Target size of a request for blocks, estimated from the blocks before.
_REQUEST_BYTES: Final = 4 << 20
_FIRST_BLOCKS: Final = 4
_MOST_BLOCKS: Final = 64

_Keys = NDArray[np.int64] | list[Any]
_Kept = NDArray[np.bool_]


class Ascending:
    """Checks that all keys of a load were seen in ascending order, so that none are equal."""

    def __init__(self, *, seen_all: bool) -> None:
        self.holds = seen_all
        self._last: int | None = None

    def add(self, key: Column) -> None:
        """Check the keys of a batch."""
        if not isinstance(key, Dense) or key.values.dtype.kind != "i":
            self.holds = False
        elif self.holds and len(values := key.values):
            behind = self._last is None or int(values[0]) > self._last
            self.holds = behind and bool((values[1:] > values[:-1]).all())
            self._last = int(values[-1])


def settle_equal_keys(client: Client, journal: Journal, key_name: str, lease: Lease) -> None:
    """Find and handle equal keys in a data set of blocks after its load has stored all rows.

    Updates the number of rows of each block in the journal; an earlier block may have none left.

    Args:
        client: The connection.
        journal: The journal of the load.
        key_name: The column used as the key.
        lease: The lease on the data set, already held.

    Raises:
        SourceError: A new load has records with equal keys.
    """
    blocks = _StoredBlocks(client, journal)
    counts: list[int] = []
    equal = 0
    for first, found in blocks.by_partition():
        kept = _last_of_each(found)
        counts += [int(part.sum()) for part in kept]
        fewer = {first + i: part for i, part in enumerate(kept) if not part.all()}
        equal += sum(int((~part).sum()) for part in fewer.values())
        if fewer and journal.mode == "append":
            _rewrite(blocks, fewer, lease)
    if equal and journal.mode != "append":
        raise equal_keys_error(equal, journal.rows, key_name)
    if len(counts) == len(blocks):  # `require_stored` reports missing blocks
        journal.block_rows = tuple(counts)


def _last_of_each(blocks: Sequence[_Keys]) -> list[_Kept]:
    """Return for each block the rows that are the last of their key in the partition."""
    if isinstance(blocks[0], np.ndarray):
        codes = np.concatenate(blocks)
    else:
        codes = _numbers(itertools.chain.from_iterable(blocks))
    _, first = np.unique(codes[::-1], return_index=True)
    kept = np.zeros(len(codes), np.bool_)
    kept[len(codes) - 1 - first] = True
    return np.split(kept, np.cumsum([len(keys) for keys in blocks])[:-1])


def _values(key: Column) -> _Keys:
    """Return keys as comparable numbers, texts or tuples, independent of their buffer."""
    if isinstance(key, Struct):
        return list(zip(*(list(_values(column)) for column in key.fields.values()), strict=True))
    if isinstance(key, Dense):
        return key.values.astype(np.int64)
    return runs_of(key).to_bytes()


def _numbers(values: Iterable[Any]) -> NDArray[np.int64]:
    known: dict[Any, int] = {}
    return np.array([known.setdefault(value, len(known)) for value in values], np.int64)


class _StoredBlocks:
    """The stored blocks of a data set, sorted by partition and key."""

    def __init__(self, client: Client, journal: Journal) -> None:
        self.client, self.cache, self.schema = client, journal.cache, journal.schema
        self._registry = TypeRegistry()
        own = BlockKeys(len(journal.blocks), journal.blocks)
        self._keys = own.handed_out()
        self._ends = np.cumsum(own.used).tolist()

    def __len__(self) -> int:
        return len(self._keys)

    def by_partition(self) -> Iterator[tuple[int, list[_Keys]]]:
        """Yield for each partition the place of its first block, and the row keys of each block."""
        first, found = 0, list[_Keys]()
        reading = self.read(range(len(self)), replace(self.schema, fields=()))
        for end in self._ends:
            for place, rows in itertools.islice(reading, end - first):
                assert rows.key is not None and first <= place < end
                found.append(_values(rows.key))
            if found:
                yield first, found
            first, found = end, []

    def read(self, places: Sequence[int], schema: Schema) -> Iterator[tuple[int, Batch]]:
        """Yield the rows of blocks, in order, with these fields; stops at a missing block."""
        decoder = BlockDecoder(schema, self._registry)
        at, count = 0, _FIRST_BLOCKS
        while at < len(places):
            asked = places[at : at + count]
            keys = self._keys[asked]
            body = self.client.call(OpCode.CACHE_GET_ALL, _get_request(self.cache, keys))
            page = read_entries(body)
            by_key = dict(_keyed(self.client, self._registry, decoder, page))
            for place, key in zip(asked, keys.tolist(), strict=True):
                if key not in by_key:
                    return
                yield place, by_key[key]
            at += count
            each = max(1, len(page.data) // len(asked))
            count = min(_MOST_BLOCKS, max(1, _REQUEST_BYTES // each))

    def key_of(self, place: int) -> int:
        """Return the key of a block."""
        return int(self._keys[place])


def _keyed(
    client: Client, registry: TypeRegistry, decoder: BlockDecoder, page: Page
) -> Iterator[tuple[int, Batch]]:
    keys, rows = with_types(client, registry, decoder.keyed, page)
    return zip(keys.tolist(), rows, strict=True)


def _get_request(cache: str, keys: NDArray[np.int64]) -> bytes:
    return batch_head(cache_id(cache), len(keys)) + encode_longs(keys)


def _rewrite(blocks: _StoredBlocks, fewer: dict[int, _Kept], lease: Lease) -> None:
    """Store blocks again, with only the rows to keep."""
    schema = blocks.schema
    with Writer(
        blocks.client,
        blocks.cache,
        schema,
        entry_schema=block_schema(schema),
        senders=1,
        check_lease=lease.check,
    ) as writer:
        for place, rows in blocks.read(list(fewer), schema):
            left = rows[np.flatnonzero(fewer[place])]
            bounds = np.array([0, len(left)], np.int64)
            keys = np.array([blocks.key_of(place)])
            pack = functools.partial(pack_blocks, schema, bounds=bounds, keys=keys)
            writer.write(Work(left, pack))
