"""Reads a table for image files: the path of each image, its label, and any other fields.

CSV -> **paths, labels, typed columns** -> images

The headings determine the columns: one of `PATH_HEADINGS` is the path, and one of `LABEL_HEADINGS`
the label. Every other column is a field, with the type that `csvfile` infers. A table of two
columns needs no headings: they are path and label.

The words of a label column are numbers or class names, by the rules of a CSV column (`csvtypes`). A
column of numbers needs a number in each row; rows where it is missing or not a number are reported.
Texts become classes, and so do numbers that would lose their form: `01`, and telephone numbers.
"""

from __future__ import annotations

import csv as csv_module
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.csvfile import CsvForm, CsvSource
from ignitetf.load.sources.csvtypes import (
    LEADING_ZERO,
    MANY,
    MIN_VALUES,
    NEARLY_ALL,
    NULLS,
    NUMBER,
    PHONE_NUMBER,
    option_types,
)
from ignitetf.load.sources.headings import alike
from ignitetf.load.sources.location import Place, digest, open_plain, reading
from ignitetf.load.sources.tabular import TableOptions, chosen_columns
from ignitetf.load.sources.texts import NOT_UTF8, Utf8Stream
from ignitetf.pictures import picture_suffixes
from ignitetf.spelling import did_you_mean
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.columns import Column, Dense, concat, runs_of, values_of
from ignitetf.wire.schema import Field, field_for

__all__ = ["CLASSES_FILE", "LABEL_HEADINGS", "PATH_HEADINGS", "Labels", "read_labels"]

# In the order of the search.
PATH_HEADINGS: Final = (
    "filepath", "file_path", "path", "filename", "file_name", "file", "image_path", "image", "name",
)  # fmt: skip
LABEL_HEADINGS: Final = ("label", "class", "class_name", "category")

