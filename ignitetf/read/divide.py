"""Makes, counts and removes the splits of a data set.

names and fractions -> **divide** -> manifest -> split

Changing the splits holds the lease of the data set, so that no load changes its rows meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.net.client import Client
from ignitetf.read.fields import choose_fields
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.reading import statement_batches
from ignitetf.read.scan_order import whole_argument
from ignitetf.read.selection import find_split
from ignitetf.tables.catalog import Manifest, read_manifest, write_manifest
from ignitetf.tables.lease import Lease
from ignitetf.tables.splits import Division, balanced, can_balance, divided, fold_fractions
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.columns import Column, Dense, concat_columns

__all__ = [
    "Surveyed",
    "count_rows",
    "count_splits",
    "list_splits",
    "make_splits",
    "remove_split",
    "survey",
]

_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Surveyed:
    """Some rows of a data set.

    Attributes:
        partitions: The partition of each row, or of all rows.
        marks: Result of `wire.checksum.marks_of` for their keys.
        values: Their values of the field; None if no field was requested.
    """

    partitions: NDArray[np.int32] | int
    marks: NDArray[np.uint64]
    values: Column | None


def survey(client: Client, name: str, by: str | None, options: ReadOptions) -> Iterator[Surveyed]:
    """Yield all rows of a data set.

    If the load generated the keys and `by` is None, the keys are computed. Otherwise one SQL
    statement reads keys and field. Without a table, all partitions are scanned.

    Args:
        client: The connection.
        name: Name of the data set.
        by: Field to read; None for the keys alone.
        options: Options of reading: readers, time limits, and what to do if the data changed.

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
    """Return the rows of a data set with computed keys; None if its keys are not known."""
    count = reader.own_keys
    if count is None or reader.is_blocks:
        return None
    schema, partitions = reader.schema, reader.partition_count
    if partitions_of(schema, Dense(np.zeros(1, schema.key.dtype)), partitions) is None:
        return None

    def rows() -> Iterator[Surveyed]:
        for start in range(0, count, _CHUNK):
            keys = Dense(np.arange(start, min(start + _CHUNK, count)).astype(schema.key.dtype))
            places = partitions_of(schema, keys, partitions)
            if places is not None:
                yield Surveyed(places, marks_of(schema, keys), None)

    return rows()


def _selected(reader: CacheReader, by: str | None) -> Iterator[Surveyed] | None:
    """Return the rows of the SQL table; None unless it has all rows, and this field."""
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


def make_splits(
    client: Client,
    name: str,
    fractions: Mapping[str, Any] | None = None,
    *,
    folds: int | None = None,
    seed: int = 0,
    by: str | None = None,
    force: bool = False,
) -> list[dict[str, Any]]:
    """Divide the rows of a data set into splits, and store the splits in its manifest.

    Args:
        client: The connection.
        name: Name of the data set.
        fractions: Fraction of the rows in each split, by the name of the split. They add up to 1.
        folds: Number of folds, instead of `fractions`. Their names are `fold0`, `fold1` ...
        seed: Seed of the hash that assigns rows to splits.
        by: Field whose values to balance. Each split gets its fraction of the rows of each value,
            rounded down or up.
        force: Replace divisions that contain any of the names; all their splits are removed.

    Returns:
        See `list_splits`.

    Raises:
        ConfigError: An argument is unusable, a name is taken, or the data have no manifest.
        DataSetBusy: The data set is being loaded.
        DataChanged: Rows were added or removed meanwhile.
    """
    if (fractions is None) == (folds is None):
        raise ConfigError("splits need fractions, or a number of folds", hint="train=0.8 test=0.2")
    if fractions is None:
        fractions = fold_fractions(whole_argument("folds", folds, 2))
    new = divided(fractions, whole_argument("seed", seed, 0, (1 << 63) - 1), by)

    def change(manifest: Manifest) -> tuple[Division, ...]:
        taken = [each for each in manifest.splits if set(each.names) & set(new.names)]
        if taken and not force:
            found = next(part for part in taken[0].names if part in new.names)
            raise ConfigError(
                f"{name} has a split {found!r} already",
                hint="--force (force=True) replaces it, and those that were made with it",
                cache=name,
            )
        kept = tuple(each for each in manifest.splits if each not in taken)
        return *kept, _create_division(client, manifest, new)

    _change(client, name, change)
    return list_splits(client, name)


