"""Image files as records: class folders, a flat folder, or a CSV of path and label.

folder or CSV -> list of files -> **read, check or decode** -> Batch

Encoded images are stored exactly as in the file, after a check that they decode to their end;
decoded ones as uint8 arrays of one shape.
"""

from __future__ import annotations

import contextlib
import csv as csv_module
import io
import os
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.base import RUNNING_KEY, Source, keys_of, type_name
from ignitetf.load.sources.filelist import FileList, read_groups, readable_name, walk
from ignitetf.load.sources.location import Location, Place, digest, locate, reading
from ignitetf.load.sources.pictures import (
    MAX_PIXELS,
    Loaded,
    PictureError,
    Recipe,
    check_channels,
    decode_picture,
    parse_size,
    picture_suffixes,
)
from ignitetf.load.sources.workers import Workers
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import BYTES, Batch, Column, Field, Schema, field_for

__all__ = ["ImageSource", "images"]

_PATH_HEADINGS = frozenset({"path", "file", "filename", "file_name", "image", "name"})
_NUMBER = re.compile(r"[+-]?[0-9]{1,12}", re.ASCII)
_MAX_CSV_BYTES = 256 << 20
_PROBED = 100  # files tried to find the shape of decoded images
# If at least `_MANY` files are below this size, processes read them.
_SMALL_BYTES = 64 << 10
_MANY = 4096


class ImageSource(Source):
    """Fields IMAGE (blob, or uint8 [height, width, channels]), LABEL (int32) and NAME.

    There is no LABEL if the images have no classes.
    """

    def __init__(
        self,
        files: FileList,
        *,
        class_names: list[str] | None,
        labelled: bool,
        decode: bool = False,
        resize: tuple[int, int] | None = None,
        channels: int = 3,
        max_pixels: int = MAX_PIXELS,
        check_pixels: bool = True,
        bad_records: OnBadRecord = "fail",
    ) -> None:
        """Take a list of files; the first one that decodes sets the shape of decoded images."""
        super().__init__(bad_records=bad_records)
        if not len(files):
            raise SourceError(
                f"{files.folder.name}: no image in it",
                hint="images stand in one folder a class, in one folder, or in a CSV of path,label",
            )
        self.files = files
        self.class_names = class_names
        self.rows = len(files)
        self.resize = resize
        self.channels = check_channels(channels)
        self.max_pixels = max_pixels
        self.check_pixels = check_pixels
        self.shape = self._decoded_shape() if decode or resize else None
        self.schema = Schema(type_name(files.folder.stem), RUNNING_KEY, self._fields(labelled))

    def _fields(self, labelled: bool) -> tuple[Field, ...]:
        image = Field("IMAGE", TypeCode.BYTE_ARRAY, BYTES)
        if self.shape is not None:
            image = field_for("IMAGE", np.dtype(np.uint8), self.shape)
        label = (field_for("LABEL", np.dtype(np.int32)),) if labelled else ()
        return (image, *label, Field("NAME", TypeCode.STRING, BYTES))

    def _decoded_shape(self) -> tuple[int, ...]:
        if self.resize is not None:
            return (*self.resize, self.channels)
        for number in range(min(_PROBED, len(self.files))):
            try:
                data = self.files.read(number)
                return decode_picture(data, self.channels, None, self.max_pixels).shape
            except (PictureError, SourceError) as error:
                if self.bad_records == "fail":
                    raise SourceError(str(error)).at(self.files.place(number).name) from error
        raise SourceError(f"{self.files.folder.name}: none of the first {_PROBED} images decodes")

    def fingerprint(self) -> str:
        """Made from names, sizes, times and labels of the files, and how they are decoded."""
        return digest("images", self.files.stamp(), self.shape, self.resize)

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        per_image = int(np.prod(self.shape)) if self.shape is not None else None
        numbers: list[int] = []
        pictures: list[bytes | NDArray[np.uint8]] = []
        size = 0
        number = start - 1
        for number, (picture, reason) in self._pictures(start, per_image, max_bytes):
            if picture is None:
                self.bad(self.files.place(number).name, reason)
                continue
            n = (per_image or len(picture)) + len(self.files.name(number)) + 12
            if numbers and size + n > max_bytes:
                yield number, self._batch(numbers, pictures)
                numbers, pictures, size = [], [], 0
            numbers.append(number)
            pictures.append(picture)
            size += n
        yield number + 1, self._batch(numbers, pictures)

    def _pictures(
        self, start: int, per_image: int | None, max_bytes: int
    ) -> Iterator[tuple[int, Loaded]]:
        """Yield number and image of each file from `start` on; processes read small local ones."""
        files = self.files
        recipe = Recipe(self.shape, self.resize, self.channels, self.max_pixels, self.check_pixels)
        with contextlib.ExitStack() as stack:
            load = recipe.load_all
            if self._has_many_small(start, per_image):
                load = stack.enter_context(Workers(recipe, os.cpu_count() or 2)).load_all
            groups = read_groups(
                start,
                len(files),
                lambda n: per_image or files.size(n),
                lambda group: load(files.folder, [files.name(n) for n in group]),
                max_bytes,
            )
            yield from stack.enter_context(contextlib.closing(groups))

    def _has_many_small(self, start: int, per_image: int | None) -> bool:
        """Whether there are enough small files to be worth starting processes."""
        files = self.files
        count = len(files) - start
        mean = per_image or files.total_bytes // len(files)
        return count >= _MANY and mean <= _SMALL_BYTES and files.folder.local is not None

    def _batch(self, numbers: list[int], pictures: list[bytes | NDArray[np.uint8]]) -> Batch:
        names = [readable_name(self.files.name(n)).encode() for n in numbers]
        columns = {"IMAGE": image_column(pictures, self.shape), "NAME": Column.from_bytes(names)}
        if "LABEL" in self.schema.names:
            labels = np.array([self.files.label(n) for n in numbers], np.int32)
            columns["LABEL"] = Column(labels)
        return Batch(keys_of(numbers), columns)


