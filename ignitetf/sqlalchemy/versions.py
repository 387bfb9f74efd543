"""Support for SQLAlchemy 1.4, which Apache Superset needs: missing or renamed names.

**versions** -> types, ddl, dialect
"""

from __future__ import annotations

import uuid
from typing import Any, Final

import sqlalchemy
from sqlalchemy import types
from sqlalchemy.engine import reflection

__all__ = ["DOUBLE", "UUID", "Uuid", "autoincrement_column", "cached", "is_old"]

# True for SQLAlchemy 1.4.
is_old: Final = sqlalchemy.__version__.startswith("1.")


def cached(function: Any) -> Any:
    """Return a dialect's method whose results SQLAlchemy's inspector caches."""
    if is_old:
        function.__annotations__ = {}  # SQLAlchemy truncates an annotation that is a text
    return reflection.cache(function)


def autoincrement_column(table: Any) -> Any:
    """Return the autoincrement column of a table; None if it has none."""
    return table._autoincrement_column if is_old else table.autoincrement_column


def _old_types() -> tuple[Any, Any]:
    """Return the types UUID and DOUBLE."""

    class UUID(types.TypeEngine):  # type: ignore[misc]
        __visit_name__ = "uuid"
        native_uuid = True

        def __init__(self, as_uuid: bool = True) -> None:
            self.as_uuid = as_uuid

        @property
        def python_type(self) -> type[Any]:
            return uuid.UUID if self.as_uuid else str

    class DOUBLE(types.Float):  # type: ignore[misc]
        __visit_name__ = "DOUBLE"

    return UUID, DOUBLE


UUID, DOUBLE = _old_types() if is_old else (types.UUID, types.DOUBLE)
# The portable type.
Uuid: Final[Any] = UUID if is_old else types.Uuid
