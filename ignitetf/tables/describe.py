"""Describes the contents of a cluster: caches, tables, and the fields of a cache.

Fields are read from the manifest of the load. Without a manifest they are read from the SQL table,
and without a table from the first entries of the cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ignitetf.errors import (
    CacheNotFound,
    ConfigError,
    PartitionLost,
    SchemaError,
    SqlError,
    SqlUnavailable,
)
from ignitetf.net.binary_types import stored_type, with_types
from ignitetf.net.client import Client, cache_id
from ignitetf.net.results import only_value
from ignitetf.spelling import did_you_mean
from ignitetf.sql import statement
from ignitetf.sql.tokens import tokens
from ignitetf.tables.catalog import Manifest, list_manifests, read_manifest
from ignitetf.tables.names import quoted
from ignitetf.wire.codes import OpCode, TypeCode, java_hash_lower
from ignitetf.wire.datatypes import DATA_TYPES
from ignitetf.wire.frames import Page, read_first_page
from ignitetf.wire.infer import Evidence, infer_schema, observe_page
from ignitetf.wire.requests import cursor_request, scan_request
from ignitetf.wire.schema import BYTES, Field, Schema
from ignitetf.wire.types import TypeRegistry

__all__ = [
    "DataName",
    "data_name",
    "describe",
    "describe_table",
    "find_table",
    "list_caches",
    "list_tables",
    "manifest_of",
    "resolve",
    "row_count",
    "table_names",
]

_Row = TypeVar("_Row")
_Found = TypeVar("_Found")

_SAMPLE: Final = 4  # entries that are read if neither manifest nor table has the fields

# SQL types by the Java class of their values, as named in the system views.
_SQL_TYPE: Final[Mapping[str, str]] = {
    **{row.java: row.sql for row in DATA_TYPES.values() if row.java and row.sql},
    "java.sql.Date": "DATE",
    "java.lang.Object": "OTHER",
}


def list_caches(client: Client) -> list[dict[str, Any]]:
    """Return a mapping for each cache: `name`, `entries`, `partitions`, `backups`, `mode`.

    Without a SQL engine, `backups`, `mode`, and the `partitions` of a replicated cache are unknown
    (None).
    """
    return _present(_cache_rows(client), lambda row: _cache_row(client, row))


def _cache_rows(client: Client, cache: str | None = None) -> list[tuple[Any, ...]]:
    """Return the rows of the system view for all caches, or for one."""
    try:
        return client.sql(statement("caches"), (cache, cache)).fetchall()
    except SqlUnavailable:
        names = client.cache_names() if cache is None else [cache]
        return _present(names, lambda name: (name, _partition_count(client, name), *[None] * 5))


def _partition_count(client: Client, cache: str) -> int | None:
    """Return the number of partitions from a request without SQL; None if it is unknown."""
    try:
        return client.partition_count(cache)
    except ConfigError:
        return None


def list_tables(client: Client) -> list[dict[str, Any]]:
    """Return a mapping for each SQL name that shows rows.

    Returns:
        `schema`, `table` (the SQL name; a view for a data set), `cache`, `rows` (of this table,
        even if its cache has several tables; None if the cluster cannot count them), `key_type`,
        `value_type`, `affinity_key`, and `base_table` (the table with the rows).
    """
    return _present(_tables(client), lambda table: {**table, "rows": row_count(client, table)})


def table_names(client: Client) -> set[tuple[str, str]]:
    """Return schema and name of each table in `list_tables`, without counting rows."""
    return {(table["schema"], table["table"]) for table in _tables(client)}


def row_count(client: Client, table: Mapping[str, Any]) -> int | None:
    """Return the number of rows of a table; None if the cluster cannot count them.

    Only this table's rows count, even if its cache holds several tables.

    Raises:
        CacheNotFound: Its cache was removed meanwhile.
    """
    base = f"{quoted(table['schema'])}.{quoted(table['base_table'])}"
    try:
        return int(only_value(client.sql(f"SELECT COUNT(*) FROM {base}")))  # nosec B608
    except (SqlError, PartitionLost):
        client.cache_size(table["cache"])
        return None


def _present(listed: Iterable[_Row], described: Callable[[_Row], _Found]) -> list[_Found]:
    """Yield the descriptions of the listed caches or tables; skip those dropped meanwhile."""
    found = []
    for row in listed:
        with contextlib.suppress(CacheNotFound):
            found.append(described(row))
    return found


def find_table(client: Client, name: str) -> dict[str, Any]:
    """Find a table by its name, as written or in capitals, with or without its schema.

    Returns:
        The same keys as in `list_tables`, without `rows`.

    Raises:
        CacheNotFound: It does not exist; the hint suggests similar names.
        ConfigError: Tables of several schemas have this name.
    """
    tables = _tables(client)
    if (found := _spelled(tables, name)) is not None:
        return found
    there = (table["table"] for table in tables)
    hint = did_you_mean(name, there, "'ignitetf table ls' lists the tables", count=3)
    raise CacheNotFound(f"no table {name!r}", hint=hint, cache=name)


def _spelled(tables: Sequence[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """Return the table of this name, or None; raises ConfigError if there are several."""
    words = [token.identifier for token in tokens(name) if token.identifier is not None]
    for wanted in dict.fromkeys((name, name.upper(), ".".join(words))):
        for column in ("table", "base_table"):
            found = [t for t in tables if wanted in (t[column], f"{t['schema']}.{t[column]}")]
            if len(found) > 1:
                full = ", ".join(f"{t['schema']}.{t[column]} (cache {t['cache']})" for t in found)
                raise ConfigError(
                    f"{name!r} is the name of {len(found)} tables: {full}",
                    hint="add the schema, or use the name of the cache",
                )
            if found:
                return found[0]
    return None


class DataName(NamedTuple):
    """The data that a name refers to, for readers.

    Attributes:
        name: The data set or cache.
        table: The SQL table, if the cache has several.
    """

    name: str
    table: str | None = None


def data_name(client: Client, name: str) -> DataName:
    """Return the data set or cache of this name, or the one whose SQL table has this name.

    Raises:
        CacheNotFound: It does not exist; the hint suggests similar names.
        ConfigError: Tables of several schemas have this name.
    """
    if client.cache_exists(name) or read_manifest(client, name) is not None:
        return DataName(name)
    table = _by_table(client, name)
    held = (table["cache"], table["base_table"])
    for manifest in list_manifests(client):
        if manifest.cache in held or (manifest.index is not None and manifest.index in held):
            return DataName(manifest.name)
    if len(_tables(client, table["cache"])) < 2:
        return DataName(table["cache"])
    return DataName(table["cache"], f'"{table["schema"]}"."{table["base_table"]}"')


def _by_table(client: Client, name: str) -> dict[str, Any]:
    """Return the table of this name; raises CacheNotFound if no table and no cache has it."""
    tables = _tables(client)
    if (found := _spelled(tables, name)) is not None:
        return found
    if _is_view(client, name):
        raise CacheNotFound(
            f"{name!r} is a SQL view, which has no cache to read",
            hint="'ignitetf query \"SELECT * FROM ...\" --to FILE' writes its rows to a file,"
            " 'ignitetf load sql' makes a data set of them",
            cache=name,
        )
    there = {*client.cache_names(), *(table["table"] for table in tables)}
    hint = did_you_mean(name, there, "'ignitetf cache ls' lists the caches", count=3)
    raise CacheNotFound(f"no cache {name!r}", hint=hint, cache=name)


def _is_view(client: Client, name: str) -> bool:
    """Return whether this is the name of a view, made by a user or the system."""
    try:
        found = client.sql("SELECT SCHEMA, NAME FROM SYS.VIEWS").fetchall()
    except SqlError:  # a cluster without SQL, or a version without this view
        return False
    views = [{"schema": s, "table": v, "base_table": v, "cache": None} for s, v in found]
    try:
        return _spelled(views, name) is not None
    except ConfigError:
        return True


def resolve(client: Client, name: str) -> str:
    """Return the cache of this name, or the one that holds the data set or SQL table of this name.

    Raises:
        CacheNotFound: It does not exist; the hint suggests similar names.
        ConfigError: Tables of several schemas have this name.
    """
    if client.cache_exists(name):
        return name
    for manifest in list_manifests(client):
        if manifest.name == name and client.cache_exists(manifest.cache):
            return manifest.cache
    return str(_by_table(client, name)["cache"])


def manifest_of(client: Client, cache: str) -> Manifest | None:
    """Return the manifest of the data set in a cache, or None if it holds none."""
    return next((m for m in list_manifests(client) if m.cache == cache), None)


def describe(client: Client, name: str) -> dict[str, Any]:
    """Describe a cache: the facts of `list_caches`, its storage, table, data set, fields, indexes.

    `name` of a field is its name for readers (`fields=`), and `column` its name in SQL; None if no
    column shows the field.

    Raises:
        CacheNotFound: The cache or data set does not exist, or is a system cache.
    """
    cache = resolve(client, name)
    tables = _tables(client, cache)
    return _described(client, cache, _spelled(tables, name) or next(iter(tables), None))


def describe_table(client: Client, name: str) -> dict[str, Any]:
    """Describe a SQL table, as `describe` does a cache, with the columns as fields.

    Raises:
        CacheNotFound: The table does not exist.
        ConfigError: Tables of several schemas have this name.
    """
    table = find_table(client, name)
    found = _described(client, table["cache"], table)
    columns = [row for row in found["fields"] if row["column"] is not None]
    found["fields"] = [{**row, "name": row["column"]} for row in columns]
    return found


def _described(client: Client, cache: str, table: dict[str, Any] | None) -> dict[str, Any]:
    rows = _cache_rows(client, cache)
    if not rows:
        raise CacheNotFound(f"cache {cache!r} is a system cache", cache=cache)
    out = _cache_row(client, rows[0])
    _, _, _, _, out["atomicity"], out["partition_loss"], out["data_region"] = rows[0]
    if out["partition_loss"] == "IGNORE":
        out["note"] = "partitions that are lost with a node read as empty"
    manifest = manifest_of(client, cache)
    out["table"] = table["table"] if table else None
    if manifest is not None:
        out.update(_data_set(manifest, out["entries"]))
    if table is not None:
        out.update({k: table[k] for k in ("key_type", "value_type", "affinity_key")})
    schema = manifest.schema if manifest else None if table else _sample(client, cache)
    out["fields"] = _fields(client, table, schema)
    if table is not None:
        found = client.sql(statement("indexes"), (table["schema"], table["base_table"])).fetchall()
        out["indexes"] = [{"name": n, "columns": c, "unique": u} for n, c, u in found]
    return out


def _cache_row(client: Client, row: Sequence[Any]) -> dict[str, Any]:
    name, partitions, backups, mode = row[:4]
    return {
        "name": name,
        "entries": client.cache_size(name),
        "partitions": partitions,
        "backups": backups if mode != "REPLICATED" else None,
        "mode": mode,
    }


def _tables(client: Client, cache: str | None = None) -> list[dict[str, Any]]:
    names = ("schema", "table", "base_table", "cache", "key_type", "value_type", "affinity_key")
    rows: Iterable[tuple[Any, ...]] = client.about("tables", (cache, cache))
    return [dict(zip(names, row, strict=True)) for row in rows]


def _data_set(manifest: Manifest, entries: int) -> dict[str, Any]:
    """Describe a data set: `rows` are stored now, `loaded_rows` were stored by its load."""
    is_rows = manifest.layout == "rows"
    names = ("skipped", "nbytes", "version", "created")
    found: dict[str, Any] = {
        "data_set": manifest.name,
        "layout": manifest.layout,
        "rows": entries if is_rows else manifest.rows,
        "loaded_rows": manifest.rows,
        **{n: getattr(manifest, n) for n in names},
    }
    if manifest.class_names:
        found["class_names"] = list(manifest.class_names)
    if manifest.splits:
        found["splits"] = {
            name: sum(counts[i])
            if (counts := division.counts(manifest.version)) is not None
            and sum(map(sum, counts)) == found["rows"]
            else None
            for division in manifest.splits
            for i, name in enumerate(division.names)
        }
    return found


def _fields(
    client: Client, table: Mapping[str, Any] | None, schema: Schema | None
) -> list[dict[str, Any]]:
    """Merge the table's columns with the schema's fields; without a table, just the fields."""
    if schema is None:
        return _typed_columns(client, table) if table is not None else []
    keys = schema.key.fields or (schema.key,)
    rows = [_schema_row(f, key=True) for f in keys]
    rows += [_schema_row(f, key=False) for f in schema.fields]
    if table is None:
        return rows
    known = {row["name"].upper(): row for row in rows}
    if not schema.key.fields:
        known["ID"] = known.get("ID", known[schema.key.name.upper()])
    columns = _columns(client, table["schema"], table["base_table"])
    for column in columns:
        if found := known.get(column["name"]):
            name = column["name"] if column["key"] and not schema.key.fields else found["name"]
            column.update(name=name, dtype=found["dtype"], shape=found["shape"])
    return columns


def _typed_columns(client: Client, table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table's columns under the field names of its binary types."""
    columns = _columns(client, table["schema"], table["base_table"])
    kinds = {
        is_key: stored_type(client, java_hash_lower(name))
        for is_key, name in ((True, table["key_type"]), (False, table["value_type"]))
        if name is not None and not name.startswith("java.")
    }
    names = {
        number: field
        for kind in kinds.values()
        if kind
        for number, (field, _) in kind.fields.items()
    }
    for column in columns:
        column["name"] = names.get(java_hash_lower(column["column"]), column["name"])
    if not _has_class_columns(client, table):
        return columns
    shown = {java_hash_lower(column["column"]) for column in columns}
    return columns + [
        _hidden_field(name, code, is_key)
        for is_key, kind in kinds.items()
        if kind is not None
        for number, (name, code) in kind.fields.items()
        if number not in shown
    ]


