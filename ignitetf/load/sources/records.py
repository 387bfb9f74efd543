"""Records that are already in Python: arrays by name, dicts one by one, or column batches.

arrays or iterable -> **schema, batches** -> Batch

Whatever is re-iterable (a list, a class with `__iter__`, a function that returns an iterator)
can be read again and resumed; a bare generator can be read once.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, IgniteTFError, SchemaError, SourceError
from ignitetf.load.sources.base import (
    RUNNING_KEY,
    OnBadRecord,
    Source,
    check_record_size,
    keys_of,
    rows_per_batch,
)
from ignitetf.load.sources.places import digest, one_line
from ignitetf.load.sources.values import column_of, field_of, strings_column, unfit
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import BYTES, Batch, Column, Field, Schema, field_for

__all__ = ["ArraySource", "RecordSource", "array_column", "array_field", "key_field_of", "records"]

_SAMPLE = 100  # records from which types and shapes are inferred
_FEED = 1024  # records that are converted at a time
_HASH_PIECES = 64
_PIECE_BYTES = 1 << 20
_INTEGERS = (TypeCode.BYTE, TypeCode.SHORT, TypeCode.INT, TypeCode.LONG)


class ArraySource(Source):
    """Arrays by name, all of one length: the first dimension is the record.

    Numbers keep dtype and shape; texts become STRING, `bytes` objects blobs. Arrays are not
    copied as a whole, so memory maps stay on disk.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        *,
        type_name: str = "Record",
        class_names: list[str] | None = None,
        key: str | None = None,
        bad_records: OnBadRecord = "fail",
    ) -> None:
        """Check the lengths, and take the column `key`, where given, as the key."""
        super().__init__(bad_records=bad_records)
        self.arrays = {name.upper(): np.asanyarray(array) for name, array in arrays.items()}
        self.class_names = class_names
        self.rows = self._common_length()
        fields = {name: array_field(name, array) for name, array in self.arrays.items()}
        self._field_of = dict(fields)
        self.key_name = None if key is None else key.upper()
        key_field = key_field_of(self.key_name, fields)
        self.schema = Schema(type_name, key_field, tuple(fields.values()))
        self.schema.check_identifiers()

    def _common_length(self) -> int:
        if not self.arrays or any(a.ndim == 0 for a in self.arrays.values()):
            raise SourceError(
                "no arrays, or one without a first dimension",
                hint="give a mapping of names to arrays whose first dimension is the record",
            )
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {n:,}" for name, n in lengths.items())
            raise SourceError(
                f"arrays of different length: {told}",
                hint="all must have one entry a record; leave others out",
            )
        return next(iter(lengths.values()))

    def fingerprint(self) -> str:
        """From names, shapes and content; of large arrays 64 pieces of 1 MiB are read."""
        parts = [
            (name, a.shape, a.dtype.str, _content(a)) for name, a in sorted(self.arrays.items())
        ]
        return digest("arrays", self.key_name, *parts)

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        total = self.rows or 0
        record = sum(a.nbytes for a in self.arrays.values()) // max(1, total)
        rows = rows_per_batch(record, max_bytes)
        for first in range(start, total, rows):
            last = min(first + rows, total)
            columns = {
                name: self._column(name, array[first:last], first)
                for name, array in self.arrays.items()
            }
            yield last, Batch(take_key(columns, self.key_name, first, last), columns)

    def _column(self, name: str, values: NDArray[Any], first: int) -> Column:
        return array_column(self._field_of[name], values, f"array {name}, records from {first}")


