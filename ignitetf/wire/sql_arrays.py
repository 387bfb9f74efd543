"""Columns of a SQL result as NumPy arrays and Arrow arrays.

frames, objects -> **sql_arrays** -> dbapi, the export of a query

| SQL | NumPy | Arrow |
| --- | --- | --- |
| BOOLEAN, TINYINT ... BIGINT, REAL, DOUBLE | the same width | the same |
| DECIMAL | object | decimal128 or decimal256 |
| CHAR, VARCHAR, UUID | object | large_string |
| BINARY, VARBINARY | object | large_binary |
| DATE | datetime64[D] | date32 |
| TIME | timedelta64[ms] | time32 |
| TIMESTAMP | datetime64[us] | timestamp in us |
| an array of numbers or texts | object | large_list |

NumPy has no null: a number becomes float64 with NaN, a time NaT, everything else an object array
with None. pyarrow is an argument, since only those who make tables need it.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError
from ignitetf.wire.answers import text_of
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import decode_column
from ignitetf.wire.concat import bytes_array, list_array
from ignitetf.wire.datatypes import ARRAY_ELEMENT, DATA_TYPES, Family, family_of
from ignitetf.wire.infer import scalar_dtype
from ignitetf.wire.meaning import meant, type_codes
from ignitetf.wire.objects import Bytes, Positions
from ignitetf.wire.schema import BYTES, Column, Field
from ignitetf.wire.types import TypeRegistry

__all__ = [
    "ArrowForm",
    "Kind",
    "Unreadable",
    "Values",
    "decode_values",
    "joined_arrow",
    "joined_numpy",
    "readable_field",
    "sampled",
    "sql_form",
    "taken",
]

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


# So much is looked at for the type of a column that begins with nulls.
_TYPED_ROWS: Final = 1 << 17
_TYPED_BYTES: Final = 16 << 20


# As NumPy arrays


def joined_numpy(parts: list[Values]) -> NDArray[Any]:
    """Return the values of all pages of a column as one array."""
    kind = _only_kind(parts)
    form = None if kind is None else sql_form(kind)
    if form not in ("NUMBER", "day", "time", "MILLISECONDS", "TIMESTAMP"):
        count = sum(part.count for part in parts)
        # One by one, as lists of one length would become another dimension.
        return np.fromiter((v for part in parts for v in part.to_python()), object, count)
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
    if _by_value(kind):
        # Together, since one type (precision and scale) has to fit all of them.
        try:
            return pa.chunked_array([pa.array(_plain(v) for p in parts for v in p.to_python())])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(
                f"a column has values that Arrow cannot hold: {error}",
                hint="CAST it to VARCHAR or DOUBLE, or take fetchall()",
            ) from error
    arrow_type = _arrow_type(pa, parts)
    return pa.chunked_array([_arrow(pa, part, kind, arrow_type) for part in parts], arrow_type)


def sampled(pages: Iterator[list[Values]]) -> tuple[list[list[Values]], bool]:
    """Return the first pages of a result, which tell the types, and whether there are no others.

    One, or more (up to 16 MB, 131,072 rows) where a column begins with nulls.
    """
    first: list[list[Values]] = []
    rows = size = 0
    for page in pages:
        first.append(page)
        rows, size = rows + page[0].count, size + sum(values.nbytes for values in page)
        known = all(any(p[i].kind is not None for p in first) for i in range(len(page)))
        if known or rows >= _TYPED_ROWS or size >= _TYPED_BYTES:
            return first, False
    return first, True


def taken(pages: list[list[Values]]) -> Iterator[list[Values]]:
    """Yield pages, and remove each from the list, so that none is kept."""
    while pages:
        yield pages.pop(0)


class ArrowForm:
    """The Arrow types of the columns of a result, as its first pages tell them.

    Decimals have the scale of those and 38 digits.

    Args:
        pa: pyarrow.
        names: Names of the columns.
        first: Those pages.
        unknown: The type of a column without a value in them.

    Attributes:
        schema: The schema.

    Raises:
        SchemaError: A column has values that Arrow cannot hold.
    """

    def __init__(
        self, pa: Any, names: Sequence[str], first: list[list[Values]], unknown: Any
    ) -> None:
        self._pa = pa
        self._kinds: list[Kind | None] = []
        types = []
        for i, name in enumerate(names):
            parts = [page[i] for page in first if page[i].kind is not None]
            self._kinds.append(parts[0].kind if parts else None)
            with _fitting(pa, name, 0):
                types.append(_fixed_type(pa, _arrow_type(pa, parts)) if parts else unknown)
        self.schema = pa.schema(list(zip(names, types, strict=True)))

    def batches(self, pages: Iterator[list[Values]]) -> Iterator[Any]:
        """Yield pages as record batches.

        Raises:
            SchemaError: A value does not fit its column.
        """
        row = 0
        for page in pages:
            arrays = []
            for field, kind, part in zip(self.schema, self._kinds, page, strict=True):
                with _fitting(self._pa, field.name, row):
                    arrays.append(_arrow(self._pa, part, kind, field.type))
            yield self._pa.record_batch(arrays, schema=self.schema)
            row += page[0].count


@contextlib.contextmanager
def _fitting(pa: Any, name: str, row: int) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaError(
            f"column {name}: row {row} or one after it has a value of another type",
            hint="CAST the column in the statement",
        ) from error


def _by_value(kind: Kind) -> bool:
    """Whether an array is made of Python's objects, whose values decide on the type."""
    return sql_form(kind) in ("DECIMAL", "OBJECT")


