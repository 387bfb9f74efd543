"""Rows by their keys: in an order of keys, by number, by key, and samples of them.

arguments, reader -> **access** -> rows

The keys of a cache, or of the rows that `where=` selects, are read once. If the load generated the
keys, the manifest has recorded all that is needed. Otherwise one SQL statement reads only the keys.
A cache without a table is scanned completely.

Rows are numbered in the order of their keys, which for loaded data is the order of the source. So a
row has the same number in every program, independent of order, epoch and shard. The exception are
keys that are not integers: in a global order their rows are numbered in the order of a hash.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, KeyNotFound, OutOfRange, SchemaError
from ignitetf.read.arguments import even_of, seed_of, step_rows, window_limit
from ignitetf.read.blocks import BlockOrder, StoredBlocks
from ignitetf.read.divide import survey
from ignitetf.read.key_order import KeyOrder, Permutation
from ignitetf.read.keys import IntegerKeys, Keys, Numbers, ObjectKeys, key_of, keys_of
from ignitetf.read.lookup import KeyReading
from ignitetf.read.reader import CacheReader
from ignitetf.read.reading import statement_batches
from ignitetf.read.scan_order import OrderName, Shard, whole_argument
from ignitetf.read.scans import scanned_keys
from ignitetf.read.selection import Split
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs, Struct, concat, runs_of, values_of
from ignitetf.wire.datatypes import INTEGERS
from ignitetf.wire.infer import STORED_KEY
from ignitetf.wire.schema import Field

__all__ = ["Access", "Missing", "check_keyed", "key_order_of", "read_keys"]

Missing = Literal["error", "skip"]
_LARGEST_SEED: Final = (1 << 128) - 1


def key_order_of(
    reader: CacheReader,
    name: OrderName,
    seed: int | None,
    even: Any,
    global_batch: int | None,
    shard: Shard,
    window_bytes: int,
) -> KeyOrder | BlockOrder:
    """Return the order of the rows for `keys` or `global`; reads the keys unless they are known.

    Raises:
        ConfigError: The rows cannot be read by key, or an argument does not fit.
    """
    manifest = reader.manifest
    in_blocks = reader.is_blocks and name == "global"
    (_check_blocks if in_blocks else check_keyed)(reader, f"order={name!r}")
    if name == "keys" and seed is not None:
        raise ConfigError(
            "order='keys' cannot be combined with shuffle=", hint="order='global' shuffles"
        )
    step = step_rows(global_batch, shard)
    seed = seed_of(seed)
    if name == "global" and seed is None:
        seed = 0
    even = even_of(even)
    if in_blocks and manifest is not None:
        blocks, window_bytes = StoredBlocks.of(manifest), window_limit(window_bytes)
        return BlockOrder(blocks, window_bytes, seed, even=even, global_batch=step)
    return KeyOrder(read_keys(reader, name), seed, even=even, global_batch=step)


def check_keyed(reader: CacheReader, what: str) -> None:
    """Raise ConfigError unless each key of the cache is one row."""
    if reader.is_blocks:
        raise ConfigError(
            f"{reader.name}: {what}, but rows in blocks cannot be read by key",
            hint="load it with --layout rows, or take order='global', or 'scan'",
            cache=reader.name,
        )
    _check_dropped(reader, what)


def _check_blocks(reader: CacheReader, what: str) -> None:
    """Raise ConfigError unless every row of every block is read."""
    if reader.split is not None:
        raise ConfigError(
            f"{reader.name}: {what} with split=, but the rows of a block that are in a split are known"
            " only after reading",
            hint="load it with --layout rows, or take order='scan'",
            cache=reader.name,
        )
    _check_dropped(reader, what)


def _check_dropped(reader: CacheReader, what: str) -> None:
    """Raise ConfigError if rows with nulls are dropped, because their number is then unknown."""
    if reader.options.nulls == "drop":
        raise ConfigError(
            f"{reader.name}: {what} needs the number of rows, unknown with nulls='drop'",
            hint="where='FIELD IS NOT NULL' leaves them out, or nulls='mask'",
            cache=reader.name,
        )


class Access:
    """The rows of a cache by number and by key; may be used by several threads.

    Args:
        reader: The cache.
        keys: Its keys, if they have been read already.
    """

    def __init__(self, reader: CacheReader, keys: Keys | None = None) -> None:
        self._reader = reader
        self._keys = keys
        self._lock = threading.Lock()

    @property
    def keys(self) -> Keys:
        """The keys of all rows, read when they are first needed.

        Raises:
            ConfigError: The rows cannot be read by key, or the keys have no order.
        """
        with self._lock:
            if self._keys is None:
                check_keyed(self._reader, "random access")
                self._keys = read_keys(self._reader, "keys")
            return self._keys

    def numbers(self, index: Any) -> Numbers:
        """Convert the index in `rows[...]` to row numbers; negative ones count from the end.

        Raises:
            OutOfRange: A number is beyond the last row.
            ConfigError: The index is neither a slice nor made of whole numbers.
        """
        count = len(self.keys)
        if isinstance(index, slice):
            try:
                return np.arange(*index.indices(count), dtype=np.int64)
            except TypeError as error:
                raise ConfigError(f"rows[{index}]", hint="a slice of whole numbers") from error
        found = np.asarray(index)
        if found.dtype == bool and found.shape == (count,):
            return np.flatnonzero(found)
        if found.size == 0:
            found = found.astype(np.int64)
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise ConfigError(
                f"rows[{index!r}]", hint="a number, a slice, or a list of whole numbers"
            )
        numbers = found.astype(np.int64)
        outside = (numbers < -count) | (numbers >= count)
        if outside.any():
            first = found[int(np.argmax(outside))]
            raise OutOfRange(f"{self._reader.name}: row {first} of {count}")
        return np.where(numbers < 0, numbers + count, numbers)

    def rows(self, numbers: Numbers) -> Batch:
        """Return rows by number, in the order of the numbers, which may be repeated.

        Raises:
            DataChanged: A row was removed. If `on_change` allows that, the row is left out instead.
        """
        return _rows(self._reader, self.keys, numbers)

    def sample(self, count: Any, seed: Any) -> Numbers:
        """Return the numbers of `count` different rows; the same seed returns the same rows."""
        total = len(self.keys)
        count = whole_argument("n", count, 0, total)
        seed = whole_argument("seed", seed, 0, _LARGEST_SEED)
        return Permutation(total, seed, 0)(np.arange(count, dtype=np.int64))

    def by_key(self, keys: Any, missing: Any) -> Batch:
        """Return the rows with these keys, in the order of `keys`.

        Raises:
            KeyNotFound: A key is missing, and `missing` is `error`.
            ConfigError: The keys are not of the type of the cache's keys.
        """
        if missing not in get_args(Missing):
            raise ConfigError(f"missing={missing!r}", hint=f"one of {', '.join(get_args(Missing))}")
        reader = self._reader
        check_keyed(reader, "by_key")
        column = _key_column(reader.schema.key, keys)
        asked = keys_of(reader.schema, column, reader.partition_count)

        def on_missing(numbers: Numbers) -> None:
            if missing == "error":
                raise self._not_found(column, int(numbers[0]), len(numbers))

        # Each different key gets one number below; a key that is passed twice is fetched once.
        marks = asked.marks(np.arange(len(asked)))
        _, first, places = np.unique(marks, return_index=True, return_inverse=True)
        numbers = first[places].astype(np.int64)
        if reader.selection is not None or reader.split is not None:
            every = self.keys.marks(np.arange(len(self.keys)))
            there = np.isin(marks, every)
            if not there.all():
                on_missing(np.flatnonzero(~there))
            numbers = numbers[there]
        return _rows(reader, asked, numbers, on_missing)

    def _not_found(self, column: Column, number: int, count: int) -> KeyNotFound:
        more = f", and {count - 1} more" if count > 1 else ""
        return KeyNotFound(
            f"{self._reader.name}: no row with key {key_of(column, number)}{more}",
            hint="missing='skip' leaves such keys out",
            cache=self._reader.name,
        )


def _rows(
    reader: CacheReader,
    keys: Keys,
    numbers: Numbers,
    on_missing: Callable[[Numbers], None] | None = None,
) -> Batch:
    """Return the rows of the given key numbers, in the given order; numbers may be repeated."""
    once, places = np.unique(numbers, return_inverse=True)
    with reader.explained():
        parts = list(KeyReading(reader, keys, once, on_missing=on_missing).batches())
    if not parts:
        return reader.no_rows()
    batch = concat(parts)
    if len(batch) == len(once):
        return batch if np.array_equal(places, np.arange(len(once))) else batch[places]
    assert batch.key is not None
    there = np.isin(keys.marks(once), marks_of(reader.schema, batch.key))
    present = there[places]
    return batch[(np.cumsum(there) - 1)[places[present]]]


def _key_column(field: Field, keys: Any) -> Column:
    """Convert the caller's keys to a column.

    Raises:
        ConfigError: The keys are not of this type.
    """
    if field.type in INTEGERS:
        return Dense(_integer_keys(field, keys))
    if field.type is TypeCode.STRING:
        return Runs.from_bytes([_text_key(field, key) for key in keys])
    if field.type is TypeCode.OBJECT and isinstance(keys, Mapping):
        names = {part.name for part in field.fields}
        if set(keys) != names:
            raise ConfigError(
                f"keys with the fields {', '.join(map(str, keys))}",
                hint=f"the key has {', '.join(sorted(names))}",
            )
        return Struct({part.name: _key_column(part, keys[part.name]) for part in field.fields})
    hint = "rows[...] finds rows by number"
    if field.type is TypeCode.OBJECT:
        hint = f"pass a dict with a list for each of {', '.join(p.name for p in field.fields)}"
    raise ConfigError(f"by_key of keys of type {field.type.name}", hint=hint)


def _integer_keys(field: Field, keys: Any) -> NDArray[Any]:
    found = np.asarray(keys)
    if found.size == 0:
        return np.empty(0, field.dtype)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ConfigError(f"keys {keys!r}", hint="a list or an array of whole numbers")
    limits = np.iinfo(field.dtype)
    if int(found.min()) < limits.min or int(found.max()) > limits.max:
        raise ConfigError(
            f"keys from {found.min()} to {found.max()}",
            hint=f"keys of type {field.type.name} are {limits.min} to {limits.max}",
        )
    return found.astype(field.dtype)


def _text_key(field: Field, key: Any) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    raise ConfigError(f"key {key!r}", hint=f"keys of type {field.type.name} are texts")


# 134 million integer keys.
_MOST_BYTES: Final = 1 << 30
# Number of rows that may be added after the count and before the keys are read.
_MORE: Final = 1 << 16


def read_keys(reader: CacheReader, name: OrderName, most_bytes: int = _MOST_BYTES) -> Keys:
    """Return the keys of all rows that a reader reads; if it has a split, only those of the split.

    Args:
        reader: The cache.
        name: `keys` needs ascending keys; `global` needs any order that is the same each time.
        most_bytes: Limit for the memory of the keys.

    Raises:
        ConfigError: There are too many keys, or the keys have no order.
    """
    keys = _every_key(reader, name, most_bytes)
    if reader.own_keys is None or reader.selection is not None:
        reader.check_entries()
    return keys if reader.split is None else _of_split(reader, reader.split, keys)


def _of_split(reader: CacheReader, split: Split, keys: Keys) -> Keys:
    """Return the keys that belong to a split."""
    chosen = None
    if split.by is not None:
        # The split also depends on a field, so its keys are read from the data.
        rows = survey(reader.client, reader.name, split.by.name, reader.options)
        parts = [some.marks[split.has(some.marks, some.values)] for some in rows]
        chosen = np.sort(np.concatenate([*parts, np.empty(0, np.uint64)]))
    found = [np.empty(0, np.int64)]
    for start in range(0, len(keys), _MORE):
        numbers = np.arange(start, min(start + _MORE, len(keys)))
        marks = keys.marks(numbers)
        has = split.has(marks, None) if chosen is None else _contains(marks, chosen)
        found.append(numbers[has])
    return keys.chosen(np.concatenate(found))


def _contains(marks: NDArray[np.uint64], chosen: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return for each mark whether the ascending array `chosen` contains it."""
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
        return _every_integer(reader, most_bytes)
    if name == "keys" and code is not TypeCode.STRING:
        raise ConfigError(
            f"{reader.name}: order='keys', but keys of type {code.name} have no order",
            hint="order='global' or 'scan' can read them",
            cache=reader.name,
        )
    return _every_object(reader, most_bytes, texts=name == "keys")


