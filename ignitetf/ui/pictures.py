"""Images of a data set, encoded for the browser, and the boxes over them.

value -> **picture** -> PNG or JPEG

Stored bytes are never sent unchanged: each image is decoded and encoded again, so that the browser
    only receives images.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ignitetf.errors import SchemaError
from ignitetf.explore.browse import View
from ignitetf.explore.preview import check_picture
from ignitetf.pictures import picture_of

__all__ = ["Box", "Frame", "encoded_picture", "frame_of"]

_MOST_PIXELS: Final = 40_000_000
_MOST_BOXES: Final = 200
# Images of at most this many pixels are sent losslessly.
_SMALL: Final = 64 * 64


@dataclass(frozen=True)
class Box:
    """A box over an image, in pixels of the image, and its label."""

    left: float
    top: float
    width: float
    height: float
    shown: str
    number: int


@dataclass(frozen=True)
class Frame:
    """The size of an image and the boxes over it."""

    width: int
    height: int
    boxes: tuple[Box, ...]


def encoded_picture(value: Any, size: int) -> tuple[bytes, str]:
    """Return an image of at most `size` pixels a side, and its media type.

    Raises:
        SchemaError: The value is not an image, or is a very large one.
    """
    check_picture(value, _MOST_PIXELS)
    image = picture_of(value)
    if image is None:
        raise SchemaError("this value is not an image that can be decoded")
    out = io.BytesIO()
    if image.width * image.height <= _SMALL:
        image.save(out, "PNG")
        return out.getvalue(), "image/png"
    image.thumbnail((size, size))
    image.save(out, "JPEG", quality=85)
    return out.getvalue(), "image/jpeg"


def frame_of(data: View, values: dict[str, Any]) -> Frame | None:
    """Return the boxes of a row; None if it has none."""
    if not data.has_boxes or not isinstance(values["BOXES"], np.ndarray):
        return None
    width, height = values["WIDTH"], values["HEIGHT"]
    if not width or not height or len(values["BOXES"]) == 0:
        return None
    labels = values.get("BOX_LABELS")
    boxes = []
    corners = values["BOXES"][:_MOST_BOXES].tolist()
    for i, (left, top, right, bottom) in enumerate(corners):
        label = labels[i].item() if isinstance(labels, np.ndarray) and i < len(labels) else None
        shown = "" if label is None else data.class_name(label)
        number = label if isinstance(label, int) else 0
        boxes.append(Box(left, top, right - left, bottom - top, shown, number))
    return Frame(int(width), int(height), tuple(boxes))
