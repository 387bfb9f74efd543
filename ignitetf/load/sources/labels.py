"""A table beside image files: the path of each, its label, and any other fields.

CSV -> **paths, labels, typed columns** -> images

The headings say what a column is: one of `PATH_HEADINGS` is the path, one of `LABEL_HEADINGS` the
label, every other one a field, typed as `csvfile` types it. A table of two columns needs no
headings: they are path and label.
"""

from __future__ import annotations

import csv as csv_module
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

import numpy as np

from ignitetf.errors import SourceError
from ignitetf.load.sources.base import did_you_mean
from ignitetf.load.sources.csvfile import CsvSource
from ignitetf.load.sources.csvtypes import option_types
from ignitetf.load.sources.headings import chosen_columns
from ignitetf.load.sources.location import Place, digest, reading
from ignitetf.load.sources.pictures import picture_suffixes
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.concat import concat
from ignitetf.wire.schema import Column, Field, field_for

__all__ = ["CLASSES_FILE", "LABEL_HEADINGS", "PATH_HEADINGS", "Labels", "read_labels"]

# In the order in which they are looked for.
PATH_HEADINGS: Final = (
    "filepath", "file_path", "path", "filename", "file_name", "file", "image_path", "image", "name",
)  # fmt: skip
LABEL_HEADINGS: Final = ("label", "class", "class_name", "category")

