"""Tables, images and progress bars as HTML, for notebooks.

rows, results, reports -> **HTML** -> Jupyter

This module uses IPython only if it is already running.
"""

from __future__ import annotations

import base64
import html
import importlib
import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final

import numpy as np

__all__ = [
    "Html",
    "classed",
    "heading",
    "kernel",
    "pairs",
    "picture",
    "progress_bar",
    "remark",
    "table",
    "traceback_lines",
]

_LONGEST: Final = 100
_ELEMENTS: Final = 8
_THUMBNAIL: Final = 64  # pixels
_SCROLLED: Final = '<div style="overflow-x:auto;max-width:100%">{}</div>'
_CELL: Final = "text-align:{};vertical-align:top;overflow-wrap:anywhere;max-width:24em"
_NOTE: Final = '<div style="opacity:.7;white-space:pre-line">{}</div>'


class Html(str):
    """Text that is HTML already; other text is escaped."""

    __slots__ = ()


def table(
    names: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", note: str = ""
) -> str:
    """Return rows as an HTML table.

    Args:
        names: Names of the columns.
        rows: The values; `Html` is used unchanged.
        title: Text above the table.
        note: Text below the table.
    """
    every = [*rows]
    numbers = {i for i in range(len(names)) if every and all(_is_number(row[i]) for row in every)}
    head = "".join(
        f'<th style="text-align:{"right" if i in numbers else "left"}">{html.escape(name)}</th>'
        for i, name in enumerate(names)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in every)
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return heading(title) + _SCROLLED.format(whole) + remark(note)


def pairs(record: Mapping[str, Any], *, title: str = "", note: str = "") -> str:
    """Return names with their values as an HTML table of two columns."""
    body = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>{_cell(value, "left")}</tr>'
        for name, value in record.items()
    )
    whole = f"<table><tbody>{body}</tbody></table>"
    return heading(title) + _SCROLLED.format(whole) + remark(note)


def heading(text: str) -> str:
    """Return a text above a table; nothing for an empty one."""
    return f"<div><b>{html.escape(text)}</b></div>" if text else ""


def remark(text: str) -> str:
    """Return lines of text below a table; nothing for an empty text."""
    return _NOTE.format(html.escape(text)) if text else ""


def _cell(value: Any, align: str | None = None) -> str:
    if align is None:
        align = "right" if _is_number(value) else "left"
    text = value if isinstance(value, Html) else html.escape(brief(value))
    return f'<td style="{_CELL.format(align)}">{text}</td>'


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def brief(value: Any) -> str:
    """Return a value as short text."""
    if value is None:
        return "NULL"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value):,} bytes>"
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}"
    if isinstance(value, np.ndarray):
        if value.ndim and value.size > _ELEMENTS:
            return f"{value.dtype} {list(value.shape)}"
        value = value.tolist()
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def classed(value: Any, classes: Sequence[str]) -> Any:
    """Return a label with the name of its class, if it has one."""
    is_label = isinstance(value, (int, np.integer)) and 0 <= value < len(classes)
    return f"{value} {classes[value]}" if is_label else value


def picture(value: Any) -> Html | None:
    """Return a thumbnail of an image; None if the value is not an image.

    The image is encoded again, so the page receives nothing but an image.

    Args:
        value: An encoded image or an array of pixels.
    """
    if not isinstance(value, (bytes, np.ndarray)):
        return None
    from ignitetf.pictures import picture_of

    image = picture_of(value)
    if image is None:
        return None
    scale = _THUMBNAIL / max(image.size)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    out = io.BytesIO()
    if scale < 1:
        image.thumbnail((2 * _THUMBNAIL, 2 * _THUMBNAIL))
    image.save(out, "PNG")
    data = base64.b64encode(out.getvalue()).decode()
    sharp = ";image-rendering:pixelated" if scale > 1 else ""
    return Html(
        f'<img alt="image" src="data:image/png;base64,{data}" width="{size[0]}" height="{size[1]}"'
        f' style="margin:0;max-width:none{sharp}">'
    )


# Progress


def kernel() -> Any:
    """Return the shell of the notebook that this code runs in; None if it runs elsewhere."""
    if (ipython := sys.modules.get("IPython")) is None:
        return None
    with suppress(Exception):
        shell = ipython.get_ipython()
        return shell if getattr(shell, "kernel", None) is not None else None
    return None


