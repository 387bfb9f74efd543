"""Draws the pictures of docs/ideas.md: `python tools/pictures.py docs/pictures`.

Each picture is narrow, so that its text is readable on a telephone too, and has its own white
background, so that it is readable on a dark page.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Final

WIDTH: Final = 440
SHOWN: Final = 520  # pixels on a wide page
GREEN, BLUE, SAND, GREY = "#d8f0e0", "#d9eaf7", "#fdecc8", "#eceff1"
TINTS: Final = ("#7fc8a0", "#7db6e3", "#f3bf62", "#c9a5dc")
INK, LINE = "#1c2833", "#4d5656"
_ARROW: Final = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9"'
    f' markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{LINE}"/>'
    "</marker></defs>"
)


class Picture:
    """An SVG under construction; lengths are in units of 1/440 of its width."""

    def __init__(self, height: int, about: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            f' width="{SHOWN}" height="{height * SHOWN // WIDTH}" role="img"'
            f' aria-label="{escape(about)}" font-family="system-ui, sans-serif" font-size="15"'
            f' fill="{INK}">'
        )
        self._parts = [_ARROW, f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#fff"/>']

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "middle", bold: bool = False
    ) -> None:
        """Write a line."""
        weight = ' font-weight="bold"' if bold else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, fill: str, *lines: str) -> None:
        """Draw a box with lines of text, of which the first is bold."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"'
            f' fill="{fill}" stroke="{LINE}"/>'
        )
        first = y + height / 2 + 5 - 9.5 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width / 2, first + 19 * number, line, bold=number == 0 and len(lines) > 1)

    def arrow(self, x: float, y: float, to_x: float, to_y: float, *, both: bool = False) -> None:
        """Draw an arrow."""
        start = ' marker-start="url(#tip)"' if both else ""
        self._parts.append(
            f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" stroke="{LINE}" stroke-width="1.5"'
            f' fill="none" marker-end="url(#tip)"{start}/>'
        )

    def line(self, x: float, y: float, to_x: float, to_y: float, *, dashed: bool = False) -> None:
        """Draw a line."""
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" stroke="{LINE}" stroke-width="1.5"{dashes}/>'
        )

    def cells(
        self, x: float, y: float, size: float, fills: Sequence[str], *, words: Sequence[str] = ()
    ) -> None:
        """Draw a row of square cells."""
        for number, fill in enumerate(fills):
            self.box(x + number * size, y, size, size, fill, *words[number : number + 1])

    def svg(self) -> str:
        """Return the text of the file."""
        return "\n".join([self._head, *self._parts, "</svg>"]) + "\n"


def data_flow() -> Picture:
    """Three ways into the caches and out of them."""
    picture = Picture(300, "Sources are loaded into caches; batches and files are read from them")
    heads = (
        ("sources", "images, CSV", GREEN, "load"),
        ("batches", "tf.data, PyTorch", BLUE, "read"),
        ("files", "models, logs", SAND, "igfs"),
    )
    for number, (name, about, fill, word) in enumerate(heads):
        x = 10 + 143 * number
        picture.box(x, 10, 134, 56, fill, name, about)
        picture.text(x + 75, 105, word, anchor="start", bold=True)
    picture.arrow(77, 68, 77, 150)
    picture.arrow(220, 150, 220, 68)
    picture.arrow(363, 68, 363, 150, both=True)
    picture.box(4, 152, 432, 140, GREY)
    picture.text(220, 176, "Apache Ignite: nodes with partitions of caches", bold=True)
    picture.box(16, 190, 130, 56, GREEN, "rows", "NAME")
    picture.box(155, 190, 130, 56, BLUE, "manifest", "and lease")
    picture.box(294, 190, 130, 56, SAND, "tree, chunks", "IGFS_...")
    picture.text(220, 276, "one wire protocol, one client port")
    return picture