def image_column(
    pictures: list[bytes | NDArray[np.uint8]], shape: tuple[int, ...] | None
) -> Column:
    """Return a column of blobs, or of arrays of one shape."""
    if shape is None:
        return Column.from_bytes([p for p in pictures if isinstance(p, bytes)])
    dense = np.empty((len(pictures), *shape), np.uint8)
    for i, picture in enumerate(pictures):
        dense[i] = picture
    return Column(dense)


def images(
    location: Location,
    labels: Location | None = None,
    decode: bool = False,
    resize: str | tuple[int, int] | None = None,
    channels: int = 3,
    max_pixels: int = MAX_PIXELS,
    check_pixels: bool = True,
    bad_records: OnBadRecord = "fail",
) -> ImageSource:
    """Open image files.

    Args:
        location: A folder with one folder per class (files in deeper folders belong to the class
            above them), a folder of images without classes, or a CSV file of path and label.
        labels: A CSV of path (relative to `location`) and label.
        decode: Store pixels instead of the encoded file; all images must have the same shape.
        resize: `HEIGHTxWIDTH` that all images are scaled to; implies `decode`.
        channels: Channels of decoded images: 1 grey, 3 RGB, 4 RGBA.
        max_pixels: Images with more are bad records.
        check_pixels: Whether files that are stored unchanged must decode to their last pixel; False
            only reads headers, and the CRCs of PNG files.
        bad_records: "fail" stops at the first damaged image, "skip" leaves it out.

    Raises:
        SourceError: There is no such folder, or no image in it.
    """
    if not location:
        raise ConfigError("source 'images' needs a folder or a CSV of path and label")
    place = locate(location)
    if labels is not None:
        files, class_names = _listed_in_csv(locate(labels), place)
    elif place.is_dir():
        files, class_names = _listed_in_folder(place)
    elif place.path.lower().endswith((".csv", ".txt", ".tsv")) and place.exists():
        files, class_names = _listed_in_csv(place, place.parent)
    else:
        raise SourceError(f"{place.name}: no such folder", hint="give a folder or a CSV file")
    return ImageSource(
        files,
        class_names=class_names,
        labelled=labels is not None or class_names is not None or not place.is_dir(),
        decode=decode,
        resize=None if resize is None else parse_size(resize),
        channels=channels,
        max_pixels=max_pixels,
        check_pixels=check_pixels,
        bad_records=bad_records,
    )


def _listed_in_folder(folder: Place) -> tuple[FileList, list[str] | None]:
    """List images by class folder; class names only if there are class folders."""
    suffixes = picture_suffixes()
    files = FileList(folder)
    entries = [e for e in folder.children() if not e[0].startswith(".")]
    classes = [name for name, is_dir, _, _ in entries if is_dir]
    loose = [e for e in entries if not e[1] and PurePosixPath(e[0]).suffix.lower() in suffixes]
    if classes and loose:
        raise SourceError(
            f"{folder.name}: images beside class folders, such as {loose[0][0]}",
            hint="move them into the folder of their class",
        )
    for name, _, size, version in loose:
        files.add(name, size, version)
    for label, name in enumerate(classes):
        for inner, size, version in walk(folder.child(name), f"{name}/"):
            if PurePosixPath(inner).suffix.lower() in suffixes:
                files.add(inner, size, version, label)
    return files, [readable_name(name) for name in classes] or None


def _listed_in_csv(table: Place, folder: Place) -> tuple[FileList, list[str] | None]:
    """List images from a CSV of path and label; class names only if labels are not numbers."""
    with reading(table.name, "the file must be CSV in UTF-8: path,label"):
        text = table.read(_MAX_CSV_BYTES).decode("utf-8-sig")
        rows = [row for row in csv_module.reader(io.StringIO(text), strict=True) if row]
    if rows and rows[0][0].strip().lower() in _PATH_HEADINGS:
        del rows[0]
    for number, row in enumerate(rows, 1):
        if len(row) != 2 or not row[0].strip() or not row[1].strip():
            raise SourceError(
                f"{table.name}: entry {number} has {len(row)} columns or an empty one, expected "
                "path,label",
                hint="columns are separated by commas; a heading path,label may come first",
            )
    class_names = _class_names(table, [row[1].strip() for row in rows])
    number_of = {name: i for i, name in enumerate(class_names or ())}
    files = FileList(folder)
    for path, label in ((row[0].strip(), row[1].strip()) for row in rows):
        size, version = _stat(folder, path)
        files.add(path, size, version, number_of[label] if class_names else int(label))
    return files, class_names


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


def _stat(folder: Place, path: str) -> tuple[int, str]:
    """Return size and time of a local file if it exists; a remote file is not looked up."""
    local = folder.child(path).local
    try:
        stat = None if local is None else local.stat()
    except (OSError, ValueError):
        stat = None
    return (0, "") if stat is None else (stat.st_size, str(stat.st_mtime_ns))
