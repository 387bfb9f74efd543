"""How Apache Superset speaks to Ignite: an engine spec, which Superset finds by its entry point.

grains, dialect -> **superset** -> Apache Superset
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import types
from superset.db_engine_specs.base import BaseEngineSpec

from ignitetf.sqlalchemy.dialect import IgniteDialect
from ignitetf.sqlalchemy.grains import TIME_GRAINS

__all__ = ["IgniteEngineSpec"]


class IgniteEngineSpec(BaseEngineSpec):  # type: ignore[misc]
    """Apache Ignite 2 through `ignite://HOST:PORT/SCHEMA`."""

    engine = "ignite"
    engine_name = "Apache Ignite"
    drivers: ClassVar[dict[str, str]] = {"ignitetf": "ignitetf"}
    default_driver = "ignitetf"
    sqlalchemy_uri_placeholder = "ignite://user:password@host:port/SCHEMA"

    _time_grain_expressions: ClassVar[dict[str | None, str]] = dict(TIME_GRAINS)
    # Names without quotes become capitals in answers.
    allows_alias_in_orderby = True
    allows_sql_comments = True
    supports_dynamic_schema = False

    @classmethod
    def fetch_data(cls, cursor: Any, limit: int | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, of one that changes rows none."""
        return super().fetch_data(cursor, limit) if cursor.description else []

    @classmethod
    def df_to_sql(cls, database: Any, table: Any, df: Any, to_sql_kwargs: dict[str, Any]) -> None:
        """Write a frame to a table, under the name that SQLAlchemy has for it.

        pandas looks for a present table among those names, where it does not find a name in
        capitals.
        """
        name = IgniteDialect().normalize_name(table.table)
        super().df_to_sql(database, replace(table, table=name), df, to_sql_kwargs)

    @classmethod
    def convert_dttm(
        cls, target_type: str, dttm: datetime, db_extra: dict[str, Any] | None = None
    ) -> str | None:
        """Return a time as SQL, for a column of this type; None for other types."""
        kind = cls.get_sqla_column_type(target_type)
        if isinstance(kind, types.Date):
            return f"DATE '{dttm.date().isoformat()}'"
        if isinstance(kind, types.TIMESTAMP):
            return f"TIMESTAMP '{dttm.isoformat(sep=' ', timespec='microseconds')}'"
        return None

    @classmethod
    def epoch_to_dttm(cls) -> str:
        """Return seconds since 1970 as a time, in SQL."""
        return "DATEADD('SECOND', {col}, TIMESTAMP '1970-01-01 00:00:00')"
