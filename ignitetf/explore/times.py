"""Convert the times of a column to NumPy's times, and to text.

integers of a column -> **times** -> head, stats, the web page, output
"""

from __future__ import annotations

import datetime

import numpy as np

__all__ = ["iso_text", "span_text", "time_text"]


def iso_text(value: np.datetime64 | np.timedelta64) -> str | None:
    """Return a time in ISO 8601 without trailing zeros; None for NaT.

    A fraction has six digits, as in Python's texts, or nine if there are nanoseconds. A span that
    is not a time of day is given in days and hours.
    """
    if np.isnat(value):
        return None
    if isinstance(value, np.timedelta64):
        return span_text(value.astype("m8[us]").item())
    whole, point, fraction = str(value).partition(".")
    digits = fraction.rstrip("0")
    return f"{whole}{point}{digits.ljust(6, '0')}" if digits else whole


def span_text(value: datetime.timedelta) -> str:
    """Return a time of day in ISO 8601; other spans in days and hours."""
    is_clock = datetime.timedelta(0) <= value < datetime.timedelta(days=1)
    return (datetime.datetime.min + value).time().isoformat() if is_clock else str(value)


def time_text(value: np.datetime64 | np.timedelta64) -> str:
    """Return a time with a space between date and clock; midnight has no clock part."""
    return (iso_text(value) or "").replace("T", " ").removesuffix(" 00:00:00")
