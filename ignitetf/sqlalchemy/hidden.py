"""Columns that tables of Ignite must have, and SQLAlchemy's need not: hidden ones take their place.

**hidden** -> compiler, ddl, reflection

A table of Ignite has a primary key, and a further column. One that is made here without a key gets
`KEY`, a random UUID for each row, which inserts fill; one of keys alone gets `VALUE`, which stays
null. Reflection leaves both out, so that what was reflected can be made, and written, again.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["HIDDEN", "KEY", "VALUE", "has_hidden_key", "has_hidden_value"]

KEY: Final = "ignitetf_row_key"
VALUE: Final = "ignitetf_row_value"
HIDDEN: Final = frozenset((KEY.upper(), VALUE.upper()))


def has_hidden_key(table: Any) -> bool:
    """Whether a `Table` has no primary key of its own."""
    return not table.primary_key.columns


def has_hidden_value(table: Any) -> bool:
    """Whether all columns of a `Table` are in its primary key."""
    return bool(table.columns) and all(column.primary_key for column in table.columns)
