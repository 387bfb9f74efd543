"""`merge`: rows that are written whether their key exists or not.

**dml** -> compiler
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.sql.dml import Insert

__all__ = ["Merge", "merge"]


class Merge(Insert):  # type: ignore[misc]
    """An `Insert` that Ignite runs as `MERGE INTO`: a row whose key exists is replaced.

    Columns that are not named get their default, or null.
    """

    inherit_cache = True


def merge(table: Any) -> Merge:
    """Return a statement that inserts rows, or replaces those with the same primary key.

    It takes values as `sqlalchemy.insert` does: `connection.execute(merge(items), rows)`.
    """
    return Merge(table)
