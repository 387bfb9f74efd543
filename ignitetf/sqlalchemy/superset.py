"""An engine spec of Apache Superset for Ignite; Superset finds it by its entry point.

grains, dialect -> **superset** -> Apache Superset
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from sqlalchemy import types
from superset.db_engine_specs.base import BaseEngineSpec

from ignitetf import Client
from ignitetf.errors import IgniteTFError
from ignitetf.sqlalchemy.dialect import IgniteDialect
from ignitetf.sqlalchemy.grains import TIME_GRAINS

__all__ = ["IgniteEngineSpec"]

# A cursor's statements begin with this mark, so that another process can find them.
_marks: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


class IgniteEngineSpec(BaseEngineSpec):  # type: ignore[misc]
    """Apache Ignite 2 through `ignite://HOST:PORT/SCHEMA`."""

    engine = "ignite"
    engine_name = "Apache Ignite"
    drivers: ClassVar[dict[str, str]] = {"ignitetf": "ignitetf"}
    default_driver = "ignitetf"
    sqlalchemy_uri_placeholder = "ignite://user:password@host:port/SCHEMA"

    _time_grain_expressions: ClassVar[dict[str | None, str]] = dict(TIME_GRAINS)
    # Unquoted names are upper case in answers.
    allows_alias_in_orderby = True
    allows_sql_comments = True
    supports_dynamic_schema = False

    @classmethod
    def fetch_data(cls, cursor: Any, limit: int | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; none if it changes rows."""
        return super().fetch_data(cursor, limit) if cursor.description else []

    @classmethod
    def execute(cls, cursor: Any, query: str, database: Any, **kwargs: Any) -> None:
        """Run a statement, with the cursor's mark if it has one."""
        mark = _marks.get(cursor)
        super().execute(cursor, query if mark is None else f"{mark} {query}", database, **kwargs)

    @classmethod
    def get_cancel_query_id(cls, cursor: Any, query: Any) -> str:
        """Mark the statements of a cursor, and return the mark."""
        return _marks.setdefault(cursor, f"/* superset {uuid.uuid4().hex} */")

    @classmethod
    def cancel_query(cls, cursor: Any, query: Any, cancel_query_id: str) -> bool:
        """Stop the statement with this mark; return whether a node was running it.

        A node lists only its own statements, so every address of the connection is queried.
        """
        settings = cursor.connection.client().settings
        found = False
        for address in settings.addresses:
            try:
                with Client(replace(settings, addresses=(address,))) as client:
                    found = _stop(client, cancel_query_id) or found
            except IgniteTFError:
                continue
        return found

    @classmethod
    def df_to_sql(cls, database: Any, table: Any, df: Any, to_sql_kwargs: dict[str, Any]) -> None:
        """Write a frame to a table, by SQLAlchemy's spelling of its name.

        pandas searches for an existing table by that spelling; it would not find an upper-case
        name.
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
        """Return SQL that converts seconds since 1970 to a time."""
        return "DATEADD('SECOND', {col}, TIMESTAMP '1970-01-01 00:00:00')"


def _stop(client: Client, mark: str) -> bool:
    """Stop the statements with this mark on a client's node; return whether there were any."""
    running = client.sql("SELECT QUERY_ID, SQL FROM SYS.SQL_QUERIES").fetchall()
    marked = [number for number, statement in running if statement.startswith(mark)]
    for number in marked:
        client.sql(f"KILL QUERY ASYNC '{number}'").close()
    return bool(marked)
