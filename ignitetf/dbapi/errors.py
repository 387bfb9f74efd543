"""The errors of PEP 249, and the mapping of ignitetf's errors to them.

ignitetf.errors -> **errors** -> connection, cursor

Warning:
    Error
    +-- InterfaceError        a cursor or connection that is closed, a wrong argument
    +-- DatabaseError
        +-- DataError         a value that does not fit
        +-- OperationalError  the cluster cannot be reached, is full, was too slow
        +-- IntegrityError    a key that exists already, a null in a NOT NULL column
        +-- InternalError     an answer that breaks the protocol
        +-- ProgrammingError  the statement or its parameters are wrong
        +-- NotSupportedError a feature that Apache Ignite lacks
"""

from __future__ import annotations

import builtins
import contextlib
import re
from collections.abc import Iterator
from typing import Final

from ignitetf.errors import (
    ClusterInactive,
    ClusterReadOnly,
    ConfigError,
    ConnectError,
    IgniteTFError,
    MissingExtra,
    PartitionLost,
    RequestTimeout,
    SchemaError,
    ServerError,
    ServerOverloaded,
    WireError,
)
from ignitetf.net.failures import is_retryable
from ignitetf.notebook import traceback_lines

__all__ = [
    "DataError",
    "DatabaseError",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Warning",
    "pep_249",
]


class Warning(builtins.Warning):
    """A warning that is not an error; never raised here."""


class Error(Exception):
    """The base of all errors of this module.

    Attributes:
        hint: A remedy for the user, or None.
    """

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")

    def _render_traceback_(self) -> list[str]:
        return traceback_lines(self)


class InterfaceError(Error):
    """A cursor or connection was closed, or an argument is wrong."""


class DatabaseError(Error):
    """The base of the errors of the database."""


class DataError(DatabaseError):
    """A value does not fit its type."""


class OperationalError(DatabaseError):
    """The cluster cannot be reached, has no room, or was too slow."""


class IntegrityError(DatabaseError):
    """A key exists already, or a value may not be null."""


class InternalError(DatabaseError):
    """An answer breaks the protocol."""


class ProgrammingError(DatabaseError):
    """The statement or its parameters are wrong."""


class NotSupportedError(DatabaseError):
    """Apache Ignite lacks this feature."""


# Error classes by the text of a node's answer to a statement; the first match counts.
_KINDS_BY_TEXT: Final = (
    (re.compile(r"duplicate key|already in cache|does not allow NULL|Null value is not allowed|NULL not allowed", re.I),
     IntegrityError),
    (re.compile(r"data conversion error|value conversion failed|value too long|out of range|for a maximum precision|"
                r"value for a column|incorrect.*date|division by zero|cannot parse", re.I),
     DataError),
    (re.compile(r"cancell?ed|timeout|modified concurrently", re.I), OperationalError),
    (re.compile(r"not supported|unsupported|feature is not", re.I), NotSupportedError),
)  # fmt: skip
_KINDS: Final[tuple[tuple[type[IgniteTFError], type[Error]], ...]] = (
    (ConfigError, ProgrammingError),
    (MissingExtra, InterfaceError),
    (ConnectError, OperationalError),
    (RequestTimeout, OperationalError),
    (ServerOverloaded, OperationalError),
    (PartitionLost, OperationalError),
    (ClusterInactive, OperationalError),
    (ClusterReadOnly, OperationalError),
    (WireError, InternalError),
    (SchemaError, DataError),
)


@contextlib.contextmanager
def pep_249() -> Iterator[None]:
    """Convert ignitetf's errors in the block to errors of PEP 249, with their hints."""
    try:
        yield
    except IgniteTFError as error:
        raise _kind(error)(error.message, hint=error.hint) from error


def _kind(error: IgniteTFError) -> type[Error]:
    for ours, theirs in _KINDS:
        if isinstance(error, ours):
            return theirs
    if is_retryable(error):
        return OperationalError
    if not isinstance(error, ServerError):
        return DatabaseError
    text = f"{error.message} {error.fields.get('server_message', '')}"
    return next((kind for sign, kind in _KINDS_BY_TEXT if sign.search(text)), ProgrammingError)
