"""Random access: rows by number, by key, and samples of them.

rows -> **access** -> reading

Rows are numbered in the order of their keys, which for loaded data is the order of the source. So a
row has the same number in every program, whatever order, epoch and shard its training reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, KeyNotFound, OutOfRange
from ignitetf.read.arguments import check_keyed
from ignitetf.read.error_context import key_of
from ignitetf.read.key_scan import read_keys
from ignitetf.read.keys import Keys, Numbers, keys_of
from ignitetf.read.lookup import KeyReading
from ignitetf.read.permutation import Permutation
from ignitetf.read.plan import whole_argument
from ignitetf.read.reader import CacheReader
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.concat import concat
from ignitetf.wire.datatypes import INTEGERS
from ignitetf.wire.schema import Batch, Column, Field

__all__ = ["Access", "Missing"]

Missing = Literal["error", "skip"]
_LARGEST_SEED: Final = (1 << 128) - 1


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
        """Convert what stands in `rows[...]` to row numbers; negative ones count from the end.

        Raises:
            OutOfRange: A number is beyond the last row.
            ConfigError: It is neither a slice nor made of whole numbers.
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
        """Return rows by number, in the order asked for; numbers may be repeated.

        Raises:
            DataChanged: A row is gone, unless `on_change` lets that pass and it is left out.
        """
        return _rows(self._reader, self.keys, numbers)

    def sample(self, count: Any, seed: Any) -> Numbers:
        """Return the numbers of `count` different rows, the same ones for the same seed."""
        total = len(self.keys)
        count = whole_argument("n", count, 0, total)
        seed = whole_argument("seed", seed, 0, _LARGEST_SEED)
        return Permutation(total, seed, 0)(np.arange(count, dtype=np.int64))

    def by_key(self, keys: Any, missing: Any) -> Batch:
        """Return the rows with these keys, in the order asked for.

        Raises:
            KeyNotFound: A key is missing, and `missing` is `error`.
            ConfigError: The keys are not of the type of the cache's keys.
        """
        if missing not in get_args(Missing):
            raise ConfigError(f"missing={missing!r}", hint=f"one of {', '.join(get_args(Missing))}")
        reader = self._reader
        check_keyed(reader, "by_key")
        column = _column(reader.schema.key, keys)
        asked = keys_of(reader.schema, column, reader.partition_count)

        def on_missing(numbers: Numbers) -> None:
            if missing == "error":
                raise self._not_found(column, int(numbers[0]), len(numbers))

        # Different keys get different numbers below; the same key asked for twice is one row.
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
    """Return the rows of these key numbers, in their order; numbers may be repeated."""
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


def _column(field: Field, keys: Any) -> Column:
    """Convert keys given by a caller to a column.

    Raises:
        ConfigError: They are not of this type.
    """
    if field.type in INTEGERS:
        return Column(_integers(field, keys))
    if field.type is TypeCode.STRING:
        return Column.from_bytes([_text(field, key) for key in keys])
    if field.type is TypeCode.OBJECT and isinstance(keys, Mapping):
        names = {part.name for part in field.fields}
        if set(keys) != names:
            raise ConfigError(
                f"keys with the fields {', '.join(map(str, keys))}",
                hint=f"the key has {', '.join(sorted(names))}",
            )
        return Column({part.name: _column(part, keys[part.name]) for part in field.fields})
    hint = "rows[...] finds rows by number"
    if field.type is TypeCode.OBJECT:
        hint = f"pass a dict with a list for each of {', '.join(p.name for p in field.fields)}"
    raise ConfigError(f"by_key of keys of type {field.type.name}", hint=hint)


def _integers(field: Field, keys: Any) -> NDArray[Any]:
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


def _text(field: Field, key: Any) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return key
    raise ConfigError(f"key {key!r}", hint=f"keys of type {field.type.name} are texts")
