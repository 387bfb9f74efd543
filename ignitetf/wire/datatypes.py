"""The types of Ignite's values, one row each; every other table of types is derived from these.

**datatypes** -> objects, columns, encoders, infer, blocks; read, tables, sources

To add a type, give it a number in `codes.TypeCode` and a row in `_ROWS`, in the order of the
numbers. A type of an existing family needs nothing more. A new `Family` also needs a reader in
`decode._READERS` and a writer in `encoders._WRITERS`. Values of a Python class need a conversion in
`load/sources/values.py`.
`tests/unit/test_datatypes.py` adds two types, one with a family of its own, and uses them.

Source: Apache Ignite 2.17.0, `GridBinaryMarshaller`, `BinaryUtils`, `BinaryWriterExImpl`.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ignitetf.wire.codes import TypeCode

__all__ = [
    "ALIKE",
    "ARRAY_ELEMENT",
    "BYTES",
    "DATA_TYPES",
    "FIXED_DTYPE",
    "FIXED_SIZE",
    "INTEGERS",
    "LIST_ELEMENT",
    "LIST_OF",
    "TIMESTAMP_UNITS",
    "TIME_UNIT",
    "DataType",
    "Extent",
    "Family",
    "family_of",
    "types_of",
]

# The dtype of a value that is a run of bytes (a string or a blob): `tf.string`, Python `bytes`.
BYTES: Final = np.dtype(object)

# Units of timestamps: (units per millisecond, nanoseconds per unit).
TIMESTAMP_UNITS: Final[dict[str, tuple[int, int]]] = {
    "ns": (1_000_000, 1),
    "us": (1_000, 1_000),
    "ms": (1, 1_000_000),
}


class Family(enum.Enum):
    """Types whose values are read and written by the same code."""

    NUMBER = enum.auto()  # one number with a NumPy dtype
    MILLISECONDS = enum.auto()  # int64
    TIMESTAMP = enum.auto()  # int64 milliseconds, int32 nanoseconds within them
    UUID = enum.auto()  # two uint64, the high one first
    ENUM = enum.auto()  # int32 type id, int32 ordinal
    TEXT = enum.auto()  # int32 length, UTF-8
    DECIMAL = enum.auto()  # int32 scale, int32 length, magnitude with the sign in its top bit
    ARRAY = enum.auto()  # int32 count, bare numbers
    LIST = enum.auto()  # objects one after another
    MAP = enum.auto()  # objects: keys and values alternately
    OBJECT = enum.auto()  # a binary object with fields
    STORED = enum.auto()  # any object: its own bytes, without a wrapper
    STAND_IN = enum.auto()  # null, or an object that represents another value (see `meaning`)


@dataclass(frozen=True)
class Extent:
    """The length of an object: `head` bytes, plus a fixed amount for each counted item.

    Attributes:
        head: Bytes before the counted items, including the type code.
        unit: Bytes per counted item.
        objects: Objects per counted item, instead of bytes.
        count_at: Position of the count (int32); 0 if nothing is counted.
        class_id: True if the id or name of a class is stored between type code and count.
    """

    head: int
    unit: int = 0
    objects: int = 0
    count_at: int = 0
    class_id: bool = False


@dataclass(frozen=True)
class DataType:
    """One type of value.

    Attributes:
        code: The first byte of its objects.
        family: Determines the code that reads and writes its values.
        extent: Length of its objects; None for types that `objects` handles specially.
        dtype: Dtype in the page of the value or of one array element; None for other types.
        value: Default dtype of the values in a column; None if the type alone does not determine
            it, or if the values have no dtype.
        element: Type of the elements of an array or list; None for any.
        read_as: Another type with the same values; its objects are accepted, too.
        units: NumPy units in which a time can be declared; the first is the unit of int64 values.
        sql: The SQL type with exactly the same values; None for OTHER.
        java: The Java class of that SQL type's values.
        python: The Python classes of its values; empty for numbers, whose types NumPy determines.
        arrow: pyarrow's names for its values (`is_...` of `pyarrow.types`); empty for numbers.
        arrow_cast: The Arrow type that its values are cast to first.
    """

    code: TypeCode
    family: Family
    extent: Extent | None = None
    dtype: np.dtype[Any] | None = None
    value: np.dtype[Any] | None = None
    element: TypeCode | None = None
    read_as: TypeCode | None = None
    units: tuple[str, ...] = ()
    sql: str | None = None
    java: str | None = None
    python: tuple[type, ...] = ()
    arrow: tuple[str, ...] = ()
    arrow_cast: str | None = None


def _fixed(code: TypeCode, family: Family, stored: Any, value: Any = None, **more: Any) -> DataType:
    """A type whose objects consist of the type code and one value of the dtype `stored`."""
    dtype = np.dtype(stored)
    kind = dtype if value is None else np.dtype(value)
    return DataType(code, family, Extent(1 + dtype.itemsize), dtype, kind, **more)


def _array(code: TypeCode, element: TypeCode, stored: str, **more: Any) -> DataType:
    """A type whose objects consist of the type code, an int32 count, and bare elements."""
    dtype = np.dtype(stored)
    extent = Extent(5, unit=dtype.itemsize, count_at=1)
    return DataType(code, Family.ARRAY, extent, dtype, element=element, **more)


def _list(code: TypeCode, element: TypeCode) -> DataType:
    """A type whose objects consist of the type code, an int32 count, and element objects."""
    return DataType(code, Family.LIST, Extent(5, objects=1, count_at=1), element=element)


_NUMBER, _MS = Family.NUMBER, Family.MILLISECONDS
_RUN_OF_BYTES: Final = Extent(5, unit=1, count_at=1)
_ENUM: Final = [("type_id", "<i4"), ("ordinal", "<i4")]

_ROWS: Final = (
    _fixed(TypeCode.BYTE, _NUMBER, "i1", sql="TINYINT", java="java.lang.Byte"),
    _fixed(TypeCode.SHORT, _NUMBER, "<i2", sql="SMALLINT", java="java.lang.Short"),
    _fixed(TypeCode.INT, _NUMBER, "<i4", sql="INT", java="java.lang.Integer"),
    _fixed(TypeCode.LONG, _NUMBER, "<i8", sql="BIGINT", java="java.lang.Long"),
    _fixed(TypeCode.FLOAT, _NUMBER, "<f4", sql="REAL", java="java.lang.Float"),
    _fixed(TypeCode.DOUBLE, _NUMBER, "<f8", sql="DOUBLE", java="java.lang.Double"),
    # No Java class, since SQL returns CHAR values as strings.
    _fixed(TypeCode.CHAR, _NUMBER, "<u2", sql="CHAR"),
    _fixed(TypeCode.BOOL, _NUMBER, "?", sql="BOOLEAN", java="java.lang.Boolean"),
    DataType(
        TypeCode.STRING,
        Family.TEXT,
        _RUN_OF_BYTES,
        value=BYTES,
        sql="VARCHAR",
        java="java.lang.String",
        python=(str,),
        arrow=("string", "large_string", "string_view", "null"),
    ),
    _fixed(
        TypeCode.UUID,
        Family.UUID,
        [("msb", "<u8"), ("lsb", "<u8")],
        BYTES,
        sql="UUID",
        java="java.util.UUID",
        python=(uuid.UUID,),
    ),
    # A java.util.Date. SQL's own DATE is a java.sql.Date, in Java's own serialization.
    _fixed(
        TypeCode.DATE,
        _MS,
        "<i8",
        units=("ms",),
        sql="TIMESTAMP",
        python=(datetime.date,),
        arrow=("date",),
        arrow_cast="date64",
    ),
    _array(
        TypeCode.BYTE_ARRAY,
        TypeCode.BYTE,
        "u1",
        value=BYTES,
        sql="VARBINARY",
        java="[B",
        python=(bytes, bytearray, memoryview),
        arrow=("binary", "large_binary", "binary_view", "fixed_size_binary"),
    ),
    _array(TypeCode.SHORT_ARRAY, TypeCode.SHORT, "<i2"),
    _array(TypeCode.INT_ARRAY, TypeCode.INT, "<i4"),
    _array(TypeCode.LONG_ARRAY, TypeCode.LONG, "<i8"),
    _array(TypeCode.FLOAT_ARRAY, TypeCode.FLOAT, "<f4"),
    _array(TypeCode.DOUBLE_ARRAY, TypeCode.DOUBLE, "<f8"),
    _array(TypeCode.CHAR_ARRAY, TypeCode.CHAR, "<u2"),
    _array(TypeCode.BOOL_ARRAY, TypeCode.BOOL, "?"),
    _list(TypeCode.STRING_ARRAY, TypeCode.STRING),
    _list(TypeCode.UUID_ARRAY, TypeCode.UUID),
    _list(TypeCode.DATE_ARRAY, TypeCode.DATE),
    DataType(
        TypeCode.OBJECT_ARRAY,
        Family.LIST,
        Extent(9, objects=1, count_at=5, class_id=True),
        read_as=TypeCode.COLLECTION,
    ),
    # The kind (ArrayList, LinkedHashSet, ...) is one byte after the count, also for maps.
    DataType(
        TypeCode.COLLECTION,
        Family.LIST,
        Extent(6, objects=1, count_at=1),
        read_as=TypeCode.OBJECT_ARRAY,
    ),
    DataType(TypeCode.MAP, Family.MAP, Extent(6, objects=2, count_at=1)),
    # Length, that many bytes, and the int32 offset of the object within them.
    DataType(TypeCode.WRAPPED, Family.STORED, Extent(9, unit=1, count_at=1), value=BYTES),
    _fixed(TypeCode.ENUM, Family.ENUM, _ENUM, "<i4", read_as=TypeCode.BINARY_ENUM),
    DataType(
        TypeCode.ENUM_ARRAY,
        Family.LIST,
        Extent(9, objects=1, count_at=5, class_id=True),
        element=TypeCode.ENUM,
    ),
    DataType(
        TypeCode.DECIMAL,
        Family.DECIMAL,
        Extent(9, unit=1, count_at=5),
        value=BYTES,
        sql="DECIMAL",
        java="java.math.BigDecimal",
        python=(decimal.Decimal,),
        arrow=("decimal",),
        arrow_cast="string",
    ),
    _list(TypeCode.DECIMAL_ARRAY, TypeCode.DECIMAL),
    DataType(TypeCode.CLASS, Family.STAND_IN),
    _fixed(
        TypeCode.TIMESTAMP,
        Family.TIMESTAMP,
        [("ms", "<i8"), ("ns", "<i4")],
        "<i8",
        units=tuple(TIMESTAMP_UNITS),
        sql="TIMESTAMP",
        java="java.sql.Timestamp",
        python=(datetime.datetime,),
        arrow=("timestamp",),
        arrow_cast="timestamp[ns]",
    ),
    _list(TypeCode.TIMESTAMP_ARRAY, TypeCode.TIMESTAMP),
    DataType(TypeCode.PROXY, Family.STAND_IN),
    _fixed(
        TypeCode.TIME,
        _MS,
        "<i8",
        units=("ms",),
        sql="TIME",
        java="java.sql.Time",
        python=(datetime.time,),
        arrow=("time",),
        arrow_cast="time32[ms]",
    ),
    _list(TypeCode.TIME_ARRAY, TypeCode.TIME),
    _fixed(TypeCode.BINARY_ENUM, Family.ENUM, _ENUM, "<i4", read_as=TypeCode.ENUM),
    DataType(TypeCode.NULL, Family.STAND_IN, Extent(1)),
    DataType(TypeCode.HANDLE, Family.STAND_IN, Extent(5)),
    DataType(TypeCode.OBJECT, Family.OBJECT),
    DataType(TypeCode.OPTIMIZED, Family.STAND_IN, _RUN_OF_BYTES),
)

DATA_TYPES: Final[Mapping[TypeCode, DataType]] = {row.code: row for row in _ROWS}


def family_of(code: TypeCode) -> Family:
    """Return the family of a type."""
    return DATA_TYPES[code].family


def types_of(*families: Family) -> frozenset[TypeCode]:
    """Return the types of the families."""
    return frozenset(row.code for row in _ROWS if row.family in families)


# Size in bytes of a whole object, including its type code, for types of fixed size.
FIXED_SIZE: Final[dict[TypeCode, int]] = {
    row.code: row.extent.head for row in _ROWS if row.extent is not None and not row.extent.count_at
}

# Dtypes of types whose objects consist of the type code and one value.
FIXED_DTYPE: Final[dict[TypeCode, np.dtype[Any]]] = {
    row.code: row.dtype for row in _ROWS if row.dtype is not None and row.code in FIXED_SIZE
}

# Element dtypes of types whose elements are bare numbers.
ARRAY_ELEMENT: Final[dict[TypeCode, np.dtype[Any]]] = {
    row.code: row.dtype for row in _ROWS if row.dtype is not None and row.family is Family.ARRAY
}

# Element types of types whose elements are objects of one type.
LIST_ELEMENT: Final[dict[TypeCode, TypeCode]] = {
    row.code: row.element for row in _ROWS if row.element is not None and row.family is Family.LIST
}

# List type by element type.
LIST_OF: Final[dict[TypeCode, TypeCode]] = {element: code for code, element in LIST_ELEMENT.items()}

# NumPy's unit of the int64 values of each type of times.
TIME_UNIT: Final[dict[TypeCode, str]] = {row.code: row.units[0] for row in _ROWS if row.units}

# Signed integers.
INTEGERS: Final = frozenset(
    row.code
    for row in _ROWS
    if row.family is Family.NUMBER and row.dtype is not None and row.dtype.kind == "i"
)

# The types whose objects are accepted for each type.
ALIKE: Final[dict[TypeCode, tuple[TypeCode, ...]]] = {
    row.code: (row.code,) if row.read_as is None else (row.code, row.read_as) for row in _ROWS
}
