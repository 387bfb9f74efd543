"""The folder of a VOC data set: pairs of an image and its annotation, in every layout of tools.

JPEGImages and Annotations, images and annotations, or both in one folder -> **pairs** -> voc

labelImg and Roboflow write each XML file next to its image. Roboflow writes folders called train,
valid and test, which are splits.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SourceError
from ignitetf.load.sources.base import ordered_map
from ignitetf.load.sources.filelist import readable_name, walk
from ignitetf.load.sources.filesets import is_split_word
from ignitetf.load.sources.frames import BoxError, placed, was_moved
from ignitetf.load.sources.location import Place, digest
from ignitetf.load.sources.pictures import check_picture, decode_cropped
from ignitetf.load.sources.vocxml import Annotation, VocObject, read_voc
from ignitetf.pictures import PictureError, orientation, picture_suffixes

__all__ = ["Pair", "VocFolder"]

_BACKGROUND = "background"
_MAX_XML_BYTES = 16 << 20
_MAX_LIST_BYTES = 256 << 20
# Folders of images, and of their annotations, as tools name them.
_PICTURES = ("JPEGImages", "images", "Images")
_NOTES = ("Annotations", "annotations/xmls", "annotations", "labels")
_LAYOUT_HINT = (
    "expected JPEGImages and Annotations (VOC), images and annotations, Data/DET and"
    " Annotations/DET (ImageNet), or each XML file next to its image (labelImg, Roboflow)"
)


@dataclass
class Pair:
    """An image and its annotation, read and checked; or the reason why the pair is bad."""

    picture: bytes | NDArray[np.uint8] = b""
    height: int = 0
    width: int = 0
    objects: Sequence[VocObject] = ()
    clipped: int = 0
    turn: int = 1
    bad_file: str = ""
    reason: str = ""


class _Stems:
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
                    f"{folder.name}: two files are called {readable_name(stem)!r}, with different"
                    " extensions",
                    hint="an image and its annotation are matched by that name; keep one",
                )
            self._packed[stem] = size * 256 + self._suffixes.index(path.suffix)
            whole.update(f"{len(name)}|{name}|{size}|{version}|".encode("utf-8", "surrogateescape"))
        self.stamp = whole.hexdigest()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the paths without suffix."""
        return iter(self._packed)

    def __contains__(self, stem: object) -> bool:
        """Return whether a file has this path without its suffix."""
        return stem in self._packed

    def size(self, stem: str) -> int:
        """Return the bytes of a file; 0 if it does not exist."""
        return self._packed.get(stem, 0) // 256

    def place(self, stem: str) -> Place:
        """Return the location of a file."""
        return self.folder.child(stem + self._suffixes[self._packed[stem] % 256])


