"""COCO annotations and their images as records.

instances.json, images -> **rows with boxes** -> Batch

Category ids may have gaps. Classes are numbered from 0 in the order of their ids, and the ids are
kept in CATEGORY_IDS. Crowds are boxes with 1 in CROWDS. Segmentations, polygons or RLE, are stored
as their JSON on request.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, Final

import numpy as np

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.base import Source, type_name
from ignitetf.load.sources.boxes import BoxSource, Objects
from ignitetf.load.sources.filelist import FileList, readable_name
from ignitetf.load.sources.filesets import DataFile, is_split_word, open_files
from ignitetf.load.sources.folders import folder_at, is_picture
from ignitetf.load.sources.frames import BoxError, ImageSize
from ignitetf.load.sources.jsonvalues import parse_json
from ignitetf.load.sources.location import Location, Place, digest, has_suffix, open_plain, reading
from ignitetf.load.sources.pictures import MAX_PIXELS
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import BYTES, Field, field_for

__all__ = ["coco"]

_HINT: Final = "COCO has lists of images, annotations and categories: instances_train2017.json"
_ROBOFLOW: Final = "_annotations.coco.json"
_LOADED: Final = {
    "annotations": {"id", "image_id", "category_id", "bbox", "iscrowd", "area", "segmentation"},
    "images": {"id", "file_name", "width", "height"},
    "categories": {"id", "name"},
}


class _CocoSource(BoxSource):
    """The images of one annotation file."""

    def __init__(
        self,
        table: Place,
        images: Place | None,
        *,
        segmentation: bool,
        max_pixels: int,
        bad_records: OnBadRecord,
    ) -> None:
        self.table = table
        whole = _read(table)
        categories = self._used_categories(whole)
        self._number_of = {one["id"]: i for i, one in enumerate(categories)}
        names = [str(one["name"]) for one in categories]
        _require_once(table, "category", [one["id"] for one in categories], names)
        self._images = whole["images"]
        ids = [one["id"] for one in self._images]
        _require_once(table, "image", ids, [str(one["file_name"]) for one in self._images])
        if not ids:
            raise SourceError(f"{table.name}: no images in it", hint=_HINT)
        folder = images or _image_folder(table, str(self._images[0]["file_name"]))
        files = FileList(folder)
        wanted = [str(one["file_name"]) for one in self._images]
        known = _sizes(folder, wanted)
        for name in wanted:
            files.add(name, *known.get(name, (0, "")))
        self._of_image: dict[Any, list[dict[str, Any]]] = {}
        for one in whole["annotations"]:
            self._of_image.setdefault(one["image_id"], []).append(one)
        self._segmentation = segmentation
        fields = [
            field_for("IMAGE_ID", np.dtype(np.int64)),
            field_for("CATEGORY_IDS", self._id_dtype, (None,)),
            field_for("CROWDS", np.dtype(np.int32), (None,)),
        ]
        self._has_areas = all("area" in one for one in whole["annotations"])
        if self._has_areas:
            fields.append(field_for("AREAS", np.dtype(np.float64), (None,)))
        if segmentation:
            fields.append(Field("SEGMENTATIONS", TypeCode.STRING_ARRAY, BYTES, (None,)))
        super().__init__(
            files,
            names,
            fields,
            type_name=type_name(table.stem),
            max_pixels=max_pixels,
            bad_records=bad_records,
        )
        for text in self._found_notes:
            self.note(text)
        if more := sorted(name for name in known.keys() - set(wanted) if is_picture(name)):
            self.note(
                f"{len(more):,} images in the folders of {table.name} are not in it, and not loaded,"
                f" such as {readable_name(more[0])}"
            )
        self._report_left_out(whole, set(ids))

    def _used_categories(self, whole: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the categories by id; of several with one name, the one that is used."""
        self._found_notes: list[str] = []
        categories = sorted(whole["categories"], key=lambda one: one["id"])
        used = set(map(_category, whole["annotations"]))
        count = Counter(str(one["name"]) for one in categories)
        # Roboflow writes the name of the project as a category that no object has.
        left = [one for one in categories if count[str(one["name"])] == 1 or one["id"] in used]
        dropped = [one for one in categories if one not in left]
        if dropped and {str(one["name"]) for one in dropped} <= {str(one["name"]) for one in left}:
            self._found_notes.append(
                f"the category {dropped[0]['name']!r} with the id {dropped[0]['id']} has no objects,"
                " and another one has its name; it is left out"
            )
            categories = left
        largest = max((abs(one["id"]) for one in categories), default=0)
        self._id_dtype = np.dtype(np.int32 if largest < 2**31 else np.int64)
        return categories

    def _report_left_out(self, whole: dict[str, list[dict[str, Any]]], ids: set[Any]) -> None:
        """Add notes about skipped data; an annotation without its image is an error."""
        annotations = whole["annotations"]
        lost = [one for one in annotations if one["image_id"] not in ids]
        if lost and self.bad_records == "fail":
            raise SourceError(
                f"{self.table.name}: {len(lost):,} annotations refer to images that are not in the file,"
                f" such as image_id {lost[0]['image_id']}",
                hint="--bad-records skip skips them",
            )
        if lost:
            self.note(f"{len(lost):,} annotations of images that are not in the file are skipped")
        for part, items in whole.items():
            keys = {
                key for one in items for key, value in one.items() if value not in (None, [], {})
            }
            if not self._segmentation and "segmentation" in keys and part == "annotations":
                self.note("segmentations are not loaded; --segmentation keeps them, as JSON")
            if more := sorted(keys - _LOADED[part]):
                self.note(f"skipped fields of the {part}: {', '.join(more)}")

    def fingerprint(self) -> str:
        """A digest of names, sizes and times of the file and the images."""
        return digest("coco", self.table.stamp(), self._segmentation, self.files.stamp())

    def _objects(self, number: int) -> Objects:
        image = self._images[number]
        found = self._of_image.get(image["id"], [])
        boxes, ids = [], []
        for one in found:
            if (category := _category(one)) not in self._number_of:
                raise BoxError(
                    f"its annotation has the category {one.get('category_id')!r}, which is"
                    " not in the file"
                )
            ids.append(category)
            boxes.append(_corners(one.get("bbox")))
        values: dict[str, Any] = {
            "IMAGE_ID": image["id"],
            "CATEGORY_IDS": np.array(ids, self._id_dtype),
            "CROWDS": np.array([_crowd(one) for one in found], np.int32),
        }
        if self._has_areas:
            areas = [one["area"] for one in found]
            if wrong := [area for area in areas if not _is_number(area)]:
                raise BoxError(f"its annotation has the area {str(wrong[0])[:60]}, not a number")
            values["AREAS"] = np.array(areas, np.float64)
        if self._segmentation:
            values["SEGMENTATIONS"] = [json.dumps(one.get("segmentation")) for one in found]
        sides = [image.get("width") or 0, image.get("height") or 0]
        if not all(map(_is_number, sides)):
            raise BoxError(f"its size in the file is {str(sides)[:60]}, not two numbers")
        size = ImageSize(*sides) if all(sides) else ImageSize(0, 0)
        return Objects(boxes, [self._number_of[one] for one in ids], size, values=values)


