"""PASCAL VOC and ImageNet DET: pairs of JPEG and XML as two collocated tables.

folders -> pairs, read in parallel -> **images, annotations** -> Batch

The images table has one row per image, with all its boxes as arrays. The annotations table has one
row per object, keyed {IMAGE_ID, N}; IMAGE_ID decides the partition, so an object is stored on the
node of its image. A bad pair is left out of both. All coordinates are pixels of the original image,
even if the stored image was cropped or padded. The XML is not trusted: defusedxml refuses entities
and external references.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.base import (
    RUNNING_KEY,
    Source,
    keys_of,
    ordered_map,
)
from ignitetf.load.sources.filelist import read_groups, readable_name, walk
from ignitetf.load.sources.images import image_column
from ignitetf.load.sources.location import Location, Place, digest, locate
from ignitetf.load.sources.pictures import (
    MAX_PIXELS,
    check_channels,
    check_picture,
    decode_cropped,
    parse_size,
)
from ignitetf.pictures import PictureError, orientation, picture_suffixes
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Dense, Runs, Struct
from ignitetf.wire.schema import BYTES, Field, Schema, field_for

__all__ = ["ImageSize", "VocError", "main_object", "parse_voc", "voc"]

_INT = np.dtype(np.int32)
_FLOAT = np.dtype(np.float32)
_CORNERS = ("XMIN", "YMIN", "XMAX", "YMAX")


class _VocImages(Source):
    """One row per image.

    Fields: IMAGE (blob, or uint8 [height, width, channels] cropped or padded to one shape), NAME,
    WIDTH and HEIGHT of the original image, LABEL and XMIN, YMIN, XMAX, YMAX of the main object (the
    largest box), and of all objects BOXES (float32 [n, 4], rows xmin, ymin, xmax, ymax) and
    BOX_LABELS (int32 [n]).
    """

    def __init__(self, folder: _VocFolder, *, bad_records: OnBadRecord = "fail") -> None:
        super().__init__(bad_records=bad_records)
        self.folder = folder
        self.rows = len(folder.names)
        self.nbytes = sum(map(folder.size_of, range(self.rows)))
        self.class_names = folder.class_names
        self._annotations = _VocAnnotations(folder, bad_records=bad_records)
        image = Field("IMAGE", TypeCode.BYTE_ARRAY, BYTES)
        if folder.crop is not None:
            image = field_for("IMAGE", np.dtype(np.uint8), (*folder.crop, folder.channels))
        self.schema = Schema(
            "VocImage",
            RUNNING_KEY,
            (
                image,
                Field("NAME", TypeCode.STRING, BYTES),
                *(field_for(name, _INT) for name in ("WIDTH", "HEIGHT", "LABEL")),
                *(field_for(name, _FLOAT) for name in _CORNERS),
                field_for("BOXES", _FLOAT, (None, 4)),
                field_for("BOX_LABELS", _INT, (None,)),
            ),
        )

    @property
    def parts(self) -> dict[str, Source]:
        """The two tables: images and annotations."""
        return {"images": self, "annotations": self._annotations}

    def fingerprint(self) -> str:
        """Made from names, sizes and times of all files."""
        return digest("images", self.folder.fingerprint())

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        folder = self.folder
        numbers: list[int] = []
        pairs: list[_Pair] = []
        size = 0
        number = start - 1
        for number, pair in read_groups(
            start,
            len(folder.names),
            folder.size_of,
            lambda group: [folder.load(n) for n in group],
            max_bytes,
        ):
            if pair.reason:
                self.bad(pair.bad_file, pair.reason)
                continue
            n = len(pair.picture) if isinstance(pair.picture, bytes) else pair.picture.nbytes
            n += 20 * len(pair.objects) + len(folder.names[number]) + 64
            if numbers and size + n > max_bytes:
                yield number, self._batch(numbers, pairs)
                numbers, pairs, size = [], [], 0
            numbers.append(number)
            pairs.append(pair)
            size += n
        yield number + 1, self._batch(numbers, pairs)

    def _batch(self, numbers: list[int], pairs: list[_Pair]) -> Batch:
        label_of = self.folder.label_of
        shape = self.schema["IMAGE"].shape
        names = [readable_name(self.folder.names[n]).encode() for n in numbers]
        mains = [main_object(list(pair.objects)) for pair in pairs]
        objects = [item for pair in pairs for item in pair.objects]
        offsets = np.cumsum([0, *(len(pair.objects) for pair in pairs)], dtype=np.int64)
        boxes = np.array([item.box for item in objects], np.float32).reshape(-1)
        labels = np.array([label_of[item.name] for item in objects], np.int32)
        corners = np.array([item.box for item in mains], np.float32).reshape(-1, 4)
        columns = {
            "IMAGE": image_column(
                [p.picture for p in pairs], tuple(n or 0 for n in shape) if shape else None
            ),
            "NAME": Runs.from_bytes(names),
            "WIDTH": Dense(np.array([pair.width for pair in pairs], np.int32)),
            "HEIGHT": Dense(np.array([pair.height for pair in pairs], np.int32)),
            "LABEL": Dense(np.array([label_of[item.name] for item in mains], np.int32)),
            **{c: Dense(np.ascontiguousarray(corners[:, i])) for i, c in enumerate(_CORNERS)},
            "BOXES": Runs.from_offsets(Dense(boxes), offsets * 4),
            "BOX_LABELS": Runs.from_offsets(Dense(labels), offsets),
        }
        return Batch(keys_of(numbers), columns)


class _VocAnnotations(Source):
    """One row per object, keyed by the image's key IMAGE_ID and the object's number N in it.

    Fields: NAME of the image, CLASS, LABEL, XMIN, YMIN, XMAX, YMAX, DIFFICULT, TRUNCATED. Records
    are the objects of good images, counted in order; their number is known only once all have been
    read.
    """

    def __init__(self, folder: _VocFolder, *, bad_records: OnBadRecord = "fail") -> None:
        super().__init__(bad_records=bad_records)
        self.folder = folder
        self.class_names = folder.class_names
        key = Field(
            "key",
            TypeCode.OBJECT,
            BYTES,
            fields=(field_for("IMAGE_ID", np.dtype(np.int64)), field_for("N", _INT)),
        )
        self.schema = Schema(
            "VocAnnotation",
            key,
            (
                Field("NAME", TypeCode.STRING, BYTES),
                Field("CLASS", TypeCode.STRING, BYTES),
                field_for("LABEL", _INT),
                *(field_for(name, _FLOAT) for name in _CORNERS),
                *(field_for(name, _INT) for name in ("DIFFICULT", "TRUNCATED")),
            ),
            affinity_key="IMAGE_ID",
            key_type_name="VocAnnotationKey",
        )

    def fingerprint(self) -> str:
        """Made from names, sizes and times of all files."""
        return digest("annotations", self.folder.fingerprint())

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        folder = self.folder
        rows = max(1, max_bytes // 64)
        found: list[tuple[int, int, _VocObject]] = []
        count = images = 0
        for number, pair in read_groups(
            0,
            len(folder.names),
            lambda n: 4096,
            lambda group: [folder.load_objects(n) for n in group],
            1 << 20,
        ):
            if images == self.main_limit:
                break
            if pair.reason:
                self.bad(pair.bad_file, pair.reason)
                continue
            images += 1
            for n, item in enumerate(pair.objects):
                count += 1
                if count > start:
                    found.append((number, n, item))
            while len(found) >= rows:
                chunk, found = found[:rows], found[rows:]
                yield count - len(found), self._batch(chunk)
        yield max(count, start), self._batch(found)

    def _batch(self, found: list[tuple[int, int, _VocObject]]) -> Batch:
        items = [item for _, _, item in found]
        names = [readable_name(self.folder.names[number]).encode() for number, _, _ in found]
        boxes = np.array([item.box for item in items], np.float32).reshape(-1, 4)
        key = Struct(
            {
                "IMAGE_ID": keys_of([number for number, _, _ in found]),
                "N": Dense(np.array([n for _, n, _ in found], np.int32)),
            }
        )
        labels = [self.folder.label_of[item.name] for item in items]
        columns = {
            "NAME": Runs.from_bytes(names),
            "CLASS": Runs.from_bytes([item.name.encode() for item in items]),
            "LABEL": Dense(np.array(labels, np.int32)),
            **{c: Dense(np.ascontiguousarray(boxes[:, i])) for i, c in enumerate(_CORNERS)},
            "DIFFICULT": Dense(np.array([item.difficult for item in items], np.int32)),
            "TRUNCATED": Dense(np.array([item.truncated for item in items], np.int32)),
        }
        return Batch(key, columns)


def voc(
    location: Location,
    image_set: str | None = None,
    decode: str | tuple[int, int] | None = None,
    channels: int = 3,
    class_names: Sequence[str] | None = None,
    max_pixels: int = MAX_PIXELS,
    bad_records: OnBadRecord = "fail",
) -> _VocImages:
    """Open a VOC folder: the images table, with the annotations table in `parts`.

    Args:
        location: Folder with JPEGImages, Annotations and ImageSets (or the ImageNet DET ones).
        image_set: Name of a list in ImageSets/Main, such as "train"; None takes all pairs.
        decode: `HEIGHTxWIDTH`: store pixels, cropped or padded around the centre to this size; None
            stores the encoded file.
        channels: Channels of decoded images: 1 grey, 3 RGB, 4 RGBA.
        class_names: Names of the classes; None takes the sorted names of all annotations in the
            folder. Label 0 is always `background`.
        max_pixels: Images with more are bad records.
        bad_records: "fail" stops at the first bad pair, "skip" leaves it out of both tables.

    Raises:
        SourceError: Folder or list missing, or no pair in it.
    """
    if not location:
        raise ConfigError("source 'voc' needs a folder")
    root = locate(location)
    if not root.is_dir():
        raise SourceError(f"{root.name}: no such folder", hint="give the folder of JPEGImages")
    folder = _VocFolder(
        root,
        image_set,
        class_names,
        None if decode is None else parse_size(decode),
        check_channels(channels),
        max_pixels,
    )
    return _VocImages(folder, bad_records=bad_records)


_BACKGROUND = "background"
_MAX_XML_BYTES = 16 << 20
_MAX_LIST_BYTES = 256 << 20
# State of a pair; both tables of one source share it.
_GOOD, _BAD = 1, 2  # 0: not checked yet


@dataclass
class _Pair:
    """An image and its annotation, read and checked; or the reason why the pair is bad."""

    picture: bytes | NDArray[np.uint8] = b""
    height: int = 0
    width: int = 0
    objects: Sequence[_VocObject] = ()
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
        """True if there is a file with this path without suffix."""
        return stem in self._packed

    def size(self, stem: str) -> int:
        """Return the bytes of a file, 0 if there is none."""
        return self._packed.get(stem, 0) // 256

    def place(self, stem: str) -> Place:
        """Return the location of a file."""
        return self.folder.child(stem + self._suffixes[self._packed[stem] % 256])


class _VocFolder:
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
        if self.class_names[:1] != [_BACKGROUND]:
            self.class_names.insert(0, _BACKGROUND)
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
                hint="expected images in JPEGImages, annotations in Annotations",
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
        return sorted(found - {_BACKGROUND})

    def fingerprint(self) -> str:
        """Made from the names in order and all files' sizes and times."""
        how = (self.crop, self.channels if self.crop else 0, self.class_names)
        return digest("voc", how, self._picture_files.stamp, self._note_files.stamp, *self.names)

    def size_of(self, number: int) -> int:
        """Return the approximate bytes of a record."""
        if self.crop is not None:
            return self.crop[0] * self.crop[1] * self.channels
        return self._picture_files.size(self.names[number])

    def objects(self, name: str) -> list[_VocObject]:
        """Return the objects in the annotation of this name."""
        return parse_voc(self._note_files.place(name).read(_MAX_XML_BYTES))

    def load(self, number: int) -> _Pair:
        """Read and check a pair; runs in a thread."""
        pair = self._load(number, pixels=True)
        self.state[number] = _BAD if pair.reason else _GOOD
        return pair

    def load_objects(self, number: int) -> _Pair:
        """Read the annotation of a pair; the image is checked only if that was not done before."""
        if self.state[number] == _GOOD:
            return self._load(number, pixels=None)
        pair = self._load(number, pixels=False)
        self.state[number] = _BAD if pair.reason else _GOOD
        pair.picture = b""
        return pair

    def _load(self, number: int, *, pixels: bool | None) -> _Pair:
        """Read a pair; `pixels`: True as it is stored, False only checked, None not read."""
        name = self.names[number]
        for files, what in ((self._picture_files, "image"), (self._note_files, "annotation")):
            if name not in files:
                return _Pair(
                    bad_file=files.folder.child(name).name, reason=f"its {what} file is missing"
                )
        picture, note = self._picture_files.place(name), self._note_files.place(name)
        place = note
        try:
            annotation = note.read(_MAX_XML_BYTES)
            pair = _Pair(objects=parse_voc(annotation))
            if pixels is not None:
                place = picture
                turn = self._read_picture(pair, picture, pixels)
                place = note
                _parse_voc_size(annotation).check(pair.height, pair.width, turn)
                for item in pair.objects:
                    item.check_inside(pair.height, pair.width)
            if unknown := [o.name for o in pair.objects if o.name not in self.label_of]:
                raise VocError(f"class {unknown[0]!r} is not in class_names")
        except SourceError as error:
            return _Pair(bad_file=place.name, reason=error.message.removeprefix(f"{place.name}: "))
        except (VocError, PictureError) as error:
            return _Pair(bad_file=place.name, reason=str(error))
        return pair

    def _read_picture(self, pair: _Pair, place: Place, pixels: bool) -> int:
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


