"""PASCAL VOC and ImageNet DET: pairs of JPEG and XML as two tables that lie together.

folders -> pairs, read in parallel -> **images, annotations** -> Batch

The images table has one row an image, with all its boxes as arrays; the annotations table one
row an object, keyed {IMAGE_ID, N} with IMAGE_ID deciding the partition, so that it lies beside
its image. A pair that is bad is left out of both. All coordinates are pixels of the image as
it is in its file, also where the stored image was cropped or padded.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.base import (
    RUNNING_KEY,
    OnBadRecord,
    Source,
    keys_of,
    ordered_map,
)
from ignitetf.load.sources.filelist import read_groups, walk
from ignitetf.load.sources.images import image_column
from ignitetf.load.sources.pictures import (
    MAX_PIXELS,
    PictureError,
    check_channels,
    check_picture,
    crop_or_pad,
    decode_picture,
    parse_size,
    picture_suffixes,
)
from ignitetf.load.sources.places import Location, Place, digest, locate
from ignitetf.load.sources.vocxml import VocError, VocObject, main_object, parse_voc
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import BYTES, Batch, Column, Field, Schema, field_for

__all__ = ["BACKGROUND", "VocAnnotations", "VocImages", "voc"]

BACKGROUND = "background"
_MAX_XML_BYTES = 16 << 20
_MAX_LIST_BYTES = 256 << 20
_INT = np.dtype(np.int32)
_FLOAT = np.dtype(np.float32)
_CORNERS = ("XMIN", "YMIN", "XMAX", "YMAX")
# What is known about a pair; both tables of one source share it.
_UNKNOWN, _GOOD, _BAD = 0, 1, 2


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
    """The files below a folder by their path without ending, in little memory.

    Attributes:
        folder: The folder.
        stamp: Changes with any name, size or time.
    """

    def __init__(self, folder: Place, suffixes: frozenset[str]) -> None:
        self.folder = folder
        self._suffixes: list[str] = []
        self._packed: dict[str, int] = {}  # size * 256 + number of the ending
        whole = hashlib.sha256()
        for name, size, version in walk(folder):
            path = PurePosixPath(name)
            if path.suffix.lower() not in suffixes:
                continue
            if path.suffix not in self._suffixes:
                self._suffixes.append(path.suffix)
            stem = sys.intern(name.removesuffix(path.suffix))
            self._packed[stem] = size * 256 + self._suffixes.index(path.suffix)
            whole.update(f"{len(name)}|{name}|{size}|{version}|".encode("utf-8", "replace"))
        self.stamp = whole.hexdigest()

    def __iter__(self) -> Iterator[str]:
        """The paths without ending."""
        return iter(self._packed)

    def __contains__(self, stem: object) -> bool:
        """Whether there is a file of this path without ending."""
        return stem in self._packed

    def size(self, stem: str) -> int:
        """Bytes of a file, 0 where there is none."""
        return self._packed.get(stem, 0) // 256

    def place(self, stem: str) -> Place:
        """Where a file is."""
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
        """Sorted names of all objects in the folder, whatever the image set."""

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
        """From the names in order and all files' sizes and times."""
        how = (self.crop, self.channels if self.crop else 0, self.class_names)
        return digest("voc", how, self._picture_files.stamp, self._note_files.stamp, *self.names)

    def size_of(self, number: int) -> int:
        """About the bytes of a record."""
        if self.crop is not None:
            return self.crop[0] * self.crop[1] * self.channels
        return self._picture_files.size(self.names[number])

    def objects(self, name: str) -> list[VocObject]:
        """The objects in the annotation of this name."""
        return parse_voc(self._note_files.place(name).read(_MAX_XML_BYTES))

    def load(self, number: int) -> Pair:
        """Read and check a pair; runs in a thread."""
        pair = self._load(number, pixels=True)
        self.state[number] = _BAD if pair.reason else _GOOD
        return pair

    def load_objects(self, number: int) -> Pair:
        """The annotation of a pair; the image is checked only where that was not done before."""
        if self.state[number] == _GOOD:
            return self._load(number, pixels=None)
        pair = self._load(number, pixels=False)
        self.state[number] = _BAD if pair.reason else _GOOD
        pair.picture = b""
        return pair

    def _load(self, number: int, *, pixels: bool | None) -> Pair:
        """The pair; `pixels`: True as it is stored, False only checked, None not read."""
        name = self.names[number]
        for files, what in ((self._picture_files, "image"), (self._note_files, "annotation")):
            if name not in files:
                return Pair(
                    bad_file=files.folder.child(name).name, reason=f"its {what} file is missing"
                )
        picture, note = self._picture_files.place(name), self._note_files.place(name)
        place = note
        try:
            pair = Pair(objects=self.objects(name))
            if pixels is not None:
                place = picture
                self._read_picture(pair, picture, pixels)
                place = note
                for item in pair.objects:
                    item.check_inside(pair.height, pair.width)
            if unknown := [o.name for o in pair.objects if o.name not in self.label_of]:
                raise VocError(f"class {unknown[0]!r} is not in class_names")
        except SourceError as error:
            return Pair(bad_file=place.name, reason=error.message.removeprefix(f"{place.name}: "))
        except (VocError, PictureError) as error:
            return Pair(bad_file=place.name, reason=str(error))
        return pair

    def _read_picture(self, pair: Pair, place: Place, pixels: bool) -> None:
        data = place.read(self.max_pixels * 4)
        if self.crop is None or not pixels:
            pair.height, pair.width = check_picture(data, self.max_pixels)
            pair.picture = data
            return
        decoded = decode_picture(data, self.channels, None, self.max_pixels)
        pair.height, pair.width = decoded.shape[:2]
        pair.picture = crop_or_pad(decoded, self.crop)


