"""Image files in a folder for each class, beside a CSV of all other fields.

columns -> **CLASS/NAME.jpg ..., labels.csv, classes.txt** -> folder

The source `images` loads `labels.csv` again; without it the folder is one of class folders.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np

from ignitetf.export.base import Format, Sink, cannot_hold, python_values
from ignitetf.export.images import image_field, image_file, is_pixels, suffix_of
from ignitetf.export.rows import ExportRows
from ignitetf.export.target import Target
from ignitetf.load.sources.labels import CLASSES_FILE, LABEL_HEADINGS, PATH_HEADINGS
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import DATA_TYPES, Family
from ignitetf.wire.schema import BYTES, Batch, Field

__all__ = ["TABLE", "FolderFormat"]

TABLE: Final = "labels.csv"
_TYPES: Final[dict[TypeCode, str]] = {
    code: row.sql.lower()
    for code, row in DATA_TYPES.items()
    if row.sql and row.family in (Family.NUMBER, Family.TEXT) and row.sql != "CHAR"
} | {TypeCode.DATE: "date", TypeCode.TIMESTAMP: "timestamp"}
_DAY_MS: Final = 86_400_000
_ODD: Final = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|/]+')
_LONGEST: Final = 200


class FolderFormat(Format):
    """A folder of image files, written in one piece."""

    kind = "images"
    suffix = ""

    def __init__(self, rows: ExportRows) -> None:
        super().__init__(rows)
        self.image = image_field(rows.name, self.fields)
        others = [f for f in self.fields if f is not self.image]
        self.label = next((f for f in others if f.name == "LABEL" and not f.shape), None)
        self.name = next(
            (f for f in others if f.name == "NAME" and f.type is TypeCode.STRING), None
        )
        self.others = [f for f in others if f not in (self.label, self.name)]
        reserved = {*map(str.upper, (*PATH_HEADINGS, *LABEL_HEADINGS)), "IMAGE"}
        for field in [*filter(None, [self.label]), *self.others]:
            if field.type not in _TYPES or field.shape:
                raise cannot_hold("a folder with a CSV", field)
        for field in self.others:
            if field.name in reserved:
                raise cannot_hold("a folder with a CSV", field, "another field of this name")
        self.headings = [
            "path",
            *(["name"] if self.name else []),
            *(["label"] if self.label else []),
        ]
        self.headings += [f.name for f in self.others]

    def open(self, target: Target, name: str) -> Sink:
        """Return a writer of all files of a folder."""
        return _FolderSink(self, target)

    def options(self) -> list[str]:
        """Return the types of the columns, and how pixels are read."""
        found = []
        if self.others:
            types = ",".join(f"{f.name}:{_TYPES[f.type]}" for f in self.others)
            found += ["--types", types]
        if is_pixels(self.image):
            found += ["--decode", "--channels", str(self.image.shape[2])]
        return found


class _FolderSink(Sink):
    def __init__(self, form: FolderFormat, target: Target) -> None:
        self._form, self._target = form, target
        self._table = target.open(TABLE)
        self._taken: set[str] = set()
        self._number = 0
        self._write_lines([form.headings])
        if form.label is not None and form.rows.class_names:
            with target.open(CLASSES_FILE) as file:
                file.write("".join(f"{n}\n" for n in form.rows.class_names).encode())

    def _write_lines(self, lines: list[list[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        self._table.write(text.getvalue().encode())

    def write(self, batch: Batch) -> None:
        """Write the image files of a batch, and their lines of the table."""
        form = self._form
        images = python_values(form.image, batch.columns[form.image.name])
        names = self._texts(form.name, batch) if form.name else None
        labels = self._texts(form.label, batch) if form.label else None
        others = [self._texts(f, batch) for f in form.others]
        lines = []
        for i, image in enumerate(images):
            if image is None:
                raise cannot_hold("a folder", form.image, "a row without an image")
            data = image_file(image)
            folder = "" if labels is None else self._class(labels[i])
            path = self._path(folder, names[i] if names else "", suffix_of(data))
            with self._target.open(path) as file:
                file.write(data)
            beside = [column[i] for column in (names, labels, *others) if column is not None]
            lines.append([path, *beside])
        self._write_lines(lines)

    def _texts(self, field: Field, batch: Batch) -> list[str]:
        values = python_values(field, batch.columns[field.name])
        text = _text_of(field)
        needed = field in (self._form.name, self._form.label) or field.dtype == BYTES
        if needed and any(value is None for value in values):
            raise cannot_hold("a folder with a CSV", field, "nulls")
        return ["" if value is None else text(value) for value in values]

    def _class(self, label: str) -> str:
        names = self._form.rows.class_names
        known = label.isdecimal() and int(label) < len(names)
        return _ODD.sub("_", names[int(label)] if known else label).strip(". ") or "_"

    def _path(self, folder: str, name: str, suffix: str) -> str:
        """Return a path that no other image has: that of its name, if it is one."""
        parts = PurePosixPath(name).parts
        usual = bool(name) and len(name) <= _LONGEST and name == str(PurePosixPath(name))
        safe = usual and all(
            p not in ("..", "/") and p[0] != "." and not _ODD.search(p) for p in parts
        )
        number, self._number = self._number, self._number + 1
        if safe:
            path = name if not folder or parts[0] == folder else f"{folder}/{name}"
            if not PurePosixPath(path).suffix:
                path += suffix
            if path.lower() not in self._taken and path not in (TABLE, CLASSES_FILE):
                self._taken.add(path.lower())
                return path
        return "/".join(filter(None, (folder, f"{number:08}{suffix}")))

    def close(self) -> None:
        """Close the table."""
        self._table.close()


def _text_of(field: Field) -> Callable[[Any], str]:
    """Return what writes the values of a field so that the source `images` reads them again."""
    if field.dtype == BYTES:
        return lambda value: str(value, "utf-8")
    if field.type is TypeCode.BOOL:
        return lambda value: "true" if value else "false"
    if field.type is TypeCode.DATE:

        def day(value: int) -> str:
            if value % _DAY_MS:
                raise cannot_hold("a folder with a CSV", field, "a date with a time of day")
            return str(np.datetime64(value // _DAY_MS, "D"))

        return day
    if field.type is TypeCode.TIMESTAMP:
        return lambda value: str(np.datetime64(value, "ns")).replace("T", " ")
    if field.dtype.kind == "f":
        kind = field.dtype.type

        def number(value: float) -> str:
            if value != value:
                raise cannot_hold("a folder with a CSV", field, "a number that is none (NaN)")
            return str(kind(value))

        return number
    return str
