"""Reflect a cluster's tables, views, columns, keys and indexes for SQLAlchemy.

system views -> **reflection** -> dialect

Source: Apache Ignite 2.17.0. `SYS.TABLE_COLUMNS` has types and defaults, but no order; a `SELECT *`
without rows has the order. `INFORMATION_SCHEMA` is H2's own, and fails on tables that a query has
in use.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final

from sqlalchemy import exc, text
from sqlalchemy.engine.reflection import Inspector

from ignitetf.sqlalchemy.ddl import HIDDEN
from ignitetf.sqlalchemy.types import of_java, of_result
from ignitetf.sqlalchemy.versions import cached

__all__ = ["IgniteInspector", "Reflection"]

# Rows of a view that are read to find the types of its columns.
_MAX_DESCRIBED: Final = 64
_KEY_INDEX: Final = "_key_PK"
_INDEXED: Final = re.compile(r'"((?:[^"]|"")*)" (ASC|DESC)')
# Has the column of names, which has another name before Ignite 2.9.
_SCHEMAS: Final = "SELECT * FROM SYS.SCHEMAS"
_COLUMNS: Final = text(
    "SELECT COLUMN_NAME, TYPE, PRECISION, SCALE, NULLABLE, DEFAULT_VALUE, PK"
    " FROM SYS.TABLE_COLUMNS WHERE SCHEMA_NAME = :s AND TABLE_NAME = :t"
)
_VIEW_COLUMNS: Final = text(
    "SELECT COLUMN_NAME, TYPE, PRECISION, SCALE, NULLABLE, DEFAULT_VALUE, FALSE"
    " FROM SYS.VIEW_COLUMNS WHERE SCHEMA_NAME = :s AND VIEW_NAME = :t"
)
_INDEXES: Final = text(
    "SELECT INDEX_NAME, COLUMNS FROM SYS.INDEXES WHERE SCHEMA_NAME = :s AND TABLE_NAME = :t"
    " ORDER BY INDEX_NAME"
)
_CACHE: Final = text(
    "SELECT C.CACHE_MODE, C.BACKUPS, C.ATOMICITY_MODE, T.CACHE_NAME, T.AFFINITY_KEY_COLUMN"
    " FROM SYS.TABLES T JOIN SYS.CACHES C ON C.CACHE_ID = T.CACHE_ID"
    " WHERE T.SCHEMA_NAME = :s AND T.TABLE_NAME = :t"
)


class Reflection:
    """The part of the dialect that inspects the cluster; a mixin."""

    default_schema_name: str | None
    identifier_preparer: Any

    @cached
    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        """Return the schemas."""
        return [self.normalize_name(name) for name in sorted(self._names(connection, _SCHEMAS))]

    @cached
    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """Return the tables of a schema."""
        statement = "SELECT TABLE_NAME FROM SYS.TABLES WHERE SCHEMA_NAME = :s ORDER BY 1"
        return self._normalized(connection, statement, s=self._schema(connection, schema))

    @cached
    def get_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """Return the views of a schema, among them the data sets of ignitetf.

        The node still lists a view whose table was dropped.
        """
        statement = "SELECT NAME FROM SYS.VIEWS WHERE SCHEMA = :s ORDER BY 1"
        return self._normalized(connection, statement, s=self._schema(connection, schema))

    def get_sequence_names(
        self, connection: Any, schema: str | None = None, **kw: Any
    ) -> list[str]:
        """Return an empty list: Ignite has no sequences, temporary or materialized views."""
        return []

    get_temp_table_names = get_temp_view_names = get_sequence_names
    get_materialized_view_names = get_sequence_names

    def has_sequence(
        self, connection: Any, sequence_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        """Return False: Ignite's SQL has no sequences."""
        return False

    @cached
    def has_table(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        """True if there is a table or view of this name."""
        statement = text(
            "SELECT 1 FROM SYS.TABLES WHERE SCHEMA_NAME = :s AND TABLE_NAME = :t"
            " UNION ALL SELECT 1 FROM SYS.VIEWS WHERE SCHEMA = :s AND NAME = :t"
        )
        names = self.stored_names(connection, table_name, schema)
        return connection.execute(statement, names).first() is not None

    @cached
    def get_view_definition(
        self, connection: Any, view_name: str, schema: str | None = None, **kw: Any
    ) -> str:
        """Return the query of a view."""
        statement = text("SELECT SQL FROM SYS.VIEWS WHERE SCHEMA = :s AND NAME = :t")
        names = self.stored_names(connection, view_name, schema)
        if (row := connection.execute(statement, names).first()) is None:
            raise exc.NoSuchTableError(view_name)
        found: str = row[0]
        return found

    @cached
    def get_columns(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[dict[str, Any]]:
        """Return the columns in order; a view's types are those of its first rows."""
        self._require(connection, table_name, schema)
        names = self.stored_names(connection, table_name, schema)
        known = {row[0]: row for row in connection.execute(_COLUMNS, names)}
        if not known:
            known = {row[0]: row for row in connection.execute(_VIEW_COLUMNS, names)}
        described = self._described(connection, names, 0 if known else _MAX_DESCRIBED)
        return [
            self._column(name, kind, known.get(name))
            for name, kind, *_ in described
            if name not in HIDDEN
        ]

    def _described(self, connection: Any, names: dict[str, Any], rows: int) -> Any:
        quote = self.identifier_preparer.quote_identifier
        table = f"{quote(names['s'])}.{quote(names['t'])}"
        statement = f"SELECT * FROM {table} LIMIT {rows}"  # nosec B608
        try:
            result = connection.exec_driver_sql(statement)
        except exc.DBAPIError as error:
            raise exc.UnreflectableTableError(
                f"{names['t']} cannot be read; it may be a view whose table was dropped: {error.orig}"
            ) from error
        with contextlib.closing(result):
            return result.cursor.description

    def _column(self, name: str, kind: str | None, known: Any) -> dict[str, Any]:
        column = {"name": self.normalize_name(name), "default": None}
        if known is None:
            return {**column, "type": of_result(kind), "nullable": True}
        _, java, precision, scale, nullable, default, is_key = known
        found = of_java(java, precision, scale)
        if default not in (None, "null"):  # Ignite 2.8 writes the second instead of the first
            column["default"] = _literal(default, java)
        return {**column, "type": found, "nullable": bool(nullable) and not is_key}

    @cached
    def get_pk_constraint(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> dict[str, Any]:
        """Return the columns of the primary key, in its order."""
        self._require(connection, table_name, schema)
        names = self.stored_names(connection, table_name, schema)
        rows = connection.execute(_COLUMNS, names)
        keys = [row[0] for row in rows if row[6] and row[0] not in HIDDEN | {"_KEY"}]
        indexes = dict(row[:2] for row in connection.execute(_INDEXES, names))
        # A key of one column is an index of `_KEY`; the proxy index names the column.
        indexed = indexes.get(f"{_KEY_INDEX}_proxy") or indexes.get(_KEY_INDEX) or ""
        order = [name for name, _ in _indexed(indexed)]
        keys.sort(key=lambda name: order.index(name) if name in order else len(order))
        return {"constrained_columns": [self.normalize_name(name) for name in keys], "name": None}

    @cached
    def get_indexes(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[dict[str, Any]]:
        """Return the indexes, without that of the primary key.

        Ignite appends the key's columns to each index; they are omitted.
        """
        keys = self.get_pk_constraint(connection, table_name, schema, **kw)["constrained_columns"]
        names = self.stored_names(connection, table_name, schema)
        indexes = dict(row[:2] for row in connection.execute(_INDEXES, names))
        affinity = f"{_KEY_INDEX}_proxy", _KEY_INDEX, "AFFINITY_KEY", "_key_PK_hash"
        return [
            self._index(name, _indexed(columns), keys)
            for name, columns in indexes.items()
            if name not in affinity
            and not name.endswith("__SCAN_")
            and not (name.endswith("_proxy") and name[:-6] in indexes)
        ]

    def _index(self, name: str, indexed: list[tuple[str, str]], keys: list[str]) -> dict[str, Any]:
        own = [(n, order) for n, order in indexed if n != "_KEY" and n not in HIDDEN]
        tail = [self.normalize_name(n) for n, _ in own[-len(keys) :]] if keys else []
        if tail == keys and len(own) > len(keys):
            own = own[: len(own) - len(keys)]
        columns = [self.normalize_name(n) for n, _ in own]
        found: dict[str, Any] = {
            "name": self.normalize_name(name),
            "column_names": columns,
            "unique": False,
        }
        falling = {self.normalize_name(n): ("desc",) for n, order in own if order == "DESC"}
        if falling:
            found["column_sorting"] = falling
        return found

    def get_foreign_keys(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Return an empty list: the primary key is Ignite's only constraint."""
        self._require(connection, table_name, schema)
        return []

    get_unique_constraints = get_check_constraints = get_foreign_keys

    @cached
    def get_table_comment(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> dict[str, Any]:
        """Return no comment: Ignite does not store comments."""
        self._require(connection, table_name, schema)
        return {"text": None}

    @cached
    def get_table_options(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> dict[str, Any]:
        """Return the options of a table's cache, as options of `Table`."""
        self._require(connection, table_name, schema)
        names = self.stored_names(connection, table_name, schema)
        if (row := connection.execute(_CACHE, names).first()) is None:
            return {}
        mode, backups, atomicity, cache, affinity = row
        found = {"ignite_template": mode.lower(), "ignite_atomicity": atomicity.lower()}
        if mode == "PARTITIONED":
            found["ignite_backups"] = backups
        if affinity is not None:
            found["ignite_affinity_key"] = self.normalize_name(affinity)
        if cache != f"SQL_{names['s']}_{names['t']}":
            found["ignite_cache_name"] = cache
        return found

    # Names

    def normalize_name(self, name: Any) -> Any:
        """Convert a name of the cluster to SQLAlchemy's spelling; the dialect implements it."""
        return super().normalize_name(name)  # type: ignore[misc]

    def denormalize_name(self, name: Any) -> Any:
        """Convert a name of SQLAlchemy to the cluster's spelling; the dialect implements it."""
        return super().denormalize_name(name)  # type: ignore[misc]

    def _names(self, connection: Any, statement: str, **values: Any) -> list[str]:
        """Return the names that a statement finds, in the cluster's spelling."""
        return [row[0] for row in connection.execute(text(statement), values)]

    def _normalized(self, connection: Any, statement: str, **values: Any) -> list[str]:
        return [self.normalize_name(name) for name in self._names(connection, statement, **values)]

    def stored_names(self, connection: Any, name: str, schema: str | None) -> dict[str, str]:
        """Return schema (`s`) and name (`t`) of a table or view in the cluster's spelling.

        SQLAlchemy treats lower case as upper case. If no table has the upper-case name but one has
        the lower-case name, that table is used, so that names from a list work as plain text.
        """
        found = self._schema(connection, schema)
        there = (
            "SELECT TABLE_NAME FROM SYS.TABLES WHERE SCHEMA_NAME = :s AND TABLE_NAME IN (:n, :t)"
        )
        names = self._spellings(name)
        if len(names) > 1:
            views = "SELECT NAME FROM SYS.VIEWS WHERE SCHEMA = :s AND NAME IN (:n, :t)"
            values = {"s": found, "n": names[0], "t": names[1]}
            known = self._names(connection, f"{there} UNION ALL {views}", **values)
            names = [each for each in names if each in known] or names
        return {"s": found, "t": names[0]}

    def _schema(self, connection: Any, schema: str | None) -> str:
        names = self._spellings(schema or self.default_schema_name or "public")
        if schema is not None and len(names) > 1:
            known = self._names(connection, _SCHEMAS)
            names = [each for each in names if each in known] or names
        return names[0]

    def _spellings(self, name: str) -> list[str]:
        """Return the possible spellings of a SQLAlchemy name; the likeliest first."""
        return list(dict.fromkeys((str(self.denormalize_name(name)), str(name))))

    def _require(self, connection: Any, table_name: str, schema: str | None) -> None:
        if not self.has_table(connection, table_name, schema):
            raise exc.NoSuchTableError(f"{schema}.{table_name}" if schema else table_name)


class IgniteInspector(Inspector):  # type: ignore[misc]
    """SQLAlchemy's inspector; reflected tables get the cluster's spelling of their names."""

    def reflect_table(self, table: Any, *args: Any, **kwargs: Any) -> None:
        """Fill a table with the columns, keys and indexes of the cluster's table."""
        dialect = self.dialect
        with self._operation_context() as connection:
            names = dialect.stored_names(connection, table.name, table.schema)
        # From now on lower-case names are quoted.
        table.name = dialect.normalize_name(names["t"])
        if table.schema is not None:
            table.schema = dialect.normalize_name(names["s"])
        super().reflect_table(table, *args, **kwargs)


def _indexed(indexed: str | None) -> list[tuple[str, str]]:
    """Return an index's columns with their order, from `"A" ASC, "B" DESC`; none if unknown."""
    return [(name.replace('""', '"'), order) for name, order in _INDEXED.findall(indexed or "")]


def _literal(default: str, java: str) -> str:
    """Return a default as SQL; the node reports it without quotes."""
    number = java.startswith("java.lang.") and java != "java.lang.String"
    if number or java == "java.math.BigDecimal":
        return default
    return "'{}'".format(default.replace("'", "''"))
