"""The types of SQL in Ignite, as types of SQLAlchemy.

versions -> **types** -> ddl, reflection, dialect

Source: Apache Ignite 2.17.0, `SYS.TABLE_COLUMNS`, whose types are classes of Java.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import types

from ignitetf.sqlalchemy import versions

__all__ = ["COLSPECS", "TINYINT", "of_java", "of_result"]

_UTC: Final = datetime.UTC
Process = Callable[[Any], Any]


class TINYINT(types.Integer):  # type: ignore[misc]
    """A whole number from -128 to 127."""

    __visit_name__ = "TINYINT"


class _Uuid(versions.Uuid):  # type: ignore[misc]
    """A UUID of Ignite; with `as_uuid=False` a text in Python."""

    def bind_processor(self, dialect: Any) -> Process | None:
        if self.as_uuid or not self.native_uuid:
            return _processor(super().bind_processor(dialect))
        return lambda value: value if value is None else uuid.UUID(str(value))

    def result_processor(self, dialect: Any, coltype: object) -> Process | None:
        if self.as_uuid or not self.native_uuid:
            return _processor(super().result_processor(dialect, coltype))
        return lambda value: value if value is None else str(value)


class _DateTime(types.DateTime):  # type: ignore[misc]
    """A TIMESTAMP in UTC, without a zone; with `timezone=True` Python's values have UTC."""

    def bind_processor(self, dialect: Any) -> Process | None:
        def process(value: Any) -> Any:
            # A date means its first moment, as in other drivers.
            if type(value) is datetime.date:
                return datetime.datetime.combine(value, datetime.time())
            return value

        return process

    def result_processor(self, dialect: Any, coltype: object) -> Process | None:
        if not self.timezone:
            return None
        return lambda value: value if value is None else value.replace(tzinfo=_UTC)


class _Date(types.Date):  # type: ignore[misc]
    """A DATE; the day of a datetime."""

    def bind_processor(self, dialect: Any) -> Process | None:
        return lambda value: value.date() if isinstance(value, datetime.datetime) else value


class _Binary(types.LargeBinary):  # type: ignore[misc]
    """Bytes, whose literals are hexadecimal."""

    def literal_processor(self, dialect: Any) -> Process | None:
        return lambda value: f"X'{bytes(value).hex()}'"


def _processor(found: Any) -> Process | None:
    process: Process | None = found
    return process


COLSPECS: Final[dict[type[Any], type[Any]]] = {
    versions.Uuid: _Uuid,
    types.DateTime: _DateTime,
    types.Date: _Date,
    types.LargeBinary: _Binary,
}
_OF_JAVA: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "java.lang.Boolean": types.BOOLEAN,
        "java.lang.Byte": TINYINT,
        "java.lang.Short": types.SMALLINT,
        "java.lang.Integer": types.INTEGER,
        "java.lang.Long": types.BIGINT,
        "java.lang.Float": types.REAL,
        "java.lang.Double": versions.DOUBLE,
        "java.util.UUID": versions.UUID,
        "java.sql.Date": types.DATE,
        "java.sql.Time": types.TIME,
        "java.sql.Timestamp": types.TIMESTAMP,
        "java.util.Date": types.TIMESTAMP,
        "java.sql.Clob": types.VARCHAR,
        "java.sql.Blob": types.VARBINARY,
    }
)
# Types of a result's columns by their SQL names, for results without Java classes.
_OF_RESULT: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "BOOLEAN": types.BOOLEAN,
        "TINYINT": TINYINT,
        "SMALLINT": types.SMALLINT,
        "INT": types.INTEGER,
        "BIGINT": types.BIGINT,
        "REAL": types.REAL,
        "DOUBLE": versions.DOUBLE,
        "DECIMAL": types.DECIMAL,
        "CHAR": types.CHAR,
        "VARCHAR": types.VARCHAR,
        "VARBINARY": types.VARBINARY,
        "UUID": versions.UUID,
        "DATE": types.DATE,
        "TIME": types.TIME,
        "TIMESTAMP": types.TIMESTAMP,
    }
)


def of_java(name: str, precision: int | None, scale: int | None) -> Any:
    """Return the type of a column by its Java class; NullType if SQL has no such type.

    Args:
        name: Name of the class, such as `java.lang.Integer`; the default package is `java.lang`.
        precision: Digits, characters or bytes; -1 or None for no limit.
        scale: Digits after the decimal point; -1 or None if not given.
    """
    size = precision if precision is not None and precision > 0 else None
    if name == "java.lang.String":
        return types.VARCHAR(size)
    if name == "[B":
        return types.VARBINARY(size)
    if name == "java.math.BigDecimal":
        return types.DECIMAL(size, scale if size and scale is not None and scale >= 0 else None)
    # System views write `int` for java.lang.Integer.
    return _OF_JAVA.get(_BOXED.get(name, name), types.NullType)()


_BOXED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "boolean": "java.lang.Boolean",
        "byte": "java.lang.Byte",
        "short": "java.lang.Short",
        "int": "java.lang.Integer",
        "long": "java.lang.Long",
        "float": "java.lang.Float",
        "double": "java.lang.Double",
    }
)


def of_result(name: str | None) -> Any:
    """Return the type of a column of a result by its name in `cursor.description`."""
    return _OF_RESULT.get(name or "", types.NullType)()