# Beside the table: the names of the classes, a line each, in the order of their numbers.
CLASSES_FILE: Final = "classes.txt"
_NAME: Final = "name"  # beside a path, this column is the field NAME
_OWN_FIELDS: Final = frozenset({"IMAGE", "LABEL", "NAME"})
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,12}", re.ASCII)
_FRACTION: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_MAX_CSV_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class Labels:
    """The rows of a table, in its order.

    Attributes:
        paths: Path of each image.
        numbers: Label of each image; None if labels are no integers, or if there are none.
        class_names: Names of the labels, if they have names.
        names: Names of the images; None if they are the paths.
        fields: Fields of the other columns, and of a LABEL that is no integer.
        columns: Their values.
        notes: What users should know about how the table is understood.
        stamp: Changes with these columns; empty if there are none.
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
) -> Labels:
    """Read a table of image files.

    Args:
        table: The CSV file, with tabs if its name ends in `.tsv`.
        columns: Headings of the columns to load beside the path; None for all.
        rename: New headings, `OLD=NEW,OLD=NEW`.
        types: Types of columns, by the headings of the file; see `csvfile.csv`.
        bad_records: What to do with rows whose values do not fit.

    Raises:
        SourceError: The file is damaged, or it is not clear which column is the path.
        ConfigError: `columns` or `rename` names a column that is not there.
    """
    delimiter = "\t" if table.base.lower().endswith(".tsv") else ","
    with reading(table.name, "the file must be CSV in UTF-8: path,label"):
        text = table.read(_MAX_CSV_BYTES).decode("utf-8-sig")
        lines = csv_module.reader(io.StringIO(text), delimiter=delimiter, strict=True)
        rows = [row for row in lines if row]
    first = [cell.strip() for cell in rows[0]] if rows else ["path", "label"]
    asked = columns is not None or rename is not None
    if not asked and not _are_headings(first):
        return _plain(table, rows, [0, 1], 1)
    names = [new.lower() for _, new in chosen_columns(table.name, first, rename=rename)]
    path = _found(names, PATH_HEADINGS, range(len(names)))
    if path is None:
        raise SourceError(
            f"{table.name}: no column is called {' or '.join(PATH_HEADINGS[:5])}",
            hint=f"--rename COLUMN=path tells which of these it is: {', '.join(first)}",
        )
    wanted = [i for i, _ in chosen_columns(table.name, first, columns) if i != path]
    label = _found(names, LABEL_HEADINGS, wanted)
    others = [i for i in wanted if i != label]
    if not others:
        return _plain(table, rows[1:], [path] if label is None else [path, label], 1, len(first))
    return _typed(table, delimiter, first, names, path, label, others, types, bad_records)


def _are_headings(row: Sequence[str]) -> bool:
    """Whether the first row names columns; in a table of path and label, it may be a file."""
    if len(row) != 2:
        return True
    is_file = any(PurePosixPath(cell).suffix.lower() in picture_suffixes() for cell in row)
    return not is_file and any(cell.lower() in (*PATH_HEADINGS, *LABEL_HEADINGS) for cell in row)


def _found(names: Sequence[str], known: Sequence[str], among: Iterable[int]) -> int | None:
    """Return which of these columns has the first of the known headings."""
    places = {names[i]: i for i in among}
    return next((places[word] for word in known if word in places), None)


def _plain(
    table: Place, rows: list[list[str]], places: list[int], first: int, width: int = 2
) -> Labels:
    """Return the rows of a table that has nothing but path and label."""
    for number, row in enumerate(rows, first):
        if len(row) != width or not all(row[i].strip() for i in places):
            raise SourceError(
                f"{table.name}: entry {number} has {len(row)} columns or an empty one, expected "
                f"{'path,label' if width == 2 else width}",
                hint="columns are separated by commas; a heading path,label may come first",
            )
    paths = [row[places[0]].strip() for row in rows]
    if len(places) == 1:
        return Labels(paths)
    numbers, names, extra = _labels(table, [row[places[1]].strip() for row in rows])
    if extra is None:
        return Labels(paths, numbers, names)
    return Labels(paths, None, None, None, *extra, stamp=_stamp(table, extra[0]))


def _typed(
    table: Place,
    delimiter: str,
    headings: Sequence[str],
    names: Sequence[str],
    path: int,
    label: int | None,
    others: Sequence[int],
    types: str | Mapping[str, str] | None,
    bad_records: OnBadRecord,
) -> Labels:
    """Return the rows of a table with columns beside path and label."""
    texts = [path] if label is None else [path, label]
    named = next((i for i in others if names[i] == _NAME), None)
    plain = texts if named is None else [*texts, named]
    source = CsvSource(
        table,
        delimiter=delimiter,
        types={**option_types(types), **{headings[i].upper(): "varchar" for i in plain}},
        columns=[headings[i] for i in (*texts, *others)],
        rename={heading: names[i].upper() for i, heading in enumerate(headings)},
        bad_records=bad_records,
    )
    batches = list(source.batches())
    if not batches:
        return Labels([])
    whole = concat(batches)
    columns = dict(whole.columns)
    taken = [
        [cell.decode().strip() for cell in columns.pop(names[i].upper()).to_bytes()] for i in texts
    ]
    for heading, cells in zip(("path", "label"), taken, strict=False):
        if not all(cells):
            raise SourceError(
                f"{table.name}: row {cells.index('') + 2} has no {heading}",
                hint=f"fill it in, or load the column as another field: --rename {heading}=OTHER"
                if heading == "label"
                else "fill it in, or remove the row",
            )
    own_names = None if named is None else columns.pop(_NAME.upper())
    fields = [f for f in source.schema.fields if f.name in columns]
    if alike := [f.name for f in fields if f.name in _OWN_FIELDS]:
        raise SourceError(
            f"{table.name}: the column {alike[0].lower()} would have the name of the image's own"
            f" field {alike[0]}",
            hint=f"--rename {alike[0].lower()}=OTHER gives it another name",
        )
    notes = list(source.notes)
    if label is None:
        notes.append(
            f"{table.name}: no column is called {' or '.join(LABEL_HEADINGS)}, so there is no"
            " LABEL; --rename COLUMN=label makes one"
        )
    if bad := source.skipped:
        notes.append(f"{len(bad):,} rows left out, such as {bad[0].name}: {bad[0].reason}")
    numbers, class_names, extra = _labels(table, taken[1]) if len(taken) > 1 else (None, None, None)
    if extra is not None:
        fields, columns = [*extra[0], *fields], {**extra[1], **columns}
    return Labels(
        taken[0],
        numbers,
        class_names,
        own_names,
        tuple(fields),
        columns,
        tuple(notes),
        _stamp(table, fields),
    )


def _stamp(table: Place, fields: Iterable[Field]) -> str:
    return digest(table.read(_MAX_CSV_BYTES), *fields)


_Extra = tuple[tuple[Field, ...], dict[str, Column]]


def _labels(
    table: Place, labels: list[str]
) -> tuple[list[int] | None, list[str] | None, _Extra | None]:
    """Return labels as numbers, with the names of classes, or as a column of doubles."""
    kinds = set(labels)
    if any(not _NUMBER.fullmatch(word) for word in kinds) and all(map(_FRACTION.fullmatch, kinds)):
        doubles = np.array([float(word) for word in labels])
        return None, None, ((field_for("LABEL", doubles.dtype),), {"LABEL": Column(doubles)})
    listed = _listed_classes(table, labels)
    if listed and not kinds <= set(listed):
        return [int(word) for word in labels], listed, None
    names = listed or _class_names(table, labels)
    number_of = {name: i for i, name in enumerate(names or ())}
    return [number_of[word] if names else int(word) for word in labels], names, None


def _listed_classes(table: Place, labels: list[str]) -> list[str] | None:
    """Return the names in the file of classes beside a table; None if there is no such file.

    Labels are all names, or else all numbers of names.
    """
    place = table.parent.child(CLASSES_FILE)
    if not place.exists():
        return None
    with reading(place.name, "names of classes in UTF-8, a line each"):
        names = place.read(_MAX_CSV_BYTES).decode("utf-8-sig").splitlines()
    twice = {name for name, count in Counter(names).items() if count > 1}
    if unclear := sorted(twice.intersection(labels)):
        raise SourceError(
            f"{table.name}: the label {unclear[0]!r} is two classes in {place.name}",
            hint="give the classes different names, or write their numbers in the table",
        )
    numbers = {str(number) for number in range(len(names))}
    if labels and not (set(labels) <= set(names) or set(labels) <= numbers):
        odd = next(word for word in labels if word not in names and word not in numbers)
        raise SourceError(
            f"{table.name}: the label {odd!r} is none of the {len(names):,} classes in"
            f" {place.name}",
            hint=did_you_mean(odd, names) or f"add it to {CLASSES_FILE}, or remove that file",
        )
    return names


def _class_names(table: Place, labels: list[str]) -> list[str] | None:
    """Return the sorted names; None if all labels are int32 numbers."""
    names = sorted(set(labels))
    if not names or not all(_NUMBER.fullmatch(name) for name in names):
        return names or None
    numbers = {int(name): name for name in names}
    if min(numbers) < -(1 << 31) or max(numbers) >= 1 << 31:
        return names
    if len(numbers) < len(names):
        alike = next(name for name in names if numbers[int(name)] != name)
        raise SourceError(
            f"{table.name}: the labels {alike!r} and {numbers[int(alike)]!r} are one number",
            hint="write them alike, or give the classes names",
        )
    return None
