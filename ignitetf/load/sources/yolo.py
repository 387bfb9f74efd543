"""YOLO data sets (Ultralytics, Roboflow, Darknet) as records.

data.yaml, images, labels/*.txt -> **rows with boxes** -> Batch

A label file has a line for each object: class, centre and size, in shares of the sides of the
image; or class and the corners of a polygon, whose bounding box is loaded. An image whose
label file is empty or missing has no objects, as for the tools that train on such data.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from ignitetf.errors import ConfigError, MissingExtra, SourceError
from ignitetf.load.sources.base import type_name
from ignitetf.load.sources.boxes import BoxSource, Objects
from ignitetf.load.sources.filelist import FileList, walk
from ignitetf.load.sources.filesets import is_split_word
from ignitetf.load.sources.folders import folder_at
from ignitetf.load.sources.frames import BoxError, number_of
from ignitetf.load.sources.location import Location, Place, digest, reading
from ignitetf.load.sources.pictures import MAX_PIXELS
from ignitetf.pictures import picture_suffixes
from ignitetf.spelling import did_you_mean
from ignitetf.tables.storage import OnBadRecord

__all__ = ["yolo"]

_SPLITS: Final = ("train", "val", "test")
_MAX_TEXT: Final = 64 << 20
# Nothing, as YAML writes it.
_NOTHING: Final = ("", "~", "null", "Null", "NULL")
_INTEGER: Final = re.compile(r"[0-9]{1,6}(\.0*)?", re.ASCII)
_HINT: Final = "data.yaml has names, and train, val and test: folders of images"
_NAME_FILES: Final = ("classes.txt", "obj.names", "_darknet.labels")


class _YoloSource(BoxSource):
    """The images of a data set."""

    def __init__(
        self,
        root: Place,
        class_names: Sequence[str],
        images: Mapping[str, Sequence[tuple[str, int, str]]],
        *,
        has_key_points: bool = False,
        max_pixels: int,
        bad_records: OnBadRecord,
    ) -> None:
        """Take the images of each split: path below the root, size and version."""
        files = FileList(root)
        splits = [split for split, found in images.items() if found]
        for number, split in enumerate(splits):
            for path, size, version in images[split]:
                files.add(path, size, version, number)
        if not len(files):
            raise SourceError(f"{root.name}: no images in it", hint=_HINT)
        self._has_polygons = False
        self._has_key_points = has_key_points
        super().__init__(
            files,
            class_names,
            type_name=type_name(root.stem),
            splits=splits if len(splits) > 1 else (),
            max_pixels=max_pixels,
            bad_records=bad_records,
        )
        known = _listed(
            root, {_label_path(files.name(n)).rpartition("/")[0] for n in range(len(files))}
        )
        paths = [_label_path(files.name(n)) for n in range(len(files))]
        self._stamp = digest(*(f"{path}|{known.get(path)}" for path in paths))
        self._has_file = [path in known for path in paths]
        if not any(self._has_file):
            raise SourceError(
                f"{root.name}: no label files, such as {paths[0]}",
                hint="labels/NAME.txt belongs to images/NAME.jpg; load images takes images alone",
            )
        if missing := self._has_file.count(False):
            self.note(f"{missing:,} of {len(files):,} images have no label file, and so no boxes")
        others = {path for path in known if path.endswith(".txt") and "/" in path}
        if lost := sorted(others - set(paths)):
            self.note(f"{len(lost):,} label files belong to none of the images, such as {lost[0]}")
        if has_key_points:
            self.note("label files have key points, which are not loaded; the boxes are")

    def fingerprint(self) -> str:
        """A digest of names, sizes and times of all files."""
        return digest("yolo", self.files.stamp(), self._stamp, *self.class_names or ())

    def _objects(self, number: int) -> Objects:
        found = Objects([], [], are_shares=True)
        if not self._has_file[number]:
            return found
        place = self.files.folder.child(_label_path(self.files.name(number)))
        try:
            lines = place.read(_MAX_TEXT).decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise BoxError(f"its label file {place.name} is not UTF-8") from error
        for row, line in enumerate(lines, 1):
            if not (words := line.split()):
                continue
            try:
                label, box = self._object(words)
            except BoxError as error:
                raise BoxError(f"{place.name}, row {row}: {error}") from error
            found.labels.append(label)
            found.boxes.append(box)
        return found

    def _object(self, words: list[str]) -> tuple[int, tuple[float, float, float, float]]:
        names = self.class_names or []
        if _INTEGER.fullmatch(words[0]) is None or int(float(words[0])) >= len(names):
            raise BoxError(f"class {words[0][:40]!r} is not one of the {len(names)} classes")
        numbers = [number_of(word) for word in words[1:]]
        if any(map(math.isnan, numbers)):
            raise BoxError(f"{' '.join(words)[:60]!r} has a value that is not a number")
        if self._has_key_points and len(numbers) > 4:
            numbers = numbers[:4]
        if len(numbers) == 4:
            x, y, width, height = numbers
            box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        elif len(numbers) >= 6 and len(numbers) % 2 == 0:
            self._report_polygons()
            box = (min(numbers[::2]), min(numbers[1::2]), max(numbers[::2]), max(numbers[1::2]))
        else:
            raise BoxError(f"{len(words)} values, expected class x y width height")
        return int(float(words[0])), box

    def _report_polygons(self) -> None:
        if not self._has_polygons:
            self._has_polygons = True
            self.note("label files have polygons; their bounding boxes are loaded")


def _label_path(image: str) -> str:
    """Return the path of the label file of an image: `labels` in place of the last `images`."""
    parts = list(PurePosixPath(image).with_suffix(".txt").parts)
    for i in reversed(range(len(parts) - 1)):
        if parts[i] == "images":
            parts[i] = "labels"
            break
    return posixpath.join(*parts)


def _listed(root: Place, folders: set[str]) -> dict[str, str]:
    """Return size and version of the files in folders, by their path below the root."""
    found = {}
    for below in folders:
        folder = root.child(below) if below else root
        if not folder.is_dir():
            continue
        for name, is_dir, size, version in folder.children():
            if not is_dir:
                found[posixpath.join(below, name)] = f"{size}|{version}"
    return found


def _description(place: Place) -> Place | None:
    """Return the YAML file of a data set; None if it has none."""
    if not place.is_dir():
        return place
    names = [
        n for n, is_dir, _, _ in place.children() if not is_dir and n.endswith((".yaml", ".yml"))
    ]
    if "data.yaml" in names:
        return place.child("data.yaml")
    if len(names) > 1:
        raise SourceError(
            f"{place.name}: several YAML files: {', '.join(names[:5])}", hint="name one of them"
        )
    return place.child(names[0]) if names else None


def _parsed(place: Place) -> dict[str, Any]:
    yaml = MissingExtra.module("yaml", f"{place.name}: YAML files need PyYAML", "yolo")
    with reading(place.name, _HINT):
        found = _plain(yaml.compose(place.read(_MAX_TEXT), Loader=yaml.BaseLoader), {})
    if not isinstance(found, dict):
        raise SourceError(f"{place.name}: not a description of a data set", hint=_HINT)
    return found


def _plain(node: Any, known: dict[int, Any]) -> Any:
    """Return a node of YAML as texts, lists and mappings; `no` stays a text, and `010` too.

    Raises:
        ValueError: A mapping has a key twice.
    """
    if node is None or (node.id == "scalar" and node.style is None and node.value in _NOTHING):
        return None
    if node.id == "scalar":
        return node.value
    if id(node) in known:  # an alias
        return known[id(node)]
    if node.id == "sequence":
        items: list[Any] = []
        known[id(node)] = items
        items += [_plain(one, known) for one in node.value]
        return items
    found: dict[Any, Any] = {}
    known[id(node)] = found
    for one, value in node.value:
        if one.id != "scalar" or one.value in found:
            what = "is not a text" if one.id != "scalar" else f"{one.value[:40]!r} is there twice"
            raise ValueError(f"line {one.start_mark.line + 1}: a key {what}")
        found[one.value] = _plain(value, known)
    return found


def _class_names(place: Place, found: Mapping[str, Any]) -> list[str]:
    """Return the names of classes, which are a list, or a mapping of their numbers."""
    names = found.get("names")
    if isinstance(names, dict):
        if names.keys() != set(map(str, range(len(names)))):
            raise SourceError(
                f"{place.name}: the numbers of the names are {sorted(names)[:8]}",
                hint="classes are numbered from 0, without gaps",
            )
        names = [names[str(i)] for i in range(len(names))]
    if not isinstance(names, list) or not names:
        raise SourceError(f"{place.name}: no names of classes in it", hint=_HINT)
    count = found.get("nc")
    if count is not None and count != str(len(names)):
        raise SourceError(
            f"{place.name}: {len(names)} names, but nc is {str(count)[:40]}", hint=_HINT
        )
    for number, name in enumerate(names):
        if not isinstance(name, str):
            raise SourceError(
                f"{place.name}: the name of class {number} is not a text",
                hint="write each name in quotes",
            )
    return names


def _named_in_files(root: Place) -> list[str]:
    for name in _NAME_FILES:
        if (place := root.child(name)).exists():
            with reading(place.name, "names of classes in UTF-8, a line each"):
                lines = place.read(_MAX_TEXT).decode("utf-8-sig").splitlines()
            return [line.strip() for line in lines if line.strip()]
    raise SourceError(
        f"{root.name}: no data.yaml and no {_NAME_FILES[0]} in it",
        hint="the names of the classes are in one of them",
    )


def _images_of(root: Place, where: Any, described: Place) -> list[tuple[str, int, str]]:
    """Return the images of a split: of folders, or named in text files."""
    found: list[tuple[str, int, str]] = []
    for one in where if isinstance(where, list) else [where]:
        place, below = _inside(root, str(one), described)
        if place.is_dir():
            found += [
                (posixpath.join(below, name), size, version)
                for name, size, version in walk(place)
                if PurePosixPath(name).suffix.lower() in picture_suffixes()
            ]
            continue
        lines = place.read(_MAX_TEXT).decode("utf-8-sig", "surrogateescape").splitlines()
        folder = posixpath.dirname(below)
        for line in filter(None, map(str.strip, lines)):
            inner = line.removeprefix("./") if line.startswith("./") else line
            near = posixpath.normpath(posixpath.join(folder, inner))
            found.append((near if line.startswith("./") else posixpath.normpath(inner), 0, ""))
    return sorted(found)


def _inside(root: Place, text: str, described: Place) -> tuple[Place, str]:
    """Return the place of a path in a description, and the path below the root.

    Roboflow writes `../train/images` for a folder next to the description.
    """
    for word in (text, text.removeprefix("../")):
        below = posixpath.normpath(word)
        place = root.child(below)
        if place.exists():
            return place, "" if below == "." else below
    raise SourceError(
        f"{described.name}: no folder or file {text!r} in {root.name}",
        hint="paths are below the folder of the description, or below its path",
    )


def yolo(
    location: Location,
    split: str | None = None,
    max_pixels: int = MAX_PIXELS,
    bad_records: OnBadRecord = "fail",
) -> BoxSource:
    """Open a data set of YOLO.

    Args:
        location: Its `data.yaml`, or its folder. A folder without one has `classes.txt`.
        split: `train`, `val` or `test`; None for all, in the field SPLIT.
        max_pixels: Images with more are bad records.
        bad_records: "fail" stops at the first image that is damaged, or whose label file is; "skip"
            leaves it out.

    Raises:
        SourceError: Folders or the description are missing or damaged.
        ConfigError: The split does not exist.
        MissingExtra: PyYAML is not installed.
    """
    if not location:
        raise ConfigError("source 'yolo' needs data.yaml or its folder")
    place = folder_at(location)
    described = _description(place)
    root = place if place.is_dir() else place.parent
    if described is None:
        names, has_key_points = _named_in_files(root), False
        images = {"": _images_of(root, ".", root)}
    else:
        found = _parsed(described)
        names = _class_names(described, found)
        has_key_points = bool(found.get("kpt_shape"))
        if isinstance(path := found.get("path"), str) and root.child(path).is_dir():
            root = root.child(path)
        words = [one for one in found if is_split_word(one) and one not in _SPLITS]
        parts = {one: found[one] for one in (*_SPLITS, *words) if found.get(one)}
        if split is None and not parts:
            raise SourceError(f"{described.name}: it has neither train, val nor test", hint=_HINT)
        images = {
            one: _images_of(root, where, described)
            for one, where in parts.items()
            if split in (None, one)
        }
    if split is not None and split not in images:
        known = list(images) if described is None else list(parts)
        raise ConfigError(
            f"no split {split!r}",
            hint=did_you_mean(split, known, f"splits: {', '.join(known) or 'none'}", form=repr),
        )
    return _YoloSource(
        root,
        names,
        images,
        has_key_points=has_key_points,
        max_pixels=max_pixels,
        bad_records=bad_records,
    )