def page_to_batch() -> Picture:
    """The bytes of a page become columns, and these are cut into batches."""
    picture = Picture(420, "A page of entries is parsed into columns, which are cut into batches")
    picture.text(14, 26, "1. A page: entries as the node stores them", anchor="start", bold=True)
    for row in range(3):
        x = 14 + 138 * row
        picture.box(x, 38, 34, 34, GREY, f"k{row}")
        picture.box(x + 34, 38, 58, 34, BLUE, f"img {row}")
        picture.box(x + 92, 38, 40, 34, SAND, f"l{row}")
    picture.arrow(220, 76, 220, 104)
    picture.text(14, 128, "2. The core parses it, and copies each value", anchor="start", bold=True)
    picture.text(14, 150, "to its place in the column of its field:", anchor="start")
    for number, (name, fill, letter) in enumerate(
        (("key", GREY, "k"), ("IMAGE", BLUE, "img "), ("LABEL", SAND, "l"))
    ):
        y = 164 + 40 * number
        picture.text(14, y + 23, name, anchor="start")
        for row in range(5):
            words = f"{letter}{row}" if row < 3 else "..."
            picture.box(84 + 68 * row, y, 68, 34, fill, words)
    picture.arrow(220, 284, 220, 312)
    picture.text(14, 336, "3. Batches are views of the columns", anchor="start", bold=True)
    for start, name in ((84, "batch 0"), (220, "batch 1")):
        picture.box(start, 350, 132, 34, BLUE, name)
    picture.box(356, 350, 68, 34, BLUE, "...")
    picture.text(14, 408, "A row is never a Python object on the way.", anchor="start")
    return picture


def epoch_order() -> Picture:
    """The rows of four partitions in three orders."""
    picture = Picture(330, "Rows of four partitions in the orders scan, shuffled scan and global")
    dice = random.Random(3)
    rows = [tint for tint in TINTS for _ in range(4)]
    windows = [[TINTS[2]] * 4 + [TINTS[0]] * 4, [TINTS[3]] * 4 + [TINTS[1]] * 4]
    shuffled = [tint for window in windows for tint in dice.sample(window, 8)]
    mixed = dice.sample(rows, 16)
    size = 25.5
    lines = (
        ("scan: one partition after another", rows),
        ("scan with shuffle=seed: windows of partitions", shuffled),
        ("global: any row at any place", mixed),
    )
    for number, (name, fills) in enumerate(lines):
        y = 14 + 100 * number
        picture.text(16, y + 12, name, anchor="start", bold=True)
        picture.cells(16, y + 24, size, fills)
    for start, name in ((16, "window 0"), (16 + 8 * size, "window 1")):
        picture.text(start + 4 * size, 100 + 14 + 70, name)
        picture.line(start + 4, 170, start + 8 * size - 4, 170)
    picture.text(16, 84, "a cell is a row, a colour is its partition", anchor="start")
    picture.text(16, 300, "Each order depends on the data, the seed", anchor="start")
    picture.text(16, 320, "and the number of the epoch alone.", anchor="start")
    return picture


def shards_and_states() -> Picture:
    """Steps of two workers, a state, and the rest of the epoch with three."""
    picture = Picture(330, "Global steps divided among two workers, and after a state among three")
    picture.text(16, 26, "An epoch by key: each column is a global step", anchor="start", bold=True)
    step, top, height = 51, 44, 120
    for number in range(8):
        workers = 2 if number < 4 else 3
        x = 16 + step * number
        for worker in range(workers):
            part = height / workers
            picture.box(x, top + part * worker, step - 5, part, TINTS[worker], str(worker))
    x = 16 + 4 * step - 2.5
    picture.line(x, 36, x, 226, dashed=True)
    picture.text(x - 8, 190, "2 workers", anchor="end")
    picture.text(x + 8, 190, "3 workers", anchor="start")
    picture.text(x, 246, "state: rows 0 ... 511 are done", bold=True)
    picture.text(16, 280, "A number says which worker reads the slice.", anchor="start")
    picture.text(16, 300, "All slices of a step together are the same rows", anchor="start")
    picture.text(16, 320, "for any number of workers.", anchor="start")
    return picture


