"""Long results on the screen: printed if they fit, otherwise shown in a pager.

tables -> **pager** -> terminal
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, Literal

from ignitetf.cli.output import terminal_width
from ignitetf.cli.tables import CHUNK_ROWS, block_lines, table_lines

__all__ = ["Expanded", "display"]

# Rows as blocks of lines: never, always, or if a table does not fit.
Expanded = Literal["auto", "on", "off"]

# A pager that scrolls sideways gets whole lines. The width is a number, so that rows are not
# collected first.
_UNLIMITED_WIDTH: Final = 1_000_000


def display(
    names: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    expanded: Expanded = "auto",
    paged: bool = True,
) -> None:
    """Show rows on stdout; in a pager if they do not fit on the screen.

    Args:
        names: Names of the columns.
        rows: The rows; only the rows that are shown are read.
        expanded: True if a row is a block of lines.
        paged: True if a pager may be used.
    """
    out, width = sys.stdout, terminal_width(sys.stdout)
    source = iter(rows)
    first = list(islice(source, CHUNK_ROWS)) if width is not None else []
    everything = chain(first, source)
    command = _pager() if paged and width is not None and sys.stdin.isatty() else []
    if not command or _fits(_lines(names, first, width, expanded), len(first)):
        out.writelines(f"{line}\n" for line in _lines(names, everything, width, expanded))
        return
    # Other pagers wrap long lines by themselves, and would break the columns.
    wide = _UNLIMITED_WIDTH if "less" in command[0] or expanded == "off" else width
    _page(command, _lines(names, everything, wide, expanded))


def _lines(
    names: Sequence[str], rows: Iterable[Sequence[Any]], width: int | None, expanded: Expanded
) -> Iterator[str]:
    if expanded == "on":
        return block_lines(names, rows, width)
    return table_lines(names, rows, width)


def _fits(lines: Iterator[str], rows: int) -> bool:
    # The prompt and the number of rows need two lines.
    height = max(3, shutil.get_terminal_size().lines - 2)
    return rows < CHUNK_ROWS and sum(1 for _ in islice(lines, height + 1)) <= height


def _pager() -> list[str]:
    """Return the command of the pager; empty if there is none."""
    if (chosen := os.environ.get("PAGER")) is not None:
        return shlex.split(chosen)
    found = shutil.which("less")
    return [found] if found else []


def _page(command: Sequence[str], lines: Iterable[str]) -> None:
    environment = {"LESS": "-S", "LESSCHARSET": "utf-8", **os.environ}
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=environment, text=True, encoding="utf-8"
        )
    except OSError:  # PAGER does not name a program
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return
    assert process.stdin is not None
    with _interrupts_left_to_it():
        try:
            # Leaving the pager early closes the pipe.
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.writelines(f"{line}\n" for line in lines)
        finally:
            process.wait()


@contextlib.contextmanager
def _interrupts_left_to_it() -> Iterator[None]:
    """Ignore Ctrl-C, which the pager handles itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