def _content(array: NDArray[Any]) -> str:
    if array.dtype.kind == "O":
        return digest(*array[:: max(1, len(array) // 4096)].ravel().tolist())
    rows = max(1, _PIECE_BYTES // max(1, array.nbytes // max(1, len(array))))
    starts = range(0, len(array), rows)
    if len(starts) > _HASH_PIECES:
        starts = range(0, len(array), -(-len(array) // _HASH_PIECES))
    return digest(*(digest(array[s : s + rows].tobytes().hex()) for s in starts))


def array_field(name: str, array: NDArray[Any]) -> Field:
    """The field of an array whose first dimension is the record."""
    kind = array.dtype.kind
    if kind == "O":
        return field_of(name, array[:_SAMPLE].tolist())
    if kind == "M":
        return Field(name, TypeCode.TIMESTAMP, np.dtype(np.int64))
    if kind == "S":
        return Field(name, TypeCode.BYTE_ARRAY, BYTES)
    if array.dtype == np.float16:
        return field_for(name, np.dtype(np.float32), array.shape[1:])
    check_record_size(f"array {name}", array.dtype.itemsize * int(np.prod(array.shape[1:])))
    return field_for(name, array.dtype, array.shape[1:])


def array_column(field: Field, values: NDArray[Any], name: str) -> Column:
    """The column of an array `[n, *shape]` that `array_field` described."""
    kind = values.dtype.kind
    try:
        if kind == "O":
            return column_of(field, values.tolist())
        if kind == "M":
            return _timestamps(values)
        if kind in "US" and field.shape:
            return strings_column(field, values.reshape(len(values), -1).tolist())
        if kind == "U":
            return Column.from_bytes([text.encode() for text in values.tolist()])
        if kind == "S":
            return Column.from_bytes(values.tolist())
    except (SchemaError, ValueError, TypeError, OverflowError) as error:
        raise SourceError(f"{name}: {one_line(error)}") from error
    return Column(values.astype(field.dtype, copy=False))


def _timestamps(values: NDArray[Any]) -> Column:
    """Nanoseconds since the epoch; NaT is refused, as the field is not nullable."""
    if np.isnat(values).any():
        raise SchemaError("NaT (not a time)")
    wide = values.astype("datetime64[ns]")
    if not np.array_equal(wide.astype(values.dtype), values):
        raise SchemaError("a time that nanoseconds since 1970 cannot count")
    return Column(wide.astype(np.int64))


def key_field_of(name: str | None, fields: dict[str, Field]) -> Field:
    """Take a column out of the fields as the key: integers become LONG, texts STRING.

    Args:
        name: The column; None for the running key, which takes none out.
        fields: The fields by name.

    Raises:
        ConfigError: No such column, its values cannot be keys, or nothing else is left.
    """
    if name is None:
        return RUNNING_KEY
    field = fields.pop(name, None)
    if field is None:
        raise ConfigError(
            f"no column {name!r} to be the key", hint=f"columns: {', '.join(sorted(fields))}"
        )
    if not fields:
        raise ConfigError(f"no column is left beside the key {name!r}")
    if field.type in _INTEGERS and field.dtype.kind in "iu":
        return RUNNING_KEY
    if field.type == TypeCode.STRING:
        return Field("key", TypeCode.STRING, BYTES)
    raise ConfigError(
        f"column {name!r} of type {field.type.name} cannot be the key",
        hint="keys are integers or strings; leave --key out for a running number",
    )


def take_key(columns: dict[str, Column], name: str | None, first: int, last: int) -> Column:
    """The keys of the records from `first` up to `last`, taken out of the columns."""
    if name is None:
        return keys_of(np.arange(first, last))
    key = columns.pop(name)
    if key.starts is not None or not isinstance(key.values, np.ndarray):
        return key
    if key.values.dtype == np.uint64 and len(key) and key.values.max() > np.iinfo(np.int64).max:
        raise SourceError(f"a key in records {first} to {last - 1} does not fit into a long")
    return Column(key.values.astype(np.int64), valid=key.valid)


class RecordSource(Source):
    """An iterable of dicts (one a record) or of `Batch` (columns of many records).

    Types and shapes come from the first 100 records unless a schema is given. A dict that does
    not fit later is a bad record.
    """

    def __init__(
        self,
        items: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        schema: Schema | None = None,
        type_name: str = "Record",
        class_names: list[str] | None = None,
        key: str | None = None,
        rows: int | None = None,
        fingerprint: str | None = None,
        bad_records: OnBadRecord = "fail",
    ) -> None:
        """Look at the first records, which a re-iterable source yields again."""
        super().__init__(bad_records=bad_records)
        self._items = items
        self._fingerprint = fingerprint
        self.class_names = class_names
        self.rows = rows if rows is not None else _known_length(items)
        self.key_name = None if key is None else key.upper()
        self._once: Iterator[Any] | None = None
        self.sample = self._take_sample()
        if self.sample and isinstance(self.sample[0], Batch):
            self.rows = rows
        self.schema = schema or self._infer(type_name)
        self.schema.check_identifiers()

    def _iterate(self) -> Iterator[Any]:
        items = self._items() if callable(self._items) else self._items
        return iter(items)

    def _take_sample(self) -> list[Any]:
        try:
            iterator = self._iterate()
            sample = list(itertools.islice(iterator, _SAMPLE))
        except IgniteTFError:
            raise
        except Exception as error:
            raise SourceError(f"the records cannot be read: {one_line(error)}") from error
        if not callable(self._items) and iterator is self._items:
            self._once = itertools.chain(sample, iterator)
        return sample

    def _infer(self, type_name: str) -> Schema:
        if not self.sample:
            raise SourceError("no records", hint="give a schema to load an empty source")
        if any(isinstance(item, Batch) for item in self.sample):
            raise ConfigError(
                "column batches need a schema", hint="records(batches, schema=Schema(...))"
            )
        names: dict[str, None] = {}
        for number, item in enumerate(self.sample):
            if not isinstance(item, Mapping):
                raise SourceError(
                    f"record {number} is {type(item).__name__}, expected a dict",
                    hint="yield {name: value, ...}, or Batch with a schema",
                )
            names.update(dict.fromkeys(map(str, item)))
        upper = {name: name.upper() for name in names}
        fields = {
            upper[name]: field_of(upper[name], [item.get(name) for item in self.sample])
            for name in names
        }
        key = key_field_of(self.key_name, fields)
        return Schema(type_name, key, tuple(fields.values()))

    def fingerprint(self) -> str:
        """As given; else from the schema, the number of records and the first hundred."""
        if self._fingerprint is not None:
            return digest("records", self._fingerprint)
        head = [_shape_of(item) for item in self.sample]
        return digest("records", json.dumps(self.schema.to_json()), self.rows, *head)

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        if self._once is not None:
            iterator, self._once = self._once, iter(())
            self._items = _spent
        else:
            iterator = self._iterate()
        return self._guarded(iterator, start, max_bytes)

    def _guarded(
        self, iterator: Iterator[Any], start: int, max_bytes: int
    ) -> Iterator[tuple[int, Batch]]:
        number = 0
        buffer: list[Any] = []
        size = 0
        for item in self._pull(iterator):
            if isinstance(item, Batch):
                yield from self._cut(item, number, start, max_bytes)
                number += len(item)
                continue
            number += 1
            if number <= start:
                continue
            buffer.append(item)
            size += _size_of(item)
            if size >= max_bytes or len(buffer) >= _FEED:
                yield number, self._convert(buffer, number - len(buffer))
                buffer, size = [], 0
        if buffer:
            yield number, self._convert(buffer, number - len(buffer))

    def _pull(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """The items; what their producer raises becomes a SourceError."""
        number = 0
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                return
            except IgniteTFError:
                raise
            except Exception as error:
                raise SourceError(
                    f"the iterable failed after {number:,} items: {type(error).__name__}: "
                    f"{one_line(error)}"
                ) from error
            number += 1
            yield item

    def _cut(
        self, batch: Batch, number: int, start: int, max_bytes: int
    ) -> Iterator[tuple[int, Batch]]:
        """A column batch without records before `start`, in pieces of about `max_bytes`."""
        if missing := [n for n in self.schema.names if n not in batch.columns]:
            raise SourceError(f"a batch lacks the column {missing[0]!r}")
        if uneven := [n for n, c in batch.columns.items() if len(c) != len(batch)]:
            raise SourceError(f"column {uneven[0]!r} of a batch has another length than the rest")
        if batch.key is None:
            batch = Batch(keys_of(np.arange(number, number + len(batch))), batch.columns)
        count = len(batch)
        rows = rows_per_batch(batch.nbytes // max(1, count), max_bytes)
        for first in range(max(0, start - number), count, rows):
            last = min(first + rows, count)
            yield number + last, batch[first:last]

    def _convert(self, items: list[Any], first: int) -> Batch:
        """Dicts to columns; the fast way for all, one by one only where a record is bad."""
        try:
            return self._columns(items, list(range(first, first + len(items))))
        except (SchemaError, ValueError, TypeError, OverflowError, ArithmeticError):
            pass
        numbers, good = [], []
        for number, item in enumerate(items, first):
            if (reason := self._reason(item)) is not None:
                self.bad(f"record {number}", reason)
            else:
                numbers.append(number)
                good.append(item)
        return self._columns(good, numbers)

    def _columns(self, items: list[Any], numbers: list[int]) -> Batch:
        if items and not all(isinstance(item, Mapping) for item in items):
            raise SchemaError("not a dict")
        upper = [{str(name).upper(): value for name, value in item.items()} for item in items]
        columns = {
            f.name: column_of(f, [item.get(f.name.upper()) for item in upper])
            for f in self.schema.fields
        }
        key = keys_of(numbers)
        if (name := self.key_name) is not None:
            key = column_of(self.schema.key, [item.get(name) for item in upper])
        return Batch(key, columns)

    def _reason(self, item: Any) -> str | None:
        if not isinstance(item, Mapping):
            return f"{type(item).__name__}, expected a dict"
        upper = {str(name).upper(): value for name, value in item.items()}
        for field in self.schema.fields:
            if (reason := unfit(field, upper.get(field.name.upper()))) is not None:
                return reason
        if self.key_name is not None:
            return unfit(self.schema.key, upper.get(self.key_name))
        return None


def _spent() -> Iterator[Any]:
    raise SourceError(
        "the iterator was read already",
        hint="give a list, or a function that returns a new iterator each time",
    )


def _known_length(items: object) -> int | None:
    try:
        return len(items)  # type: ignore[arg-type]
    except TypeError:
        return None


def _size_of(item: Any) -> int:
    """About the bytes of a dict's values."""
    if not isinstance(item, Mapping):
        return 0
    total = 0
    for value in item.values():
        nbytes = getattr(value, "nbytes", None)
        if nbytes is None:
            nbytes = len(value) if isinstance(value, (str, bytes, bytearray)) else 8
            if isinstance(value, (list, tuple)):
                nbytes = 8 * len(value)
        total += int(nbytes)
    return total


def _shape_of(item: Any) -> str:
    if isinstance(item, Batch):
        return f"batch {len(item)} {item.nbytes}"
    if isinstance(item, Mapping):
        return repr(sorted((str(k), _text(v)) for k, v in item.items()))
    return type(item).__name__


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return digest(value.shape, value.dtype.str, value.tobytes().hex())
    return digest(repr(value))


def records(
    location: Any,
    schema: Schema | None = None,
    key: str | None = None,
    type_name: str = "Record",
    class_names: list[str] | None = None,
    rows: int | None = None,
    fingerprint: str | None = None,
    bad_records: OnBadRecord = "fail",
) -> Source:
    """A source of records that are in Python.

    Args:
        location: A mapping of names to arrays (one entry a record each), an iterable of dicts
            or of `Batch`, or a function without arguments that returns such an iterable.
        schema: Declared types; needed for `Batch` and for an empty source.
        key: The field that is the key; else a running number.
        type_name: Name of the binary type.
        class_names: Names of the values of LABEL.
        rows: Number of records, for the progress bar, where `len` does not tell it.
        fingerprint: A text that changes when the data change; else one is made of the first
            records.
        bad_records: "fail" or "skip".
    """
    if isinstance(location, Mapping):
        if schema is not None or rows is not None or fingerprint is not None:
            raise ConfigError("arrays by name tell schema, rows and fingerprint themselves")
        return ArraySource(
            location, type_name=type_name, class_names=class_names, key=key, bad_records=bad_records
        )
    if isinstance(location, (str, bytes)) or not (
        callable(location) or hasattr(location, "__iter__")
    ):
        raise ConfigError(
            f"{type(location).__name__} is no iterable of records",
            hint="give arrays by name, an iterable of dicts, or of Batch with a schema",
        )
    return RecordSource(
        location,
        schema=schema,
        type_name=type_name,
        class_names=class_names,
        key=key,
        rows=rows,
        fingerprint=fingerprint,
        bad_records=bad_records,
    )
