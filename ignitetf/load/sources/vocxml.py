"""The XML of PASCAL VOC: the objects of an image, and its size.

bytes -> **annotation** -> voc

The XML is not trusted: defusedxml refuses entities and external references.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from ignitetf.load.sources.frames import Box, BoxError, ImageSize, number_of

__all__ = ["Annotation", "VocObject", "main_object", "parse_voc", "read_voc"]

_CORNER_NAMES = ("xmin", "ymin", "xmax", "ymax")
_SIDE = re.compile(r"\s*([0-9]{1,9})(\.0*)?\s*", re.ASCII)
_LOADED = frozenset({"name", "bndbox", "difficult", "truncated"})
# Values of tools for "not stated".
_UNSAID = frozenset({"", "0", "Unspecified"})


@dataclass(frozen=True)
class VocObject:
    """One object: its class, its box (xmin, ymin, xmax, ymax in pixels of the image), its flags."""

    name: str
    box: Box
    difficult: int = 0
    truncated: int = 0

    @property
    def area(self) -> float:
        """Return the area of the box in square pixels."""
        return (self.box[2] - self.box[0]) * (self.box[3] - self.box[1])


# The main object of an image without objects.
_NOTHING = VocObject("background", (0, 0, 0, 0))


@dataclass(frozen=True)
class Annotation:
    """The annotation of an image.

    Attributes:
        objects: The objects, in their order.
        size: The size of the image.
        others: Names of what the file says of its objects in addition.
    """

    objects: list[VocObject]
    size: ImageSize
    others: frozenset[str]


def read_voc(data: bytes) -> Annotation:
    """Return the annotation in a file.

    Raises:
        BoxError: Not well-formed, not an annotation, or an object without class or box.
    """
    root = _parsed(data)
    elements = root.findall("object")
    if not elements and root.tag != "annotation":
        raise BoxError(f"no annotation: <annotation> expected, found <{root.tag[:40]}>")
    others = {
        str(part.tag)
        for element in elements
        for part in element
        if part.tag not in _LOADED and (len(part) or (part.text or "").strip() not in _UNSAID)
    }
    return Annotation([_object(element) for element in elements], _size(root), frozenset(others))


def parse_voc(data: bytes) -> list[VocObject]:
    """Return the objects of an annotation.

    Raises:
        BoxError: See `read_voc`.
    """
    return read_voc(data).objects


def main_object(objects: list[VocObject]) -> VocObject:
    """Return the object with the largest box, the first one in case of a tie.

    Without objects, it is the background, with a box of zeros.
    """
    return max(objects, key=lambda item: item.area, default=_NOTHING)


def _size(root: Any) -> ImageSize:
    size = _only(root, "size")
    sides = []
    for side in ("width", "height"):
        found = _SIDE.fullmatch(_text(size, side) if size is not None else "")
        sides.append(int(found[1]) if found else 0)
    return ImageSize(*sides) if all(sides) else ImageSize(0, 0)


def _parsed(data: bytes) -> Any:
    """Return the root of an annotation, without namespaces."""
    from defusedxml import ElementTree
    from defusedxml.common import EntitiesForbidden

    try:
        root = ElementTree.fromstring(data)
    except EntitiesForbidden as error:
        raise BoxError("damaged XML: it declares entities, which are not allowed") from error
    except Exception as error:  # errors of the parser and of codecs
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BoxError(f"damaged XML: {reason}"[:200]) from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _only(element: Any, tag: str) -> Any:
    """Return the part of an element that has this tag; None if there is none.

    Raises:
        BoxError: There are several.
    """
    found = element.findall(tag)
    if len(found) > 1:
        raise BoxError(f"<{element.tag}> has {len(found)} parts <{tag}>, expected one")
    return found[0] if found else None


def _text(element: Any, tag: str) -> str:
    found = _only(element, tag)
    return "" if found is None else str(found.text or "")


def _object(element: Any) -> VocObject:
    name = _text(element, "name").strip()
    if not name:
        raise BoxError("an object without name")
    box = _only(element, "bndbox")
    if box is None:
        raise BoxError(f"object {name!r} has no box")
    corners = []
    for corner in _CORNER_NAMES:
        text = _text(box, corner)
        value = number_of(text)
        if math.isnan(value):
            raise BoxError(f"box of {name!r}: {corner} is {text!r}, expected a number")
        corners.append(value)
    xmin, ymin, xmax, ymax = corners
    return VocObject(
        name, (xmin, ymin, xmax, ymax), _flag(element, "difficult"), _flag(element, "truncated")
    )


def _flag(element: Any, name: str) -> int:
    """Return 1 or 0; a missing or invalid flag is 0, as in files made by hand."""
    text = _text(element, name).strip()
    return 1 if text in ("1", "true", "True") else 0
