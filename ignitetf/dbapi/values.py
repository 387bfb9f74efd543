"""Columns of a SQL result: decoded from a page, as Python values, NumPy arrays and Arrow arrays.

wire -> **values** -> results -> cursor

| SQL | Python | NumPy | Arrow |
| --- | --- | --- | --- |
| BOOLEAN, TINYINT ... BIGINT, REAL, DOUBLE | bool, int, float | the same width | the same |
| DECIMAL | Decimal | object | decimal128 or decimal256 |
| CHAR, VARCHAR | str | object | string |
| BINARY, VARBINARY | bytes | object | binary |
| UUID | UUID | object | string |
| DATE | date | datetime64[D] | date32 |
| TIME | time | timedelta64[ms] | time32 |
| TIMESTAMP | datetime in UTC, without a zone | datetime64[us] | timestamp in us |

NumPy has no null: a number becomes float64 with NaN, a time NaT, everything else an object array
with None.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError
from ignitetf.wire.arrow import bytes_array
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import decode_column
from ignitetf.wire.datatypes import DATA_TYPES, Family, family_of
from ignitetf.wire.infer import scalar_dtype
from ignitetf.wire.meaning import meant, type_code, type_codes
from ignitetf.wire.objects import Bytes, Positions
from ignitetf.wire.schema import BYTES, Column, Field
from ignitetf.wire.types import TypeRegistry

__all__ = ["Kind", "Values", "decode_values", "joined_arrow", "joined_numpy"]

_EPOCH: Final = datetime.datetime(1970, 1, 1)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


@dataclass(frozen=True)
class Kind:
    """What kind of values a column has.

    Attributes:
        code: The type of its objects.
        is_day: Whether they are days, which Java sends as a class of its own.
    """

    code: TypeCode
    is_day: bool = False

    @property
    def sql(self) -> str:
        """The name of the SQL type."""
        return "DATE" if self.is_day else DATA_TYPES[self.code].sql or self.code.name


@dataclass(frozen=True)
class Values:
    """The values of one column in one page.

    Attributes:
        kind: Their kind; None if all are null.
        column: The values in their stored form; None if all are null.
        count: Their number.
    """

    kind: Kind | None
    column: Column | None
    count: int

    def to_python(self) -> list[Any]:
        """Return them as Python objects, None for a null.

        Raises:
            SchemaError: A time is outside the years 1 to 9999.
        """
        if self.kind is None or self.column is None:
            return [None] * self.count
        try:
            found = _PYTHON[_form(self.kind)](self.column)
        except OverflowError as error:
            raise SchemaError(
                f"a column has a time that datetime cannot hold: {error}",
                hint="CAST it to VARCHAR, or take fetch_numpy() or fetch_arrow_table()",
            ) from error
        if self.column.valid is None:
            return found
        return [
            v if there else None for v, there in zip(found, self.column.valid.tolist(), strict=True)
        ]


def decode_values(data: Bytes, at: Positions, registry: TypeRegistry) -> Values:
    """Decode one column of a page of rows.

    Raises:
        SchemaError: The values are of several types, or of one that is not SQL's.
        WireError: A value reaches beyond the page.
    """
    is_day = bool((type_codes(data, at) == TypeCode.OPTIMIZED).any())
    data, at, codes = meant(data, at)
    present = np.unique(codes[codes != TypeCode.NULL]).tolist()
    if not present:
        return Values(None, None, len(at))
    if len(present) > 1 or present[0] not in _READABLE:
        found = " and ".join(map(type_code, present))
        raise SchemaError(
            f"a column has values of type {found}, which cannot be read as one type of SQL",
            hint="leave the column out, or CAST it",
        )
    kind = Kind(TypeCode(present[0]), is_day)
    column = decode_column(data, at, _field(kind.code), registry)
    return Values(kind, column, len(at))


def _field(code: TypeCode) -> Field:
    if code == TypeCode.TIMESTAMP:
        dtype: Any = np.dtype("datetime64[us]")
    elif code == TypeCode.BYTE_ARRAY:
        dtype = BYTES
    else:
        dtype = scalar_dtype(code, "column")
    return Field("column", code, dtype, (), True)


def _form(kind: Kind) -> str:
    """Return which of the conversions below a column takes."""
    if kind.is_day:
        return "day"
    if kind.code == TypeCode.CHAR:
        return "char"
    if kind.code == TypeCode.TIME:
        return "time"
    return family_of(kind.code).name


_READABLE: Final = frozenset(
    int(code)
    for code in TypeCode
    if family_of(code)
    in (Family.NUMBER, Family.MILLISECONDS, Family.TIMESTAMP, Family.UUID, Family.TEXT, Family.DECIMAL)
) | {int(TypeCode.BYTE_ARRAY)}  # fmt: skip


# As Python objects


def _array(column: Column) -> NDArray[Any]:
    assert isinstance(column.values, np.ndarray)
    return column.values


def _texts(column: Column) -> list[Any]:
    return [item.decode("utf-8", "surrogatepass") for item in column.to_bytes()]


def _microseconds(column: Column) -> list[Any]:
    return [_EPOCH + us * _MICROSECOND for us in _array(column).tolist()]


def _milliseconds(column: Column) -> list[Any]:
    return [_EPOCH + datetime.timedelta(milliseconds=ms) for ms in _array(column).tolist()]


def _times(column: Column) -> list[Any]:
    return [(_EPOCH + datetime.timedelta(milliseconds=ms % 86_400_000)).time()
            for ms in _array(column).tolist()]  # fmt: skip


_PYTHON: Final[dict[str, Callable[[Column], list[Any]]]] = {
    "NUMBER": lambda column: _array(column).tolist(),
    "char": lambda column: [chr(unit) for unit in _array(column).tolist()],
    "TEXT": _texts,
    "ARRAY": Column.to_bytes,
    "UUID": lambda column: [uuid.UUID(text) if text else None for text in _texts(column)],
    "DECIMAL": lambda column: [Decimal(text) if text else None for text in _texts(column)],
    "day": lambda column: [found.date() for found in _milliseconds(column)],
    "time": _times,
    "MILLISECONDS": _milliseconds,
    "TIMESTAMP": _microseconds,
}


# As NumPy arrays


def joined_numpy(parts: list[Values]) -> NDArray[Any]:
    """Return the values of all pages of a column as one array."""
    kind = _only_kind(parts)
    form = None if kind is None else _form(kind)
    if form not in ("NUMBER", "day", "time", "MILLISECONDS", "TIMESTAMP"):
        out = np.empty(sum(part.count for part in parts), object)
        out[:] = [value for part in parts for value in part.to_python()]
        return out
    values = np.concatenate([_numbers_of(part, form) for part in parts])
    missing = np.concatenate([_missing(part) for part in parts])
    if form == "NUMBER":
        if not missing.any():
            return values
        if values.dtype == bool:
            out = values.astype(object)
            out[missing] = None
            return out
        out = values.astype(np.float64)
        out[missing] = np.nan
        return out
    unit = {"day": "M8[ms]", "MILLISECONDS": "M8[ms]", "time": "m8[ms]", "TIMESTAMP": "M8[us]"}[
        form
    ]
    out = values.astype(np.int64).view(unit)
    out[missing] = "NaT"
    return (
        out.astype("M8[D]")
        if form == "day"
        else out.astype("M8[us]")
        if form == "MILLISECONDS"
        else out
    )


def _numbers_of(part: Values, form: str) -> NDArray[Any]:
    if part.column is None:
        return np.zeros(part.count, np.int8 if form == "NUMBER" else np.int64)
    return _array(part.column)


def _missing(part: Values) -> NDArray[np.bool_]:
    if part.column is None:
        return np.ones(part.count, np.bool_)
    if part.column.valid is None:
        return np.zeros(part.count, np.bool_)
    return ~part.column.valid


def _only_kind(parts: list[Values]) -> Kind | None:
    kinds = {part.kind for part in parts if part.kind is not None}
    if len(kinds) > 1:
        found = " and ".join(sorted(kind.sql for kind in kinds))
        raise SchemaError(f"a column has values of type {found}", hint="CAST it to one type")
    return next(iter(kinds), None)


# As Arrow arrays


def joined_arrow(pa: Any, parts: list[Values]) -> Any:
    """Return the values of all pages of a column as one chunked array."""
    kind = _only_kind(parts)
    if kind is None:
        return pa.chunked_array([pa.nulls(sum(part.count for part in parts))])
    if _form(kind) == "DECIMAL":
        # Together, since precision and scale have to fit all of them.
        numbers = [v for part in parts for v in part.to_python()]
        try:
            return pa.chunked_array([pa.array(numbers)])
        except pa.ArrowException as error:
            raise SchemaError(
                f"a column has decimals that Arrow cannot hold: {error}",
                hint="CAST it to VARCHAR or DOUBLE, or take fetchall()",
            ) from error
    found = [_arrow(pa, kind, part) for part in parts if part.column is not None]
    chunks = [
        pa.nulls(part.count, found[0].type) if part.column is None else _arrow(pa, kind, part)
        for part in parts
    ]
    return pa.chunked_array(chunks, found[0].type)


def _arrow(pa: Any, kind: Kind, part: Values) -> Any:
    form, column = _form(kind), part.column
    assert column is not None
    missing = None if column.valid is None else ~column.valid
    if form in ("TEXT", "ARRAY"):
        return bytes_array(pa, column, pa.large_string() if form == "TEXT" else pa.large_binary())
    if form in ("UUID", "char"):
        return pa.array(
            [None if v is None else str(v) for v in part.to_python()], pa.large_string()
        )
    array = _array(column)
    if form == "NUMBER":
        return pa.array(array, mask=missing)
    if form == "day":
        return (
            pa.array(array.astype("i8") // 86_400_000, pa.int64(), mask=missing)
            .cast(pa.int32())
            .cast(pa.date32())
        )
    if form == "time":
        return pa.array(array.astype(np.int32), pa.int32(), mask=missing).cast(pa.time32("ms"))
    us = array if form == "TIMESTAMP" else array * 1000
    return pa.array(us.view("M8[us]"), pa.timestamp("us"), mask=missing)