def load_and_lease() -> Picture:
    """Two loads of one data set on a time line."""
    picture = Picture(
        330, "A load that is killed, its lease that runs out, and a load that resumes"
    )
    picture.text(16, 26, "load A", anchor="start", bold=True)
    picture.box(80, 8, 150, 28, GREEN, "holds the lease")
    picture.text(244, 27, "killed", anchor="start", bold=True)
    picture.text(16, 86, "lease", anchor="start", bold=True)
    for tick in range(6):
        picture.arrow(92 + 25 * tick, 38, 92 + 25 * tick, 64)
    picture.box(80, 66, 150, 28, SAND, "renewed each 1 s")
    picture.box(230, 66, 100, 28, "#fff", "20 s at most")
    picture.text(16, 146, "journal", anchor="start", bold=True)
    for number in range(3):
        picture.box(80 + 50 * number, 126, 50, 28, BLUE, ("10 k", "20 k", "30 k")[number])
    picture.line(230, 4, 230, 160, dashed=True)
    picture.line(330, 60, 330, 232, dashed=True)
    picture.text(16, 208, "load B", anchor="start", bold=True)
    picture.box(80, 190, 248, 28, "#fff", "waits, or ends: DataSetBusy")
    picture.box(330, 190, 100, 28, GREEN, "resumes")
    picture.arrow(205, 156, 334, 188)
    picture.arrow(16, 250, 430, 250)
    picture.text(430, 270, "time", anchor="end")
    picture.text(16, 296, "B begins where the journal of A ends:", anchor="start")
    picture.text(16, 316, "no row is lost, and none is stored twice.", anchor="start")
    return picture


def file_in_igfs() -> Picture:
    """A file, its entry, its chunks, and how new content is published."""
    picture = Picture(
        390, "A path leads to an entry, the entry to chunks; a new version switches it"
    )
    picture.text(16, 26, "igfs:///runs/a.csv", anchor="start", bold=True)
    picture.arrow(90, 34, 90, 62)
    picture.box(10, 64, 420, 62, SAND)
    picture.text(20, 86, "IGFS_META: an entry for each name", anchor="start", bold=True)
    picture.text(20, 112, "a.csv: 2.5 MiB, content 7", anchor="start")
    picture.text(420, 112, "then content 8", anchor="end")
    picture.arrow(110, 128, 110, 176)
    picture.arrow(330, 128, 330, 176)
    picture.text(118, 156, "before", anchor="start")
    picture.text(322, 156, "after close()", anchor="end")
    picture.box(10, 178, 420, 112, BLUE)
    picture.text(20, 200, "IGFS_DATA: chunks of 1 MiB, each with a CRC", anchor="start", bold=True)
    for number in range(3):
        picture.box(22 + 62 * number, 216, 58, 30, "#fff", f"7, {number}")
        picture.box(232 + 62 * number, 216, 58, 30, GREEN, f"8, {number}")
    picture.text(113, 274, "old content")
    picture.text(323, 274, "new content")
    picture.text(16, 322, "A writer stores new chunks first. One change of", anchor="start")
    picture.text(16, 342, "the entry publishes them. A reader that opened", anchor="start")
    picture.text(16, 362, "content 7 reads it to its end.", anchor="start")
    return picture


PICTURES: Final[dict[str, Callable[[], Picture]]] = {
    "data_flow": data_flow,
    "page_to_batch": page_to_batch,
    "epoch_order": epoch_order,
    "shards_and_states": shards_and_states,
    "load_and_lease": load_and_lease,
    "file_in_igfs": file_in_igfs,
}


def main(folder: str) -> None:
    """Write all pictures into a folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        Path(folder, f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
