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

NumPy has no null: a number becomes float64 with NaN, a time NaT, any other type an object array
with None. pyarrow is passed as an argument, because only callers that make tables need it.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import SchemaError
from ignitetf.wire.answers import text_of
from ignitetf.wire.arrow import array_of, array_of_objects
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Column, Dense, concat_columns, runs_of, values_of
from ignitetf.wire.datatypes import ARRAY_ELEMENT, DATA_TYPES, Family, family_of
from ignitetf.wire.decode import decode_column
from ignitetf.wire.infer import scalar_dtype
from ignitetf.wire.meaning import meant, type_codes
from ignitetf.wire.objects import Bytes, Positions
from ignitetf.wire.schema import BYTES, Field
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
    "taken",
]

_EPOCH: Final = datetime.datetime(1970, 1, 1)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_DAY_MS: Final = 86_400_000

Marks = NDArray[np.bool_]


@dataclass(frozen=True)
class Kind:
    """The kind of values in a column.

    Attributes:
        code: The type of its objects.
        is_day: True if they are days, which Java sends as objects of java.sql.Date.
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
        objects: The values as Python objects, if no column can hold them; otherwise None.
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
        """Approximate size of the values in bytes."""
        if self.objects is not None:
            return sum(len(v) if isinstance(v, (str, bytes)) else 8 for v in self.objects)
        return 0 if self.column is None else self.column.nbytes

    def first(self, count: int) -> Values:
        """Return the first values."""
        column = None if self.column is None else self.column[:count]
        objects = None if self.objects is None else self.objects[:count]
        return Values(self.kind, column, min(count, self.count), objects)

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
            found = _form(self.kind).python(self.column)
        except OverflowError as error:
            raise SchemaError(
                f"the result has a date that datetime cannot hold: {error}",
                hint="CAST it to VARCHAR, or take columns of NumPy or Arrow (ignitetf.dbapi)",
            ) from error
        return _with_nulls(found, self.column)


class Unreadable(Exception):
    """A column has values of several types, or of a type that SQL does not have."""


def decode_values(data: Bytes, at: Positions, registry: TypeRegistry) -> Values:
    """Decode one column of a page of rows.

    Raises:
        Unreadable: The values are of several types, or of a type that SQL does not have.
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


# Values in each form of Python, NumPy and Arrow


def _texts(column: Column) -> list[Any]:
    items, offsets = runs_of(column).compact()
    joined = values_of(items).tobytes()
    if joined.isascii():
        # Slicing one text costs a quarter of decoding each text from bytes.
        text = joined.decode("ascii")
        return [text[p:q] for p, q in itertools.pairwise(offsets.tolist())]
    return [text_of(joined[p:q]) for p, q in itertools.pairwise(offsets.tolist())]


def _blobs(column: Column) -> list[Any]:
    return list(runs_of(column).to_bytes())


def _lists(of: Callable[[Column], list[Any]]) -> Callable[[Column], list[Any]]:
    def read(column: Column) -> list[Any]:
        items, offsets = runs_of(column).compact()
        values = _with_nulls(of(items), items)
        return [values[p:q] for p, q in itertools.pairwise(offsets.tolist())]

    return read


def _with_nulls(values: list[Any], column: Column) -> list[Any]:
    if column.valid is None:
        return values
    return [v if there else None for v, there in zip(values, column.valid.tolist(), strict=True)]


def _numbers(column: Column) -> list[Any]:
    found: list[Any] = values_of(column).tolist()
    return found


def _datetimes_in(unit: datetime.timedelta) -> Callable[[Column], list[Any]]:
    return lambda column: [_EPOCH + number * unit for number in _numbers(column)]


def _days(column: Column) -> list[Any]:
    return [(_EPOCH + number * _MILLISECOND).date() for number in _numbers(column)]


def _times(column: Column) -> list[Any]:
    return [(_EPOCH + number % _DAY_MS * _MILLISECOND).time() for number in _numbers(column)]


def _chars(column: Column) -> list[Any]:
    return [chr(unit) for unit in _numbers(column)]


class _Form(NamedTuple):
    """The conversion of the values of one kind.

    Attributes:
        python: Returns a list of Python values.
        numpy: Returns an array, given the values of all pages and marks of the missing ones; None
            for an array of objects.
        arrow: Returns the Arrow type; None if it depends on the values.
    """

    python: Callable[[Column], list[Any]]
    numpy: Callable[[NDArray[Any], Marks], NDArray[Any]] | None = None
    arrow: Callable[[Any, Column], Any] | None = None


def _numbers_in_numpy(values: NDArray[Any], missing: Marks) -> NDArray[Any]:
    if not missing.any():
        return values
    found = values.astype(object if values.dtype == bool else np.float64)
    found[missing] = None  # NaN, in floats
    return found


def _times_in_numpy(stored: str, shown: str) -> Callable[[NDArray[Any], Marks], NDArray[Any]]:
    def convert(values: NDArray[Any], missing: Marks) -> NDArray[Any]:
        found = values.astype(np.int64).view(stored)
        found[missing] = "NaT"
        return found.astype(shown)

    return convert


def _number_type(pa: Any, column: Column) -> Any:
    return pa.from_numpy_dtype(values_of(column).dtype)


def _text_type(pa: Any, column: Column) -> Any:
    return pa.large_string()


def _list_type(of: Callable[[Any, Column], Any]) -> Callable[[Any, Column], Any]:
    return lambda pa, column: pa.large_list(of(pa, runs_of(column).items))


