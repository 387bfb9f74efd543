"""Images with boxes as records: the common part of COCO and YOLO.

list of images, boxes of each -> **images checked, boxes in pixels of them** -> Batch

An image without objects is a row without boxes. A box that is outside its image by a pixel at most
is clipped, and a note counts such boxes; any other box outside, and an empty one, is a bad record.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ignitetf.errors import SourceError
from ignitetf.load.sources.base import RUNNING_KEY, SPLIT, Source, keys_of
from ignitetf.load.sources.filelist import FileList, read_groups, readable_name
from ignitetf.load.sources.frames import Box, BoxError, ImageSize, clipped_note, placed, was_moved
from ignitetf.load.sources.pictures import MAX_PIXELS, check_picture, turned_note
from ignitetf.load.sources.values import column_of
from ignitetf.pictures import PictureError, orientation
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs
from ignitetf.wire.schema import BYTES, Field, Schema, field_for

__all__ = ["BoxSource", "Objects"]

_INT: Final = np.dtype(np.int32)
_FLOAT: Final = np.dtype(np.float32)


@dataclass
class Objects:
    """The objects of one image.

    Attributes:
        boxes: xmin, ymin, xmax, ymax of each, in pixels, or in shares of the sides of the image.
        labels: Their class numbers.
        size: Size of the image in the annotation.
        are_shares: True if boxes are shares of the sides.
        values: Values of further fields.
    """

    boxes: list[Box]
    labels: list[int]
    size: ImageSize = field(default_factory=lambda: ImageSize(0, 0))
    are_shares: bool = False
    values: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Row:
    """An image that was read and checked; or the reason why it is bad."""

    data: bytes = b""
    height: int = 0
    width: int = 0
    objects: Objects = field(default_factory=lambda: Objects([], []))
    clipped: int = 0
    turn: int = 1
    reason: str = ""


class BoxSource(Source):
    """One row for each image.

    Fields: IMAGE (the file), NAME, WIDTH, HEIGHT, BOXES (float32 [n, 4], rows xmin, ymin, xmax,
    ymax in pixels), BOX_LABELS (int32 [n]), and those of the format.
    """

    def __init__(
        self,
        files: FileList,
        class_names: Sequence[str],
        fields: Sequence[Field] = (),
        *,
        type_name: str,
        splits: Sequence[str] = (),
        max_pixels: int = MAX_PIXELS,
        bad_records: OnBadRecord = "fail",
    ) -> None:
        """Take the images.

        Args:
            files: The images; the label of each is the number of its split.
            class_names: Names of the classes.
            fields: Further fields.
            type_name: Name of the type of a row.
            splits: Names of the splits; the rows get a field SPLIT if there are any.
            max_pixels: Images with more are bad records.
            bad_records: "fail" or "skip".
        """
        super().__init__(bad_records=bad_records)
        self.files = files
        self.rows = len(files)
        self.nbytes = files.total_bytes or None
        self.class_names = list(class_names)
        self.max_pixels = max_pixels
        self.split_names = tuple(splits)
        self._fields = tuple(fields)
        own = (
            Field("IMAGE", TypeCode.BYTE_ARRAY, BYTES),
            Field("NAME", TypeCode.STRING, BYTES),
            field_for("WIDTH", _INT),
            field_for("HEIGHT", _INT),
            field_for("BOXES", _FLOAT, (None, 4)),
            field_for("BOX_LABELS", _INT, (None,)),
        )
        split = (Field(SPLIT, TypeCode.STRING, BYTES),) if splits else ()
        self.schema = Schema(type_name, RUNNING_KEY, (*own, *fields, *split))

    @abstractmethod
    def _objects(self, number: int) -> Objects:
        """Return the objects of an image; called in threads.

        Raises:
            BoxError: They cannot be used; the text is the reason.
        """

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        numbers: list[int] = []
        rows: list[_Row] = []
        size = 0
        number = start - 1
        self._clipped = 0
        groups = read_groups(
            start,
            len(self.files),
            self.files.size,
            lambda group: [self._load(n) for n in group],
            max_bytes,
        )
        for number, row in groups:
            if row.reason:
                self.bad(self.files.place(number).name, row.reason)
                continue
            n = len(row.data) + 24 * len(row.objects.boxes) + 128
            if numbers and size + n > max_bytes:
                yield number, self._batch(numbers, rows)
                numbers, rows, size = [], [], 0
            numbers.append(number)
            rows.append(row)
            size += n
        yield number + 1, self._batch(numbers, rows)

    def _load(self, number: int) -> _Row:
        place = self.files.place(number)
        try:
            data = self.files.read(number)
            height, width = check_picture(data, self.max_pixels)
            found = self._objects(number)
            row = _Row(data, height, width, found, turn=orientation(data))
            found.size.check(height, width, row.turn, has_boxes=bool(found.boxes))
            row.clipped = self._place_boxes(row)
        except SourceError as error:
            return _Row(reason=error.message.removeprefix(f"{place.name}: "))
        except (BoxError, PictureError) as error:
            return _Row(reason=str(error))
        return row

    def _place_boxes(self, row: _Row) -> int:
        """Convert boxes to pixels within the image; return the number of clipped boxes."""
        found, clipped = row.objects, 0
        names = self.class_names or []
        for i, box in enumerate(found.boxes):
            if found.are_shares:
                width, height = row.width, row.height
                box = (box[0] * width, box[1] * height, box[2] * width, box[3] * height)
            inside = placed(box, names[found.labels[i]], row.height, row.width)
            clipped += was_moved(box, inside)
            found.boxes[i] = inside
        return clipped

    def _batch(self, numbers: list[int], rows: list[_Row]) -> Batch:
        self._clipped += sum(row.clipped for row in rows)
        if self._clipped:
            self.report("clipped", clipped_note(self._clipped))
        for number, row in zip(numbers, rows, strict=True):
            if row.turn != 1:
                self.report("turned", turned_note(self.files.place(number).name), once=True)
        found = [row.objects for row in rows]
        offsets = np.cumsum([0, *(len(one.boxes) for one in found)], dtype=np.int64)
        boxes = np.array([box for one in found for box in one.boxes], np.float32).reshape(-1)
        labels = np.array([label for one in found for label in one.labels], np.int32)
        names = [readable_name(self.files.name(n)).encode() for n in numbers]
        columns: dict[str, Column] = {
            "IMAGE": Runs.from_bytes([row.data for row in rows]),
            "NAME": Runs.from_bytes(names),
            "WIDTH": Dense(np.array([row.width for row in rows], np.int32)),
            "HEIGHT": Dense(np.array([row.height for row in rows], np.int32)),
            "BOXES": Runs.from_offsets(Dense(boxes), offsets * 4),
            "BOX_LABELS": Runs.from_offsets(Dense(labels), offsets),
        }
        for one in self._fields:
            columns[one.name] = column_of(one, [objects.values[one.name] for objects in found])
        if self.split_names:
            split = [self.split_names[self.files.label(n)].encode() for n in numbers]
            columns[SPLIT] = Runs.from_bytes(split)
        return Batch(keys_of(numbers), columns)