_CORNER_NAMES = ("xmin", "ymin", "xmax", "ymax")
# float() accepts 1_5 as 15.
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)
_SIDE = re.compile(r"\s*([0-9]{1,9})(\.0*)?\s*", re.ASCII)
_QUARTER_TURNS = (5, 6, 7, 8)


class VocError(ValueError):
    """An annotation that cannot be used; the text is the reason."""


@dataclass(frozen=True)
class _VocObject:
    """One object: its class, its box (xmin, ymin, xmax, ymax in pixels of the image), its flags."""

    name: str
    box: tuple[float, float, float, float]
    difficult: int = 0
    truncated: int = 0

    @property
    def area(self) -> float:
        """Return the area of the box in square pixels."""
        return (self.box[2] - self.box[0]) * (self.box[3] - self.box[1])

    def check_inside(self, height: int, width: int) -> None:
        """Raise VocError unless the box lies in an image of this size.

        Corners may lie on the border, because some tools count pixels from 0 and others from 1. A
        box without area is accepted.
        """
        xmin, ymin, xmax, ymax = self.box
        if xmin > xmax or ymin > ymax:
            raise VocError(f"box of {self.name!r}: xmin, ymin are larger than xmax, ymax")
        if not (0 <= xmin <= xmax <= width and 0 <= ymin <= ymax <= height):
            corners = ", ".join(f"{x:g}" for x in self.box)
            raise VocError(
                f"box [{corners}] of {self.name!r} is outside the image of {width} x {height}"
            )


