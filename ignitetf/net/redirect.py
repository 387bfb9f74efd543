"""Redirects statements that write to a data set's SQL name, which is a view, to its table.

client -> **redirect** -> client

A view cannot be written to. What the user means is the table behind it, whose name changes
whenever the data set is replaced, so nobody should have to look it up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from ignitetf.errors import SqlError
from ignitetf.net.sql_result import SqlResult

__all__ = ["NO_VIEWS", "run"]

R = TypeVar("R")

# The form that `create_view.sql` gives to a view over a data set's table.
_VIEW: Final = re.compile(r'SELECT \* FROM "([^"]+__ROWS)"')
_NAME: Final = r'(?P<name>"[^"]+"|\w+)(?![\w.])'
# What a cluster before Apache Ignite 2.17, which has no views of users, says of the column that has
# their statements.
NO_VIEWS = re.compile(r'Column "(\w+\.)?SQL" not found')
_WRITES: Final = re.compile(
    r"""\s*(?:INSERT\s+INTO|MERGE\s+INTO|UPDATE|DELETE\s+FROM
    |(?P<drop>DROP\s+TABLE(?P<if>\s+IF\s+EXISTS)?)
    |ALTER\s+TABLE(?:\s+IF\s+EXISTS)?
    |CREATE\s+INDEX(?:\s+IF\s+NOT\s+EXISTS)?(?:\s+(?!ON\b)(?:"[^"]+"|\w+))?\s+ON
    )\s+(?:"?PUBLIC"?\.)?"""
    + _NAME,
    re.IGNORECASE | re.VERBOSE,
)

_NO_TABLE: Final = re.compile(r'Table "([^"]+)" not found')
_NO_COLUMN: Final = re.compile(r'Column "(?:[^"]+\.)?_(?:KEY|VAL)" not found')


def run(
    sql: Callable[..., R],
    ask: Callable[..., SqlResult],
    is_cache: Callable[[str], bool],
    statement: str,
    params: Sequence[Any],
    options: Mapping[str, Any],
) -> R:
    """Run a statement, on the data set's table if it writes to a data set by its name.

    Args:
        sql: Runs a statement with parameters and options.
        ask: Runs a statement of ours.
        is_cache: Whether a cache of the given name exists.
        statement: The statement.
        params: Values for its parameters.
        options: Options of `sql`.

    Raises:
        SqlError: The node refused the statement.
    """
    found = _WRITES.match(statement)
    if found is not None and found["if"] is not None:
        # With IF EXISTS the node would silently do nothing for the name of a view.
        statement = _of_table(ask, statement) or statement
    try:
        return sql(statement, params, **options)
    except SqlError as error:
        if (meant := _of_table(ask, statement)) is None:
            if (hint := _hint(is_cache, error.message)) is not None:
                raise error.hinted(hint) from error
            raise
    return sql(meant, params, **options)


def _hint(is_cache: Callable[[str], bool], message: str) -> str | None:
    """Suggest a fix when a data set's name is not what the user takes it for."""
    if _NO_COLUMN.match(message):
        return (
            "the SQL name of a data set is a view, which has no _KEY and _VAL: name the column of"
            " the key, or the table, NAME__ROWS"
        )
    missing = _NO_TABLE.match(message)
    if missing is None or not is_cache(missing[1]):
        return None
    return (
        f"cache {missing[1]!r} has no SQL table: blocks get one of the columns of --index, and"
        " other caches by CREATE TABLE"
    )


def _of_table(ask: Callable[..., SqlResult], statement: str) -> str | None:
    """Replace a data set's name by its table; None if the statement writes to no data set.

    Before a table is dropped, its view is dropped too.
    """
    if (found := _WRITES.match(statement)) is None:
        return None
    name = found["name"]
    name = name[1:-1] if name.startswith('"') else name.upper()
    query = "SELECT SQL FROM SYS.VIEWS WHERE SCHEMA = 'PUBLIC' AND NAME = ?"
    try:
        views = ask(query, (name,)).fetchall()
    except SqlError as error:
        if NO_VIEWS.search(error.message):
            return None
        raise
    shown = [view[1] for (text,) in views if (view := _VIEW.fullmatch(text)) is not None]
    if not shown:
        return None
    if found["drop"]:
        ask(f'DROP VIEW IF EXISTS "{name}"', ()).close()
    return f'{statement[: found.start("name")]}"{shown[0]}"{statement[found.end("name") :]}'
