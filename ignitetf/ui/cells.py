"""Values as table cells: short texts with a kind that decides their style."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ignitetf.explore.times import time_text

__all__ = ["Cell", "ago", "bytes_text", "cell", "count_text", "full_text"]

_LONGEST: Final = 96
_ELEMENTS: Final = 6
_FULL: Final = 20_000
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Cell:
    """A value in a table.

    Attributes:
        kind: `number`, `text`, `null`, `array`, `blob` or `flag`.
        text: The value, shortened.
    """

    kind: str
    text: str


def cell(value: Any) -> Cell:
    """Return a value as a table cell."""
    if value is None:
        return Cell("null", "null")
    if isinstance(value, (bool, np.bool_)):
        return Cell("flag", str(value).lower())
    if isinstance(value, (int, np.integer)):
        return Cell("number", str(value))
    if isinstance(value, (float, np.floating)):
        return Cell("number", f"{value:.6g}")
    if isinstance(value, bytes):
        return Cell("blob", bytes_text(len(value)))
    if isinstance(value, np.ndarray):
        return Cell("array", _array(value))
    return Cell("text", _cut(_text(value), _LONGEST))


def full_text(value: Any) -> str:
    """Return a value as text for its own page; a very long one is truncated."""
    if isinstance(value, bytes):
        return f"{bytes_text(len(value))}: {value[:256].hex(' ')}{' …' if len(value) > 256 else ''}"
    if isinstance(value, np.ndarray):
        text = np.array2string(value, threshold=2_000, max_line_width=100)
        return f"{value.dtype} {list(value.shape)}\n{_cut(text, _FULL)}"
    if isinstance(value, float):
        return repr(value)
    return "null" if value is None else _cut(_text(value), _FULL)


def bytes_text(size: float) -> str:
    """Return a number of bytes with its unit: `1.4 GB`."""
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError


def count_text(count: float | None) -> str:
    """Return a number with separators; `–` if it is unknown."""
    return "–" if count is None else f"{count:,.0f}"


def ago(when: str) -> str:
    """Return how long ago a time was, given as ISO 8601: `3 min ago`."""
    try:
        then = datetime.datetime.fromisoformat(when.replace("Z", "+00:00"))
    except ValueError:
        return when or "–"
    if then.tzinfo is None:
        then = then.replace(tzinfo=datetime.UTC)
    seconds = (datetime.datetime.now(datetime.UTC) - then).total_seconds()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now" if seconds < 2 else f"{seconds:.0f} s ago"


def _text(value: Any) -> str:
    return time_text(value) if isinstance(value, (np.datetime64, np.timedelta64)) else str(value)


def _array(value: np.ndarray[Any, Any]) -> str:
    if value.size > _ELEMENTS:
        return f"{value.dtype} {'×'.join(map(str, value.shape))}"
    shown = value.reshape(-1).tolist()
    if value.dtype.kind == "f":
        return f"[{', '.join(f'{one:.4g}' for one in shown)}]"
    return _cut(f"[{', '.join(map(str, shown))}]", _LONGEST)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
