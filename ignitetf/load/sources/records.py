"""Records that are Python objects: arrays by name, dicts one by one, or column batches.

arrays or iterable -> **schema, batches** -> Batch

A re-iterable object (a list, a class with `__iter__`, a function that returns an iterator) can be
read again and resumed; a plain generator can only be read once.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ignitetf.errors import ConfigError, IgniteTFError, SchemaError, SourceError
from ignitetf.load.sources.arrays import ArraySource, key_field_of
from ignitetf.load.sources.base import (
    SAMPLE_BYTES,
    BadRecord,
    Source,
    keys_of,
    rows_per_batch,
)
from ignitetf.load.sources.location import digest, one_line
from ignitetf.load.sources.recordbatches import StreamSource, arrow_columns
from ignitetf.load.sources.values import UNFIT, column_of, field_of, kinds_of, names_of
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch, Column
from ignitetf.wire.schema import Field, Schema

__all__ = ["RecordSource", "records"]

_SAMPLE = 100  # records from which types and shapes are inferred
_MIN_SAMPLE = 2
_FEED = 1024  # records converted at a time
_DOUBLES = {float, np.dtype(np.float64)}


class RecordSource(Source):
    """An iterable of dicts (one per record) or of `Batch` (columns of many records).

    A `BadRecord` among them represents a record that its producer could not read.

    Types and shapes are inferred from the first 100 records unless a schema is given. A later dict
    that does not fit, or has a new name, is a bad record; with a given schema, other names are
    ignored.
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
        """Read the first records; a re-iterable source yields them again later."""
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
        self._declared = schema is not None
        self.schema = schema or self._infer(type_name)
        self._known = {*map(str.upper, self.schema.names), *filter(None, [self.key_name])}
        self.schema.check_identifiers()
        # The names of the last good record, in their original spelling and in upper case.
        self._keys: tuple[tuple[Any, ...], tuple[str, ...]] = ((), ())

    def _iterate(self) -> Iterator[Any]:
        items = self._items() if callable(self._items) else self._items
        return iter(items)

    def _take_sample(self) -> list[Any]:
        try:
            iterator = self._iterate()
            sample, size = list(itertools.islice(iterator, 1)), 0
            # One batch is enough; a hundred batches would need too much memory.
            while sample and not isinstance(sample[0], Batch) and len(sample) < _SAMPLE:
                size += _size_of(sample[-1])
                if size >= SAMPLE_BYTES and len(sample) >= _MIN_SAMPLE:
                    break
                if not (more := list(itertools.islice(iterator, 1))):
                    break
                sample += more
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
        rows = []
        for number, item in enumerate(self.sample):
            if isinstance(item, BadRecord):
                self.bad(item.name, item.reason)
                continue
            if not isinstance(item, Mapping):
                raise SourceError(
                    f"record {number} is {type(item).__name__}, expected a dict",
                    hint="yield {name: value, ...}, or Batch with a schema",
                )
            try:
                rows.append(names_of(item))
            except SchemaError as error:
                raise SourceError(f"record {number}: {error.message}", hint=error.hint) from error
        if not rows:
            first = self.skipped[0]
            raise SourceError(
                f"none of the first {len(self.sample)} records can be read; {first.name}:"
                f" {first.reason}"
            )
        names = dict.fromkeys(name for row in rows for name in row)
        fields = {name: field_of(name, [row.get(name) for row in rows]) for name in names}
        key = key_field_of(self.key_name, fields)
        return Schema(type_name, key, tuple(fields.values()))

    def fingerprint(self) -> str:
        """The given text, or one made from schema, number of records and the first hundred."""
        if self._fingerprint is not None:
            return digest("records", self._fingerprint)
        head = [_shape_of(item) for item in self.sample]
        return digest("records", json.dumps(self.schema.to_json()), self.rows, *head)

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        if self._once is not None:
            iterator, self._once = self._once, None
            self._items = _refuse_second_read
        else:
            iterator = self._iterate()
        return self._closed(iterator, start, max_bytes)

    def _closed(
        self, iterator: Iterator[Any], start: int, max_bytes: int
    ) -> Iterator[tuple[int, Batch]]:
        """Yield the batches; closes an iterator of our own, whose threads may read ahead."""
        try:
            yield from self._guarded(iterator, start, max_bytes)
        finally:
            if callable(self._items) and isinstance(iterator, Generator):
                iterator.close()

    def _guarded(
        self, iterator: Iterator[Any], start: int, max_bytes: int
    ) -> Iterator[tuple[int, Batch]]:
        number = 0
        buffer: list[Any] = []
        size = 0
        for item in self._pull(iterator):
            if isinstance(item, Batch):
                if buffer:  # bad records between batches
                    yield number, self._convert(buffer, number - len(buffer))
                    buffer, size = [], 0
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
        self.rows = number

    def _pull(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Yield the items; any exception of their producer becomes a SourceError."""
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
        """Yield pieces of about `max_bytes` of a column batch, without records before `start`."""
        if missing := [n for n in self.schema.names if n not in batch.columns]:
            raise SourceError(f"a batch lacks the column {missing[0]!r}")
        if uneven := [n for n, c in batch.columns.items() if len(c) != len(batch)]:
            raise SourceError(
                f"column {uneven[0]!r} of a batch differs in length from the other columns"
            )
        if batch.key is None:
            batch = Batch(keys_of(np.arange(number, number + len(batch))), batch.columns)
        count = len(batch)
        rows = rows_per_batch(batch.nbytes // max(1, count), max_bytes)
        for first in range(max(0, start - number), count, rows):
            last = min(first + rows, count)
            yield number + last, batch[first:last]

    def _convert(self, items: list[Any], first: int) -> Batch:
        """Convert dicts to columns: all at once, and one by one only if a record is bad."""
        try:
            return self._columns(items, list(range(first, first + len(items))))
        except UNFIT:
            pass
        numbers, good = [], []
        for number, item in enumerate(items, first):
            if isinstance(item, BadRecord):
                self.bad(item.name, item.reason)
            elif (error := self._unfit(item)) is not None:
                reason = one_line(error)
                self.bad(self._row(number), reason, hint=getattr(error, "hint", None))
            else:
                numbers.append(number)
                good.append(item)
        return self._columns(good, numbers)

    def _row(self, number: int) -> str:
        """Return the name of a record for messages."""
        return f"record {number}"

    def _columns(self, items: list[Any], numbers: list[int]) -> Batch:
        for item in items:
            if not isinstance(item, Mapping):
                raise SchemaError(f"{type(item).__name__}, expected a dict")
        rows = [self._named(item) for item in items]
        columns = {f.name: self._column(f, f.name, rows) for f in self.schema.fields}
        key = keys_of(numbers)
        if self.key_name is not None:
            key = self._column(self.schema.key, self.key_name, rows)
        return Batch(key, columns)

    def _named(self, item: Mapping[Any, Any]) -> dict[str, Any]:
        """Return the values of a dict by upper-case name; an unknown name is an error."""
        keys = tuple(item)
        if keys == self._keys[0]:  # nearly all records have the names of the previous one
            return dict(zip(self._keys[1], item.values(), strict=True))
        row = names_of(item)
        if not self._declared and not row.keys() <= self._known:
            unknown = next(n for n in item if str(n).upper() not in self._known)
            raise SchemaError(
                f"field {str(unknown)!r} is in none of the first {len(self.sample)} records",
                hint="add it to one of them (None is enough), or declare all fields with schema=",
            )
        self._keys = keys, tuple(row)
        return row

    def _column(self, field: Field, name: str, rows: list[dict[str, Any]]) -> Column:
        values = [row.get(name.upper()) for row in rows]
        try:
            if not self._declared and field.dtype == np.float32 and _DOUBLES & kinds_of(values):
                raise SchemaError("float64, but the first records have float32")
            return column_of(field, values)
        except UNFIT as error:
            hint = getattr(error, "hint", None)
            raise SchemaError(f"field {name}: {one_line(error)}", hint=hint) from error

    def _unfit(self, item: Any) -> Exception | None:
        """Return the reason why a record is bad; None if it is good."""
        try:
            self._columns([item], [0])
        except UNFIT as error:
            return error
        return None


def _refuse_second_read() -> Iterator[Any]:
    raise SourceError(
        "the iterator was already read",
        hint="give a list, or a function that returns a new iterator each time",
    )


def _known_length(items: object) -> int | None:
    try:
        return len(items)  # type: ignore[arg-type]
    except TypeError:
        return None


def _size_of(item: Any) -> int:
    """Return the approximate bytes of a dict's values."""
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
        return digest(value.shape, value.dtype.str, value.tobytes())
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
    """Open records that are Python objects.

    Args:
        location: A mapping of names to arrays (one entry per record each), an iterable of dicts or
            of `Batch`, or a function without arguments that returns such an iterable.
        schema: Declared types; required for `Batch` and for an empty source.
        key: The field to use as the key; otherwise a running number.
        type_name: Name of the binary type.
        class_names: Names of the values of LABEL.
        rows: Number of records, for the progress bar, if `len` is not available.
        fingerprint: A text that changes when the data change; otherwise made from the first
            records.
        bad_records: "fail" or "skip".
    """
    if isinstance(location, Mapping):
        if schema is not None or rows is not None or fingerprint is not None:
            raise ConfigError(
                "arrays by name take no schema, rows or fingerprint: those follow from the arrays"
            )
        if (table := arrow_columns(location)) is not None:
            found = StreamSource(table, key=key, bad_records=bad_records)
            found.schema = replace(found.schema, type_name=type_name)
            found.class_names = class_names
            return found
        return ArraySource(
            location, type_name=type_name, class_names=class_names, key=key, bad_records=bad_records
        )
    if isinstance(location, (str, bytes)) or not (
        callable(location) or hasattr(location, "__iter__")
    ):
        raise ConfigError(
            f"{type(location).__name__} is not an iterable of records",
            hint="give its result: .collect()"
            if hasattr(location, "collect")
            else "give arrays by name, an iterable of dicts, or of Batch with a schema",
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
