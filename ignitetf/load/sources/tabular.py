"""The common part of sources with named columns, one of which may be the key.

headings, --columns, --rename -> **columns** -> fields

A column is named after its heading, in upper case. A heading that is not a SQL identifier becomes
one by a single rule (`column_of_heading`), and a note lists all such headings. Options choose which
columns are loaded, and rename them.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.arrays import key_field_of, take_key
from ignitetf.load.sources.base import Source, keys_of, rows_per_batch, type_name
from ignitetf.load.sources.location import Place
from ignitetf.spelling import did_you_mean
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Batch, Column
from ignitetf.wire.schema import Field, Schema, is_identifier

__all__ = [
    "Columns",
    "Renames",
    "Table",
    "changed_headings",
    "chosen_columns",
    "column_of_heading",
    "columns_of_headings",
    "renames",
]

Columns = str | Iterable[str] | None
Renames = str | Mapping[str, str] | None

_SHOWN_HEADINGS = 20


class Table(Source):
    """A source whose records are rows of a file with named columns.

    Attributes:
        place: The file.
    """

    place: Place

    def __init__(self, *, bad_records: OnBadRecord = "fail") -> None:
        super().__init__(bad_records=bad_records)
        self._how: tuple[object, ...] = ()
        self._known_as: dict[str, str] = {}

    def _choose(
        self, headings: Sequence[str], columns: Columns = None, rename: Renames = None
    ) -> list[tuple[int, str]]:
        """Return position and name of each column to load; notes the headings that changed."""
        if columns is not None and not isinstance(columns, str):
            columns = list(columns)
        chosen = columns_of_headings(self.place.name, headings, columns, rename)
        if (text := changed_headings(headings, chosen, rename)) is not None:
            self.note(text)
        # Part of the fingerprint.
        self._how = (chosen,) if columns is not None or rename is not None else ()
        self._known_as = {headings[i].strip().upper(): name for i, name in chosen}
        return chosen

    def _take_fields(self, fields: list[Field], key: str | None) -> None:
        """Set the schema; `self._columns` are all fields in the order of the file.

        Args:
            fields: One for each column that `_choose` returned.
            key: The heading or the name of the column that is the key.
        """
        if not fields:
            raise SourceError(f"{self.place.name}: no columns", hint="give a table with columns")
        self._columns = fields
        by_name = {f.name: f for f in fields}
        self.key_name = None
        if key is not None:
            word = key.strip().upper()
            self.key_name = word if word in by_name else self._known_as.get(word, word)
        key_field = key_field_of(self.key_name, by_name)
        self.schema = Schema(type_name(self.place.stem), key_field, tuple(by_name.values()))
        try:
            Schema(None, key_field, tuple(fields)).check_identifiers()
        except ConfigError as error:
            raise SourceError(
                f"{self.place.name}: {error.message}", hint=f"{_RENAME}; {_LEAVE_OUT}"
            ) from error

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
_LEAVE_OUT = "--columns A,B takes other columns only"


def column_of_heading(heading: str, number: int) -> str:
    """Return the column that a heading names.

    It is in capitals and without accents, with an underscore for each run of other characters:
    `Größe (cm)` is `GROSSE_CM`. An underscore precedes a leading digit: `1990` is `_1990`. A heading
    without Latin letters and digits is called after its position: `COLUMN_3`.
    """
    name = heading.strip().upper()
    if is_identifier(name):
        return name
    plain = unicodedata.normalize("NFKD", name)
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    plain = re.sub(r"[^A-Z0-9]+", "_", plain).strip("_")
    if not plain:
        return f"COLUMN_{number + 1}"
    return f"_{plain}" if plain[0].isdigit() else plain


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
    counted = Counter(name for _, name in chosen)
    alike = {name: [headings[i] for i, n in chosen if n == name] for name in counted}
    told = [f"{_listed(old)} are both {name!r}" for name, old in alike.items() if len(old) > 1]
    if told:
        raise SourceError(
            f"{table}: two columns are called alike: {'; '.join(told)}",
            hint=f"capitals and small letters count as equal; {_RENAME}; {_LEAVE_OUT}",
        )
    return chosen


def _listed(headings: Sequence[str]) -> str:
    return " and ".join(map(repr, headings[:_SHOWN_HEADINGS]))


def changed_headings(
    headings: Sequence[str], chosen: Sequence[tuple[int, str]], rename: Renames
) -> str | None:
    """Return a note on the headings that are not SQL identifiers; None if all are."""
    given = {new.strip().upper() for new in renames(rename).values()}
    changed = [
        f"{headings[i]!r} is {name}"
        for i, name in chosen
        if name != headings[i].strip().upper() and name not in given
    ]
    if not changed:
        return None
    more = len(changed) - _SHOWN_HEADINGS
    shown = ", ".join(changed[:_SHOWN_HEADINGS]) + (f", and {more:,} more" if more > 0 else "")
    return (
        f"headings became columns without accents, blanks and signs: {shown};"
        " --rename OLD=NEW decides otherwise"
    )


def _place(
    table: str, heading: str, headings: Sequence[str], places: Mapping[str, int], what: str
) -> int:
    if (found := places.get(heading.strip().upper())) is None:
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
