"""The keys of a data set by number, encoded for the requests that fetch their rows.

**keys** -> key order, reading

There are three forms. A load that generates keys makes 0 ... N-1, and nothing has to be stored for
them. Other integer keys are kept as 8 bytes each, ascending. All other keys are kept as encoded for
a request. `RecordContext` adds the key of a record to errors about it.

No sockets here; `access` reads keys from a cache.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError, WireError
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs, Struct, copy_runs, values_of
from ignitetf.wire.datatypes import FIXED_DTYPE, INTEGERS
from ignitetf.wire.encode import encode_entries
from ignitetf.wire.schema import Field, Schema

__all__ = ["IntegerKeys", "Keys", "Numbers", "ObjectKeys", "RecordContext", "key_of", "keys_of"]

Numbers = NDArray[np.int64]
# Encoded size of a BYTE value: its type code and the byte.
_VALUE_BYTES: Final = 2


class Keys(Protocol):
    """N different keys, numbered from 0."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the keys use."""

    @property
    def digest(self) -> str | None:
        """A checksum of all keys, in order; None if the number of keys determines them."""

    def marks(self, numbers: Numbers) -> NDArray[np.uint64]:
        """Return the result of `marks_of` for the keys with these numbers."""

    def chosen(self, numbers: Numbers) -> Keys:
        """Return the keys with these ascending numbers, in their order."""

    def objects(self, numbers: Numbers) -> bytes:
        """Return the keys with these numbers as encoded objects, one after the other."""

    def lengths(self, numbers: Numbers) -> NDArray[np.int64]:
        """Return the encoded length of each of the keys, in bytes."""

    def partitions(self, numbers: Numbers, count: int) -> NDArray[np.int32] | None:
        """Return the partitions of the keys in a cache of `count`; None if they are unknown."""


def keys_of(schema: Schema, column: Column, partition_count: int) -> Keys:
    """Return the keys of a column, numbered in the order of the column."""
    if schema.key.type in INTEGERS:
        return IntegerKeys(schema, len(column), values_of(column).astype(np.int64))
    # Encode entries with a dummy value of two bytes, and keep only their keys.
    value = Field("val", TypeCode.BYTE, np.dtype("i1"))
    plain = Schema(None, schema.key, (value,), key_type_name=schema.key_type_name, zone=schema.zone)
    entries = encode_entries(plain, Batch(column, {"val": Dense(np.zeros(len(column), np.int8))}))
    ends = np.asarray(entries.ends, np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends))[:-1]
    lengths = ends - starts - _VALUE_BYTES
    bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    data = np.empty(int(bounds[-1]), np.uint8)
    copy_runs(data, bounds[:-1], entries.data, starts, lengths)
    places = partitions_of(schema, column, partition_count)
    owners = None if places is None else places.astype(np.uint16)
    return ObjectKeys(data, bounds, marks_of(schema, column), owners)


class IntegerKeys:
    """Integer keys.

    Args:
        schema: The schema of the cache; its key is an integer.
        count: The number of keys.
        values: The keys, ascending, int64; None for 0 ... count - 1.
    """

    def __init__(self, schema: Schema, count: int, values: Numbers | None = None) -> None:
        self._schema = Schema(None, schema.key, ())
        self._count = count
        self._values = values
        self._request = np.dtype([("code", "u1"), ("key", FIXED_DTYPE[schema.key.type])])

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<IntegerKeys, {self._count}{'' if self._values is None else ' stored'}>"

    @property
    def nbytes(self) -> int:
        """See `Keys`."""
        return 0 if self._values is None else self._values.nbytes

    @functools.cached_property
    def digest(self) -> str | None:
        """See `Keys`."""
        return None if self._values is None else f"{zlib.crc32(self._values.data):08x}"

    def marks(self, numbers: Numbers) -> NDArray[np.uint64]:
        """See `Keys`."""
        return self.values(numbers).view(np.uint64)

    def values(self, numbers: Numbers) -> Numbers:
        """Return the keys with these numbers."""
        return numbers if self._values is None else self._values[numbers]

    def chosen(self, numbers: Numbers) -> IntegerKeys:
        """See `Keys`."""
        return IntegerKeys(self._schema, len(numbers), self.values(numbers))

    def objects(self, numbers: Numbers) -> bytes:
        """See `Keys`."""
        found = np.empty(len(numbers), self._request)
        found["code"] = self._schema.key.type
        found["key"] = self.values(numbers)
        return found.tobytes()

    def lengths(self, numbers: Numbers) -> NDArray[np.int64]:
        """See `Keys`."""
        return np.full(len(numbers), self._request.itemsize, np.int64)

    def partitions(self, numbers: Numbers, count: int) -> NDArray[np.int32] | None:
        """See `Keys`."""
        stored = FIXED_DTYPE[self._schema.key.type]
        return partitions_of(self._schema, Dense(self.values(numbers).astype(stored)), count)


