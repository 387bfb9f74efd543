"""Rows and records as lines of text with all columns, for terminals of any width.

values -> **tables** -> output, the prompt

A table is as wide as its values. If that is too wide, long texts take several lines. If it is still
too wide, the columns are shown in groups, each beginning with the columns that name the row. If
this makes many groups, or a column does not fit at all, a row becomes a block with a line for each
column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from ignitetf.cli.values import brief, is_number, is_single

__all__ = ["block_lines", "record_lines", "table_lines"]

_GAP: Final = 2
# Texts are not folded to fewer columns than this.
_LEAST: Final = 16
# Words up to this length, such as UUIDs and times, are not broken.
_WORD: Final = 40
# Number of rows that are laid out and shown at a time.
CHUNK_ROWS: Final = 1000
# With groups of columns fewer rows are shown together, so that the groups of a row are close.
_GROUP_ROWS: Final = 20
_MOST_GROUPS: Final = 4
_RULE: Final = 40  # length of the line above a block


@dataclass(frozen=True)
class _Column:
    """A column of a chunk of rows: the texts of its cells, and its widths.

    Attributes:
        name: Its name.
        cells: The texts.
        right: True if they are aligned right.
        natural: Width of the longest line of them.
        least: Width below which they are not folded.
    """

    name: str
    cells: list[str]
    right: bool
    natural: int
    least: int


def table_lines(
    names: Sequence[str], rows: Iterable[Sequence[Any]], width: int | None
) -> Iterator[str]:
    """Yield the lines of a table, for a terminal while the rows are read.

    Args:
        names: Names of the columns.
        rows: The rows.
        width: Columns of the terminal; None for lines as long as they need to be.
    """
    source, start = iter(rows), 0
    before: list[int] | None = None
    while names:
        chunk = list(source) if width is None else list(islice(source, CHUNK_ROWS))
        if start and not chunk:
            return
        columns = [_column(name, [row[i] for row in chunk]) for i, name in enumerate(names)]
        widths = _widths(columns, width, before)
        if start and (widths is None or widths != before):
            yield ""
        if widths is None:
            assert width is not None
            yield from _in_parts(columns, len(chunk), width, start)
        else:
            yield from _head(columns, widths) if widths != before else ()
            yield from _body(columns, widths, range(len(chunk)))
        before = widths
        start += len(chunk)
        if width is None or len(chunk) < CHUNK_ROWS:
            return


def block_lines(
    names: Sequence[str], rows: Iterable[Sequence[Any]], width: int | None
) -> Iterator[str]:
    """Yield a block of lines for each row, a column a line; the arguments are those of a table."""
    source, start = iter(rows), 0
    while chunk := list(islice(source, CHUNK_ROWS)):
        columns = [_column(name, [row[i] for row in chunk]) for i, name in enumerate(names)]
        yield from _blocks(columns, len(chunk), width, start)
        start += len(chunk)


def record_lines(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    """Yield the lines of one record: a name and its value each."""
    columns = [_column(name, [value]) for name, value in record.items()]
    return _pairs(columns, 0, width)


def _column(name: str, values: Sequence[Any]) -> _Column:
    given = [value for value in values if value is not None]
    right = bool(given) and all(map(is_number, given))
    single = is_single([value for value in given if isinstance(value, float)])
    cells = [brief(value, single=single) for value in values]
    name = brief(name)
    own = max((_cell_width(line) for line in name.split("\n")), default=0)
    natural = max((own, *(_cell_width(line) for cell in cells for line in cell.split("\n"))))
    words = (_cell_width(word) for cell in cells for word in cell.split())
    whole = max((width for width in words if width <= _WORD), default=0)
    least = natural if right else min(natural, max(own, _LEAST, whole))
    return _Column(name, cells, right, natural, least)


def _widths(
    columns: Sequence[_Column], width: int | None, before: list[int] | None
) -> list[int] | None:
    """Return widths for columns in one table, the previous ones if possible; None if none fit."""
    if width is None:
        return [column.natural for column in columns]
    found = _fitted(columns, width)
    if found is None or before is None:
        return found
    kept = [max(pair) for pair in zip(before, found, strict=True)]
    return kept if sum(kept) + _GAP * (len(kept) - 1) <= width else found


def _fitted(columns: Sequence[_Column], width: int) -> list[int] | None:
    """Return widths for columns in one table, narrowing the widest first; None if none fit."""
    room = width - _GAP * (len(columns) - 1)
    if sum(column.natural for column in columns) <= room:
        return [column.natural for column in columns]

    def narrowed(most: int) -> list[int]:
        return [max(column.least, min(column.natural, most)) for column in columns]

    low, high = 0, max((column.natural for column in columns), default=0)
    if sum(narrowed(low)) > room:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sum(narrowed(middle)) <= room else (low, middle)
    return narrowed(low)


def _in_parts(columns: Sequence[_Column], count: int, width: int, start: int) -> Iterator[str]:
    """Yield the lines of rows that are too wide for one table: groups of columns, or blocks."""
    groups = _groups(columns, count, width, start)
    if groups is None:
        yield from _blocks(columns, count, width, start)
        return
    for first in range(0, max(count, 1), _GROUP_ROWS):
        shown = range(first, min(count, first + _GROUP_ROWS))
        for number, group in enumerate(groups):
            yield from ("",) if first or number else ()
            widths = _fitted(group, width)
            assert widths is not None
            yield from _head(group, widths)
            yield from _body(group, widths, shown)


def _groups(
    columns: Sequence[_Column], count: int, width: int, start: int
) -> list[list[_Column]] | None:
    """Return groups of columns that fit, each with the row's name; None if blocks are better."""
    label = columns[0]
    rest = list(columns[1:])
    if len(set(label.cells)) < count or label.least > width // 3:
        label, rest = _column("#", range(start + 1, start + count + 1)), list(columns)
    groups = [[label]]
    for column in rest:
        if _fitted([*groups[-1], column], width) is not None:
            groups[-1].append(column)
        elif _fitted([label, column], width) is None:
            return None
        else:
            groups.append([label, column])
    return groups if len(groups) <= _MOST_GROUPS else None


