"""Reads all keys of a cache, or of the rows that `where=` selects, once.

reader -> **key scan** -> keys

A load that gave out keys has recorded all that is needed. Otherwise one SQL statement reads the keys
alone, and only a cache without a table is scanned whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.read.divide import survey
from ignitetf.read.keys import IntegerKeys, Keys, ObjectKeys
from ignitetf.read.plan import OrderName
from ignitetf.read.reader import CacheReader
from ignitetf.read.reading import statement_batches
from ignitetf.read.scans import scanned_keys
from ignitetf.read.splits import Split
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import INTEGERS
from ignitetf.wire.infer import STORED_KEY
from ignitetf.wire.schema import Batch, Field

__all__ = ["read_keys"]

# 134 million integer keys.
_MOST_BYTES: Final = 1 << 30
# Rows that may be added between the count and the reading of the keys.
_MORE: Final = 1 << 16


def read_keys(reader: CacheReader, name: OrderName, most_bytes: int = _MOST_BYTES) -> Keys:
    """Return the keys of all rows that a reader reads, of its split if it has one.

    Args:
        reader: The cache.
        name: `keys` wants them in ascending order, `global` in any that is the same each time.
        most_bytes: Limit for the memory that they take.

    Raises:
        ConfigError: There are too many, or they have no order.
    """
    keys = _every_key(reader, name, most_bytes)
    if reader.own_keys is None or reader.selection is not None:
        reader.check_entries()
    return keys if reader.split is None else _of_split(reader, reader.split, keys)


def _of_split(reader: CacheReader, split: Split, keys: Keys) -> Keys:
    """Return those keys that belong to a split."""
    chosen = None
    if split.by is not None:
        # The field decides, too: the keys of the split are read from the data.
        rows = survey(reader.client, reader.name, split.by.name, reader.options)
        parts = [some.marks[split.has(some.marks, some.values)] for some in rows]
        chosen = np.sort(np.concatenate([*parts, np.empty(0, np.uint64)]))
    found = [np.empty(0, np.int64)]
    for start in range(0, len(keys), _MORE):
        numbers = np.arange(start, min(start + _MORE, len(keys)))
        marks = keys.marks(numbers)
        has = split.has(marks, None) if chosen is None else _are_in(marks, chosen)
        found.append(numbers[has])
    return keys.chosen(np.concatenate(found))


def _are_in(marks: NDArray[np.uint64], chosen: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return for each mark whether it is among some ascending ones."""
    if not len(chosen):
        return np.zeros(len(marks), np.bool_)
    places = np.minimum(np.searchsorted(chosen, marks), len(chosen) - 1)
    found: NDArray[np.bool_] = chosen[places] == marks
    return found


def _every_key(reader: CacheReader, name: OrderName, most_bytes: int) -> Keys:
    count = reader.own_keys
    if count is not None and reader.selection is None:
        return IntegerKeys(reader.schema, count)
    code = reader.schema.key.type
    if code in INTEGERS:
        return _integers(reader, most_bytes)
    if name == "keys" and code is not TypeCode.STRING:
        raise ConfigError(
            f"{reader.name}: order='keys', but keys of type {code.name} have no order",
            hint="order='global' or 'scan' can read them",
            cache=reader.name,
        )
    return _objects(reader, most_bytes, texts=name == "keys")


def _integers(reader: CacheReader, most_bytes: int) -> IntegerKeys:
    size = reader.client.cache_size(reader.cache)
    # Memory is committed only where keys are written, so a filter may select far fewer.
    found = np.empty(min(size + _MORE, most_bytes // 8 + 1), np.int64)
    count = 0
    for anew, batch in _key_batches(reader, reader.schema.key):
        if anew:
            count = 0
        rows = len(batch)
        _check_bytes(reader, 8 * (count + rows), most_bytes)
        if count + rows > len(found):
            found = np.concatenate((found[:count], np.empty(len(found), np.int64)))
        assert batch.key is not None
        found[count : count + rows] = np.asarray(batch.key.values)
        count += rows
    values = found[:count]
    values.sort()
    if count > 1 and not (values[1:] > values[:-1]).all():
        raise SchemaError(f"{reader.name}: a key was read twice", cache=reader.name)
    return IntegerKeys(reader.schema, count, values)


def _objects(reader: CacheReader, most_bytes: int, *, texts: bool) -> ObjectKeys:
    data: list[NDArray[np.uint8]] = []
    lengths: list[NDArray[np.int64]] = []
    marks: list[NDArray[np.uint64]] = []
    places: list[NDArray[np.uint16]] = []
    names: list[bytes] = []
    nbytes = 0
    for anew, batch in _key_batches(reader, STORED_KEY):
        if anew:
            data, lengths, marks, places, names, nbytes = [], [], [], [], [], 0
        assert batch.key is not None
        packed, ends = batch.key.compact()
        assert isinstance(packed, np.ndarray)
        length = np.diff(ends)
        keys = reader.decoded(packed, ends[:-1], reader.schema.key)
        data.append(packed)
        lengths.append(length)
        marks.append(marks_of(reader.schema, keys))
        found = partitions_of(reader.schema, keys, reader.partition_count)
        if found is not None:
            places.append(found.astype(np.uint16))
        if texts:
            names += keys.to_bytes()
        nbytes += len(packed) + 24 * len(batch)
        _check_bytes(reader, nbytes, most_bytes)
    bounds = np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum()
    every = np.concatenate([*marks, np.empty(0, np.uint64)])
    owners = np.concatenate(places) if len(places) == len(marks) and places else None
    keys_ = ObjectKeys(np.concatenate([*data, np.empty(0, np.uint8)]), bounds, every, owners)
    if texts:
        order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
    else:
        order = np.argsort(every, kind="stable")
    if len(np.unique(every)) < len(every):
        raise SchemaError(f"{reader.name}: a key was read twice", cache=reader.name)
    return keys_.chosen(order)


def _check_bytes(reader: CacheReader, nbytes: int, most_bytes: int) -> None:
    if nbytes > most_bytes:
        raise ConfigError(
            f"{reader.name}: the keys take more than {most_bytes >> 20} MB of memory",
            hint="order='scan' needs none; or narrow where=",
            cache=reader.name,
        )


def _key_batches(reader: CacheReader, key: Field) -> Iterator[tuple[bool, Batch]]:
    """Yield all keys, read as `key`, and whether those before do not count."""
    table = reader.selection if reader.selection is not None else reader.whole_table()
    if table is not None:
        yield from statement_batches(reader, table, key)
        return
    first = True
    for batch in scanned_keys(reader, key):
        yield first, batch
        first = False