def _plain(value: Any) -> Any:
    """Return a value that pyarrow takes."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return (datetime.datetime.min + value).time()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return value


def _arrow_type(pa: Any, parts: list[Values]) -> Any:
    """Return the Arrow type of the values of a column, of which one is there."""
    found = [part for part in parts if part.kind is not None]
    kind = found[0].kind
    assert kind is not None
    if _by_value(kind):
        return pa.array([_plain(v) for part in found for v in part.to_python()]).type
    return _stored(pa, kind, found[0].first(0)).type


def _fixed_type(pa: Any, arrow_type: Any) -> Any:
    """Return a type that later values fit as well."""
    if pa.types.is_decimal(arrow_type):
        return pa.decimal128(38, max(arrow_type.scale, 0))
    return arrow_type


def _arrow(pa: Any, part: Values, kind: Kind | None, arrow_type: Any) -> Any:
    if part.kind is None:
        return pa.nulls(part.count, arrow_type)
    if part.kind != kind or _by_value(part.kind):
        return pa.array([_plain(v) for v in part.to_python()], arrow_type)
    return _stored(pa, part.kind, part)


def _stored(pa: Any, kind: Kind, part: Values) -> Any:
    """Return values in their stored form as an array."""
    form, column = sql_form(kind), part.column
    assert column is not None
    missing = None if column.valid is None else ~column.valid
    if form in ("TEXT", "UUID", "blob"):
        return bytes_array(pa, column, pa.large_binary() if form == "blob" else pa.large_string())
    if form == "char":
        return pa.array(part.to_python(), pa.large_string())
    if form == "LIST":
        texts, offsets = column.compact()
        assert isinstance(texts, Column)
        return list_array(pa, bytes_array(pa, texts, pa.large_string()), offsets, column.valid)
    if form == "ARRAY":
        values, offsets = column.compact()
        return list_array(pa, pa.array(values), offsets, column.valid)
    array = _array(column)
    if form == "NUMBER":
        return pa.array(array, mask=missing)
    if form == "day":
        days = (array.astype("i8") // 86_400_000).astype(np.int32)
        return pa.array(days, pa.int32(), mask=missing).cast(pa.date32())
    if form == "time":
        return pa.array(array.astype(np.int32), pa.int32(), mask=missing).cast(pa.time32("ms"))
    us = array if form == "TIMESTAMP" else array * 1000
    return pa.array(us.view("M8[us]"), pa.timestamp("us"), mask=missing)