# A file next to the table: the names of the classes, one per line, in the order of their numbers.
CLASSES_FILE: Final = "classes.txt"
_NAME: Final = "name"  # if there is a path column, this column is the field NAME
_OWN_FIELDS: Final = frozenset({"IMAGE", "LABEL", "NAME"})
_MAX_CSV_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class Labels:
    """The rows of a table, in its order.

    Attributes:
        paths: Path of each image.
        numbers: Label of each image; None if labels are not integers, or if there are none.
        class_names: Names of the labels, if they have names.
        names: Names of the images; None if they are the paths.
        fields: Fields of the other columns, and of a LABEL that is not an integer.
        columns: Their values.
        notes: Notes for users about the interpretation of the table.
        stamp: A text that changes with these columns; empty if there are none.
    """

    paths: list[str]
    numbers: list[int] | None = None
    class_names: list[str] | None = None
    names: Column | None = None
    fields: tuple[Field, ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    stamp: str = ""


def read_labels(
    table: Place,
    columns: str | Iterable[str] | None = None,
    rename: str | Mapping[str, str] | None = None,
    types: str | Mapping[str, str] | None = None,
    bad_records: OnBadRecord = "fail",
    classes: Sequence[str] | None = None,
) -> Labels:
    """Read a table of image files.

    Args:
        table: The CSV file, with tabs if its name ends in `.tsv`.
        columns: Headings of the columns to load in addition to the path; None for all.
        rename: New headings, `OLD=NEW,OLD=NEW`.
        types: Types of columns, by the headings of the file; see `csvfile.csv`.
        bad_records: Handling of rows whose values do not fit.
        classes: Names of the classes, in the order of their numbers; None takes those in the file
            next to the table, if there is one.

    Raises:
        SourceError: The file is damaged, or the column of the path is unclear.
        ConfigError: `columns` or `rename` names a column that does not exist.
    """
    delimiter = "\t" if table.base.lower().endswith(".tsv") else ","
    with reading(table.name, "the file must be CSV in UTF-8: path,label"):
        lines = csv_module.reader(io.StringIO(_text(table)), delimiter=delimiter, strict=True)
        rows = [row for row in lines if row]
    first = [cell.strip() for cell in rows[0]] if rows else ["path", "label"]
    asked = columns is not None or rename is not None
    how = _How(bad_records, _classes_beside(table) if classes is None else classes)
    if not asked and not _are_headings(first):
        return _plain(table, rows, [0, 1], 1, 2, option_types(types).get("LABEL"), how)
    # A column without a heading is called after its position.
    first = [cell or f"COLUMN_{i + 1}" for i, cell in enumerate(first)]
    names = [new.strip().lower() for _, new in chosen_columns(table.name, first, rename=rename)]
    path = _found(names, PATH_HEADINGS, range(len(names)))
    if path is None:
        raise SourceError(
            f"{table.name}: no column is called {', '.join(PATH_HEADINGS[:-1])} or {PATH_HEADINGS[-1]}",
            hint="separate the columns with commas"
            if len(first) == 1 and ";" in first[0]
            else f"name the column of paths with --rename COLUMN=path; columns: {', '.join(first)}",
        )
    if names.count(names[path]) > 1:
        raise SourceError(
            f"{table.name}: two columns have the same name: {names[path]!r} and {names[path]!r}",
            hint=f"--rename COLUMN_{path + 1}=OTHER gives the last one another name",
        )
    wanted = [i for i, _ in chosen_columns(table.name, first, columns) if i != path]
    known = [path, *wanted]
    if (doubled := alike([first[i] for i in known], [names[i] for i in known])) is not None:
        raise SourceError(
            f"{table.name}: two columns have the same name: {doubled}",
            hint="--columns A,B loads other columns only; --rename COLUMN_1=NEW renames a column by"
            " its position",
        )
    label = _found(names, LABEL_HEADINGS, wanted)
    others = [i for i in wanted if i != label]
    if not others:
        places = [path] if label is None else [path, label]
        declared = option_types(types).get(first[label].upper()) if label is not None else None
        return _plain(table, rows[1:], places, 1, len(first), declared, how)
    return _typed(table, delimiter, first, names, path, label, others, types, how)


@dataclass(frozen=True)
class _How:
    """How labels are read.

    Attributes:
        bad_records: Handling of rows whose values do not fit.
        classes: Names of the classes in the order of their numbers; None if they are not given.
    """

    bad_records: OnBadRecord
    classes: Sequence[str] | None


def _text(table: Place) -> str:
    """Return the text of a table."""
    size = table.size() or 0
    if size > _MAX_CSV_BYTES:
        raise SourceError(f"{table.name}: {size:,} bytes", hint="split it into several tables")
    stream = Utf8Stream(open_plain(table), table.name)
    try:
        text = stream.read().decode().removeprefix("\ufeff")
    finally:
        stream.close()
    if (at := text.find(NOT_UTF8)) >= 0:
        row = text.count("\n", 0, at) + 1
        raise SourceError(f"{table.name}: row {row} is not UTF-8", hint="save the table as UTF-8")
    return text


def _are_headings(row: Sequence[str]) -> bool:
    """True if the first row has headings; in a table of path and label it may be data."""
    if len(row) != 2:
        return True
    is_file = any(PurePosixPath(cell).suffix.lower() in picture_suffixes() for cell in row)
    return not is_file and any(cell.lower() in (*PATH_HEADINGS, *LABEL_HEADINGS) for cell in row)


def _found(names: Sequence[str], known: Sequence[str], among: Iterable[int]) -> int | None:
    """Return the column with the first known heading that exists."""
    places = {names[i]: i for i in among}
    return next((places[word] for word in known if word in places), None)


def _plain(
    table: Place,
    rows: list[list[str]],
    places: list[int],
    first: int,
    width: int,
    declared: str | None,
    how: _How,
) -> Labels:
    """Return the rows of a table that has only path and label."""
    numbers = range(first, first + len(rows))
    bad = {
        number: f"entry {number} has {len(row)} columns or an empty one, expected"
        f" {'path,label' if width == 2 else width}"
        for number, row in zip(numbers, rows, strict=True)
        if len(row) != width or not all(row[i].strip() for i in places)
    }
    if bad and how.bad_records == "fail":
        raise SourceError(
            f"{table.name}: {next(iter(bad.values()))}",
            hint="columns are separated by commas, a heading path,label may come first, and"
            " --bad-records skip leaves such entries out",
        )
    notes = [f"{table.name}: {len(bad):,} entries skipped: {why}" for why in list(bad.values())[:1]]
    rows = [row for number, row in zip(numbers, rows, strict=True) if number not in bad]
    paths = [row[places[0]].strip() for row in rows]
    if len(places) == 1:
        return Labels(paths, notes=tuple(notes))
    words = [row[places[1]].strip() for row in rows]
    labelled = _labels(table, words, [n for n in numbers if n not in bad], declared, how)
    notes += labelled.notes
    paths = [paths[i] for i in labelled.rows]
    if labelled.own is None:
        return Labels(paths, labelled.numbers, labelled.names, notes=tuple(notes))
    fields = (labelled.own,)
    return Labels(
        paths,
        fields=fields,
        columns={"LABEL": Dense(labelled.values)},
        notes=tuple(notes),
        stamp=_stamp(table, fields),
    )


def _typed(
    table: Place,
    delimiter: str,
    headings: Sequence[str],
    names: Sequence[str],
    path: int,
    label: int | None,
    others: Sequence[int],
    types: str | Mapping[str, str] | None,
    how: _How,
) -> Labels:
    """Return the rows of a table with columns in addition to path and label."""
    texts = [path] if label is None else [path, label]
    named = next((i for i in others if names[i] == _NAME), None)
    plain = texts if named is None else [*texts, named]
    # The columns that are texts in any case are called by their positions here.
    own = [f"COLUMN_{i + 1}" if i in plain else names[i].upper() for i in range(len(headings))]
    source = _columns(table, delimiter, headings, own, [*texts, *others], plain, types, how)
    batches = list(source.batches())
    if not batches:
        return Labels([])
    whole = concat(batches)
    columns = dict(whole.columns)
    taken = [
        [cell.decode().strip() for cell in runs_of(columns.pop(own[i])).to_bytes()] for i in texts
    ]
    rows = (values_of(whole.key) + 2).tolist()
    if "" in taken[0]:
        raise SourceError(
            f"{table.name}: row {rows[taken[0].index('')]} has no path",
            hint="fill it in, or remove the row",
        )
    own_names = None if named is None else columns.pop(own[named])
    fields = [f for f in source.schema.fields if f.name in columns]
    if alike := [f.name for f in fields if f.name in _OWN_FIELDS]:
        raise SourceError(
            f"{table.name}: the column {alike[0].lower()} has the name of the image's own field"
            f" {alike[0]}",
            hint=f"--rename {alike[0].lower()}=OTHER gives it another name",
        )
    notes = list(source.notes)
    if label is None:
        notes.append(
            f"{table.name}: no column is called {' or '.join(LABEL_HEADINGS)}, so there is no"
            " LABEL; --rename COLUMN=label makes one"
        )
    if bad := source.skipped:
        notes.append(f"{len(bad):,} rows skipped, such as {bad[0].name}: {bad[0].reason}")
    if label is None:
        stamp = _stamp(table, fields)
        return Labels(taken[0], None, None, own_names, tuple(fields), columns, tuple(notes), stamp)
    declared = option_types(types).get(headings[label].upper())
    labelled = _labels(table, taken[1], rows, declared, how)
    if len(labelled.rows) < len(rows):
        kept = np.array(labelled.rows, np.int64)
        columns = {name: column[kept] for name, column in columns.items()}
        own_names = None if own_names is None else own_names[kept]
    if labelled.own is not None:
        fields = [labelled.own, *fields]
        columns = {"LABEL": Dense(labelled.values), **columns}
    return Labels(
        [taken[0][i] for i in labelled.rows],
        labelled.numbers,
        labelled.names,
        own_names,
        tuple(fields),
        columns,
        (*notes, *labelled.notes),
        _stamp(table, fields),
    )


def _columns(
    table: Place,
    delimiter: str,
    headings: Sequence[str],
    own: Sequence[str],
    chosen: Sequence[int],
    plain: Sequence[int],
    types: str | Mapping[str, str] | None,
    how: _How,
) -> CsvSource:
    """Return the source of some columns of a table under names of our own; `plain` are texts."""
    count = Counter(heading.upper() for heading in headings)
    known = [
        heading if count[heading.upper()] == 1 else f"COLUMN_{i + 1}"
        for i, heading in enumerate(headings)
    ]
    options = TableOptions(
        columns=[known[i] for i in chosen],
        rename={known[i]: own[i] for i in chosen if i in plain or own[i] != known[i].upper()},
        bad_records=how.bad_records,
    )
    types = {**option_types(types), **{own[i]: "varchar" for i in plain}}
    return CsvSource(table, options, form=CsvForm(delimiter, "row"), types=types)


def _stamp(table: Place, fields: Iterable[Field]) -> str:
    return digest(table.read(_MAX_CSV_BYTES), *fields)


@dataclass(frozen=True)
class _Labelled:
    """The labels of all rows that have a label.

    Attributes:
        rows: Indices of these rows in the table.
        numbers: Their labels as class numbers, or the numbers in the table.
        names: Names of the classes, if they have names.
        own: The field of the labels if they are doubles or longs; otherwise None.
        values: The labels of the field `own`.
        notes: Notes for users.
    """

    rows: Sequence[int]
    numbers: list[int] | None = None
    names: list[str] | None = None
    own: Field | None = None
    values: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    notes: tuple[str, ...] = ()


def _labels(
    table: Place,
    words: list[str],
    rows: Sequence[int],
    declared: str | None,
    how: _How,
) -> _Labelled:
    """Return labels as numbers, with the names of classes, or as doubles or longs.

    Args:
        table: The table.
        words: The label of each row.
        rows: The numbers of the rows, for messages.
        declared: The type that the user declared.
        how: Names of the classes, and the handling of rows without a label.
    """
    listed = None
    if how.classes is not None and (declared is None or declared.strip().lower() in _TEXTS):
        listed = _listed_classes(table, [word for word in words if word], how.classes)
    found = _label_values(table.name, words, rows, "varchar" if listed else declared)
    for at, why in found.bad.items():
        if how.bad_records == "fail":
            raise SourceError(f"{table.name}: row {rows[at]} {why}", hint=_HINT)
    kept = [i for i in range(len(words)) if i not in found.bad]
    notes = [
        f"{table.name}: {len(found.bad):,} rows skipped, such as row {rows[at]}, which {why}"
        for at, why in list(found.bad.items())[:1]
    ]
    words = [words[i] for i in kept]
    if found.numbers is None:
        if declared is None and listed is None:
            notes += _note_of_classes(table, words, [rows[i] for i in kept])
        names = listed or sorted(set(words))
        number_of = {name: i for i, name in enumerate(names)}
        if listed and not set(words) <= set(listed):
            number_of = {str(i): i for i in range(len(names))}
        return _Labelled(kept, [number_of[w] for w in words], names or None, notes=tuple(notes))
    values = found.numbers[kept]
    if values.dtype == np.int32:
        _require_one_spelling(table, words)
        return _Labelled(kept, values.tolist(), notes=tuple(notes))
    own = field_for("LABEL", values.dtype)
    return _Labelled(kept, None, None, own, values, tuple(notes))


def _note_of_classes(table: Place, words: Sequence[str], rows: Sequence[int]) -> list[str]:
    """Return a note if labels are classes that look like numbers."""
    if not all(map(_looks_like_number, words)):
        return []
    odd = next(((row, word) for row, word in zip(rows, words, strict=True) if _differs(word)), None)
    if odd is None:
        return []
    return [
        f"{table.name}: the labels are classes: row {odd[0]} is {_short(odd[1])}, and a number would"
        " not keep its form; to change that: --types label:bigint"
    ]


def _classes_beside(table: Place) -> list[str] | None:
    """Return the names in the class file next to a table; None if there is no such file."""
    place = table.parent.child(CLASSES_FILE)
    if not place.exists():
        return None
    with reading(place.name, "names of classes in UTF-8, a line each"):
        return place.read(_MAX_CSV_BYTES).decode("utf-8-sig").splitlines()


def _listed_classes(table: Place, labels: list[str], names: Sequence[str]) -> list[str]:
    """Return the names of the classes, after a check that the labels are names, or their numbers."""
    twice = {name for name, count in Counter(names).items() if count > 1}
    if unclear := sorted(twice.intersection(labels)):
        raise SourceError(
            f"{table.name}: the label {unclear[0]!r} matches two classes",
            hint="give the classes different names, or write their numbers in the table",
        )
    numbers = {str(number) for number in range(len(names))}
    if labels and not (set(labels) <= set(names) or set(labels) <= numbers):
        odd = next(word for word in labels if word not in names and word not in numbers)
        raise SourceError(
            f"{table.name}: the label {odd!r} is not one of the {len(names):,} classes in the file"
            f" of --classes, or in {CLASSES_FILE}",
            hint=did_you_mean(odd, names, "add it to the file of classes", form=repr),
        )
    return list(names)


def _require_one_spelling(table: Place, words: list[str]) -> None:
    """Raise SourceError if two spellings of labels mean the same number."""
    spelled: dict[int, str] = {}
    for word in sorted(set(words)):
        if (other := spelled.setdefault(int(word), word)) != word:
            raise SourceError(
                f"{table.name}: the labels {other!r} and {word!r} are the same number",
                hint="write them the same way, or make each a class: --types label:varchar",
            )


_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_NUMBER: Final = re.compile(NUMBER, re.ASCII)
_INFINITE: Final = re.compile(r"[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
_TEXTS: Final = ("varchar", "string", "text")
_WHOLE: Final = (
    "tinyint", "int8", "smallint", "int16", "int", "integer", "int32", "bigint", "long", "int64",
)  # fmt: skip
_FRACTIONS: Final = ("real", "float", "float32", "double", "float64")
_INT32: Final = np.iinfo(np.int32)
_LONG: Final = np.iinfo(np.int64)
_SHOWN: Final = 40
# The hint for a row without a label.
_HINT: Final = (
    "repair it, leave such rows out with --bad-records skip, or load the column as another field,"
    " which may have nulls: --rename label=OTHER"
)


@dataclass
class _LabelValues:
    """The labels of rows.

    Attributes:
        words: Class names; None for numbers.
        numbers: int32 if all fit, otherwise int64 or float64; None for names.
        bad: Rows without a label, each with the reason.
    """

    words: Sequence[str] | None = None
    numbers: NDArray[np.generic] | None = None
    bad: dict[int, str] = field(default_factory=dict)


def _missing(word: str) -> str:
    """Return the reason why a row has no label."""
    return f"has no label: {word!r} is a missing value" if word else "has no label"


def _label_values(
    place: str, words: Sequence[str], rows: Sequence[int], declared: str | None = None
) -> _LabelValues:
    """Return the words of a column as labels: numbers or class names.

    Args:
        place: The table, for messages.
        words: The word of each row, without surrounding blanks.
        rows: The numbers of the rows, for messages.
        declared: The type that the user declared.

    Raises:
        SourceError: Numbers and other words are mixed.
        ConfigError: Labels cannot have the declared type.
    """
    kind = (declared or "").strip().lower()
    if kind and kind not in (*_TEXTS, *_WHOLE, *_FRACTIONS):
        raise ConfigError(
            f"labels of type {kind!r}",
            hint="varchar names classes; int, bigint, double are numbers",
        )
    counted = Counter(words)
    if not kind:
        kind = _inferred(place, words, rows, counted)
    if kind in _TEXTS:
        return _LabelValues(words, None, {i: _missing(w) for i, w in enumerate(words) if not w})
    known = {word: _value(word, whole=kind in _WHOLE) for word in counted}
    bad = {i: str(known[w]) for i, w in enumerate(words) if isinstance(known[w], str)}
    numbers = [0 if i in bad else known[word] for i, word in enumerate(words)]
    if kind in _FRACTIONS:
        return _LabelValues(None, np.array(numbers, np.float64), bad)
    values = np.array(numbers, np.int64)
    small = not len(values) or bool(values.min() >= _INT32.min and values.max() <= _INT32.max)
    return _LabelValues(None, values.astype(np.int32) if small else values, bad)


def _inferred(place: str, words: Sequence[str], rows: Sequence[int], counted: Counter[str]) -> str:
    """Return `bigint`, `double` or `varchar`, by the rules of a CSV column.

    Raises:
        SourceError: Many words are numbers, and many are not.
    """
    there = {word: count for word, count in counted.items() if word not in NULLS}
    total = sum(there.values())
    numbers = {word: count for word, count in there.items() if _looks_like_number(word)}
    count = sum(numbers.values())
    if not total or count < MANY * total:
        return "varchar"
    if any(_differs(word) for word in numbers):
        return "varchar"
    if count < total and (total < MIN_VALUES or count < NEARLY_ALL * total):
        at = next(i for i, word in enumerate(words) if word in there and word not in numbers)
        raise SourceError(
            f"{place}: the label of row {rows[at]} is {_short(words[at])}, while {count:,} of"
            f" {total:,} labels are numbers",
            hint="--types label:varchar makes each label a class; --types label:double with"
            " --bad-records skip loads the numbers and leaves the other rows out",
        )
    return "bigint" if all(_INTEGER.fullmatch(word) for word in numbers) else "double"


def _looks_like_number(word: str) -> bool:
    return _NUMBER.fullmatch(word) is not None or _INFINITE.fullmatch(word) is not None


def _differs(word: str) -> bool:
    """True if a word would lose its form as a number: `007`, or a telephone number."""
    return _is_beyond(word) or any(re.match(look, word) for look in (LEADING_ZERO, PHONE_NUMBER))


def _is_beyond(word: str) -> bool:
    """True if a word is an integer that does not fit into a long."""
    digits = word.lstrip("+-")
    if not digits.isdigit():
        return False
    return len(digits.lstrip("0")) > 19 or not _LONG.min <= int(word) <= _LONG.max


def _value(word: str, *, whole: bool) -> float | int | str:
    """Return the number in a word, or the reason why it is not a number."""
    if word in NULLS:
        return _missing(word)
    if whole:
        fits = _NUMBER.fullmatch(word) and word.lstrip("+-").isdigit() and not _is_beyond(word)
        return int(word) if fits else f"has the label {_short(word)}, which is not an integer"
    if not _looks_like_number(word):
        return f"has the label {_short(word)}, which is not a number"
    value = float(word)
    if np.isinf(value) and not _INFINITE.fullmatch(word):
        return f"has the label {_short(word)}, which no double holds"
    return value


def _short(word: str) -> str:
    return repr(word if len(word) <= _SHOWN else f"{word[:_SHOWN]}...")
