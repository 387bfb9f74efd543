"""Values as text: exact for programs, short for people.

value -> **values** -> tables, output

For programs (`jsonable`, `text`) no digit is lost. For people (`brief`) floats are rounded to their
significant digits, and bytes are replaced by their number.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

__all__ = ["brief", "csv_values", "is_number", "is_single", "json_texts", "jsonable", "text"]

# Significant decimal digits of a double; further digits are noise of binary fractions.
_DIGITS: Final = 15
_SINGLE_DIGITS: Final = range(6, 10)  # enough to distinguish any two single floats
# Types that `csv` writes unchanged.
_AS_IN_CSV: Final = frozenset({int, str, type(None)})
# Control characters would move the cursor of a terminal; a line feed begins a new line of a cell.
_CONTROLS: Final = {
    code: ascii(chr(code))[1:-1] for code in (*range(32), *range(127, 160)) if chr(code) != "\n"
}


def jsonable(value: Any) -> Any:
    """Convert a value for JSON; see the docstring of `cli.output`."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        from ignitetf.explore.times import span_text

        return span_text(value)
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if (kind := getattr(value, "dtype", None)) is not None:  # NumPy
        if kind.kind in "mM":  # Python's own values have limited years, and only microseconds
            from ignitetf.explore.times import iso_text

            return [jsonable(each) for each in value] if value.ndim else iso_text(value)
        return jsonable(value.tolist())
    if hasattr(value, "schema") and hasattr(value, "type_name"):  # pyignite's binary object
        return {name: jsonable(getattr(value, name)) for name in value.schema}
    if isinstance(value, Iterable):
        return [jsonable(v) for v in value]
    return str(value)


def text(value: Any) -> str:
    """Convert a value to text for CSV; nothing for a null."""
    if value is None:
        return ""
    plain = jsonable(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def json_texts(values: Sequence[Any]) -> list[str]:
    """Convert the values of a column to JSON texts."""
    kinds = set(map(type, values))
    if len(kinds) == 1 and (known := _JSON.get(next(iter(kinds)))) is not None:
        return list(map(known, values))
    return [
        known(v) if (known := _JSON.get(type(v))) is not None else _json(jsonable(v))
        for v in values
    ]


def _json(plain: Any) -> str:
    return json.dumps(plain, ensure_ascii=False)


def _json_float(value: float) -> str:
    return float.__repr__(value) if math.isfinite(value) else f'"{_not_finite(value)}"'


_JSON: Final[dict[type, Callable[[Any], str]]] = {
    type(None): lambda value: "null",
    int: int.__repr__,
    str: json.encoder.encode_basestring,
    float: _json_float,
}


def csv_values(values: Sequence[Any]) -> Sequence[Any]:
    """Convert the values of a column so that `csv` writes them as `text` does."""
    kinds = set(map(type, values)) - _AS_IN_CSV
    if not kinds or (kinds == {float} and _finite(values)):
        return values
    return [v if type(v) in _AS_IN_CSV else text(v) for v in values]


def _finite(values: Sequence[Any]) -> bool:
    return all(math.isfinite(v) for v in values if type(v) is float)


def brief(value: Any, *, single: bool = False) -> str:
    """Convert a value to text for a table.

    Args:
        value: The value.
        single: True if it is a float that was stored with single precision.
    """
    if value is None:
        return "NULL"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value)} bytes>"
    if (kind := getattr(value, "dtype", None)) is not None and kind.kind == "f":
        single = kind.itemsize == 4
    plain = _rounded(jsonable(value), single)
    shown = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return shown.translate(_CONTROLS)


def is_number(value: Any) -> bool:
    """True if a value is a number; a table aligns numbers right."""
    return isinstance(value, (int, float, decimal.Decimal)) and not isinstance(value, bool)


def is_single(values: Sequence[float]) -> bool:
    """True if floats have single precision, as in a REAL column.

    The wire widens them, so that 0.1 arrives as 0.10000000149011612.
    """
    try:
        return all(not math.isfinite(v) or _as_single(v) == v for v in values)
    except OverflowError:
        return False


def _as_single(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _rounded(plain: Any, single: bool) -> Any:
    if isinstance(plain, float):
        if single:
            for digits in _SINGLE_DIGITS:
                short = float(f"{plain:.{digits}g}")
                if _as_single(short) == plain:
                    return short
        return float(f"{plain:.{_DIGITS}g}")
    if isinstance(plain, list):
        return [_rounded(each, single) for each in plain]
    if isinstance(plain, dict):
        return {name: _rounded(each, single) for name, each in plain.items()}
    return plain


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
