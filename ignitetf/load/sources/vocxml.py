"""PASCAL VOC annotation files: the objects in one image.

XML -> **VocObject** -> columns

The XML is not trusted: defusedxml refuses entities and external references.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["VocError", "VocObject", "main_object", "parse_voc"]

_CORNERS = ("xmin", "ymin", "xmax", "ymax")


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


def parse_voc(data: bytes) -> list[VocObject]:
    """Return the objects of an annotation, at least one.

    Raises:
        VocError: Not well-formed, no object, or an object without class or box.
    """
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
        element.tag = element.tag.rpartition("}")[2]  # ignore the namespace
    found = [_object(element) for element in root.findall("object")]
    if not found and root.tag != "annotation":
        raise VocError(f"no annotation: <annotation> expected, found <{root.tag[:40]}>")
    if not found:
        raise VocError("no box in it")
    return found


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
        try:
            value = float(text)
        except (TypeError, ValueError):
            value = math.nan
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
