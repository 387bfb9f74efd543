"""Reads what decides the split of each row of a data set: its key, one field, and its partition.

reader -> **survey** -> split counts, balanced splits, keys of a balanced split
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.net.client import Client
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.reading import statement_batches
from ignitetf.tables.splits import Division
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.schema import Column

__all__ = ["Surveyed", "count_rows", "survey"]

_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Surveyed:
    """Some rows of a data set.

    Attributes:
        partitions: The partition of each, or of all.
        marks: `wire.checksum.marks_of` their keys.
        values: Their values of the field; None if none was asked for.
    """

    partitions: NDArray[np.int32] | int
    marks: NDArray[np.uint64]
    values: Column | None


def survey(client: Client, name: str, by: str | None, options: ReadOptions) -> Iterator[Surveyed]:
    """Yield all rows of a data set.

    Where the load gave out keys and `by` is None, they are computed. Else one SQL statement reads
    keys and field, and where there is no table, all partitions are scanned.

    Args:
        client: The connection.
        name: Name of the data set.
        by: Field to read; None for the keys alone.
        options: How to read: readers, time limits, and what to do if the data changed.

    Raises:
        DataChanged: Rows were added or removed since it was opened.
    """
    whole = ReadOptions(
        fields=None if by is None else (by,),
        raw_nulls=True,
        readers=options.readers,
        retry_s=options.retry_s,
        on_change=options.on_change,
    )
    reader = CacheReader(client, name, whole)
    found = _computed(reader) if by is None else None
    found = _selected(reader, by) if found is None else found
    yield from _scanned(reader, by) if found is None else found


def _computed(reader: CacheReader) -> Iterator[Surveyed] | None:
    """Return the rows of a data set whose keys are known, if they are."""
    count = reader.own_keys
    if count is None or reader.is_blocks:
        return None
    schema, partitions = reader.schema, reader.partition_count
    if partitions_of(schema, Column(np.zeros(1, schema.key.dtype)), partitions) is None:
        return None

    def rows() -> Iterator[Surveyed]:
        for start in range(0, count, _CHUNK):
            keys = Column(np.arange(start, min(start + _CHUNK, count)).astype(schema.key.dtype))
            places = partitions_of(schema, keys, partitions)
            if places is not None:
                yield Surveyed(places, marks_of(schema, keys), None)

    return rows()


def _selected(reader: CacheReader, by: str | None) -> Iterator[Surveyed] | None:
    """Return the rows that a SQL table shows, if it shows all of them with this field."""
    if reader.is_blocks or (table := reader.whole_table()) is None:
        return None
    columns = [] if by is None else [n for n in (by, by.upper()) if n in table.table.columns]
    if by is not None and not columns:
        return None
    found: list[Surveyed] = []
    field = (reader.schema.fields[0], columns[0]) if columns else None
    for anew, batch in statement_batches(reader, table, reader.schema.key, field):
        if anew:
            found = []
        assert batch.key is not None
        places = partitions_of(reader.schema, batch.key, reader.partition_count)
        if places is None:
            return None
        values = None if field is None else batch.columns[field[0].name]
        found.append(Surveyed(places, marks_of(reader.schema, batch.key), values))
    rows = sum(len(some.marks) for some in found)
    reader.changes.check_size(reader.contents.rows, rows, "when it was opened")
    return iter(found)


def _scanned(reader: CacheReader, by: str | None) -> Iterator[Surveyed]:
    every = list(range(reader.partition_count))
    with contextlib.closing(reader.batches(every)) as batches:
        for item in batches:
            if item.batch is None:
                continue
            if item.batch.key is None:
                raise ConfigError(f"{reader.name}: rows without keys cannot be split")
            values = None if by is None else item.batch.columns[by]
            yield Surveyed(every[item.unit], marks_of(reader.schema, item.batch.key), values)


def count_rows(division: Division, partitions: int, rows: Iterator[Surveyed]) -> NDArray[np.int64]:
    """Return the rows of each part in each partition, int64 [parts, partitions]."""
    counts = np.zeros((len(division.names), partitions), np.int64)
    for some in rows:
        parts = division.parts(division.places(some.marks), some.values)
        flat = parts * partitions + some.partitions
        counts += np.bincount(flat, minlength=counts.size).reshape(counts.shape)
    return counts
