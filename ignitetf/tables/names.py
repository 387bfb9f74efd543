"""The SQL names in a cluster: tables with their columns; errors with suggestions.

system views, client -> **names** -> completion, query, the prompt
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ignitetf.errors import IgniteTFError, SqlError
from ignitetf.net.client import Client
from ignitetf.net.results import SqlResult
from ignitetf.spelling import nearest
from ignitetf.sql.references import Reference, references
from ignitetf.sql.tokens import is_query

__all__ = [
    "SqlNames",
    "SqlTable",
    "quoted",
    "spelled",
    "sql_names",
    "sql_with_suggestions",
    "with_suggestion",
]

_PLAIN: Final = re.compile(r"[A-Z_][A-Z0-9_$]*\Z")


class SqlTable(NamedTuple):
    """The name of a table or view."""

    schema: str
    name: str


@dataclass(frozen=True)
class SqlNames:
    """The tables and views of a cluster with the names of their columns."""

    columns: Mapping[SqlTable, tuple[str, ...]] = field(default_factory=dict)

    @property
    def tables(self) -> list[SqlTable]:
        """All tables; tables of users are first."""
        return sorted(self.columns, key=lambda table: (table.schema == "SYS", table))

    def of(self, reference: Reference) -> tuple[str, ...]:
        """Return the columns of a table in a statement; empty if the table does not exist."""
        schema = reference.schema or "PUBLIC"
        return self.columns.get(SqlTable(schema, reference.table), ())


def sql_names(client: Client) -> SqlNames:
    """Fetch the names of the cluster's tables, views and columns."""
    found: dict[SqlTable, dict[str, None]] = {}
    for schema, table, column in client.about("completion"):
        found.setdefault(SqlTable(schema, table), {})[column] = None
    return SqlNames({table: tuple(columns) for table, columns in found.items()})


def spelled(name: str) -> str:
    """Return a name for a statement; it is quoted unless it is a word in capitals."""
    return name if _PLAIN.match(name) else quoted(name)


def quoted(name: str) -> str:
    """Return a name in quotes; this makes any name valid in a statement."""
    return '"{}"'.format(name.replace('"', '""'))


_PAGE_ROWS: Final = 64
# The size of a page of an export. Rows after the first may be larger, so their number has a limit.
_PAGE_BYTES: Final = 1 << 20
_MOST_ROWS: Final = 1024
_AT_ONCE_S: Final = 0.2
_MISSING: Final = re.compile(r'(Table|Column|Schema) "(.+?)" not found')


def sql_with_suggestions(
    client: Client,
    statement: str,
    params: Sequence[Any] = (),
    *,
    timeout_s: float | None = None,
    whole: bool = False,
) -> SqlResult:
    """Run a statement as `Client.sql` does; an unknown name gets a hint with the nearest ones.

    Its pages are small, so that rows with large values take little memory.

    Args:
        client: Runs it.
        statement: The statement.
        params: Values for its parameters.
        timeout_s: As for `Client.sql`.
        whole: True if all rows will be read. If the first rows arrive at once and are small, the
            statement is then run again with larger pages.
    """
    begin = time.monotonic()
    try:
        result = client.sql(statement, params, timeout_s=timeout_s, page_size=_PAGE_ROWS)
        if not whole or time.monotonic() - begin > _AT_ONCE_S or not is_query(statement):
            return result
        if (rows := min(_MOST_ROWS, result.rows_in(_PAGE_BYTES))) < 2 * _PAGE_ROWS:
            return result
        result.close()
        return client.sql(statement, params, timeout_s=timeout_s, page_size=rows)
    except SqlError as error:
        if (found := with_suggestion(client, error, statement)) is error:
            raise
        raise found from error


def with_suggestion(client: Client, error: SqlError, statement: str) -> SqlError:
    """Return the error of a statement, with a hint on the nearest table or column if any."""
    hint = _suggestion(client, error.message, statement)
    return error if hint is None else error.hinted(hint)


def _suggestion(client: Client, message: str, statement: str) -> str | None:
    if (missing := _MISSING.search(message)) is None:
        return None
    try:
        names = sql_names(client)
    except IgniteTFError:  # report the first error
        return None
    kind, name = missing.groups()
    if kind == "Column":
        near = _columns(names, name, statement)
    elif kind == "Schema":
        near = nearest(name, {table.schema for table in names.columns})
    else:
        near = _tables(names, name)
    return f"did you mean {' or '.join(near)}?" if near else None


def _tables(names: SqlNames, name: str) -> list[str]:
    same = [t for t in names.tables if t.name.upper() == name.upper()]
    if not same:
        found = nearest(name, (table.name for table in names.tables))
        same = [table for each in found for table in names.tables if table.name == each]
    return [
        spelled(table.name)
        if table.schema == "PUBLIC"
        else f"{spelled(table.schema)}.{spelled(table.name)}"
        for table in same[:3]
    ]


def _columns(names: SqlNames, name: str, statement: str) -> list[str]:
    alias, _, column = name.rpartition(".")
    named = references(statement)
    if alias:
        named = [one for one in named if alias in (one.alias, one.table)] or named
    known = [column for one in named for column in names.of(one)]
    return [spelled(each) for each in nearest(column, known)]