_EVERY_S: Final = 0.2
_AFTER_S: Final = 0.5


@contextmanager
def progress_bar(label: str, total: int | None) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar in a notebook; nothing elsewhere, or if the work takes half a second.

    Args:
        label: Name of the work.
        total: Expected number of rows; None if unknown.

    Yields:
        `advance(rows, nbytes)`, to call as the work proceeds.
    """
    if kernel() is None:
        yield lambda rows, nbytes: None
        return
    bar = _Bar(label, total)
    ended = "stopped"
    try:
        yield bar.advance
        ended = "done"
    finally:
        bar.show(ended)


class _Bar:
    def __init__(self, label: str, total: int | None) -> None:
        self._label, self._total = label, total
        self._rows = self._bytes = 0
        self._begin = time.monotonic()
        self._next = self._begin + _AFTER_S
        self._handle: Any = None

    def advance(self, rows: int, nbytes: int) -> None:
        """Add rows, and update the bar if the last update is older than `_REDRAWN_S`."""
        self._rows += rows
        self._bytes += nbytes
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        if self._handle is None:
            display: Any = importlib.import_module("IPython.display").display
            self._handle = display(_Shown(self._html("")), display_id=True)
        else:
            self._handle.update(_Shown(self._html("")))

    def show(self, ended: str) -> None:
        """Show the last state, if the bar has been shown before."""
        if self._handle is not None:
            self._handle.update(_Shown(self._html(ended)))

    def _html(self, ended: str) -> str:
        seconds = max(time.monotonic() - self._begin, 1e-3)
        share = ""
        if self._total:
            share = f' value="{min(self._rows, self._total)}" max="{self._total}"'
        elif ended:
            share = ' value="1" max="1"'
        text = f"{self._label}: {self._rows:,}"
        text += f" of {self._total:,} rows" if self._total else " rows"
        text += f", {seconds:,.1f} s, {self._rows / seconds:,.0f} rows/s"
        text += f", {self._bytes / seconds / 1e6:,.1f} MB/s" if self._bytes else ""
        text += f" ({ended})" if ended == "stopped" else ""
        bar = f'<progress{share} style="width:20em;max-width:100%"></progress>'
        return f"<div>{bar}<div>{html.escape(text)}</div></div>"


class _Shown:
    """A progress bar as a notebook shows it, with its text for other front ends."""

    def __init__(self, content: str) -> None:
        self._content = content

    def _repr_html_(self) -> str:
        return self._content

    def __repr__(self) -> str:
        return html.unescape(self._content.rsplit("<div>", 1)[1].partition("<")[0])


# Errors


def traceback_lines(error: BaseException) -> list[str]:
    """Return the traceback of one of our errors for IPython, without the frames inside ignitetf.

    The mode `Verbose` (`%xmode Verbose`) shows all frames and all causes.
    """
    shell = sys.modules["IPython"].get_ipython()
    formatter = shell.InteractiveTB
    whole = error.__traceback__
    if formatter.mode == "Verbose":
        return list(formatter.structured_traceback(type(error), error, whole))
    own, hidden = _own_frames(whole)
    kept = error.__cause__, error.__suppress_context__
    cause = kept[0]
    if cause is not None and not _own_frames(cause.__traceback__)[0]:
        cause = None  # it has inner frames only, and the message describes it
    try:
        error.__cause__, error.__suppress_context__ = cause, True
        lines = list(formatter.structured_traceback(type(error), error, own))
    finally:
        error.__cause__, error.__suppress_context__ = kept
    if (notes := getattr(error, "__notes__", None)) and notes[-1] not in "".join(lines):
        lines.extend(notes)  # older versions of IPython (8.12) leave them out
    if hidden:
        lines.append(f"({hidden} frames inside ignitetf are hidden; %xmode Verbose shows them)")
    return lines


def _own_frames(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """Return the frames of the user's code, and the number of frames without them."""
    found: list[TracebackType] = []
    hidden = 0
    inside = False
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__"))
        package = name.partition(".")[0]
        inside = package == "ignitetf" or (inside and package in sys.stdlib_module_names)
        if inside and name != "__main__":
            hidden += 1
        else:
            found.append(trace)
        trace = trace.tb_next
    own: TracebackType | None = None
    for one in reversed(found):
        own = TracebackType(own, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return own, hidden