def _every_integer(reader: CacheReader, most_bytes: int) -> IntegerKeys:
    size = reader.client.cache_size(reader.cache)
    # The system commits memory only where keys are written. So this costs little, even if a filter
    # selects far fewer keys.
    found = np.empty(min(size + _MORE, most_bytes // 8 + 1), np.int64)
    count = 0
    for anew, batch in _key_batches(reader, reader.schema.key):
        if anew:
            count = 0
        rows = len(batch)
        _check_bytes(reader, 8 * (count + rows), most_bytes)
        if count + rows > len(found):
            found = np.concatenate((found[:count], np.empty(len(found), np.int64)))
        found[count : count + rows] = values_of(batch.key)
        count += rows
    values = found[:count]
    values.sort()
    if count > 1 and not (values[1:] > values[:-1]).all():
        raise SchemaError(f"{reader.name}: a key was read twice", cache=reader.name)
    return IntegerKeys(reader.schema, count, values)


def _every_object(reader: CacheReader, most_bytes: int, *, texts: bool) -> ObjectKeys:
    data: list[NDArray[np.uint8]] = []
    lengths: list[NDArray[np.int64]] = []
    marks: list[NDArray[np.uint64]] = []
    places: list[NDArray[np.uint16]] = []
    names: list[bytes] = []
    nbytes = 0
    for anew, batch in _key_batches(reader, STORED_KEY):
        if anew:
            data, lengths, marks, places, names, nbytes = [], [], [], [], [], 0
        items, ends = runs_of(batch.key).compact()
        packed = values_of(items)
        length = np.diff(ends)
        keys = reader.decoded(packed, ends[:-1], reader.schema.key)
        data.append(packed)
        lengths.append(length)
        marks.append(marks_of(reader.schema, keys))
        found = partitions_of(reader.schema, keys, reader.partition_count)
        if found is not None:
            places.append(found.astype(np.uint16))
        if texts:
            names += runs_of(keys).to_bytes()
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
    """Yield batches of all keys, read as `key`, each with whether to discard the ones before it."""
    table = reader.selection if reader.selection is not None else reader.whole_table()
    if table is not None:
        yield from statement_batches(reader, table, key)
        return
    first = True
    for batch in scanned_keys(reader, key):
        yield first, batch
        first = False
