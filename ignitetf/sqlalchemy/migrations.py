"""Migrations by Alembic, which needs a class for each dialect.

dialect -> **migrations** -> Alembic
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from sqlalchemy import Column, MetaData, String, Table

__all__ = ["add_implementation"]


def add_implementation(module: ModuleType) -> None:
    """Tell Alembic, whose module `alembic.ddl.impl` this is, how to migrate Apache Ignite."""

    class IgniteImpl(module.DefaultImpl):  # type: ignore[misc, name-defined]
        # Alembic registers the class by this.
        __dialect__ = "ignite"
        transactional_ddl = False

        def version_table_impl(
            self, *, version_table: str, version_table_schema: str | None, **kwargs: Any
        ) -> Any:
            """Return the table of the version; not as a key, which Ignite does not change."""
            return Table(
                version_table,
                MetaData(),
                Column("version_num", String(32), nullable=False),
                schema=version_table_schema,
            )