@dataclass(frozen=True)
class ImageSize:
    """The size of an image in its annotation; 0 x 0 if the annotation has none."""

    width: int
    height: int

    def check(self, height: int, width: int, turn: int) -> None:
        """Raise VocError unless the boxes are in the frame of the stored pixels.

        Tools differ in whether they turn an image as its EXIF says before boxes are drawn. The size
        shows the frame of the boxes, except for images that are mirrored, turned by a half, or
        square.

        Args:
            height: Height of the image as it is stored.
            width: Its width.
            turn: Its orientation in EXIF; 1 for none.
        """
        told, stored = (self.width, self.height), (width, height)
        same = told in (stored, (0, 0))
        shown = f"{self.width} x {self.height}"
        if not same and turn in _QUARTER_TURNS and told == stored[::-1]:
            raise VocError(
                f"its boxes refer to the upright image of {shown}, while the file has"
                f" {width} x {height} pixels and the EXIF orientation {turn}; {_UPRIGHT}"
            )
        if not same:
            raise VocError(
                f"its annotation is for an image of {shown}, while the image has {width} x {height}"
            )
        by_size = turn in _QUARTER_TURNS and told == stored and width != height
        if turn != 1 and not by_size:
            raise VocError(
                f"its image has the EXIF orientation {turn}, and the annotation does not say"
                f" whether the boxes refer to the rotated image; {_UPRIGHT}"
            )


