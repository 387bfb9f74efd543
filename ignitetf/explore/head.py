"""`head`: the first records of a data set, as plain Python values.

cache -> reader -> **records** -> people
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.explore.times import as_times, time_unit
from ignitetf.net.client import Client
from ignitetf.read.fields import KEY_AS_STORED
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Struct, runs_of
from ignitetf.wire.infer import STORED_KEY
from ignitetf.wire.schema import BYTES, Field, Schema

__all__ = [
    "batches_of",
    "class_of",
    "first_rows",
    "read_what_can_be",
    "record_at",
    "value_at",
]

_PAGE_ENTRIES = 256


def first_rows(
    client: Client,
    cache: str,
    count: int = 10,
    *,
    fields: tuple[str, ...] | None = None,
    on_left_out: Callable[[str, str], None] = lambda name, reason: None,
) -> list[dict[str, Any]]:
    """Return the first records in the order in which `IgniteDataset` reads.

    Args:
        client: The cluster.
        cache: Name of the cache or data set.
        count: Maximum number of records.
        fields: Value fields; None for all readable fields.
        on_left_out: Called with the name of each skipped field, and the reason.

    Returns:
        One mapping per record: `key`, then the fields; strings as text, blobs as `bytes`, arrays as
        NumPy arrays, times as NumPy's `datetime64` and `timedelta64`, enums by their names if the
        cluster has these, nulls as None.
    """
    options = ReadOptions(
        fields=fields, raw_nulls=True, page_size=max(1, min(count, _PAGE_ENTRIES))
    )

    def read(reader: CacheReader) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for batch in batches_of(reader):
            wanted = min(len(batch), count - len(found))
            found += [record_at(reader.schema, batch, index) for index in range(wanted)]
            if len(found) >= count:
                break
        return found

    rows, left_out = read_what_can_be(client, cache, options, read)
    for name, reason in left_out.items():
        on_left_out(name, reason)
    return rows


def batches_of(reader: CacheReader) -> Iterator[Batch]:
    """Yield the records of a cache in the order of its partitions."""
    pages = reader.batches(list(range(reader.partition_count)))
    with contextlib.closing(pages):
        for item in pages:
            if item.batch is not None:
                yield item.batch


def record_at(schema: Schema, batch: Batch, index: int) -> dict[str, Any]:
    """Return one record of a batch: `key`, then the fields, in readable form."""
    record = {} if batch.key is None else {"key": value_at(schema.key, batch.key, index)}
    for field in schema.fields:
        record[field.name] = value_at(field, batch.columns[field.name], index)
    return record


def class_of(label: Any, class_names: Sequence[str]) -> str | None:
    """Return the name of a label; None if it has none."""
    is_number = isinstance(label, int) and not isinstance(label, bool)
    return class_names[label] if is_number and 0 <= label < len(class_names) else None


def value_at(field: Field, column: Column, index: int) -> Any:
    """Return one value of a column in readable form; None for a null."""
    if column.valid is not None and not column.valid[index]:
        return None
    if isinstance(column, Struct):
        return {f.name: value_at(f, column.fields[f.name], index) for f in field.fields}
    if isinstance(column, Dense):
        return _readable(field, column.values[index])
    runs = runs_of(column)
    first, length = int(runs.starts[index]), int(runs.lengths[index])
    items = runs.items
    if field.fields or not isinstance(items, Dense):
        element = field.fields[0] if field.fields else Field(field.name, TypeCode.STRING, BYTES)
        return [value_at(element, items, i) for i in range(first, first + length)]
    run = items.values[first : first + length]
    if field.dtype != BYTES:
        return _readable(field, run)
    blob = run.tobytes()
    return blob if field.is_blob else blob.decode("utf-8", "replace")


def _readable(field: Field, value: Any) -> Any:
    """Return a number as Python's own, an enum by its name; times and arrays as NumPy's."""
    if time_unit(field) is not None:
        return as_times(field, value)
    if field.labels is not None:
        names = [field.labels.get(number, number) for number in np.ravel(value).tolist()]
        return names if value.ndim else names[0]
    return value if value.ndim else value.item()


# An unreadable field is skipped and does not hide the others

T = TypeVar("T")


def read_what_can_be(
    client: Client, cache: str, options: ReadOptions, work: Callable[[CacheReader], T]
) -> tuple[T, dict[str, str]]:
    """Return the result of `work` on a cache; retry without each field that cannot be read.

    Args:
        client: The cluster.
        cache: Name of the cache or data set.
        options: How to read it. Fields named here are required.
        work: Reads the cache; must not keep anything from an earlier attempt.

    Returns:
        Its result, and the skipped fields with the reasons.

    Raises:
        SchemaError: No field can be read, or a named field cannot.
    """
    if options.fields is not None:
        return work(CacheReader(client, cache, options)), {}
    options = replace(options, skip_unreadable=True)
    left_out: dict[str, str] = {}
    while True:
        reader = CacheReader(client, cache, options)
        left_out |= {name: error.message for name, error in reader.left_out.items()}
        try:
            return work(reader), left_out
        except SchemaError as error:
            name = error.fields.get("field")
            if name == reader.schema.key.name and reader.schema.key != STORED_KEY:
                left_out[str(name)] = error.message
                options = replace(options, schema=KEY_AS_STORED)
                continue
            if name not in reader.schema.names:
                raise
            others = [n for n in reader.schema.names if n != name]
            left_out[str(name)] = error.message
            options = replace(options, fields=others)