def _category(annotation: dict[str, Any]) -> int | None:
    """Return the category of an object; None if it is not an integer."""
    found = annotation.get("category_id")
    return found if type(found) is int else None


def _is_number(value: Any) -> bool:
    """Whether a value is a number that a double holds."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def _crowd(annotation: dict[str, Any]) -> int:
    found = annotation.get("iscrowd", 0)
    if found not in (None, 0, 1):
        raise BoxError(f"its annotation has the iscrowd {str(found)[:60]!r}, expected 0 or 1")
    return int(found or 0)


def _corners(box: Any) -> tuple[float, float, float, float]:
    """Return the corners of a box of x, y, width and height."""
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        raise BoxError(f"its annotation has the box {str(box)[:60]}, expected x, y, width, height")
    x, y, width, height = map(float, box)
    return x, y, x + width, y + height


def _read(table: Place) -> dict[str, list[dict[str, Any]]]:
    """Read an annotation file, and check that it has what every record needs."""
    with reading(table.name, _HINT), open_plain(table) as stream:
        whole = parse_json(stream.read())
    needed = {
        "images": ("id", "file_name"),
        "annotations": ("image_id",),
        "categories": ("id", "name"),
    }
    found = {}
    for part, names in needed.items():
        items = whole.get(part) if isinstance(whole, dict) else None
        if not isinstance(items, list):
            raise SourceError(f"{table.name}: no list of {part}", hint=_HINT)
        for i, one in enumerate(items):
            for name in names:
                if not isinstance(one, dict) or name not in one:
                    raise SourceError(
                        f"{table.name}: entry {i + 1} of {part} has no {name}", hint=_HINT
                    )
            if part == "categories" and type(one["name"]) not in (str, int):
                raise SourceError(
                    f"{table.name}: entry {i + 1} of {part} has the name"
                    f" {str(one['name'])[:60]!r}, expected a text",
                    hint=_HINT,
                )
            word = "image_id" if part == "annotations" else "id"
            if type(one[word]) is not int or not -(2**63) <= one[word] < 2**63:
                raise SourceError(
                    f"{table.name}: entry {i + 1} of {part} has the {word}"
                    f" {str(one[word])[:60]!r}, expected an integer",
                    hint=_HINT,
                )
        found[part] = items
    return found


def _require_once(table: Place, what: str, ids: list[int], names: list[str]) -> None:
    for values, word in ((ids, "id"), (names, "name")):
        value, count = max(Counter(values).items(), key=lambda one: one[1], default=(None, 0))
        if count > 1:
            raise SourceError(
                f"{table.name}: {count} entries have the {what} {word} {value!r}",
                hint="each image and each category is in the file once",
            )


def _annotation_files(place: Place) -> list[tuple[Place, str | None]]:
    """Return the annotation file of a folder, or those of the splits in it, as of Roboflow."""
    if place.is_dir() and not place.child("annotations").is_dir():
        splits = [
            (place.child(name).child(_ROBOFLOW), name)
            for name, is_dir, _, _ in place.children()
            if is_dir and is_split_word(name) and place.child(name).child(_ROBOFLOW).exists()
        ]
        if len(splits) > 1:
            return [(table, split) for table, split in splits]
    return [(_annotation_file(place), None)]


def _annotation_file(place: Place) -> Place:
    """Return the annotation file of a folder."""
    if not place.is_dir():
        return place
    found: list[Place] = []
    for folder in (place.child("annotations"), place):
        if not folder.is_dir():
            continue
        names = [
            name
            for name, is_dir, _, _ in folder.children()
            if not is_dir and has_suffix(name, (".json",))
        ]
        known = [n for n in names if n.startswith("instances") or n.endswith(".coco.json")]
        found += [folder.child(name) for name in known or names]
    if len(found) == 1:
        return found[0]
    if not found:
        raise SourceError(
            f"{place.name}: no JSON file in it, or in its folder annotations", hint=_HINT
        )
    raise SourceError(
        f"{place.name}: {len(found)} annotation files, such as {found[0].base} and {found[1].base}",
        hint=f"name one: {found[0].name}",
    )


def _image_folder(table: Place, first: str) -> Place:
    """Return the folder that has the first image."""
    beside, above = table.parent, table.parent.parent
    split = table.stem.rpartition("instances_")[2]
    folders = [
        beside,
        beside.child("images"),
        above.child(split),
        above.child("images").child(split),
        above.child("images"),
        above,
    ]
    for folder in folders:
        if folder.child(first).exists():
            return folder
    raise SourceError(
        f"{table.name}: its first image {first!r} is not next to it, in images or in {split}",
        hint="--images DIR names the folder of the images",
    )


def _sizes(folder: Place, names: list[str]) -> dict[str, tuple[int, str]]:
    """Return size and version of the files of these names, from lists of their folders."""
    found = {}
    for below in {name.rpartition("/")[0] for name in names}:
        inner = folder.child(below) if below else folder
        if not inner.is_dir():
            continue
        head = f"{below}/" if below else ""
        found.update({f"{head}{n}": (size, version) for n, _, size, version in inner.children()})
    return found


def coco(
    location: Location,
    images: Location | None = None,
    segmentation: bool = False,
    max_pixels: int = MAX_PIXELS,
    bad_records: OnBadRecord = "fail",
) -> Source:
    """Open COCO annotations and their images.

    Args:
        location: The annotation file, a folder that has one, also in `annotations`, or a folder of
            splits with one each (Roboflow); or an archive of such a folder.
        images: Folder of the images; None finds it next to the annotations.
        segmentation: True to keep the segmentation of each object, as JSON.
        max_pixels: Images with more are bad records.
        bad_records: "fail" stops at the first image that is missing or damaged, or has a box that
            is empty or outside; "skip" leaves it out.

    Raises:
        SourceError: The file is missing, damaged, or not of COCO.
    """
    if not location:
        raise ConfigError("source 'coco' needs an annotation file or its folder")
    place = folder_at(location)
    tables = _annotation_files(place)
    files = [DataFile(table, split=split) for table, split in tables]

    def opened(table: Place) -> Source:
        return _CocoSource(
            table,
            None if images is None else folder_at(images),
            segmentation=segmentation,
            max_pixels=max_pixels,
            bad_records=bad_records,
        )

    return open_files(files, opened, bad_records)
