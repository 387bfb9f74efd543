"""The common part of CSV and Parquet files: columns by name, one of which may be the key.

Columns are named after their headings, in upper case, and must be SQL identifiers.
Options choose which are loaded, and rename them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.arrays import key_field_of, take_key
from ignitetf.load.sources.base import Source, keys_of, rows_per_batch, type_name
from ignitetf.load.sources.location import Place
from ignitetf.spelling import did_you_mean
from ignitetf.wire.columns import Batch, Column
from ignitetf.wire.schema import Field, Schema

__all__ = ["Table", "chosen_columns"]


class Table(Source):
    """A source whose records are rows of a file with named columns."""

    place: Place

    def _take_fields(self, fields: list[Field], key: str | None) -> None:
        """Set the schema; `self._columns` are all fields in the order of the file."""
        if not fields:
            raise SourceError(f"{self.place.name}: no columns", hint="give a table with columns")
        names = [f.name for f in fields]
        if twice := sorted(n for n, count in Counter(names).items() if count > 1):
            raise SourceError(
                f"{self.place.name}: two columns are called {twice[0]!r}",
                hint="rename one; capitals and small letters count as equal",
            )
        self._columns = fields
        self.key_name = None if key is None else key.upper()
        key_field = key_field_of(self.key_name, by_name := {f.name: f for f in fields})
        self.schema = Schema(type_name(self.place.stem), key_field, tuple(by_name.values()))
        try:
            Schema(None, key_field, tuple(fields)).check_identifiers()
        except ConfigError as error:
            hint = self._heading_hint(names) or error.hint
            raise SourceError(f"{self.place.name}: {error.message}", hint=hint) from error

    def _heading_hint(self, names: list[str]) -> str | None:
        """Return the hint for a heading that cannot be a column; None for the usual hint."""

    def _batches_of(
        self, columns: dict[str, Column], numbers: NDArray[np.int64], max_bytes: int
    ) -> Iterator[tuple[int, Batch]]:
        """Yield the columns of records with these numbers, in batches of about `max_bytes`."""
        if self.key_name is None:
            key = keys_of(numbers)
        else:
            numbers, columns = self._without_null_keys(columns, numbers)
            key = take_key(columns, self.key_name, 0, len(numbers))
            key = key.marked(None)
        whole = Batch(key, columns)
        count = len(numbers)
        rows = rows_per_batch(whole.nbytes // max(1, count), max_bytes)
        for first in range(0, count, rows):
            last = min(first + rows, count)
            yield int(numbers[last - 1]) + 1, whole[first:last]

    def _without_null_keys(
        self, columns: dict[str, Column], numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], dict[str, Column]]:
        assert self.key_name is not None
        valid = columns[self.key_name].valid
        if valid is None or valid.all():
            return numbers, columns
        for number in numbers[~valid].tolist():
            self.bad(self._row(number), f"the key {self.key_name} is null")
        good = np.flatnonzero(valid)
        return numbers[good], {name: column[good] for name, column in columns.items()}

    def _row(self, number: int) -> str:
        """Return the name of a record for messages."""
        return f"{self.place.name}, row {number + 1}"


def chosen_columns(
    table: str,
    headings: Sequence[str],
    columns: str | Iterable[str] | None = None,
    rename: str | Mapping[str, str] | None = None,
) -> list[tuple[int, str]]:
    """Return position and new name of each column to load, in the order of the table.

    Args:
        table: Name of the table, for messages.
        headings: The headings of the table.
        columns: Headings of the columns to load, as `A,B` or one by one; None for all.
        rename: New names by heading, as a mapping or `OLD=NEW,OLD=NEW`.

    Raises:
        ConfigError: A column does not exist, or a text does not have this form.
    """
    places = {heading.strip().upper(): number for number, heading in enumerate(headings)}
    names = {
        _place(table, old, headings, places, "rename"): new for old, new in _renames(rename).items()
    }
    chosen = set(range(len(headings)))
    if columns is not None:
        words = columns.split(",") if isinstance(columns, str) else columns
        wanted = [word.strip() for word in words if word.strip()]
        chosen = {_place(table, word, headings, places, "load") for word in wanted}
    return [(i, names.get(i, heading)) for i, heading in enumerate(headings) if i in chosen]


def _place(
    table: str, heading: str, headings: Sequence[str], places: Mapping[str, int], what: str
) -> int:
    if (found := places.get(heading.upper())) is None:
        hint = did_you_mean(heading, headings, f"columns: {', '.join(headings)}", form=repr)
        raise ConfigError(f"{table}: no column {heading!r} to {what}", hint=hint)
    return found


def _renames(rename: str | Mapping[str, str] | None) -> dict[str, str]:
    if not isinstance(rename, str):
        return dict(rename or {})
    found: dict[str, str] = {}
    for part in rename.split(","):
        old, equals, new = (word.strip() for word in part.partition("="))
        if not (equals and new) or old in found:
            raise ConfigError(f"rename {rename!r}", hint="OLD=NEW,OLD=NEW, each column once")
        found[old] = new
    return found
