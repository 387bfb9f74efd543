"""Converts points in time to their stored form: exactly, or with an error.

integers of a unit -> **int64 nanoseconds, or milliseconds and nanoseconds** -> columns -> Batch

A column has nanoseconds since 1970 (int64) if all its times fit, which are those of the years 1677
to 2262. Otherwise it has what Ignite stores: milliseconds and the nanoseconds within them. All
values must be in the years 1 to 9999, the range of SQL and Python: a value outside is not a date
but a marker ("infinity") or damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import FIXED_DTYPE

__all__ = ["check_years", "exact_moments", "moments", "moments_in"]

_FIRST_MS: Final = -62_135_596_800_000  # 0001-01-01T00:00:00.000
_LAST_MS: Final = 253_402_300_799_999  # 9999-12-31T23:59:59.999
_NS_PER_MS: Final = 1_000_000
# Units per second.
_UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_LONG: Final = np.iinfo(np.int64)


def check_years(ms: NDArray[Any]) -> None:
    """Refuse milliseconds since 1970 outside the years 1 to 9999.

    Raises:
        SchemaError: A value is outside; names the first one.
    """
    wrong = (ms < _FIRST_MS) | (ms > _LAST_MS)
    if wrong.any():
        raise _out_of_bounds(int(ms[wrong][0]), "ms")


def _out_of_bounds(value: int, unit: str) -> SchemaError:
    return SchemaError(
        f"a time out of range: {value} {unit} since 1970 is not in the years 1 to 9999"
    )


def moments(ms: NDArray[Any], ns: NDArray[Any]) -> NDArray[Any]:
    """Return points in time from milliseconds since 1970 and nanoseconds within them.

    Raises:
        SchemaError: One is not of the years 1 to 9999.
    """
    check_years(ms)
    if not ((ms < _LONG.min // _NS_PER_MS + 1) | (ms > _LONG.max // _NS_PER_MS - 1)).any():
        nanoseconds: NDArray[Any] = ms * _NS_PER_MS + ns
        return nanoseconds
    out = np.empty(len(ms), FIXED_DTYPE[TypeCode.TIMESTAMP])
    out["ms"], out["ns"] = ms, ns
    return out


def exact_moments(nanoseconds: Sequence[int]) -> NDArray[Any]:
    """Return points in time from Python integers of nanoseconds since 1970."""
    if all(_LONG.min <= value <= _LONG.max for value in nanoseconds):
        return np.array(nanoseconds, np.int64)
    pairs = [divmod(value, _NS_PER_MS) for value in nanoseconds]
    ms, ns = np.array(pairs, np.int64).reshape(-1, 2).T
    return moments(ms, ns)


def moments_in(values: NDArray[np.int64], unit: str) -> NDArray[Any]:
    """Return points in time from integers of a unit: `s`, `ms`, `us` or `ns` since 1970.

    Raises:
        SchemaError: One is not of the years 1 to 9999.
    """
    per_second = _UNITS[unit]
    if unit == "ns":
        return values
    limit = _LONG.max // (_UNITS["ns"] // per_second)
    if not ((values < -limit) | (values > limit)).any():
        return values * (_UNITS["ns"] // per_second)
    if unit == "s":
        wrong = (values < _FIRST_MS // 1000) | (values > _LAST_MS // 1000)
        if wrong.any():
            raise _out_of_bounds(int(values[wrong][0]), unit)
        return moments(values * 1000, np.zeros_like(values))
    per_ms = per_second // 1000
    ms, rest = np.divmod(values, per_ms)
    return moments(ms, rest * (_NS_PER_MS // per_ms))
