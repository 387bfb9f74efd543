"""The common part of sources with named columns, one of which may be the key.

headings, --columns, --rename -> **columns** -> fields

A column is named after its heading, in upper case. A heading that is not a SQL identifier becomes
one by a single rule (`headings`), and a note lists all such headings. Options choose which columns
are loaded, and rename them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.arrays import key_field_of, take_key
from ignitetf.load.sources.base import Source, keys_of, rows_per_batch, type_name
from ignitetf.load.sources.headings import alike, column_of_heading
from ignitetf.load.sources.location import Place
from ignitetf.spelling import did_you_mean
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch, Column
from ignitetf.wire.schema import Field, Schema

__all__ = [
    "LEAVE_OUT",
    "Columns",
    "Renames",
    "Table",
    "TableOptions",
    "changed_headings",
    "chosen_columns",
    "columns_of_headings",
    "renames",
    "require_identifiers",
]

Columns = str | Iterable[str] | None
Renames = str | Mapping[str, str] | None

_SHOWN_HEADINGS = 20


@dataclass(frozen=True)
class TableOptions:
    """Options of all sources of tables.

    Attributes:
        key: The column that is the key; None for a running number.
        columns: The columns to load; None for all.
        rename: New names of columns.
        bad_records: Handling of bad records.
    """

    key: str | None = None
    columns: Columns = None
    rename: Renames = None
    bad_records: OnBadRecord = "fail"


class Table(Source):
    """A source whose records are rows of a file with named columns.

    Attributes:
        place: The file.
    """

    def __init__(self, place: Place, options: TableOptions) -> None:
        super().__init__(bad_records=options.bad_records)
        self.place = place
        self.options = options
        self._how: tuple[object, ...] = ()
        self._known_as: dict[str, str] = {}
        self._chosen: tuple[Sequence[str], Sequence[tuple[int, str]]] = ((), ())

    def _choose(self, headings: Sequence[str]) -> list[tuple[int, str]]:
        """Return position and name of each column to load; notes the headings that changed."""
        columns, rename = self.options.columns, self.options.rename
        chosen = columns_of_headings(self.place.name, headings, columns, rename)
        # A part of the fingerprint.
        self._how = (chosen,) if columns is not None or rename is not None else ()
        self._known_as = {headings[i].strip().upper(): name for i, name in chosen}
        self._chosen = list(headings), chosen
        return chosen

    def _take_fields(self, fields: list[Field], nested: Iterable[tuple[str, str]] = ()) -> None:
        """Set the schema, and note the headings that changed.

        `self._columns` are all fields in the order of the file.

        Args:
            fields: One for each column that `_choose` returned.
            nested: Old and new names of nested values that have another name.
        """
        if not fields:
            raise SourceError(f"{self.place.name}: no columns", hint="give a table with columns")
        self._columns = fields
        by_name = {f.name: f for f in fields}
        self.key_name = None
        if (key := self.options.key) is not None:
            word = key.strip().upper()
            self.key_name = word if word in by_name else self._known_as.get(word, word)
        key_field = key_field_of(self.key_name, by_name)
        self.schema = Schema(type_name(self.place.stem), key_field, tuple(by_name.values()))
        require_identifiers(self.place.name, Schema(None, key_field, tuple(fields)))
        if (text := changed_headings(*self._chosen, self.options.rename, nested)) is not None:
            self.note(text)

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


def require_identifiers(table: str, schema: Schema) -> None:
    """Raise SourceError unless all columns of a table can be columns in SQL."""
    try:
        schema.check_identifiers()
    except ConfigError as error:
        raise SourceError(f"{table}: {error.message}", hint=f"{_RENAME}; {LEAVE_OUT}") from error


def chosen_columns(
    table: str,
    headings: Sequence[str],
    columns: Columns = None,
    rename: Renames = None,
) -> list[tuple[int, str]]:
    """Return position and new heading of each column to load, in the order of the table.

    Args:
        table: Name of the table, for messages.
        headings: The headings of the table.
        columns: Headings of the columns to load, as `A,B` or one by one; None for all.
        rename: New names by heading, as a mapping or `OLD=NEW,OLD=NEW`.

    Raises:
        ConfigError: A column does not exist, or a text does not have this form.
    """
    places = {heading.strip().upper(): number for number, heading in enumerate(headings)}
    for number, heading in enumerate(headings):
        places.setdefault(column_of_heading(heading, number), number)
    for number in range(len(headings)):
        places.setdefault(f"COLUMN_{number + 1}", number)
    names = {
        _place(table, old, headings, places, "rename"): new for old, new in renames(rename).items()
    }
    chosen = set(range(len(headings)))
    if columns is not None:
        words = columns.split(",") if isinstance(columns, str) else columns
        wanted = [word.strip() for word in words if word.strip()]
        chosen = {_place(table, word, headings, places, "load") for word in wanted}
    return [(i, names.get(i, heading)) for i, heading in enumerate(headings) if i in chosen]


_RENAME = "--rename OLD=NEW gives a column another name"
LEAVE_OUT = "--columns A,B loads other columns only"


def columns_of_headings(
    table: str, headings: Sequence[str], columns: Columns = None, rename: Renames = None
) -> list[tuple[int, str]]:
    """Return position and column name of each column to load, in the order of the table.

    Args:
        table: Name of the table, for messages.
        headings: The headings of the table.
        columns: Headings or names of the columns to load; None for all.
        rename: New names by heading or name.

    Raises:
        SourceError: Two columns would have one name.
        ConfigError: A column does not exist, or a text does not have its form.
    """
    chosen = [
        (i, column_of_heading(name, i))
        for i, name in chosen_columns(table, headings, columns, rename)
    ]
    doubled = alike([headings[i] for i, _ in chosen], [name for _, name in chosen])
    if doubled is not None:
        raise SourceError(
            f"{table}: two columns have the same name: {doubled}",
            hint=f"capitals and small letters count as equal; {_RENAME}, also COLUMN_1=NEW by its"
            f" position; {LEAVE_OUT}",
        )
    return chosen


def changed_headings(
    headings: Sequence[str],
    chosen: Sequence[tuple[int, str]],
    rename: Renames,
    nested: Iterable[tuple[str, str]] = (),
) -> str | None:
    """Return a note on the headings that are not SQL identifiers; None if all are.

    Args:
        headings: The headings of the table.
        chosen: Position and name of each column to load.
        rename: New names by heading.
        nested: Old and new names of nested values, such as `at.x-y` and `at.x_y`.
    """
    given = {new.strip().upper() for new in renames(rename).values()}
    changed = [
        f"{headings[i]!r} is {name}"
        for i, name in chosen
        if name != headings[i].strip().upper() and name not in given
    ]
    way_out = "; --rename OLD=NEW decides otherwise" if changed else ""
    changed += [f"{old!r} is {new}" for old, new in nested]
    if not changed:
        return None
    more = len(changed) - _SHOWN_HEADINGS
    shown = ", ".join(changed[:_SHOWN_HEADINGS]) + (f", and {more:,} more" if more > 0 else "")
    return f"headings became columns without accents, blanks and signs: {shown}{way_out}"


def _place(
    table: str, heading: str, headings: Sequence[str], places: Mapping[str, int], what: str
) -> int:
    word = heading.strip().upper()
    same = [i for i, other in enumerate(headings) if word == other.strip().upper()]
    if len(same) > 1:
        known = " or ".join(f"COLUMN_{i + 1}" for i in same)
        raise ConfigError(
            f"{table}: several columns are called {heading!r}",
            hint=f"name one by its position: {known}",
        )
    if (found := places.get(word)) is None:
        hint = did_you_mean(heading, headings, f"columns: {', '.join(headings)}", form=repr)
        raise ConfigError(f"{table}: no column {heading!r} to {what}", hint=hint)
    return found


def renames(rename: Renames) -> dict[str, str]:
    """Return new names by old ones.

    Raises:
        ConfigError: The text does not have the form `OLD=NEW,OLD=NEW`.
    """
    if not isinstance(rename, str):
        return dict(rename or {})
    found: dict[str, str] = {}
    for part in rename.split(","):
        old, equals, new = (word.strip() for word in part.partition("="))
        if not (equals and new) or old in found:
            raise ConfigError(f"rename {rename!r}", hint="OLD=NEW,OLD=NEW, each column once")
        found[old] = new
    return found
