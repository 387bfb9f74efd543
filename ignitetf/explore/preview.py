"""`preview`: a contact sheet of a data set's images.

cache -> reader -> as many records of each class -> **pictures, labels** -> PNG or terminal
"""

from __future__ import annotations

import functools
import importlib.util
import io
import itertools
import math
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ignitetf.errors import SchemaError
from ignitetf.explore.head import class_of, read_readable_fields
from ignitetf.net.client import Client
from ignitetf.pictures import PictureError, open_picture, picture_of
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.records import batches_of, record_at, value_at
from ignitetf.tables.catalog import read_manifest
from ignitetf.tables.describe import data_name

__all__ = [
    "LABEL",
    "Sheet",
    "Tile",
    "check_picture",
    "contact_sheet",
    "font_for",
    "half_blocks",
    "in_letters",
]

_LETTERS: Final = 11  # pixels
_TALL: Final = "ÅÇgjpqy|"
# Terminal columns of an image. The minimum limits how many images are side by side.
_LEAST_CELLS: Final = 16
_MOST_CELLS: Final = 48
_GAP: Final = 4
_BACKGROUND: Final = (250, 250, 250)
_INK: Final = (40, 40, 40)
_BROKEN: Final = (200, 60, 60)
_SHADES: Final = " ░▒▓█"


@dataclass(frozen=True)
class Tile:
    """One image of a sheet (None if it cannot be decoded), and its caption."""

    picture: Image.Image | None
    caption: str


