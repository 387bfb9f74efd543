"""Image files in one folder per class, and a CSV with all other fields.

columns -> **CLASS/NAME.jpg ..., labels.csv, classes.txt** -> folder

The source `images` loads `labels.csv` again. Without that file it reads the class folders.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np

from ignitetf.export.base import Format, Sink, cannot_hold, python_values, utf8_text
from ignitetf.export.images import image_field, image_file, is_pixels, suffix_of
from ignitetf.export.rows import ExportRows
from ignitetf.export.target import MARKER, Target
from ignitetf.load.sources.labels import CLASSES_FILE, LABEL_HEADINGS, PATH_HEADINGS
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch
from ignitetf.wire.datatypes import DATA_TYPES, Family
from ignitetf.wire.schema import BYTES, Field

__all__ = ["TABLE", "FolderFormat"]

TABLE: Final = "labels.csv"
_TYPES: Final[dict[TypeCode, str]] = {
    code: row.sql.lower()
    for code, row in DATA_TYPES.items()
    if row.sql and row.family in (Family.NUMBER, Family.TEXT) and row.sql != "CHAR"
} | {TypeCode.DATE: "date", TypeCode.TIMESTAMP: "timestamp"}
_DAY_MS: Final = 86_400_000
_ODD: Final = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|/]+')
# Limits in bytes: most file systems allow 255 for a name, and 1,024 for a path.
_LONGEST_NAME: Final = 200
_LONGEST_PATH: Final = 700


class FolderFormat(Format):
    """A folder of image files; it cannot be split into shards."""

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
            if field.name.upper() in reserved:
                raise cannot_hold("a folder with a CSV", field, "another field of this name")
        self._require_listable(rows.class_names)
        self.headings = [
            "path",
            *(["name"] if self.name else []),
            *(["label"] if self.label else []),
        ]
        self.headings += [f.name for f in self.others]

    def _require_listable(self, names: Sequence[str]) -> None:
        """Raise SchemaError unless each class name can be a line of `classes.txt`."""
        for number, name in enumerate(names if self.label is not None else ()):
            if name.splitlines() != [name.strip()] or name in names[:number]:
                assert self.label is not None
                what = f"the class name {name!r}: a line of text, once"
                raise cannot_hold("a folder with a CSV", self.label, what)

    def open(self, target: Target, name: str) -> Sink:
        """Return a writer for all files of the folder."""
        return _FolderSink(self, target)

    def options(self) -> list[str]:
        """Return the options for the types of the columns and for reading pixels."""
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
        self._paths = _Paths()
        self._write_lines([form.headings])
        if form.label is not None and form.rows.class_names:
            with target.open(CLASSES_FILE) as file:
                file.write("".join(f"{n}\n" for n in form.rows.class_names).encode())

    def _write_lines(self, lines: list[list[str]]) -> None:
        text = io.StringIO()
        csv.writer(text).writerows(lines)
        self._table.write(text.getvalue().encode())

    def write(self, batch: Batch) -> None:
        """Write the image files of a batch, and their rows of the table."""
        form = self._form
        images = python_values(form.image, batch.columns[form.image.name])
        names = self._texts(form.name, batch) if form.name else None
        labels = self._labels(form.label, batch) if form.label else None
        others = [self._texts(f, batch) for f in form.others]
        lines = []
        for i, image in enumerate(images):
            if image is None:
                raise cannot_hold("a folder", form.image, "a row without an image")
            data = image_file(image)
            folder = "" if labels is None else _folder(labels[i])
            path = self._paths.take(folder, names[i] if names else "", suffix_of(data))
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

    def _labels(self, field: Field, batch: Batch) -> list[str]:
        """Return the labels for the table: class names if there are any, otherwise numbers."""
        names, column = self._form.rows.class_names, batch.columns[field.name]
        if field.dtype.kind not in "iu":
            texts = self._texts(field, batch)
            if not all(text.strip() for text in texts):
                raise cannot_hold("a folder with a CSV", field, "an empty label")
            return texts
        for value in python_values(field, column):
            known = value is not None and (0 <= value < len(names) if names else _is_int32(value))
            if not known:
                raise cannot_hold("a folder with a CSV", field, f"{value}, which is not a class")
        texts = self._texts(field, batch)
        return [names[int(text)] for text in texts] if names else texts

    def close(self) -> None:
        """Close the table."""
        self._table.close()


def _is_int32(value: int) -> bool:
    return -(1 << 31) <= value < 1 << 31


def _folder(label: str) -> str:
    """Return the name of the folder of a class."""
    name = _ODD.sub("_", label).strip().strip(". ")
    return name.encode()[:_LONGEST_NAME].decode(errors="ignore").strip() or "_"


class _Paths:
    """The paths below a folder; each is given to one image only."""

    def __init__(self) -> None:
        # In lower case, because some file systems ignore case.
        self._files = {TABLE, CLASSES_FILE, MARKER}
        self._folders: set[str] = set()
        self._number = 0

    def take(self, folder: str, name: str, suffix: str) -> str:
        """Return a path that no other image has; it is made from `name` if that is usable."""
        number, self._number = self._number, self._number + 1
        parts = PurePosixPath(name).parts
        if parts and name == str(PurePosixPath(name)) and all(map(_is_safe, parts)):
            path = name if not folder or parts[0] == folder else f"{folder}/{name}"
            path += "" if PurePosixPath(path).suffix else suffix
            if path == path.strip() and self._is_free(path):
                return path
        for more in itertools.count():
            other = "_" * more
            path = f"{folder}{other}/{number:08}{other}{suffix}".removeprefix("/")
            if self._is_free(path):
                break
        return path

    def _is_free(self, path: str) -> bool:
        """Take a path; returns False if a file has it, or has the name of one of its folders."""
        key = path.casefold()
        above = [str(p) for p in PurePosixPath(key).parents][:-1]
        taken = key in self._files or key in self._folders or any(p in self._files for p in above)
        if not taken:
            self._files.add(key)
            self._folders.update(above)
        return not taken and len(path.encode()) <= _LONGEST_PATH


def _is_safe(part: str) -> bool:
    """Return True if a part of a path is a valid file or folder name on every system."""
    return part[0] != "." and len(part.encode()) <= _LONGEST_NAME and not _ODD.search(part)


def _text_of(field: Field) -> Callable[[Any], str]:
    """Return a function that formats values of a field for the source `images` to parse."""
    if field.dtype == BYTES:
        return lambda value: utf8_text(field, value)
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
        # LABEL is loaded as a double; other fields keep their type.
        kind = float if field.name == "LABEL" else field.dtype.type

        def number(value: float) -> str:
            if value != value:
                raise cannot_hold("a folder with a CSV", field, "a number that is none (NaN)")
            return str(kind(value))

        return number
    return str
