"""PASCAL VOC and ImageNet DET: pairs of JPEG and XML as two collocated tables.

folders -> pairs, read in parallel -> **images, annotations** -> Batch

The images table has one row per image, with all its boxes as arrays. The annotations table has one
row per object, keyed {IMAGE_ID, N}; IMAGE_ID decides the partition, so an object is stored on the
node of its image. A bad pair is skipped in both. All coordinates are pixels of the original image,
even if the stored image was cropped or padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.base import RUNNING_KEY, SPLIT, Source, keys_of
from ignitetf.load.sources.filelist import read_groups, readable_name
from ignitetf.load.sources.folders import folder_at, names_in_file
from ignitetf.load.sources.frames import clipped_note
from ignitetf.load.sources.images import image_column
from ignitetf.load.sources.location import Location, digest
from ignitetf.load.sources.pictures import MAX_PIXELS, check_channels, parse_size, turned_note
from ignitetf.load.sources.vocfolder import Pair, VocFolder
from ignitetf.load.sources.vocxml import VocObject, main_object
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs, Struct
from ignitetf.wire.schema import BYTES, Field, Schema, field_for

__all__ = ["voc"]

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

    def __init__(self, folder: VocFolder, *, bad_records: OnBadRecord = "fail") -> None:
        super().__init__(bad_records=bad_records)
        self.folder = folder
        self.rows = len(folder.names)
        self.nbytes = sum(map(folder.size_of, range(self.rows)))
        self.class_names = folder.class_names
        self.split_names = folder.splits
        if folder.splits:
            self.note(
                f"{folder.root.name}: the folders {', '.join(folder.splits)} are splits;"
                " --no-split-folders loads them as one"
            )
        if folder.others:
            self.note(f"not loaded of the objects: {', '.join(sorted(folder.others))}")
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
                *((Field(SPLIT, TypeCode.STRING, BYTES),) if folder.splits else ()),
            ),
        )

    @property
    def parts(self) -> dict[str, Source]:
        """The two tables: images and annotations."""
        return {"images": self, "annotations": self._annotations}

    def fingerprint(self) -> str:
        """A digest of names, sizes and times of all files."""
        return digest("images", self.folder.fingerprint())

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        folder = self.folder
        numbers: list[int] = []
        pairs: list[Pair] = []
        size = 0
        number = start - 1
        self._clipped = self._bare = self._thin = 0
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

    def _report_changes(self, numbers: list[int], pairs: list[Pair]) -> None:
        """Note what was changed in pairs, or may surprise."""
        self._clipped += sum(pair.clipped for pair in pairs)
        self._thin += sum(item.area == 0 for pair in pairs for item in pair.objects)
        self._bare += sum(not pair.objects for pair in pairs)
        if self._clipped:
            self.report("clipped", clipped_note(self._clipped))
        if self._thin:
            self.report(
                "thin",
                f"{self._thin:,} boxes are one pixel wide or high: their corners are equal, and VOC"
                " counts both",
            )
        if self._bare:
            self.report(
                "bare",
                f"{self._bare:,} images have no objects: their LABEL is {self.folder.class_names[0]},"
                " and XMIN, YMIN, XMAX and YMAX are 0",
            )
        for number, pair in zip(numbers, pairs, strict=True):
            if pair.turn != 1 and self.folder.crop is None:
                self.report("turned", turned_note(self.folder.names[number]), once=True)

    def _batch(self, numbers: list[int], pairs: list[Pair]) -> Batch:
        self._report_changes(numbers, pairs)
        label_of = self.folder.label_of
        shape = self.schema["IMAGE"].shape
        names = [readable_name(self.folder.names[n]).encode() for n in numbers]
        mains = [main_object(list(pair.objects)) for pair in pairs]
        objects = [item for pair in pairs for item in pair.objects]
        offsets = np.cumsum([0, *(len(pair.objects) for pair in pairs)], dtype=np.int64)
        boxes = np.array([item.box for item in objects], np.float32).reshape(-1)
        labels = np.array([label_of[item.name] for item in objects], np.int32)
        corners = np.array([item.box for item in mains], np.float32).reshape(-1, 4)
        columns: dict[str, Column] = {
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
        if self.split_names:
            columns[SPLIT] = Runs.from_bytes([self.folder.split_of(n).encode() for n in numbers])
        return Batch(keys_of(numbers), columns)


class _VocAnnotations(Source):
    """One row per object, keyed by the image's key IMAGE_ID and the object's number N in it.

    Fields: NAME of the image, CLASS, LABEL, XMIN, YMIN, XMAX, YMAX, DIFFICULT, TRUNCATED. Records
    are the objects of good images, counted in order; their number is known only once all have been
    read.
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
        """A digest of names, sizes and times of all files."""
        return digest("annotations", self.folder.fingerprint())

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        folder = self.folder
        rows = max(1, max_bytes // 64)
        found: list[tuple[int, int, VocObject]] = []
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

    def _batch(self, found: list[tuple[int, int, VocObject]]) -> Batch:
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
    classes: Location | None = None,
    split_folders: bool | None = None,
    max_pixels: int = MAX_PIXELS,
    bad_records: OnBadRecord = "fail",
) -> _VocImages:
    """Open a VOC folder: the images table, with the annotations table in `parts`.

    Args:
        location: Folder with JPEGImages, Annotations and ImageSets, the folders of ImageNet DET,
            images and annotations, or with each XML file next to its image; or an archive of it.
        image_set: Name of a list in ImageSets/Main, such as "train"; None takes all pairs.
        decode: `HEIGHTxWIDTH`: store pixels, cropped or padded around the centre to this size; None
            stores the encoded file.
        channels: Channels of decoded images: 1 grey, 3 RGB, 4 RGBA.
        class_names: Names of the classes; None takes the sorted names of all annotations in the
            folder. Label 0 is always `background`.
        classes: A file with these names, one per line.
        split_folders: Whether the folders of the images are splits; None: if all are called after
            splits (train, valid, test).
        max_pixels: Images with more are bad records.
        bad_records: "fail" stops at the first bad pair, "skip" omits it from both tables.

    Raises:
        SourceError: Folder or list missing, or no pair in it.
    """
    if not location:
        raise ConfigError("source 'voc' needs a folder")
    root = folder_at(location)
    if not root.is_dir():
        raise SourceError(f"{root.name}: no such folder", hint="give the folder of JPEGImages")
    if classes is not None:
        class_names = names_in_file(classes)
    folder = VocFolder(
        root,
        image_set,
        class_names,
        None if decode is None else parse_size(decode),
        check_channels(channels),
        max_pixels,
        split_folders,
    )
    return _VocImages(folder, bad_records=bad_records)