class VocFolder:
    """The pairs of a folder in a fixed order, and how they are read.

    Attributes:
        names: Path of each pair without suffix, relative to its folders.
        class_names: Names of the classes; the first is the background.
        splits: Names of the splits, which the names of the pairs begin with; empty if none.
        others: Names of elements of the annotations that are not loaded.
    """

    def __init__(
        self,
        root: Place,
        image_set: str | None,
        class_names: Sequence[str] | None,
        crop: tuple[int, int] | None,
        channels: int,
        max_pixels: int,
        split_folders: bool | None,
    ) -> None:
        self.root = root
        self.crop = crop
        self.channels = channels
        self.max_pixels = max_pixels
        self.pictures, self.notes = _layout(root, image_set)
        self._picture_files = _Stems(self.pictures, picture_suffixes())
        self._note_files = _Stems(self.notes, frozenset({".xml"}))
        self.names = self._names(image_set)
        self.splits = self._splits(split_folders)
        self.others: set[str] = set()
        self.class_names = list(class_names) if class_names is not None else self._find_classes()
        if self.class_names[:1] != [_BACKGROUND]:
            self.class_names.insert(0, _BACKGROUND)
        self.label_of = {name: i for i, name in enumerate(self.class_names)}
        # Height and width of the images of good pairs, which both tables share; 0 for the others.
        self._sizes = array("i", [0]) * (2 * len(self.names))

    def _names(self, image_set: str | None) -> list[str]:
        if image_set is None:
            names = sorted({*self._picture_files, *self._note_files})
        else:
            names = _image_set(self.root, image_set)
        if not names:
            raise SourceError(
                f"{self.root.name}: no images in it",
                hint=_LAYOUT_HINT,
            )
        return names

    def _splits(self, asked: bool | None) -> tuple[str, ...]:
        """Return the names of the splits: folders called so, or any folders, if asked for."""
        if asked is False:
            return ()
        tops = {name.partition("/")[0] if "/" in name else "" for name in self.names}
        if asked and "" in tops:
            raise SourceError(
                f"{self.pictures.name}: not all images are in folders, so these are not splits",
                hint="omit --split-folders",
            )
        if asked or (len(tops) > 1 and all(map(is_split_word, tops))):
            return tuple(sorted(tops))
        return ()

    def split_of(self, number: int) -> str:
        """Return the split of a pair."""
        return self.names[number].partition("/")[0]

    def _find_classes(self) -> list[str]:
        """Return the sorted names of all objects in the folder, in all image sets."""

        def read(name: str) -> Annotation | None:
            try:
                return self._annotation(name)
            except (BoxError, SourceError):
                return None  # reported when the pair is read

        found: set[str] = set()
        for one in ordered_map(read, sorted(self._note_files)):
            if one is not None:
                found.update(item.name for item in one.objects)
                self.others |= one.others
        return sorted(found - {_BACKGROUND})

    def fingerprint(self) -> str:
        """A digest of the names in order and all files' sizes and times."""
        how = (self.crop, self.channels if self.crop else 0, self.class_names, self.splits)
        return digest("voc", how, self._picture_files.stamp, self._note_files.stamp, *self.names)

    def size_of(self, number: int) -> int:
        """Return the approximate bytes of a record."""
        if self.crop is not None:
            return self.crop[0] * self.crop[1] * self.channels
        return self._picture_files.size(self.names[number])

    def _annotation(self, name: str) -> Annotation:
        return read_voc(self._note_files.place(name).read(_MAX_XML_BYTES))

    def load(self, number: int) -> Pair:
        """Read and check a pair; runs in a thread."""
        return self._kept(number, self._load(number, pixels=True))

    def load_objects(self, number: int) -> Pair:
        """Read the annotation of a pair; the image is checked only if that was not done before."""
        if self._sizes[2 * number]:
            return self._load(number, pixels=None)
        pair = self._kept(number, self._load(number, pixels=False))
        pair.picture = b""
        return pair

    def _kept(self, number: int, pair: Pair) -> Pair:
        """Keep the size of the image of a pair."""
        self._sizes[2 * number], self._sizes[2 * number + 1] = pair.height, pair.width
        return pair

    def _load(self, number: int, *, pixels: bool | None) -> Pair:
        """Read a pair; `pixels`: True reads the stored form, False only checks, None skips it."""
        name = self.names[number]
        for files, what in ((self._picture_files, "image"), (self._note_files, "annotation")):
            if name not in files:
                return Pair(
                    bad_file=files.folder.child(name).name, reason=f"its {what} file is missing"
                )
        picture, note = self._picture_files.place(name), self._note_files.place(name)
        pair = Pair(height=self._sizes[2 * number], width=self._sizes[2 * number + 1])
        place = note
        try:
            annotation = self._annotation(name)
            if pixels is not None:
                place = picture
                self._read_picture(pair, picture, pixels)
                place = note
                has_boxes = bool(annotation.objects)
                annotation.size.check(pair.height, pair.width, pair.turn, has_boxes=has_boxes)
            self._place(pair, annotation.objects)
        except SourceError as error:
            return Pair(bad_file=place.name, reason=error.message.removeprefix(f"{place.name}: "))
        except (BoxError, PictureError) as error:
            return Pair(bad_file=place.name, reason=str(error))
        return pair

    def _place(self, pair: Pair, objects: Sequence[VocObject]) -> None:
        """Take the objects of a pair, with boxes in its image."""
        found = []
        for item in objects:
            if item.name not in self.label_of:
                raise BoxError(f"class {item.name!r} is not one of the given classes")
            # Corners are pixels of the object: one of a single pixel has equal ones.
            box = placed(item.box, item.name, pair.height, pair.width, inclusive=True)
            pair.clipped += was_moved(item.box, box)
            found.append(replace(item, box=box))
        pair.objects = found

    def _read_picture(self, pair: Pair, place: Place, pixels: bool) -> None:
        """Read and check an image."""
        data = place.read(self.max_pixels * 4)
        pair.turn = orientation(data)
        if self.crop is None or not pixels:
            pair.height, pair.width = check_picture(data, self.max_pixels)
            pair.picture = data
            return
        pair.picture, (pair.height, pair.width) = decode_cropped(
            data, self.channels, self.crop, self.max_pixels
        )


def _layout(root: Place, image_set: str | None) -> tuple[Place, Place]:
    """Return the folders of images and of annotations, which may be one."""
    det = (f"Data/DET/{image_set}", "Data/DET"), (f"Annotations/DET/{image_set}", "Annotations/DET")
    for pictures, notes in (det, (_PICTURES, _NOTES)):
        found = _subfolder(root, pictures), _subfolder(root, notes)
        if found[0] is not None and found[1] is not None:
            return found[0], found[1]
    if any(name.lower().endswith(".xml") for name, _, _ in walk(root)):
        return root, root
    raise SourceError(
        f"{root.name}: no folder {_PICTURES[0]} or Data/DET with annotations, and no XML file",
        hint=_LAYOUT_HINT,
    )


def _subfolder(root: Place, candidates: Sequence[str]) -> Place | None:
    places = map(root.child, candidates)
    return next((place for place in places if place.is_dir()), None)


def _image_set(root: Place, image_set: str) -> list[str]:
    """Return the names in an image set; skips names that a list of one class marks with -1."""
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
