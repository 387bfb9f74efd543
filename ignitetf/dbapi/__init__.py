"""Apache Ignite for everything that speaks Python's DB-API (PEP 249).

from ignitetf import dbapi

with dbapi.connect("127.0.0.1:10800") as connection, connection.cursor() as cursor:
    cursor.execute("SELECT NAME, PRICE FROM ITEM WHERE PRICE > ?", [10])
    table = cursor.fetch_arrow_table()  # or fetchall(), fetch_numpy(), fetch_df()
"""

from __future__ import annotations

import datetime
from typing import Final

from ignitetf.dbapi.cursor import Connection, Cursor, connect
from ignitetf.dbapi.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
)

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

apilevel: Final = "2.0"
# Threads may share the module and connections, not cursors.
threadsafety: Final = 2
paramstyle: Final = "qmark"


class _TypeObject(frozenset[str]):
    """A set of SQL type names that equals each name in it, as PEP 249 requires."""

    def __eq__(self, other: object) -> bool:
        return other in self if isinstance(other, str) else super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = frozenset.__hash__


STRING: Final = _TypeObject(("VARCHAR", "CHAR", "UUID"))
BINARY: Final = _TypeObject(("VARBINARY",))
NUMBER: Final = _TypeObject(
    ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "REAL", "DOUBLE", "DECIMAL")
)
DATETIME: Final = _TypeObject(("DATE", "TIME", "TIMESTAMP"))
ROWID: Final = _TypeObject(())

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> datetime.date:  # noqa: N802
    """Return the day, in UTC, of a time in seconds since 1970."""
    return TimestampFromTicks(ticks).date()


def TimeFromTicks(ticks: float) -> datetime.time:  # noqa: N802
    """Return the time of day, in UTC, of a time in seconds since 1970."""
    return TimestampFromTicks(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime.datetime:  # noqa: N802
    """Return a time in seconds since 1970 as a datetime in UTC, without a zone."""
    found = datetime.datetime.fromtimestamp(ticks, datetime.UTC)
    return found.replace(tzinfo=None)
