"""`head`: the first records of a data set, as plain Python values.

cache -> reader -> **records** -> people
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ignitetf.errors import SchemaError
from ignitetf.net.client import Client
from ignitetf.read.fields import KEY_AS_STORED
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.records import batches_of, record_at
from ignitetf.wire.infer import STORED_KEY

__all__ = [
    "class_of",
    "first_rows",
    "read_readable_fields",
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

    rows, left_out = read_readable_fields(client, cache, options, read)
    for name, reason in left_out.items():
        on_left_out(name, reason)
    return rows


def class_of(label: Any, class_names: Sequence[str]) -> str | None:
    """Return the name of a label; None if it has none."""
    is_number = isinstance(label, int) and not isinstance(label, bool)
    return class_names[label] if is_number and 0 <= label < len(class_names) else None


# An unreadable field is skipped and does not hide the others

T = TypeVar("T")


def read_readable_fields(
    client: Client, cache: str, options: ReadOptions, work: Callable[[CacheReader], T]
) -> tuple[T, dict[str, str]]:
    """Return the result of `work` on a cache; retry without each field that cannot be read.

    Args:
        client: The cluster.
        cache: Name of the cache or data set.
        options: Options of reading. Fields named here are required.
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
