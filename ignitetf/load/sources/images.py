"""Image files as records: class folders, a flat folder, or a CSV of path, label and other fields.

folder or CSV -> **list of files, read, checked or decoded** -> Batch

Encoded images are stored exactly as in the file, after a check that they decode to their end;
decoded ones as arrays of one shape, uint8, or uint16 for 16 bits of grey.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.archives import ArchiveFiles
from ignitetf.load.sources.base import (
    RUNNING_KEY,
    SPLIT,
    Source,
    keys_of,
    type_name,
)
from ignitetf.load.sources.filelist import FileList, read_groups, readable_name, walk
from ignitetf.load.sources.folders import folder_at, is_picture, listed, names_in_file
from ignitetf.load.sources.labels import Labels, read_labels
from ignitetf.load.sources.location import Location, Place, digest, locate
from ignitetf.load.sources.pictures import (
    MAX_PIXELS,
    Loaded,
    Recipe,
    check_channels,
    check_depth,
    parse_size,
    pixel_form,
    turned_note,
)
from ignitetf.load.sources.values import stored_field
from ignitetf.load.sources.workers import Workers
from ignitetf.pictures import PictureError, is_turned
from ignitetf.spelling import did_you_mean
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs
from ignitetf.wire.schema import BYTES, Field, Schema, field_for

__all__ = ["images"]

_PROBED = 100  # files tried to find the shape of decoded images
# If at least `_MANY` files are below this size, processes read them.
_SMALL_BYTES = 64 << 10
_MANY = 4096
_PIXELS = np.dtype(np.uint8)


class _ImageSource(Source):
    """Fields IMAGE (blob, or pixels [height, width, channels]), LABEL (int32), NAME and others.

    Images without classes have no LABEL. The other fields are the fields of the table
    that names the images.
    """

    def __init__(
        self,
        files: FileList,
        *,
        labels: Labels,
        labelled: bool,
        splits: Sequence[str] = (),
        decode: bool = False,
        resize: tuple[int, int] | None = None,
        channels: int | None = None,
        depth: int | None = None,
        orient: bool = True,
        max_pixels: int = MAX_PIXELS,
        check_pixels: bool = True,
        bad_records: OnBadRecord = "fail",
    ) -> None:
        """Open a list of files; the first one that decodes sets the shape of decoded images."""
        super().__init__(bad_records=bad_records)
        if not len(files):
            raise SourceError(
                f"{files.folder.name}: no image in it",
                hint="images must be in one folder per class, in one folder, or listed in a CSV of path,label",
            )
        self.files = files
        self.labels = labels
        self.labelled = labelled
        self.class_names = labels.class_names
        self.split_names = tuple(splits)
        self.rows = len(files)
        self.nbytes = files.total_bytes or None
        if not labelled and "LABEL" not in labels.columns:
            self.note(
                f"{files.folder.name}: the images have no classes, and get no field LABEL; one"
                " folder for each class, or --labels with a CSV of file and class, gives them one"
            )
        for text in labels.notes:
            self.note(text)
        check_channels(3 if channels is None else channels)
        check_depth(8 if depth is None else depth, channels)
        stored = Recipe(None, resize, 3, max_pixels, check_pixels)
        self.recipe = (
            self._decoding(stored, channels, depth, orient) if decode or resize else stored
        )
        self.shape = self.recipe.shape
        if self.shape is not None:
            self.nbytes = self.rows * int(np.prod(self.shape)) * self.recipe.dtype.itemsize
        self._may_be_turned = self.shape is None
        self.schema = Schema(type_name(files.folder.stem), RUNNING_KEY, self._fields())

    def _fields(self) -> tuple[Field, ...]:
        image = Field("IMAGE", TypeCode.BYTE_ARRAY, BYTES)
        if self.shape is not None:
            image = stored_field("IMAGE", self.recipe.dtype, self.shape)
        label = (field_for("LABEL", np.dtype(np.int32)),) if self.labelled else ()
        split = (Field(SPLIT, TypeCode.STRING, BYTES),) if self.split_names else ()
        name = Field("NAME", TypeCode.STRING, BYTES)
        return (image, *label, name, *self.labels.fields, *split)

    def _decoding(
        self, stored: Recipe, channels: int | None, depth: int | None, orient: bool
    ) -> Recipe:
        """Return the recipe for pixels; the first image that decodes determines their form."""
        recipe = replace(
            stored,
            channels=3 if channels is None else channels,
            depth=8 if depth is None else depth,
            reduce=depth == 8,
            orient=orient,
        )
        for number in range(min(_PROBED, len(self.files))):
            try:
                size, bits = pixel_form(self.files.read(number), recipe.max_pixels, orient=orient)
                if depth is None and channels in (None, 1) and bits == 16:
                    recipe = replace(recipe, depth=16)
                shown = 1 if recipe.depth == 16 else recipe.channels
                return replace(recipe, channels=shown, shape=(*(recipe.resize or size), shown))
            except (PictureError, SourceError) as error:
                if self.bad_records == "fail":
                    raise SourceError(str(error)).at(self.files.place(number).name) from error
        raise SourceError(
            f"{self.files.folder.name}: none of the first {_PROBED} images can be decoded"
        )

    def fingerprint(self) -> str:
        """A digest of names, sizes, times and labels of the files, and how they are decoded."""
        parts: list[object] = [self.files.stamp(), self.shape, self.recipe.resize]
        parts += [self.class_names, self.split_names]
        if self.shape is not None and (self.recipe.depth, self.recipe.orient) != (8, True):
            parts += [self.recipe.depth, self.recipe.orient]
        return digest("images", *parts, *([self.labels.stamp] if self.labels.stamp else []))

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        per_image = None
        if self.shape is not None:
            per_image = int(np.prod(self.shape)) * self.recipe.dtype.itemsize
        beside = sum(column.nbytes for column in self.labels.columns.values()) // len(self.files)
        numbers: list[int] = []
        pictures: list[bytes | NDArray[Any]] = []
        size = 0
        number = start - 1
        for number, (picture, reason) in self._pictures(start, per_image, max_bytes):
            if picture is None:
                self.bad(self.files.place(number).name, reason)
                continue
            if self._may_be_turned and isinstance(picture, bytes) and is_turned(picture):
                self._note_turned(self.files.place(number).name)
            n = (per_image or len(picture)) + len(self.files.name(number)) + 12 + beside
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
        """Yield number and image of each file from `start` on; processes read small local files."""
        files = self.files
        recipe = self.recipe
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
        """True if there are enough small files to be worth starting processes."""
        files = self.files
        count = len(files) - start
        mean = per_image or files.total_bytes // len(files)
        return count >= _MANY and mean <= _SMALL_BYTES and files.folder.local is not None

    def _batch(self, numbers: list[int], pictures: list[bytes | NDArray[Any]]) -> Batch:
        names = [readable_name(self.files.name(n)).encode() for n in numbers]
        image = image_column(pictures, self.shape, self.recipe.dtype)
        rows = np.array(numbers, np.int64)
        own = self.labels.names
        columns = {"IMAGE": image, "NAME": Runs.from_bytes(names) if own is None else own[rows]}
        columns |= {name: column[rows] for name, column in self.labels.columns.items()}
        if self.labelled:
            labels = np.array([self.files.label(n) for n in numbers], np.int32)
            columns["LABEL"] = Dense(labels)
        if self.split_names:
            split = [self.split_names[self.files.split(n)].encode() for n in numbers]
            columns[SPLIT] = Runs.from_bytes(split)
        return Batch(keys_of(numbers), columns)

    def _note_turned(self, name: str) -> None:
        self._may_be_turned = False
        self.note(turned_note(name, ": --decode or --resize stores upright pixels"))


def image_column(
    pictures: list[bytes | NDArray[Any]],
    shape: tuple[int, ...] | None,
    dtype: np.dtype[Any] = _PIXELS,
) -> Column:
    """Return a column of blobs, or of arrays of one shape."""
    if shape is None:
        return Runs.from_bytes([p for p in pictures if isinstance(p, bytes)])
    dense = np.empty((len(pictures), *shape), dtype)
    for i, picture in enumerate(pictures):
        dense[i] = picture
    return Dense(dense)


def images(
    location: Location,
    labels: Location | None = None,
    columns: str | Iterable[str] | None = None,
    rename: str | Mapping[str, str] | None = None,
    types: str | Mapping[str, str] | None = None,
    classes: Location | None = None,
    split_folders: bool | None = None,
    decode: bool = False,
    resize: str | tuple[int, int] | None = None,
    channels: int | None = None,
    depth: int | None = None,
    orient: bool = True,
    max_pixels: int = MAX_PIXELS,
    check_pixels: bool = True,
    bad_records: OnBadRecord = "fail",
) -> _ImageSource:
    """Open image files.

    Args:
        location: A folder with one folder per class (files in deeper folders belong to the class
            above them), a folder of images without classes, an archive of one of them (zip, tar),
            or a CSV file, as `labels`.
        labels: A CSV of path (relative to `location`), label and any other columns, which become
            fields; see `labels.read_labels`.
        columns: Columns of the CSV to load in addition to the path, `A,B`; None for all.
        rename: New names of columns of the CSV, `OLD=NEW,OLD=NEW`.
        types: Types of columns of the CSV, as in the source `csv`.
        classes: A file with the names of the classes, one per line, in the order of their numbers;
            None sorts them.
        split_folders: True if the folders in `location` are splits, with class folders in them;
            None: if all are called after splits (train, val, test).
        decode: Store pixels instead of the encoded file; all images must have the same shape.
        resize: `HEIGHTxWIDTH` that all images are scaled to; implies `decode`.
        channels: Channels of decoded images: 1 grey, 3 RGB, 4 RGBA; None for 3, or for 1 with 16
            bits.
        depth: Bits of decoded pixels: 8 keeps the upper ones of 16; None is 16 if the first image
            is grey with 16 bits.
        orient: True if decoded images are turned upright, as their EXIF says.
        max_pixels: Images with more are bad records.
        check_pixels: True if files that are stored unchanged must decode to their last pixel; False
            only reads headers, and the CRCs of PNG files.
        bad_records: "fail" stops at the first damaged image, "skip" leaves it out.

    Raises:
        SourceError: The folder does not exist, or has no images.
    """
    if not location:
        raise ConfigError("source 'images' needs a folder or a CSV of path and label")
    place = folder_at(location)
    table = place if labels is None else locate(labels)
    names = None if classes is None else names_in_file(classes)
    splits: Sequence[str] = ()
    if labels is None and place.is_dir():
        if columns is not None or rename is not None or types is not None:
            raise ConfigError(
                "columns, rename and types need a table, but none is given",
                hint="name the CSV file with --labels",
            )
        below = listed(place, split_folders, names)
        files, splits = below.files, below.splits
        found = Labels([], class_names=below.class_names, notes=tuple(below.notes))
    elif split_folders:
        raise ConfigError(
            "images that a table lists have no folders of splits",
            hint="omit --split-folders",
        )
    elif labels is not None or (
        place.path.lower().endswith((".csv", ".txt", ".tsv")) and place.exists()
    ):
        found = read_labels(table, columns, rename, types, bad_records, names)
        folder = place if labels is not None else place.parent
        files, notes = _listed_in_table(found, table, folder, labels is not None, bad_records)
        found = replace(found, notes=(*found.notes, *notes))
    else:
        raise SourceError(f"{place.name}: no such folder", hint="give a folder or a CSV file")
    return _ImageSource(
        files,
        labels=found,
        labelled=found.numbers is not None or found.class_names is not None,
        splits=splits,
        decode=decode,
        resize=None if resize is None else parse_size(resize),
        channels=channels,
        depth=depth,
        orient=orient,
        max_pixels=max_pixels,
        check_pixels=check_pixels,
        bad_records=bad_records,
    )


def _listed_in_table(
    labels: Labels, table: Place, folder: Place, listed: bool, bad_records: OnBadRecord
) -> tuple[FileList, tuple[str, ...]]:
    """Return the images of a table, and notes on images and rows that do not match.

    Args:
        labels: The rows of the table.
        table: The file with these rows.
        folder: The folder that paths are relative to.
        listed: True to search the folder for images without a row.
        bad_records: True to raise an error for rows without an image; otherwise they are reported
            when they are read.
    """
    there = _images_in(folder) if listed else {}
    files = FileList(folder)
    numbers = labels.numbers if labels.numbers is not None else [-1] * len(labels.paths)
    named = set()
    missing: list[int] = []
    for row, (path, number) in enumerate(zip(labels.paths, numbers, strict=True)):
        named.add(usual := posixpath.normpath(path))
        found = there.get(usual) or _stat(folder, path)
        if found is None:
            missing.append(row)
        files.add(path, *(found or (0, "")), number)
    if missing and bad_records == "fail":
        raise _missing(labels, table, folder, missing, there)
    unnamed = sorted(there.keys() - named)
    if not unnamed or not named:
        return files, ()
    return files, (
        f"{len(unnamed):,} of {len(there):,} images below {folder.name} have no row in"
        f" {table.name} and are not loaded, such as {readable_name(unnamed[0])!r}",
    )


def _images_in(folder: Place) -> dict[str, tuple[int, str]]:
    """Return size and version of the images below a folder."""
    if not folder.is_dir():
        raise SourceError(f"{folder.name}: no such folder", hint="give the folder of the images")
    return {name: (size, version) for name, size, version in walk(folder) if is_picture(name)}


def _missing(
    labels: Labels, table: Place, folder: Place, missing: list[int], there: Collection[str]
) -> SourceError:
    """Return the error for rows whose image is missing, with a hint about its place."""
    path = labels.paths[missing[0]]
    base = PurePosixPath(path).name.lower()
    near = [name for name in there if PurePosixPath(name).name.lower() == base]
    near += [name for name in there if PurePosixPath(name).stem.lower() == base]
    hint = f"paths are relative to {folder.name}"
    if near:
        hint += f"; there is {near[0]!r}"
    elif close := did_you_mean(path, there, form=repr):
        hint += f"; {close}"
    more = f", and {len(missing) - 1:,} more of its {len(labels.paths):,} rows name no image"
    return SourceError(
        f"{folder.child(path).name}: no such file, but entry {missing[0] + 1} of {table.name} names"
        f" it{more if len(missing) > 1 else ''}",
        hint=f"{hint}; or skip such rows with --bad-records skip",
        name=folder.child(path).name,
    )


def _stat(folder: Place, path: str) -> tuple[int, str] | None:
    """Return size and version of a file, None if it is missing; remote files are not checked."""
    place = folder.child(path)
    if isinstance(place.fs, ArchiveFiles):
        if not place.fs.exists(place.path):
            return None
        info = place.fs.info(place.path)
        return info["size"], str(info.get("mtime", ""))
    local = place.local
    if local is None:
        return 0, ""
    try:
        stat = local.stat()
    except (OSError, ValueError):
        return None
    return stat.st_size, str(stat.st_mtime_ns)