class ObjectKeys:
    """Keys of any type, as encoded objects.

    Args:
        data: The objects, one after the other.
        bounds: Start of each object, and the end of the last one.
        marks: The result of `marks_of` for each key.
        partitions: Partition of each key; None if the partitions are unknown.
    """

    def __init__(
        self,
        data: NDArray[np.uint8],
        bounds: Numbers,
        marks: NDArray[np.uint64],
        partitions: NDArray[np.uint16] | None,
    ) -> None:
        self._data = data
        self._bounds = bounds
        self._marks = marks
        self._partitions = partitions

    def __len__(self) -> int:
        return len(self._marks)

    def __repr__(self) -> str:
        return f"<ObjectKeys, {len(self)}>"

    @property
    def nbytes(self) -> int:
        """See `Keys`."""
        places = 0 if self._partitions is None else self._partitions.nbytes
        return self._data.nbytes + self._bounds.nbytes + self._marks.nbytes + places

    @functools.cached_property
    def digest(self) -> str | None:
        """See `Keys`."""
        return f"{zlib.crc32(self._marks.data):08x}"

    def marks(self, numbers: Numbers) -> NDArray[np.uint64]:
        """See `Keys`."""
        return self._marks[numbers]

    def objects(self, numbers: Numbers) -> bytes:
        """See `Keys`."""
        data = self._data.data
        begins, ends = self._bounds[numbers].tolist(), self._bounds[numbers + 1].tolist()
        return b"".join(data[p:q] for p, q in zip(begins, ends, strict=True))

    def lengths(self, numbers: Numbers) -> NDArray[np.int64]:
        """See `Keys`."""
        return self._bounds[numbers + 1] - self._bounds[numbers]

    def partitions(self, numbers: Numbers, count: int) -> NDArray[np.int32] | None:
        """See `Keys`."""
        return None if self._partitions is None else self._partitions[numbers].astype(np.int32)

    def chosen(self, numbers: Numbers) -> ObjectKeys:
        """Return the keys with these numbers, in any order, as a copy."""
        lengths = np.diff(self._bounds)[numbers]
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        data = np.empty(int(bounds[-1]), np.uint8)
        copy_runs(data, bounds[:-1], self._data, self._bounds[numbers], lengths)
        places = None if self._partitions is None else self._partitions[numbers]
        return ObjectKeys(data, bounds, self._marks[numbers], places)


class RecordContext:
    """Adds cache, key and, if it is known, partition to an error about a record.

    Args:
        cache: Name of the data set.
        partition: The partition; None if it is not known.
        batch: The records; needed if the error itself does not name the key.
        first: Number of the first record.
    """

    def __init__(
        self, cache: str, partition: int | None, batch: Batch | None = None, first: int = 0
    ) -> None:
        self._where = cache if partition is None else f"{cache}, partition {partition}"
        self._facts: dict[str, Any] = {"cache": cache}
        if partition is not None:
            self._facts["partition"] = partition
        self._batch = batch
        self._first = first

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, (SchemaError, WireError)):
            return
        record = error.fields.get("record")
        where, facts = self._where, dict(self._facts)
        if record is not None:
            facts["record"] = self._first + record
            where += f", entry {self._first + record}"
        keys = error.fields.pop("keys", None if self._batch is None else self._batch.key)
        if record is not None and keys is not None:
            facts["key"] = key = key_of(keys, record)
            where += f", key {key}"
        raise error.at(where, **facts) from error


def key_of(key: Column, record: int) -> Any:
    """Return the key of a record, for messages and for programs."""
    if isinstance(key, Struct):
        return {name: key_of(column, record) for name, column in key.fields.items()}
    if isinstance(key, Dense):
        return key.values[record].tolist()
    if not (isinstance(key, Runs) and isinstance(key.items, Dense)):
        return "?"
    text = key[record : record + 1].to_bytes()[0]
    return repr(text.decode("utf-8", "backslashreplace"))
