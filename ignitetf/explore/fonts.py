"""A font that has the letters of a text, and the text in letters that it has.

texts -> **font** -> preview

Pillow's own font has the letters of ASCII. For others a font of the system is taken, or the one
that comes with matplotlib; letters that none has are written as their base (`é` as `e`) or code.
"""

from __future__ import annotations

import importlib.util
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from PIL import ImageFont

__all__ = ["Font", "font_for", "in_letters"]

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

# Looked for in the folders of the system's fonts; the first has Latin, Greek, Cyrillic and more.
_FILES: Final = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial Unicode.ttf",
    "NotoSansCJK-Regular.ttc", "msyh.ttc", "PingFang.ttc", "arial.ttf",
)  # fmt: skip
_NO_LETTER: Final = "\U0010ffff"


def font_for(texts: Iterable[str], size: int) -> Font:
    """Return a font that has as many letters of these texts as any that is there."""
    letters = {letter for text in texts for letter in text if not letter.isspace()}
    best: Font = ImageFont.load_default(size)
    if all(letter.isascii() for letter in letters):
        return best
    most = _known(best, letters)
    for font in _fonts(size):
        if (known := _known(font, letters)) > most:
            best, most = font, known
        if most == len(letters):
            break
    return best


def in_letters(text: str, font: Font) -> str:
    """Return a text with each letter that the font lacks as its base letter, or as its code."""
    return "".join(letter if _has(font, letter) else _plain(letter) for letter in text)


def _plain(letter: str) -> str:
    base = "".join(c for c in unicodedata.normalize("NFKD", letter) if c.isascii())
    return base or letter.encode("ascii", "backslashreplace").decode()


def _known(font: Font, letters: Iterable[str]) -> int:
    return sum(_has(font, letter) for letter in letters)


def _has(font: Font, letter: str) -> bool:
    """Whether the font draws something else for a letter than for one that does not exist."""
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