_UPRIGHT = "rotate the file itself and remove its EXIF, for example with jhead -autorot"


def _parse_voc_size(data: bytes) -> ImageSize:
    """Return the size in a well-formed annotation."""
    size = _parsed(data).find("size")
    sides = []
    for side in ("width", "height"):
        found = _SIDE.fullmatch((size.findtext(side) if size is not None else None) or "")
        sides.append(int(found[1]) if found else 0)
    return ImageSize(*sides) if all(sides) else ImageSize(0, 0)


def parse_voc(data: bytes) -> list[_VocObject]:
    """Return the objects of an annotation, at least one.

    Raises:
        VocError: Not well-formed, no object, or an object without class or box.
    """
    root = _parsed(data)
    found = [_object(element) for element in root.findall("object")]
    if not found and root.tag != "annotation":
        raise VocError(f"no annotation: <annotation> expected, found <{root.tag[:40]}>")
    if not found:
        raise VocError("it has no box")
    return found


def _parsed(data: bytes) -> Any:
    """Return the root of an annotation, without namespaces."""
    from defusedxml import ElementTree
    from defusedxml.common import EntitiesForbidden

    try:
        root = ElementTree.fromstring(data)
    except EntitiesForbidden as error:
        raise VocError("damaged XML: it declares entities, which are not allowed") from error
    except Exception as error:  # errors of the parser and of codecs
        reason = " ".join(str(error).split()) or type(error).__name__
        raise VocError(f"damaged XML: {reason}"[:200]) from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _object(element: Any) -> _VocObject:
    name = (element.findtext("name") or "").strip()
    if not name:
        raise VocError("an object without name")
    box = element.find("bndbox")
    if box is None:
        raise VocError(f"object {name!r} has no box")
    corners = []
    for corner in _CORNER_NAMES:
        text = box.findtext(corner)
        value = float(text) if text and _NUMBER.fullmatch(text) else math.nan
        if not math.isfinite(value):
            raise VocError(f"box of {name!r}: {corner} is {text!r}, expected a number")
        corners.append(value)
    xmin, ymin, xmax, ymax = corners
    return _VocObject(
        name, (xmin, ymin, xmax, ymax), _flag(element, "difficult"), _flag(element, "truncated")
    )


def _flag(element: Any, name: str) -> int:
    """Return 1 or 0; a missing or odd flag is 0, as in files made by hand."""
    text = (element.findtext(name) or "").strip()
    return 1 if text in ("1", "true", "True") else 0


def main_object(objects: list[_VocObject]) -> _VocObject:
    """Return the object with the largest box, the first one in case of a tie."""
    return max(objects, key=lambda item: item.area)
