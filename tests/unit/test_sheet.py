"""Contact sheets: whole captions, in a drawing and as terminal text."""

import re

import numpy as np
import pytest
from PIL import Image

from ignitetf.explore.preview import Sheet, Tile, font_for, in_letters

BACKGROUND = (250, 250, 250)
CAPTIONS = [
    "jumpy gypsy Qq|",
    "a_very_long_class_name_without_any_space_jgpq",
    "Ångström/Çelik",
    "two words and some more of them",
    "cat",
]


def tile(caption):
    return Tile(Image.new("RGB", (9, 12), (10, 20, 30)), caption)


@pytest.mark.parametrize("size", [24, 60, 96])
def test_no_caption_is_cut(size):
    alone = Sheet((tile("x" * 8),), "IMAGE", 1, size).image
    for caption in CAPTIONS:
        pixels = np.asarray(Sheet((tile(caption),), "IMAGE", 1, size).image)
        below = (pixels[4 + size + 1 :] != BACKGROUND).any(2)
        # Ink in every caption, and none at the edges, where letters would be cut.
        assert below.any() and not below[-1].any() and not below[:, -1].any()
        if len(caption) > 40:
            assert len(pixels) > alone.height  # as many lines as it needs
    sheet = Sheet(tuple(map(tile, CAPTIONS)), "IMAGE", 2, size)
    assert sheet.image.width == 2 * (size + 4) + 4


def test_a_terminal_shows_every_letter():
    sheet = Sheet((*map(tile, CAPTIONS), Tile(None, "日本語")), "IMAGE", 3, 96)
    text = re.sub(r"\x1b\[[^m]*m", "", sheet.text(60))
    assert all(len(line) <= 60 for line in text.split("\n"))
    words = [word for caption in CAPTIONS for word in caption.split() if len(word) < 16]
    assert all(word in text for word in [*words, "日本語", "(no image)"])
    assert sheet.undecodable == 1


def test_letters_without_a_font_are_named():
    font = font_for(["plain"], 11)
    assert in_letters("plain", font) == "plain"
    assert in_letters("\U000fffff", font) == "\\U000fffff"
