"""`preview`: a contact sheet of a data set's images.

cache -> first records -> **pictures with their labels** -> PNG or terminal
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError

from ignitetf.errors import SchemaError
from ignitetf.explore.head import first_rows
from ignitetf.net.client import Client
from ignitetf.tables.catalog import read_manifest
from ignitetf.tables.describe import data_name

__all__ = ["Sheet", "contact_sheet", "half_blocks", "picture_of"]

_LABEL: Final = "LABEL"
_CAPTION_HEIGHT: Final = 14
_GAP: Final = 4
_BACKGROUND: Final = (250, 250, 250)
_INK: Final = (40, 40, 40)
_BROKEN: Final = (200, 60, 60)
_SHADES: Final = " ░▒▓█"


@dataclass(frozen=True)
class Sheet:
    """A contact sheet.

    Attributes:
        image: The sheet, RGB.
        field: The field whose images it shows.
        shown: Number of images.
        undecodable: How many of them could not be decoded; they are crossed out.
    """

    image: Image.Image
    field: str
    shown: int
    undecodable: int


def contact_sheet(
    client: Client,
    cache: str,
    *,
    field: str | None = None,
    count: int = 64,
    columns: int = 8,
    size: int = 96,
) -> Sheet:
    """Draw the first images of a data set side by side, with their labels.

    Args:
        client: The cluster.
        cache: Name of the cache or data set.
        field: Field with images, encoded or as uint8 pixels; None for the first such field.
        count: Maximum number of images.
        columns: Images in a row.
        size: Pixels of the longer side of each.

    Raises:
        SchemaError: No field holds images, or the data set is empty.
    """
    rows = first_rows(client, cache, count)
    if not rows:
        raise SchemaError(f"{cache}: there is no image to show, the cache is empty", cache=cache)
    name = _image_field(cache, rows[0], field)
    manifest = read_manifest(client, data_name(client, cache).name)
    classes = manifest.class_names if manifest is not None else ()
    columns = max(1, min(columns, len(rows)))
    tile = size + _GAP, size + _GAP + _CAPTION_HEIGHT
    height = -(-len(rows) // columns) * tile[1] + _GAP
    sheet = Image.new("RGB", (columns * tile[0] + _GAP, height), _BACKGROUND)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    undecodable = 0
    for index, row in enumerate(rows):
        left = _GAP + index % columns * tile[0]
        top = _GAP + index // columns * tile[1]
        picture = picture_of(row[name])
        if picture is None:
            undecodable += 1
            draw.line((left, top, left + size, top + size), _BROKEN, 2)
            draw.line((left, top + size, left + size, top), _BROKEN, 2)
        else:
            fitted = _fitted(picture, size)
            middle = left + (size - fitted.width) // 2, top + (size - fitted.height) // 2
            sheet.paste(fitted, middle)
        draw.text((left, top + size + 1), _caption(row, classes, size // 6), _INK, font)
    return Sheet(sheet, name, len(rows), undecodable)


def half_blocks(image: Image.Image, width: int) -> str:
    """Draw an image as terminal text of `width` columns: two pixels a character, 24-bit colours.

    With `NO_COLOR` in the environment it is drawn in shades, one pixel a character.
    """
    height = max(2, round(image.height * width / image.width) // 2 * 2)
    if os.environ.get("NO_COLOR"):
        gray = np.asarray(image.convert("L").resize((width, height // 2)))
        rows = (gray.astype(int) * len(_SHADES) // 256).tolist()
        return "\n".join("".join(_SHADES[shade] for shade in row) for row in rows)
    pixels = np.asarray(image.convert("RGB").resize((width, height)))
    lines = []
    for top, bottom in zip(pixels[0::2], pixels[1::2], strict=True):
        cells = (
            f"\x1b[38;2;{a[0]};{a[1]};{a[2]}m\x1b[48;2;{b[0]};{b[1]};{b[2]}m▀"
            for a, b in zip(top.tolist(), bottom.tolist(), strict=True)
        )
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)


def _image_field(cache: str, row: dict[str, Any], wanted: str | None) -> str:
    names = [n for n in row if n != "key"]
    if wanted is not None and wanted not in names:
        raise SchemaError(f"{cache} has no field {wanted!r}", hint=f"fields: {', '.join(names)}")
    for name in [wanted] if wanted is not None else names:
        if picture_of(row[name]) is not None:
            return name
    what = f"field {wanted!r} holds no image" if wanted else "no field holds images"
    raise SchemaError(
        f"{cache}: {what}",
        hint="images are encoded files (JPEG, PNG, ...) or uint8 arrays [height, width, channels]",
    )


def picture_of(value: Any) -> Image.Image | None:
    """Return the image of a value; None if it is not an image."""
    if isinstance(value, bytes):
        try:
            opened = Image.open(io.BytesIO(value))
            return opened.convert("RGB")
        except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError):
            return None
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        return None
    if value.ndim == 3 and value.shape[2] == 1:
        value = value[:, :, 0]
    if value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (3, 4)):
        return Image.fromarray(np.ascontiguousarray(value)).convert("RGB")
    return None


def _fitted(picture: Image.Image, size: int) -> Image.Image:
    scale = size / max(picture.size)
    shape = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    # Enlarged pictures keep their pixels visible, shrunk ones are averaged.
    kind = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    return picture.resize(shape, kind)


def _caption(row: dict[str, Any], classes: Sequence[str], letters: int) -> str:
    label = row.get(_LABEL)
    if label is None:
        text = str(row.get("key", ""))
    elif isinstance(label, int) and 0 <= label < len(classes):
        text = classes[label]
    else:
        text = str(label)
    return text if len(text) <= letters else text[: letters - 1] + "…"
