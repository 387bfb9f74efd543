"""Columns of a SQL result: decoded from a page, and as Python values.

page -> **sql_values** -> sql_arrays, net.results

| SQL | Python |
| --- | --- |
| BOOLEAN, TINYINT ... BIGINT, REAL, DOUBLE | bool, int, float |
| DECIMAL | Decimal |
| CHAR, VARCHAR | str |
| BINARY, VARBINARY | bytes |
| UUID | UUID |
| DATE | date |
| TIME | time |
| TIMESTAMP | datetime without a zone |
| an array of numbers or texts | list |
| another object | as `plain_objects` reads it |
"""

from __future__ import annotations

import datetime
import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError
from ignitetf.wire.answers import text_of
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import decode_column
from ignitetf.wire.datatypes import ARRAY_ELEMENT, DATA_TYPES, Family, family_of
from ignitetf.wire.infer import scalar_dtype
from ignitetf.wire.meaning import meant, type_codes
from ignitetf.wire.objects import Bytes, Positions
from ignitetf.wire.schema import BYTES, Column, Field
from ignitetf.wire.types import TypeRegistry

__all__ = ["Kind", "Unreadable", "Values", "decode_values", "readable_field", "sql_form"]

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
        column: The values in their stored form; None if all are null, or they are objects.
        count: Their number.
        objects: Values that have no stored form here, as Python objects; else None.
    """

    kind: Kind | None
    column: Column | None
    count: int
    objects: list[Any] | None = None

    @classmethod
    def of_objects(cls, objects: list[Any]) -> Values:
        """Make a column of Python objects."""
        if all(value is None for value in objects):
            return cls(None, None, len(objects))
        return cls(Kind(TypeCode.OBJECT), None, len(objects), objects)

    @property
    def nbytes(self) -> int:
        """About as many bytes as the values have."""
        if self.objects is not None:
            return sum(len(v) if isinstance(v, (str, bytes)) else 8 for v in self.objects)
        return 0 if self.column is None else self.column.nbytes

    def first(self, count: int) -> Values:
        """Return the first values."""
        column = None if self.column is None else self.column[:count]
        objects = None if self.objects is None else self.objects[:count]
        return Values(self.kind, column, min(count, self.count), objects)

    def compact(self) -> Values:
        """Return them with texts that follow one another, so that their page can be given up."""
        if self.column is None or self.column.starts is None:
            return self
        values, offsets = self.column.compact()
        column = Column(values, offsets[:-1], self.column.lengths, self.column.valid)
        return Values(self.kind, column, self.count)

    def to_python(self) -> list[Any]:
        """Return them as Python objects, None for a null.

        Raises:
            SchemaError: A time is outside the years 1 to 9999.
        """
        if self.objects is not None:
            return self.objects
        if self.kind is None or self.column is None:
            return [None] * self.count
        try:
            found = _PYTHON[sql_form(self.kind)](self.column)
        except OverflowError as error:
            raise SchemaError(
                f"the result has a date that datetime cannot hold: {error}",
                hint="CAST it to VARCHAR, or take columns of NumPy or Arrow (ignitetf.dbapi)",
            ) from error
        if self.column.valid is None:
            return found
        return [
            v if there else None for v, there in zip(found, self.column.valid.tolist(), strict=True)
        ]


class Unreadable(Exception):
    """A column has values of several types, or of one that is no type of SQL."""


def decode_values(data: Bytes, at: Positions, registry: TypeRegistry) -> Values:
    """Decode one column of a page of rows.

    Raises:
        Unreadable: The values are of several types, or of one that is no type of SQL.
        WireError: A value reaches beyond the page.
    """
    is_day = bool((type_codes(data, at) == TypeCode.OPTIMIZED).any())
    data, at, codes = meant(data, at)
    present = np.unique(codes[codes != TypeCode.NULL]).tolist()
    if not present:
        return Values(None, None, len(at))
    if len(present) > 1 or present[0] not in _READABLE:
        raise Unreadable
    kind = Kind(TypeCode(present[0]), is_day and present[0] == TypeCode.DATE)
    column = decode_column(data, at, _field(kind.code), registry)
    return Values(kind, column, len(at))


def readable_field(code: TypeCode) -> Field | None:
    """Return how values of a type are decoded here; None if SQL has no such type."""
    return _field(code) if int(code) in _READABLE else None


def _field(code: TypeCode) -> Field:
    if code == TypeCode.TIMESTAMP:
        dtype: Any = np.dtype("datetime64[us]")
    elif code == TypeCode.BYTE_ARRAY:
        dtype = BYTES
    elif code in ARRAY_ELEMENT:
        return Field("column", code, ARRAY_ELEMENT[code], (None,), True)
    elif code == TypeCode.STRING_ARRAY:
        return Field("column", code, BYTES, (None,), True)
    else:
        dtype = scalar_dtype(code, "column")
    return Field("column", code, dtype, (), True)


def sql_form(kind: Kind) -> str:
    """Return which conversions a column takes: the name of its family, or one of a few others."""
    if kind.is_day:
        return "day"
    if kind.code == TypeCode.CHAR:
        return "char"
    if kind.code == TypeCode.TIME:
        return "time"
    if kind.code == TypeCode.BYTE_ARRAY:
        return "blob"
    return family_of(kind.code).name


_READABLE: Final = frozenset(
    int(code)
    for code in TypeCode
    if family_of(code)
    in (Family.NUMBER, Family.MILLISECONDS, Family.TIMESTAMP, Family.UUID, Family.TEXT, Family.DECIMAL)
) | {*map(int, ARRAY_ELEMENT), int(TypeCode.STRING_ARRAY)}  # fmt: skip


# As Python objects


def _array(column: Column) -> NDArray[Any]:
    assert isinstance(column.values, np.ndarray)
    return column.values


def _texts(column: Column) -> list[Any]:
    values, offsets = column.compact()
    assert isinstance(values, np.ndarray)
    joined, places = values.tobytes(), offsets.tolist()
    if joined.isascii():
        # A piece of one text costs a quarter of a text made from bytes.
        text = joined.decode("ascii")
        return [text[p:q] for p, q in itertools.pairwise(places)]
    return [text_of(joined[p:q]) for p, q in itertools.pairwise(places)]


def _arrays(column: Column) -> list[Any]:
    values, offsets = column.compact()
    assert isinstance(values, np.ndarray)
    items = values.tolist()
    return [items[p:q] for p, q in itertools.pairwise(offsets.tolist())]


def _lists(column: Column) -> list[Any]:
    texts, offsets = column.compact()
    assert isinstance(texts, Column)
    items = _texts(texts)
    if texts.valid is not None:
        items = [v if there else None for v, there in zip(items, texts.valid, strict=True)]
    return [items[p:q] for p, q in itertools.pairwise(offsets.tolist())]


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
    "blob": Column.to_bytes,
    "ARRAY": _arrays,
    "LIST": _lists,
    "UUID": lambda column: [uuid.UUID(text) if text else None for text in _texts(column)],
    "DECIMAL": lambda column: [Decimal(text) if text else None for text in _texts(column)],
    "day": lambda column: [found.date() for found in _milliseconds(column)],
    "time": _times,
    "MILLISECONDS": _milliseconds,
    "TIMESTAMP": _microseconds,
}
