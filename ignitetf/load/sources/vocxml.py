"""PASCAL VOC annotation files: the objects in one image.

XML -> **VocObject** -> columns

The XML is not trusted: defusedxml refuses entities and external references.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["VocError", "VocObject", "VocSize", "main_object", "parse_voc", "parse_voc_size"]

_CORNERS = ("xmin", "ymin", "xmax", "ymax")
# float() takes 1_5 for 15.
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)
_SIDE = re.compile(r"\s*([0-9]{1,9})(\.0*)?\s*", re.ASCII)
_TURNED_BY_A_QUARTER = (5, 6, 7, 8)


class VocError(ValueError):
    """An annotation that cannot be used; the text is the reason."""


@dataclass(frozen=True)
class VocObject:
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
class VocSize:
    """The size of an image as its annotation has it, 0 x 0 if it does not tell."""

    width: int
    height: int

    def check(self, height: int, width: int, turn: int) -> None:
        """Raise VocError unless the boxes are in the frame of the stored pixels.

        Tools differ in whether they turn an image as its EXIF says before boxes are drawn. The size
        tells which frame the boxes have, but for images that are mirrored, turned by a half, or
        square.

        Args:
            height: Height of the image as it is stored.
            width: Its width.
            turn: Its orientation in EXIF; 1 for none.
        """
        told, stored = (self.width, self.height), (width, height)
        same = told in (stored, (0, 0))
        shown = f"{self.width} x {self.height}"
        if not same and turn in _TURNED_BY_A_QUARTER and told == stored[::-1]:
            raise VocError(
                f"its boxes are those of the upright image of {shown}, while the file has"
                f" {width} x {height} pixels, which EXIF turns (orientation {turn}); {_UPRIGHT}"
            )
        if not same:
            raise VocError(
                f"its annotation is of an image of {shown}, while the image has {width} x {height}"
            )
        by_size = turn in _TURNED_BY_A_QUARTER and told == stored and width != height
        if turn != 1 and not by_size:
            raise VocError(
                f"EXIF turns its image (orientation {turn}), and the annotation does not tell"
                f" whether the boxes are those of the turned one; {_UPRIGHT}"
            )


_UPRIGHT = "turn the file itself and remove its EXIF, for example with jhead -autorot"


def parse_voc_size(data: bytes) -> VocSize:
    """Return the size that a well-formed annotation has."""
    size = _parsed(data).find("size")
    sides = []
    for side in ("width", "height"):
        found = _SIDE.fullmatch((size.findtext(side) if size is not None else None) or "")
        sides.append(int(found[1]) if found else 0)
    return VocSize(*sides) if all(sides) else VocSize(0, 0)


def parse_voc(data: bytes) -> list[VocObject]:
    """Return the objects of an annotation, at least one.

    Raises:
        VocError: Not well-formed, no object, or an object without class or box.
    """
    root = _parsed(data)
    found = [_object(element) for element in root.findall("object")]
    if not found and root.tag != "annotation":
        raise VocError(f"no annotation: <annotation> expected, found <{root.tag[:40]}>")
    if not found:
        raise VocError("no box in it")
    return found


def _parsed(data: bytes) -> Any:
    """Return the root of an annotation, without namespaces."""
    from defusedxml import ElementTree
    from defusedxml.common import EntitiesForbidden

    try:
        root = ElementTree.fromstring(data)
    except EntitiesForbidden as error:
        raise VocError("damaged XML: it declares entities, which are not taken") from error
    except Exception as error:  # errors of the parser and of codecs
        reason = " ".join(str(error).split()) or type(error).__name__
        raise VocError(f"damaged XML: {reason}"[:200]) from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _object(element: Any) -> VocObject:
    name = (element.findtext("name") or "").strip()
    if not name:
        raise VocError("an object without name")
    box = element.find("bndbox")
    if box is None:
        raise VocError(f"object {name!r} has no box")
    corners = []
    for corner in _CORNERS:
        text = box.findtext(corner)
        value = float(text) if text and _NUMBER.fullmatch(text) else math.nan
        if not math.isfinite(value):
            raise VocError(f"box of {name!r}: {corner} is {text!r}, expected a number")
        corners.append(value)
    xmin, ymin, xmax, ymax = corners
    return VocObject(
        name, (xmin, ymin, xmax, ymax), _flag(element, "difficult"), _flag(element, "truncated")
    )


def _flag(element: Any, name: str) -> int:
    """Return 1 or 0; a missing or odd flag is 0, as in files made by hand."""
    text = (element.findtext(name) or "").strip()
    return 1 if text in ("1", "true", "True") else 0


def main_object(objects: list[VocObject]) -> VocObject:
    """Return the object with the largest box, the first one in case of a tie."""
    return max(objects, key=lambda item: item.area)