def _head(columns: Sequence[_Column], widths: Sequence[int]) -> Iterator[str]:
    names = [_Column(c.name, [c.name], c.right, c.natural, c.least) for c in columns]
    yield from _body(names, widths, range(1))
    yield (" " * _GAP).join("─" * width for width in widths)


def _body(columns: Sequence[_Column], widths: Sequence[int], rows: Iterable[int]) -> Iterator[str]:
    for row in rows:
        cells = [_folded(c.cells[row], w) for c, w in zip(columns, widths, strict=True)]
        for line in range(max(map(len, cells), default=0)):
            parts = (
                _padded(cell[line] if line < len(cell) else "", width, column.right)
                for column, cell, width in zip(columns, cells, widths, strict=True)
            )
            yield (" " * _GAP).join(parts).rstrip()


def _blocks(columns: Sequence[_Column], count: int, width: int | None, start: int) -> Iterator[str]:
    for row in range(count):
        room = min(width or _RULE, _RULE)
        yield from _folded(f"── {start + row + 1} ".ljust(room, "─"), room)
        yield from _pairs(columns, row, width)


def _pairs(columns: Sequence[_Column], row: int, width: int | None) -> Iterator[str]:
    """Yield a line for each column, with its name and its value."""
    names = max((_cell_width(column.name) for column in columns), default=0)
    stacked = width is not None and width - names - _GAP < max(
        (min(column.least, width - _GAP) for column in columns if not column.right), default=0
    )
    for column in columns:
        if stacked:
            assert width is not None
            indent = " " * min(_GAP, width // 4)
            yield from _folded(column.name, width)
            folded = _folded(column.cells[row], width - len(indent))
            yield from (f"{indent}{line}".rstrip() for line in folded)
            continue
        room = None if width is None else width - names - _GAP
        lines = column.cells[row].split("\n") if room is None else _folded(column.cells[row], room)
        for number, line in enumerate(lines):
            yield f"{_padded(column.name if not number else '', names + _GAP, False)}{line}".rstrip()


def _folded(cell: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` columns, between words where possible."""
    if len(cell) <= width and cell.isascii() and "\n" not in cell:
        return [cell]
    lines: list[str] = []
    for line in cell.split("\n"):
        if _cell_width(line) <= width:
            lines.append(line)
        else:
            lines += _chopped(line, width)
    return lines


def _chopped(line: str, width: int) -> Iterator[str]:
    piece, used, broken = "", 0, False
    for letter in line:
        size = _cell_width(letter)
        while piece and used + size > width:
            kept = _whole_words(piece, letter)
            yield kept
            piece, broken = piece[len(kept) :], True
            used = _cell_width(piece)
        if letter == " " and broken and not piece:  # the line break replaces it
            continue
        piece, used = piece + letter, used + size
    if piece:
        yield piece


def _whole_words(piece: str, following: str) -> str:
    """Return the complete words of a full line; the whole line if it has none."""
    if following == " ":
        return piece
    return piece[: piece.rfind(" ") + 1] or piece


def _padded(cell: str, width: int, right: bool) -> str:
    space = " " * (width - _cell_width(cell))
    return space + cell if right else cell + space


def _cell_width(line: str) -> int:
    if line.isascii():
        return len(line)
    from rich.cells import cell_len

    return cell_len(line)