def count_splits(client: Client, name: str) -> list[dict[str, Any]]:
    """Count the rows of all splits again after an append, and store the numbers.

    Which split a row is in does not change. Errors and result as in `make_splits`.
    """

    def change(manifest: Manifest) -> tuple[Division, ...]:
        return tuple(_count_rows(client, manifest, each) for each in manifest.splits)

    _change(client, name, change)
    return list_splits(client, name)


def remove_split(client: Client, name: str, split: str) -> list[dict[str, Any]]:
    """Remove a split and the splits that were made with it; the rows stay.

    Returns:
        The remaining splits, as `list_splits` returns them.

    Raises:
        ConfigError: The split does not exist.
        DataSetBusy: The data set is being loaded.
    """

    def change(manifest: Manifest) -> tuple[Division, ...]:
        gone = find_split(name, manifest, split).division
        return tuple(each for each in manifest.splits if each is not gone)

    _change(client, name, change)
    return list_splits(client, name)


def list_splits(client: Client, name: str) -> list[dict[str, Any]]:
    """Return a mapping for each split: `split`, `fraction`, `rows`, `seed`, `by`.

    Counts the rows if an append, or a write by another program, has changed them since the last
    count.
    """
    manifest = _manifest(client, name)
    contents = CacheReader(client, name, ReadOptions()).contents if manifest.splits else None

    def is_counted(each: Division) -> bool:
        return (
            contents is not None
            and contents.is_as_loaded
            and each.counts(manifest.version) is not None
            and sum(map(sum, each.rows)) == contents.rows
        )

    splits = (
        each if is_counted(each) else _count_rows(client, manifest, each)
        for each in manifest.splits
    )
    return _rows_of(replace(manifest, splits=tuple(splits)))


def _change(client: Client, name: str, change: Callable[[Manifest], tuple[Division, ...]]) -> None:
    """Store the splits that `change` returns in the manifest, under the lease of the data set."""
    _manifest(client, name)
    with Lease(client, name, "split") as lease:
        manifest = _manifest(client, name)
        manifest = replace(manifest, splits=change(manifest))
        lease.check()
        write_manifest(client, manifest)


def _manifest(client: Client, name: str) -> Manifest:
    manifest = read_manifest(client, name)
    if manifest is None:
        client.require_cache(name)
        raise ConfigError(
            f"{name} has no manifest to store splits in",
            hint="load the data with 'ignitetf load'; where= selects rows of other caches",
            cache=name,
        )
    return manifest


def _create_division(client: Client, manifest: Manifest, division: Division) -> Division:
    """Return a division balanced and counted."""
    if division.by is None:
        return _count_rows(client, manifest, division)
    (field,) = choose_fields(manifest.schema, (division.by,))
    if not can_balance(field):
        raise ConfigError(
            f"{manifest.name}: a split cannot be balanced by {field.name}",
            hint="whole numbers, booleans and texts, one for each row",
        )
    rows = list(survey(client, manifest.name, division.by, ReadOptions()))
    marks = np.concatenate([*(some.marks for some in rows), np.empty(0, np.uint64)])
    columns = [some.values for some in rows if some.values is not None]
    if columns:
        division = balanced(division, division.places(marks), concat_columns(columns))
    return division.counted(
        count_rows(division, client.partition_count(manifest.cache), iter(rows)), manifest.version
    )


def _count_rows(client: Client, manifest: Manifest, division: Division) -> Division:
    rows = survey(client, manifest.name, division.by, ReadOptions())
    counts = count_rows(division, client.partition_count(manifest.cache), rows)
    return division.counted(counts, manifest.version)


def _rows_of(manifest: Manifest) -> list[dict[str, Any]]:
    return [
        {
            "split": part,
            "fraction": round(float(fraction), 9),
            "rows": sum(rows),
            "seed": division.seed,
            "by": division.by,
        }
        for division in manifest.splits
        for part, fraction, rows in zip(
            division.names, division.fractions, division.rows, strict=True
        )
    ]