def _has_class_columns(client: Client, table: Mapping[str, Any]) -> bool:
    """Return whether a program made the table from its classes, of which readers read all fields.

    CREATE TABLE shows all fields that are read; a dropped column leaves a field that is not.
    """
    rows: Iterable[tuple[Any, ...]] = client.sql(statement("table_fields"), (table["cache"],))
    return any(
        row[:2] == (table["schema"], table["base_table"]) and not row[5] for row in list(rows)
    )


def _hidden_field(name: str, code: int, is_key: bool) -> dict[str, Any]:
    try:
        kind = TypeCode(code).name
    except ValueError:  # of any class
        kind = "OBJECT"
    found = {"name": name, "column": None, "type": kind, "key": is_key}
    return {**found, "nullable": not is_key, "affinity": False}


def _schema_row(field: Field, *, key: bool) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": field.type.name,
        "key": key,
        "nullable": field.nullable,
        "dtype": "bytes" if field.dtype == BYTES else field.dtype.name,
        "shape": list(field.shape),
    }


def _columns(client: Client, schema: str, table: str) -> list[dict[str, Any]]:
    rows = client.sql(statement("columns"), (schema, table)).fetchall()
    fields = {
        name: {
            "name": name,
            "column": name,
            "type": _SQL_TYPE.get(java, java),
            "key": key,
            "nullable": nullable and not key,
            "affinity": affinity,
        }
        for name, java, key, nullable, affinity in rows
    }
    try:
        order = client.sql(statement("column_order", schema=schema, table=table)).columns
    except (ConfigError, SqlError):  # the name would need escapes: keep the order of the view
        order = list(fields)
    return [fields[name] for name in order if name in fields]


def _sample(client: Client, cache: str) -> Schema | None:
    """Infer the schema from the first entries; None if the cache is empty or they are unclear."""
    page = _first_page(client, cache)
    if page.count == 0:
        return None
    registry, key, value = TypeRegistry(), Evidence(), Evidence()
    try:
        with_types(client, registry, observe_page, page, key, value, registry)
        return infer_schema(key, value, registry, left_out={})
    except SchemaError:
        return None


def _first_page(client: Client, cache: str) -> Page:
    with client.channel() as channel:
        body = channel.call(OpCode.QUERY_SCAN, scan_request(cache_id(cache), _SAMPLE))
        cursor, page = read_first_page(body)
        page = dataclasses.replace(page, data=page.data.copy())
        if page.more:
            channel.call(OpCode.RESOURCE_CLOSE, cursor_request(cursor))
    return page
