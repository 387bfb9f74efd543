"""Creates tables from SQL statements: those in `ignitetf.sql`, or a user's file.

Either all tables of a text are created or none: if a statement fails or is interrupted, its table
and those before it are dropped.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Container
from typing import Any, Final

from ignitetf.errors import CacheNotFound, ConfigError, SqlError
from ignitetf.net.client import Client
from ignitetf.partitions import DEFAULT_PARTITIONS
from ignitetf.sql import Fill, bare, fill, placeholders, split
from ignitetf.tables.caches import creation_error, missing_template, undone_if_interrupted
from ignitetf.tables.describe import find_table, row_count, table_names
from ignitetf.tables.removal import drop_table
from ignitetf.tables.spec import check_partitions, copy_options

__all__ = ["create_tables"]

_TABLE_NAME: Final = re.compile(
    r'CREATE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(?:"([^"]+)"|([\w.]+))', re.IGNORECASE
)


def create_tables(
    client: Client,
    text: str,
    *,
    name: str,
    partitions: int | None = None,
    backups: int = 0,
) -> list[dict[str, Any]]:
    """Run the statements of a text that creates tables.

    Args:
        client: The connection.
        text: Statements; `{name}` and `{options}` are filled in, the latter with the template and
            the backups.
        name: Value for `{name}`.
        partitions: Number of partitions of each table; None leaves it to the cluster (1024).
        backups: Copies of each partition in addition to the primary one.

    Returns:
        The new tables, as in `list_tables`.

    Raises:
        CacheExists: One of the tables already exists.
        ConfigError: The cluster has no template for this number of partitions.
        SqlError: A statement is wrong. Nothing remains in any of these cases.
    """
    check_partitions(partitions)
    values: dict[str, Fill] = {"name": name, "options": _options(partitions, backups)}
    if partitions is None and "options" in placeholders(text):
        # Only the template has the safe partition loss policy, unlike Ignite's defaults.
        preferred = {**values, "options": _options(DEFAULT_PARTITIONS, backups)}
        try:
            return _create(client, fill(text, **preferred), DEFAULT_PARTITIONS)
        except ConfigError as error:
            if "partitions" not in error.fields:
                raise
    return _create(client, fill(text, **values), partitions)


def _options(partitions: int | None, backups: int) -> dict[str, str | int | bool]:
    # Only the requested options: the statement may have options of its own.
    template = {} if partitions is None else {"TEMPLATE": f"p{partitions}"}
    return {**template, **copy_options(backups)}


def _create(client: Client, text: str, partitions: int | None) -> list[dict[str, Any]]:
    before = table_names(client)
    made: list[dict[str, Any]] = []
    try:
        for statement in split(text):
            found = _TABLE_NAME.match(bare(statement))
            if found is None:
                client.sql(statement).close()
                continue
            name = found[1] or found[2].upper()
            with _dropped_if_interrupted(client, name, before):
                table = _make(client, statement, name, partitions)
                if (table["schema"], table["table"]) in before:
                    continue
                made.append(table)
            if partitions is not None and client.partition_count(table["cache"]) != partitions:
                raise missing_template(partitions)
    except BaseException:
        for table in made:
            with contextlib.suppress(CacheNotFound):
                drop_table(client, f"{table['schema']}.{table['table']}")
        raise
    return made


def _make(client: Client, statement: str, name: str, partitions: int | None) -> dict[str, Any]:
    """Run a statement that creates the table `name`."""
    try:
        client.sql(statement).close()
    except SqlError as error:
        raise creation_error(error, name, partitions or DEFAULT_PARTITIONS) from error
    table = find_table(client, name)
    return {**table, "rows": row_count(client, table)}


def _dropped_if_interrupted(
    client: Client, name: str, before: Container[tuple[str, str]]
) -> contextlib.AbstractContextManager[None]:
    """Drop a table that did not exist before, if its creation is interrupted."""

    def exists() -> bool:
        try:
            table = find_table(client, name)
        except CacheNotFound:
            return False
        return (table["schema"], table["table"]) not in before

    return undone_if_interrupted(exists, lambda: drop_table(client, name))