@dataclass(frozen=True)
class Sheet:
    """A contact sheet.

    Attributes:
        tiles: The images, row by row.
        field: The field that contains them.
        columns: Images in a row of the drawing.
        size: Pixels of the longer side of each image in it.
    """

    tiles: tuple[Tile, ...]
    field: str
    columns: int
    size: int

    @property
    def shown(self) -> int:
        """Number of images."""
        return len(self.tiles)

    @property
    def undecodable(self) -> int:
        """Number of pictures that could not be decoded; they are crossed out."""
        return sum(tile.picture is None for tile in self.tiles)

    @functools.cached_property
    def image(self) -> Image.Image:
        """The sheet as an RGB drawing; long captions take several lines."""
        font = font_for((tile.caption for tile in self.tiles), _LETTERS)
        line = math.ceil(font.getbbox(_TALL)[3]) + 1
        texts = [
            _broken(in_letters(tile.caption, font), self.size, font.getlength)
            for tile in self.tiles
        ]
        width, top, tops = self.size + _GAP, _GAP, []
        for first in range(0, len(texts), self.columns):
            tops.append(top)
            lines = max(map(len, texts[first : first + self.columns]))
            top += self.size + lines * line + 2 * _GAP
        sheet = Image.new("RGB", (self.columns * width + _GAP, top), _BACKGROUND)
        draw = ImageDraw.Draw(sheet)
        for index, (tile, text) in enumerate(zip(self.tiles, texts, strict=True)):
            place = _GAP + index % self.columns * width, tops[index // self.columns]
            _draw(sheet, draw, tile.picture, place, self.size)
            for number, words in enumerate(text):
                at = place[0], place[1] + self.size + 1 + number * line
                draw.text(at, words, _INK, font)
        return sheet

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.image.save(out, "PNG")
        return out.getvalue()

    def text(self, width: int) -> str:
        """Return the sheet as terminal text of at most `width` columns, captions as text."""
        across = max(1, min(self.columns, len(self.tiles), width // _LEAST_CELLS))
        cells = max(2, min(width // across - 1, _MOST_CELLS))
        lines: list[str] = []
        for first in range(0, len(self.tiles), across):
            tiles = self.tiles[first : first + across]
            blocks = [_blocks(tile.picture, cells) for tile in tiles]
            texts = [_broken(tile.caption, cells, _cells) for tile in tiles]
            for parts in (blocks, [[_padded(t, cells) for t in text] for text in texts]):
                rows = itertools.zip_longest(*parts, fillvalue=" " * cells)
                lines += [" ".join(row).rstrip(" ") for row in rows]
            lines.append("")
        return "\n".join(lines)


def _draw(
    sheet: Image.Image,
    draw: ImageDraw.ImageDraw,
    picture: Image.Image | None,
    place: tuple[int, int],
    size: int,
) -> None:
    left, top = place
    if picture is None:
        draw.line((left, top, left + size, top + size), _BROKEN, 2)
        draw.line((left, top + size, left + size, top), _BROKEN, 2)
        return
    fitted = _resized(picture, size)
    sheet.paste(fitted, (left + (size - fitted.width) // 2, top + (size - fitted.height) // 2))


def contact_sheet(
    client: Client,
    cache: str,
    *,
    field: str | None = None,
    count: int = 64,
    columns: int = 8,
    size: int = 96,
    where: str | None = None,
) -> Sheet:
    """Show images of a data set side by side with their labels, equally many of each class.

    Args:
        client: The cluster.
        cache: Name of the cache or data set.
        field: Field with images, encoded or as pixels (uint8, or uint16 of grey); None for the
            first such field.
        count: Maximum number of images.
        columns: Images in a row.
        size: Pixels of the longer side of each.
        where: SQL condition on the rows.

    Raises:
        SchemaError: No field holds images, or no row was found.
    """
    rows = _balanced_rows(client, cache, count, where=where)
    if not rows:
        why = "the cache is empty" if where is None else f"no row matches {where}"
        raise SchemaError(f"{cache}: no image to show: {why}", cache=cache)
    name = _image_field(cache, rows[0], field)
    manifest = read_manifest(client, data_name(client, cache).name)
    classes = manifest.class_names if manifest is not None else ()
    tiles = tuple(Tile(picture_of(row[name]), _caption(row, classes)) for row in rows)
    return Sheet(tiles, name, max(1, min(columns, len(rows))), size)


def _cells(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def _padded(text: str, cells: int) -> str:
    return text + " " * (cells - _cells(text))


def _broken(text: str, room: float, length: Callable[[str], float]) -> list[str]:
    """Break a text into lines that fit, at spaces if possible; every letter is kept."""
    lines = [""]
    for word in text.split():
        if lines[-1] and length(f"{lines[-1]} {word}") <= room:
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        for letter in word:
            if lines[-1] and length(lines[-1] + letter) > room:
                lines.append("")
            lines[-1] += letter
    return lines


def _blocks(picture: Image.Image | None, cells: int) -> list[str]:
    """Return the lines of one image, each of `cells` columns."""
    if picture is None:
        return [_padded("(no image)"[:cells], cells)]
    fitted = _resized(picture, cells)
    left = (cells - fitted.width) // 2
    before, after = " " * left, " " * (cells - fitted.width - left)
    return [f"{before}{line}{after}" for line in half_blocks(fitted, fitted.width).split("\n")]


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
    what = f"field {wanted!r} contains no image" if wanted else "no field contains images"
    raise SchemaError(
        f"{cache}: {what}",
        hint="images are encoded files (JPEG, PNG, ...) or uint8 arrays [height, width, channels],"
        " or uint16 ones [height, width, 1]",
    )


def check_picture(value: Any, most_pixels: int) -> None:
    """Raise SchemaError for an encoded image that would take too much memory to decode.

    Raises:
        SchemaError: It is not an image, or has too many pixels.
    """
    if not isinstance(value, bytes):
        return
    try:
        with open_picture(value, most_pixels):
            pass
    except PictureError as error:
        raise SchemaError(f"this value is not shown as an image: {error}") from error


def _resized(picture: Image.Image, size: int) -> Image.Image:
    scale = size / max(picture.size)
    shape = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    # Enlarged pictures keep their pixels visible, shrunk ones are averaged.
    kind = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    return picture.resize(shape, kind)


def _caption(row: dict[str, Any], classes: Sequence[str]) -> str:
    label = row.get(LABEL)
    text = str(row.get("key", "") if label is None else class_of(label, classes) or label)
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# Find a font with the letters of a text. Pillow's own font has ASCII only. For other letters we use
# a font of the system, or the one that matplotlib includes. A letter that no font has is written as
# its base letter (`é` as `e`) or its code.

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

# Looked for in the folders of the system's fonts; the first has Latin, Greek, Cyrillic and more.
_FILES: Final = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial Unicode.ttf",
    "NotoSansCJK-Regular.ttc", "msyh.ttc", "PingFang.ttc", "arial.ttf",
)  # fmt: skip
_NO_LETTER: Final = "\U0010ffff"


def font_for(texts: Iterable[str], size: int) -> Font:
    """Return the available font that has the most letters of the texts."""
    letters = {letter for text in texts for letter in text if not letter.isspace()}
    best: Font = ImageFont.load_default(size)
    if all(letter.isascii() for letter in letters):
        return best
    most = _known_letters(best, letters)
    for font in _fonts(size):
        if (known := _known_letters(font, letters)) > most:
            best, most = font, known
        if most == len(letters):
            break
    return best


def in_letters(text: str, font: Font) -> str:
    """Return a text in which letters missing from the font are base letters or codes."""
    return "".join(letter if _has_letter(font, letter) else _plain(letter) for letter in text)


def _plain(letter: str) -> str:
    base = "".join(c for c in unicodedata.normalize("NFKD", letter) if c.isascii())
    return base or letter.encode("ascii", "backslashreplace").decode()


def _known_letters(font: Font, letters: Iterable[str]) -> int:
    return sum(_has_letter(font, letter) for letter in letters)


def _has_letter(font: Font, letter: str) -> bool:
    """Return True if the font has a letter: it draws it differently from a nonexistent one."""
    if letter.isascii():
        return True
    if not isinstance(font, ImageFont.FreeTypeFont):
        return False
    return bytes(font.getmask(letter)) != bytes(font.getmask(_NO_LETTER))


def _fonts(size: int) -> Iterator[ImageFont.FreeTypeFont]:
    matplotlib = importlib.util.find_spec("matplotlib")
    places = [*_FILES]
    if matplotlib is not None and matplotlib.origin is not None:
        folder = Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf"
        places.append(str(folder / "DejaVuSans.ttf"))
    for place in places:
        try:
            yield ImageFont.truetype(place, size)
        except OSError:
            continue


LABEL: Final = "LABEL"
_PAGE_ENTRIES: Final = 64
# Once there are enough records, the search for rare classes ends after reading this much.
_MOST_BYTES: Final = 64 << 20
_MOST_ROWS: Final = 20_000


def _balanced_rows(
    client: Client, cache: str, count: int, *, where: str | None = None
) -> list[dict[str, Any]]:
    """Return records of a data set, balanced over the classes and sorted by class.

    Without a field LABEL these are the first records. A large data set is not read to its end, so a
    class with less than one row in some thousands may be missing.

    Args:
        client: The cluster.
        cache: Name of the cache or data set.
        count: Maximum number of records.
        where: SQL condition on the rows.

    Returns:
        One mapping per record, as `head.first_rows`.
    """
    options = ReadOptions(where=where, raw_nulls=True, page_size=max(1, min(count, _PAGE_ENTRIES)))

    def read(reader: CacheReader) -> list[dict[str, Any]]:
        classes = 0
        if where is None and reader.manifest is not None:
            classes = len(reader.manifest.class_names)
        return _chosen(reader, _Choice(count, classes))

    return read_readable_fields(client, cache, options, read)[0]


def _chosen(reader: CacheReader, choice: _Choice) -> list[dict[str, Any]]:
    schema = reader.schema
    label = schema[LABEL] if LABEL in schema.names and not schema[LABEL].shape else None
    rows = size = 0
    for batch in batches_of(reader):
        for index in range(len(batch)):
            kind = None if label is None else value_at(label, batch.columns[LABEL], index)
            if choice.wants(kind):
                choice.add(kind, record_at(schema, batch, index))
        rows, size = rows + len(batch), size + batch.nbytes
        enough = label is None or rows >= _MOST_ROWS or size >= _MOST_BYTES
        if choice.is_even or (choice.is_full and enough):
            break
    return choice.rows()


class _Choice:
    """Records by class; when there are enough, one of a rare class replaces one of a common one."""

    def __init__(self, count: int, classes: int) -> None:
        self._count = count
        self._classes = classes  # 0 if unknown
        self._of: dict[Any, list[dict[str, Any]]] = {}
        self._total = 0

    @property
    def is_full(self) -> bool:
        """True if the choice has the wanted number of records."""
        return self._total == self._count

    @property
    def is_even(self) -> bool:
        """True if the choice would reject any further record, whatever its class."""
        if not self.is_full or not self._classes:
            return False
        share = self._count // self._classes
        known = len(self._of) == min(self._classes, self._count)
        return known and all(len(rows) >= share for rows in self._of.values())

    def wants(self, label: Any) -> bool:
        """Return True if a record of this class would fill the choice or make it more even."""
        if not self.is_full:
            return True
        return len(self._of.get(label, ())) + 1 < max(map(len, self._of.values()))

    def add(self, label: Any, record: dict[str, Any]) -> None:
        """Add a record; a full choice drops one of its most frequent class."""
        if self.is_full:
            max(self._of.values(), key=len).pop()
            self._total -= 1
        self._of.setdefault(label, []).append(record)
        self._total += 1

    def rows(self) -> list[dict[str, Any]]:
        """Return the records, sorted by class; those without one are last."""
        kinds = sorted(self._of, key=lambda kind: (kind is None, str(type(kind)), kind))
        return [record for kind in kinds for record in self._of[kind]]
