"""`split=`: which rows of a page, or which keys, belong to the split that is read.

manifest -> **splits** -> reader, key scan, state
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError
from ignitetf.tables.catalog import Manifest
from ignitetf.tables.splits import ALL_BUT, Division
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.schema import Batch, Column, Field, Schema

__all__ = ["Split", "find_split"]


@dataclass(frozen=True)
class Split:
    """The rows of one part of a division, or of all its others.

    Attributes:
        name: What was asked for, as `train` or `-fold0`.
        division: The parts.
        number: The number of the part.
        all_but: Whether its rows are left out rather than read.
        by: The field that the division is balanced by.
        counts: Rows in each partition; empty if they were not counted since the data changed.
    """

    name: str
    division: Division
    number: int
    all_but: bool
    by: Field | None
    counts: tuple[int, ...]

    @property
    def identity(self) -> str:
        """Name and checksum of the definition, for a state."""
        return f"{self.name}:{self.division.digest}"

    def has(self, marks: NDArray[np.uint64], values: Column | None) -> NDArray[np.bool_]:
        """Return for each row whether it belongs to the split.

        Args:
            marks: `wire.checksum.marks_of` the keys.
            values: The values of the field `by`.
        """
        parts = self.division.parts(self.division.places(marks), values)
        has: NDArray[np.bool_] = parts == self.number
        return ~has if self.all_but else has

    def scanned(self, schema: Schema) -> Schema:
        """Return the schema with the field that decides, which `rows_of` needs."""
        if self.by is None or self.by.name in schema.names:
            return schema
        return replace(schema, fields=(*schema.fields, self.by))

    def rows_of(self, schema: Schema, batch: Batch) -> Batch:
        """Return the rows of a batch that belong to the split, with the fields of the schema."""
        if batch.key is None:
            raise ConfigError("rows without keys cannot be split")
        values = None if self.by is None else batch.columns[self.by.name]
        rows = np.flatnonzero(self.has(marks_of(schema, batch.key), values))
        batch = Batch(batch.key, {f.name: batch.columns[f.name] for f in schema.fields})
        return batch if len(rows) == len(batch) else batch[rows]

    def counts_in(self, rows: NDArray[np.int64]) -> tuple[int, ...]:
        """Return the rows in each partition, from those of all parts, int64 [parts, p]."""
        own = rows[self.number]
        return tuple((rows.sum(axis=0) - own if self.all_but else own).tolist())


def find_split(cache: str, manifest: Manifest | None, name: Any) -> Split:
    """Return the split of this name.

    Args:
        cache: Name of the data set.
        manifest: Its manifest.
        name: As `train`; `-train` for all rows but those.

    Raises:
        ConfigError: There is none.
    """
    if not isinstance(name, str):
        raise ConfigError(f"split={name!r}", hint="the name of a split, as 'train' or '-fold0'")
    if manifest is None:
        raise ConfigError(
            f"{cache}: split={name!r}, but splits are kept in the manifest, which only data loaded"
            " by ignitetf have",
            hint="where= selects rows of other caches",
            cache=cache,
        )
    part = name.removeprefix(ALL_BUT)
    for division in manifest.splits:
        if part in division.names:
            return _split(manifest, name, division, division.names.index(part))
    known = [each for division in manifest.splits for each in division.names]
    near = difflib.get_close_matches(part, known, 1)
    hint = f"the splits are {', '.join(known)}"
    if not known:
        hint = f"'ignitetf split {cache} train=0.8 test=0.2' makes splits"
    elif near:
        hint = f"did you mean {name[: len(name) - len(part)]}{near[0]}?"
    raise ConfigError(f"{cache} has no split {part!r}", hint=hint, cache=cache)


def _split(manifest: Manifest, name: str, division: Division, number: int) -> Split:
    field = next((f for f in manifest.schema.fields if f.name == division.by), None)
    split = Split(name, division, number, name.startswith(ALL_BUT), field, ())
    counts = division.counts(manifest.version)
    if counts is None:
        return split
    return replace(split, counts=split.counts_in(np.array(counts, np.int64)))
