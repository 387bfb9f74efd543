"""Boxes in images: whether they belong to the stored pixels, and lie in them.

boxes, size of the image, its EXIF -> **boxes in pixels of the stored image** -> voc, coco, yolo

A box that is outside by a pixel at most is clipped, because tools count pixels from 0 or 1, and
round. A box further outside, a reversed one and an empty one are errors of the annotation.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from ignitetf.load.sources.csvtypes import NUMBER

__all__ = ["Box", "BoxError", "ImageSize", "clipped_note", "number_of", "placed", "was_moved"]

# xmin, ymin, xmax, ymax.
Box = tuple[float, float, float, float]

_CLIPPED: Final = 1.0
# float() accepts 1_5 as 15, and digits of other scripts.
_NUMBER: Final = re.compile(rf"\s*{NUMBER}\s*", re.ASCII)
# Shares of the sides are rounded: less is not worth a word.
_MOVED: Final = 0.01
_QUARTER_TURNS: Final = (5, 6, 7, 8)
_UPRIGHT: Final = "rotate the file itself and remove its EXIF, for example with jhead -autorot"


class BoxError(ValueError):
    """An annotation that cannot be used; the text is the reason."""


@dataclass(frozen=True)
class ImageSize:
    """The size of an image in its annotation; 0 x 0 if the annotation has none."""

    width: int
    height: int

    def check(self, height: int, width: int, turn: int, *, has_boxes: bool = True) -> None:
        """Raise BoxError unless the annotation is of this image, and its boxes of the stored pixels.

        Some tools turn an image by its EXIF before boxes are drawn, others do not. The size
        shows the frame of the boxes, except for images that are mirrored, turned by a half, or
        square.

        Args:
            height: Height of the image as it is stored.
            width: Its width.
            turn: Its orientation in EXIF; 1 for none.
            has_boxes: Whether the annotation has boxes.
        """
        stated, stored = (self.width, self.height), (width, height)
        same = stated in (stored, (0, 0))
        shown = f"{self.width} x {self.height}"
        upright = turn in _QUARTER_TURNS and stated == stored[::-1]
        if not has_boxes and (same or upright):
            return
        if not same and upright:
            raise BoxError(
                f"its boxes refer to the upright image of {shown}, while the file has"
                f" {width} x {height} pixels and the EXIF orientation {turn}; {_UPRIGHT}"
            )
        if not same:
            raise BoxError(
                f"its annotation is for an image of {shown}, while the image has {width} x {height}"
            )
        by_size = turn in _QUARTER_TURNS and stated == stored and width != height
        if turn != 1 and not by_size:
            raise BoxError(
                f"its image has the EXIF orientation {turn}, and the annotation does not say"
                f" whether the boxes refer to the rotated image; {_UPRIGHT}"
            )


def number_of(text: str) -> float:
    """Return the finite number in a text; NaN if it is not one."""
    found = float(text) if _NUMBER.fullmatch(text) else math.nan
    return found if math.isfinite(found) else math.nan


def placed(box: Box, name: str, height: int, width: int, *, inclusive: bool = False) -> Box:
    """Return a box in an image, clipped by a pixel at most.

    Args:
        box: Its corners in pixels.
        name: The name of its class, for messages.
        height: Height of the image.
        width: Its width.
        inclusive: Whether the corners are pixels of the box, which then has one pixel at least.

    Raises:
        BoxError: It is empty, reversed, or further outside.
    """
    shown = f"[{', '.join(f'{x:g}' for x in box)}] of {name!r}"
    if not all(map(math.isfinite, box)):
        raise BoxError(f"box {shown} has a coordinate that is not a number")
    if not _is_box(box, inclusive):
        raise BoxError(f"box {shown} is {'' if inclusive else 'empty or '}reversed")
    sides = (width, height, width, height)
    inside = tuple(min(max(x, 0), side) for x, side in zip(box, sides, strict=True))
    found = (inside[0], inside[1], inside[2], inside[3])
    if _moved(box, found) > _CLIPPED or not _is_box(found, inclusive):
        raise BoxError(f"box {shown} is outside the image of {width} x {height}")
    return found


def _is_box(box: Box, inclusive: bool) -> bool:
    if inclusive:
        return box[0] <= box[2] and box[1] <= box[3]
    return box[0] < box[2] and box[1] < box[3]


def _moved(before: Box, after: Box) -> float:
    return max(abs(a - b) for a, b in zip(before, after, strict=True))


def was_moved(before: Box, after: Box) -> bool:
    """Return whether a box was clipped by more than the rounding of its coordinates."""
    return _moved(before, after) > _MOVED


def clipped_note(count: int) -> str:
    """Return what users should know about clipped boxes."""
    return f"{count:,} boxes were outside their image by a pixel at most, and are clipped"
