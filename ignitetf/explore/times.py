"""Convert the times of a column to NumPy's times, and to text.

integers of a column -> **times** -> head, stats, the web page, output
"""

from __future__ import annotations

import datetime
from typing import Any, Final

import numpy as np

from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import DATA_TYPES
from ignitetf.wire.schema import Field

__all__ = ["as_times", "iso_text", "span_text", "time_text", "time_unit"]

# The NumPy units in which fields store times as integers.
_ONE: Final = {
    code: f"{'m8' if row.python == (datetime.time,) else 'M8'}[{row.units[0]}]"
    for code, row in DATA_TYPES.items()
    if row.units
}
_UNITS: Final[dict[TypeCode, str]] = _ONE | {
    code: _ONE[row.element] for code, row in DATA_TYPES.items() if row.element in _ONE
}


def time_unit(field: Field) -> str | None:
    """Return the NumPy dtype of the times that a field stores as integers; None for others."""
    return _UNITS.get(field.type) if field.dtype.kind == "i" else None


def as_times(field: Field, value: Any) -> Any:
    """Return integers of a field, one or an array, as `datetime64` or `timedelta64`.

    Anything else, and the values of other fields, are returned unchanged.
    """
    unit = time_unit(field)
    if unit is None:
        return value
    found = np.asarray(value)
    return found.astype(unit)[()] if found.dtype.kind == "i" else value


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