_OTHER: Final = _Form(lambda column: [])
# By the name of the SQL type, otherwise by family.
_FORMS: Final[dict[Family | str, _Form]] = {
    Family.NUMBER: _Form(_numbers, _numbers_in_numpy, _number_type),
    Family.TEXT: _Form(_texts, arrow=_text_type),
    Family.UUID: _Form(lambda column: [uuid.UUID(text) if text else None for text in _texts(column)],
                       arrow=_text_type),
    Family.DECIMAL: _Form(lambda column: [Decimal(text) if text else None for text in _texts(column)]),
    Family.ARRAY: _Form(_lists(_numbers), arrow=_list_type(_number_type)),
    Family.LIST: _Form(_lists(_texts), arrow=_list_type(_text_type)),
    Family.MILLISECONDS: _Form(_datetimes_in(_MILLISECOND), _times_in_numpy("M8[ms]", "M8[us]"),
                               lambda pa, _: pa.timestamp("us")),
    Family.TIMESTAMP: _Form(_datetimes_in(_MICROSECOND), _times_in_numpy("M8[us]", "M8[us]"),
                            lambda pa, _: pa.timestamp("us")),
    "VARBINARY": _Form(_blobs, arrow=lambda pa, _: pa.large_binary()),
    "DATE": _Form(_days, _times_in_numpy("M8[ms]", "M8[D]"), lambda pa, _: pa.date32()),
    "CHAR": _Form(_chars, arrow=_text_type),
    "TIME": _Form(_times, _times_in_numpy("m8[ms]", "m8[ms]"), lambda pa, _: pa.time32("ms")),
}  # fmt: skip
_READABLE: Final = frozenset(
    int(code)
    for code in TypeCode
    if family_of(code) in (_FORMS.keys() - {Family.LIST}) or code is TypeCode.STRING_ARRAY
)


def _form(kind: Kind) -> _Form:
    """Return how values of a kind are converted."""
    return _FORMS.get(kind.sql) or _FORMS.get(family_of(kind.code), _OTHER)


# Limits on how much is inspected to find the type of a column that begins with nulls.
_TYPED_ROWS: Final = 1 << 17
_TYPED_BYTES: Final = 16 << 20


# As NumPy arrays


def joined_numpy(parts: list[Values]) -> NDArray[Any]:
    """Return the values of all pages of a column as one array."""
    kind = _only_kind(parts)
    convert = None if kind is None else _form(kind).numpy
    if convert is None:
        count = sum(part.count for part in parts)
        # One by one, because lists of equal length would become another dimension.
        return np.fromiter((v for part in parts for v in part.to_python()), object, count)
    dtype = next(values_of(part.column).dtype for part in parts if part.column is not None)
    nothing = [Dense(np.zeros(part.count, dtype), np.zeros(part.count, np.bool_)) for part in parts]
    whole = concat_columns([p.column or none for p, none in zip(parts, nothing, strict=True)])
    missing = np.zeros(len(whole), np.bool_) if whole.valid is None else ~whole.valid
    return convert(values_of(whole), missing)


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
    if _form(kind).arrow is None:
        # Together, because one type (precision and scale) must fit all of them.
        try:
            return pa.chunked_array(
                [array_of_objects(pa, (v for p in parts for v in p.to_python()))]
            )
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(
                f"a column has values that Arrow cannot hold: {error}",
                hint="CAST it to VARCHAR or DOUBLE, or take fetchall()",
            ) from error
    arrow_type = _arrow_type(pa, parts)
    return pa.chunked_array([_arrow(pa, part, kind, arrow_type) for part in parts], arrow_type)


def sampled(pages: Iterator[list[Values]]) -> tuple[list[list[Values]], bool]:
    """Return the first pages of a result, to find its types, and True if they are all pages.

    One page, or more (up to 16 MB, 131,072 rows) if a column begins with nulls.
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
    """Yield pages and remove each from the list, so that its memory can be freed."""
    while pages:
        yield pages.pop(0)


class ArrowForm:
    """The Arrow types of the columns of a result, found in its first pages.

    Decimals get 38 digits and the scale found in these pages.

    Args:
        pa: pyarrow.
        names: Names of the columns.
        first: The first pages.
        unknown: The type of a column without a value in these pages.

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


def _arrow_type(pa: Any, parts: list[Values]) -> Any:
    """Return the Arrow type of a column that has at least one value."""
    found = [part for part in parts if part.kind is not None]
    kind, column = found[0].kind, found[0].column
    assert kind is not None
    make = _form(kind).arrow
    if make is None or column is None:
        return array_of_objects(pa, (v for part in found for v in part.to_python())).type
    return make(pa, column)


def _fixed_type(pa: Any, arrow_type: Any) -> Any:
    """Return a type that also fits later values: a decimal gets 38 digits."""
    if pa.types.is_decimal(arrow_type):
        return pa.decimal128(38, max(arrow_type.scale, 0))
    return arrow_type


def _arrow(pa: Any, part: Values, kind: Kind | None, arrow_type: Any) -> Any:
    if part.kind is None:
        return pa.nulls(part.count, arrow_type)
    column = part.column
    has_form = _form(part.kind).arrow is not None and part.kind.code is not TypeCode.CHAR
    if column is None or part.kind != kind or not has_form:
        return array_of_objects(pa, part.to_python(), arrow_type)
    if family_of(part.kind.code) is Family.MILLISECONDS and pa.types.is_timestamp(arrow_type):
        column = Dense(values_of(column) * 1000, column.valid)
    return array_of(pa, column, arrow_type)
