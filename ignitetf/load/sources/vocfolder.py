"""The pairs of image and annotation in a VOC or ImageNet DET folder.

folders -> lists of names -> **pairs, read and checked** -> voc
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SourceError
from ignitetf.load.sources.base import ordered_map
from ignitetf.load.sources.filelist import readable_name, walk
from ignitetf.load.sources.location import Place, digest
from ignitetf.load.sources.pictures import (
    PictureError,
    check_picture,
    decode_cropped,
    orientation,
    picture_suffixes,
)
from ignitetf.load.sources.vocxml import VocError, VocObject, parse_voc, parse_voc_size

__all__ = ["BACKGROUND", "Pair", "VocFolder"]

BACKGROUND = "background"
_MAX_XML_BYTES = 16 << 20
_MAX_LIST_BYTES = 256 << 20
# What is known about a pair; both tables of one source share it.
_GOOD, _BAD = 1, 2  # 0: not looked at yet


@dataclass
class Pair:
    """An image and its annotation, read and checked; or the reason why the pair is bad."""

    picture: bytes | NDArray[np.uint8] = b""
    height: int = 0
    width: int = 0
    objects: Sequence[VocObject] = ()
    bad_file: str = ""
    reason: str = ""


class Stems:
    """The files below a folder by path without suffix, in little memory.

    Attributes:
        folder: The folder.
        stamp: Changes with any name, size or time.
    """

    def __init__(self, folder: Place, suffixes: frozenset[str]) -> None:
        self.folder = folder
        self._suffixes: list[str] = []
        self._packed: dict[str, int] = {}  # size * 256 + index of the suffix
        whole = hashlib.sha256()
        for name, size, version in walk(folder):
            path = PurePosixPath(name)
            if path.suffix.lower() not in suffixes:
                continue
            if path.suffix not in self._suffixes:
                self._suffixes.append(path.suffix)
            stem = sys.intern(name.removesuffix(path.suffix))
            if stem in self._packed:
                raise SourceError(
                    f"{folder.name}: two files are called {readable_name(stem)!r} but for their"
                    " endings",
                    hint="an image and its annotation belong together by that name; keep one",
                )
            self._packed[stem] = size * 256 + self._suffixes.index(path.suffix)
            whole.update(f"{len(name)}|{name}|{size}|{version}|".encode("utf-8", "surrogateescape"))
        self.stamp = whole.hexdigest()

    def __iter__(self) -> Iterator[str]:
        """The paths without ending."""
        return iter(self._packed)

    def __contains__(self, stem: object) -> bool:
        """Whether there is a file of this path without ending."""
        return stem in self._packed

    def size(self, stem: str) -> int:
        """Return the bytes of a file, 0 if there is none."""
        return self._packed.get(stem, 0) // 256

    def place(self, stem: str) -> Place:
        """Return the location of a file."""
        return self.folder.child(stem + self._suffixes[self._packed[stem] % 256])


class VocFolder:
    """The pairs of a folder in a fixed order, and how they are read."""

    def __init__(
        self,
        root: Place,
        image_set: str | None,
        class_names: Sequence[str] | None,
        crop: tuple[int, int] | None,
        channels: int,
        max_pixels: int,
    ) -> None:
        self.root = root
        self.pictures = _subfolder(root, ("JPEGImages", f"Data/DET/{image_set}", "Data/DET"))
        self.notes = _subfolder(
            root, (f"Annotations/DET/{image_set}", "Annotations/DET", "Annotations")
        )
        self.crop = crop
        self.channels = channels
        self.max_pixels = max_pixels
        self._picture_files = Stems(self.pictures, picture_suffixes())
        self._note_files = Stems(self.notes, frozenset({".xml"}))
        self.names = self._names(image_set)
        self.class_names = list(class_names) if class_names is not None else self._find_classes()
        if self.class_names[:1] != [BACKGROUND]:
            self.class_names.insert(0, BACKGROUND)
        self.label_of = {name: i for i, name in enumerate(self.class_names)}
        self.state = bytearray(len(self.names))

    def _names(self, image_set: str | None) -> list[str]:
        if image_set is None:
            names = sorted({*self._picture_files, *self._note_files})
        else:
            names = _image_set(self.root, image_set)
        if not names:
            raise SourceError(
                f"{self.root.name}: no images in it",
                hint="images stand in JPEGImages, annotations in Annotations",
            )
        return names

    def _find_classes(self) -> list[str]:
        """Return the sorted names of all objects in the folder, whatever the image set."""

        def classes(name: str) -> set[str]:
            try:
                return {item.name for item in self.objects(name)}
            except (VocError, SourceError):
                return set()  # reported when the pair is read

        found: set[str] = set()
        for some in ordered_map(classes, sorted(self._note_files)):
            found |= some
        return sorted(found - {BACKGROUND})

    def fingerprint(self) -> str:
        """Made from the names in order and all files' sizes and times."""
        how = (self.crop, self.channels if self.crop else 0, self.class_names)
        return digest("voc", how, self._picture_files.stamp, self._note_files.stamp, *self.names)

    def size_of(self, number: int) -> int:
        """Return the approximate bytes of a record."""
        if self.crop is not None:
            return self.crop[0] * self.crop[1] * self.channels
        return self._picture_files.size(self.names[number])

    def objects(self, name: str) -> list[VocObject]:
        """Return the objects in the annotation of this name."""
        return parse_voc(self._note_files.place(name).read(_MAX_XML_BYTES))

    def load(self, number: int) -> Pair:
        """Read and check a pair; runs in a thread."""
        pair = self._load(number, pixels=True)
        self.state[number] = _BAD if pair.reason else _GOOD
        return pair

    def load_objects(self, number: int) -> Pair:
        """Read the annotation of a pair; the image is checked only if that was not done before."""
        if self.state[number] == _GOOD:
            return self._load(number, pixels=None)
        pair = self._load(number, pixels=False)
        self.state[number] = _BAD if pair.reason else _GOOD
        pair.picture = b""
        return pair

    def _load(self, number: int, *, pixels: bool | None) -> Pair:
        """Read a pair; `pixels`: True as it is stored, False only checked, None not read."""
        name = self.names[number]
        for files, what in ((self._picture_files, "image"), (self._note_files, "annotation")):
            if name not in files:
                return Pair(
                    bad_file=files.folder.child(name).name, reason=f"its {what} file is missing"
                )
        picture, note = self._picture_files.place(name), self._note_files.place(name)
        place = note
        try:
            annotation = note.read(_MAX_XML_BYTES)
            pair = Pair(objects=parse_voc(annotation))
            if pixels is not None:
                place = picture
                turn = self._read_picture(pair, picture, pixels)
                place = note
                parse_voc_size(annotation).check(pair.height, pair.width, turn)
                for item in pair.objects:
                    item.check_inside(pair.height, pair.width)
            if unknown := [o.name for o in pair.objects if o.name not in self.label_of]:
                raise VocError(f"class {unknown[0]!r} is not in class_names")
        except SourceError as error:
            return Pair(bad_file=place.name, reason=error.message.removeprefix(f"{place.name}: "))
        except (VocError, PictureError) as error:
            return Pair(bad_file=place.name, reason=str(error))
        return pair

    def _read_picture(self, pair: Pair, place: Place, pixels: bool) -> int:
        """Read and check an image, and return its orientation in EXIF."""
        data = place.read(self.max_pixels * 4)
        if self.crop is None or not pixels:
            pair.height, pair.width = check_picture(data, self.max_pixels)
            pair.picture = data
            return orientation(data)
        pair.picture, (pair.height, pair.width) = decode_cropped(
            data, self.channels, self.crop, self.max_pixels
        )
        return orientation(data)


def _subfolder(root: Place, candidates: tuple[str, ...]) -> Place:
    for candidate in candidates:
        if (folder := root.child(candidate)).is_dir():
            return folder
    raise SourceError(
        f"{root.name}: no folder {' or '.join(candidates[::2])} in it",
        hint="expected JPEGImages and Annotations (VOC), or Data/DET and Annotations/DET",
    )


def _image_set(root: Place, image_set: str) -> list[str]:
    """Return the names in a list, except those that a list of one class marks with -1."""
    for candidate in (f"ImageSets/Main/{image_set}.txt", f"ImageSets/DET/{image_set}.txt"):
        place = root.child(candidate)
        if place.exists():
            break
    else:
        raise SourceError(
            f"{root.name}: no image set {image_set!r}",
            hint="image sets are lists of names: ImageSets/Main/NAME.txt",
        )
    try:
        lines = place.read(_MAX_LIST_BYTES).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise SourceError(f"{place.name}: not a text file in UTF-8") from error
    words = [line.split() for line in lines]
    names = [sys.intern(w[0]) for w in words if w and w[1:2] != ["-1"]]
    return list(dict.fromkeys(names))