class VocImages(Source):
    """One row an image.

    Fields: IMAGE (blob, or uint8 [height, width, channels] cropped or padded to one shape),
    NAME, WIDTH and HEIGHT of the image in its file, LABEL and XMIN, YMIN, XMAX, YMAX of the main
    object (the largest box), and of all objects BOXES (float32 [n, 4], rows xmin, ymin, xmax,
    ymax) and BOX_LABELS (int32 [n]).
    """

    def __init__(self, folder: VocFolder, *, bad_records: OnBadRecord = "fail") -> None:
        super().__init__(bad_records=bad_records)
        self.folder = folder
        self.rows = len(folder.names)
        self.class_names = folder.class_names
        self._annotations = VocAnnotations(folder, bad_records=bad_records)
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
        """From names, sizes and times of all files."""
        return digest("images", self.folder.fingerprint())

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        folder = self.folder
        numbers: list[int] = []
        pairs: list[Pair] = []
        size = 0
        number = start - 1
        for number, pair in read_groups(
            start, len(folder.names), folder.size_of, folder.load, max_bytes
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

    def _batch(self, numbers: list[int], pairs: list[Pair]) -> Batch:
        label_of = self.folder.label_of
        shape = self.schema["IMAGE"].shape
        names = [self.folder.names[n].encode("utf-8", "replace") for n in numbers]
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
            "NAME": Column.from_bytes(names),
            "WIDTH": Column(np.array([pair.width for pair in pairs], np.int32)),
            "HEIGHT": Column(np.array([pair.height for pair in pairs], np.int32)),
            "LABEL": Column(np.array([label_of[item.name] for item in mains], np.int32)),
            **{c: Column(np.ascontiguousarray(corners[:, i])) for i, c in enumerate(_CORNERS)},
            "BOXES": Column.from_offsets(boxes, offsets * 4),
            "BOX_LABELS": Column.from_offsets(labels, offsets),
        }
        return Batch(keys_of(numbers), columns)


class VocAnnotations(Source):
    """One row an object, keyed by the image's key IMAGE_ID and the object's number N in it.

    Fields: NAME of the image, CLASS, LABEL, XMIN, YMIN, XMAX, YMAX, DIFFICULT, TRUNCATED.
    Records are the objects of good images, counted in order; their number is known only when
    all have been read.
    """

    def __init__(self, folder: VocFolder, *, bad_records: OnBadRecord = "fail") -> None:
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
        """From names, sizes and times of all files."""
        return digest("annotations", self.folder.fingerprint())

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        folder = self.folder
        rows = max(1, max_bytes // 64)
        found: list[tuple[int, int, VocObject]] = []
        count = 0
        for number, pair in read_groups(
            0, len(folder.names), lambda n: 4096, folder.load_objects, 1 << 20
        ):
            if pair.reason:
                self.bad(pair.bad_file, pair.reason)
                continue
            for n, item in enumerate(pair.objects):
                count += 1
                if count > start:
                    found.append((number, n, item))
            while len(found) >= rows:
                chunk, found = found[:rows], found[rows:]
                yield count - len(found), self._batch(chunk)
        yield max(count, start), self._batch(found)

    def _batch(self, found: list[tuple[int, int, VocObject]]) -> Batch:
        items = [item for _, _, item in found]
        names = [self.folder.names[number].encode("utf-8", "replace") for number, _, _ in found]
        boxes = np.array([item.box for item in items], np.float32).reshape(-1, 4)
        key = Column(
            {
                "IMAGE_ID": keys_of([number for number, _, _ in found]),
                "N": Column(np.array([n for _, n, _ in found], np.int32)),
            }
        )
        labels = [self.folder.label_of[item.name] for item in items]
        columns = {
            "NAME": Column.from_bytes(names),
            "CLASS": Column.from_bytes([item.name.encode() for item in items]),
            "LABEL": Column(np.array(labels, np.int32)),
            **{c: Column(np.ascontiguousarray(boxes[:, i])) for i, c in enumerate(_CORNERS)},
            "DIFFICULT": Column(np.array([item.difficult for item in items], np.int32)),
            "TRUNCATED": Column(np.array([item.truncated for item in items], np.int32)),
        }
        return Batch(key, columns)


def _subfolder(root: Place, candidates: tuple[str, ...]) -> Place:
    for candidate in candidates:
        if (folder := root.child(candidate)).is_dir():
            return folder
    raise SourceError(
        f"{root.name}: no folder {' or '.join(candidates[::2])} in it",
        hint="expected JPEGImages and Annotations (VOC), or Data/DET and Annotations/DET",
    )


def _image_set(root: Place, image_set: str) -> list[str]:
    """The names in a list; those that a list of one class marks with -1 are left out."""
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


def voc(
    location: Location,
    image_set: str | None = None,
    decode: str | tuple[int, int] | None = None,
    channels: int = 3,
    class_names: Sequence[str] | None = None,
    max_pixels: int = MAX_PIXELS,
    bad_records: OnBadRecord = "fail",
) -> VocImages:
    """A VOC folder: the images table, and the annotations table in `parts`.

    Args:
        location: Folder with JPEGImages, Annotations and ImageSets (or the ImageNet DET ones).
        image_set: Name of a list in ImageSets/Main, such as "train"; None takes all pairs.
        decode: `HEIGHTxWIDTH`: store pixels, cropped or padded around the centre to this size;
            None stores the encoded file.
        channels: Of decoded images: 1 grey, 3 RGB, 4 RGBA.
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
    folder = VocFolder(
        root,
        image_set,
        class_names,
        None if decode is None else parse_size(decode),
        check_channels(channels),
        max_pixels,
    )
    return VocImages(folder, bad_records=bad_records)
