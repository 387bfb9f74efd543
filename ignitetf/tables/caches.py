"""Creates caches and SQL tables, and undoes a creation that is interrupted.

A thin client cannot set the number of partitions of a cache. Templates in the node's configuration
can (`p16*` has 16), and `CREATE TABLE ... WITH "template=p16"` applies one under any cache name. So
every cache with a chosen number of partitions is created by SQL. If the result differs from what
was requested, it is dropped.

A node finishes a request even if its client is gone. A cache whose CREATE was running when Ctrl-C
or a signal arrived may therefore appear only after the client has cleaned up. So an interrupted
call waits for the cache and removes it (`undone_if_interrupted`).

Source: Apache Ignite 2.17.0, by experiment. Columns of type OTHER accept arrays of any kind. A
column whose type does not exactly match the binary field fails on reading. A bare string value gets
a full-text index; without its jar the table silently never appears.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ignitetf.errors import (
    CacheExists,
    CacheNotFound,
    ConfigError,
    IgniteTFError,
    ServerError,
    SqlError,
    SqlUnavailable,
)
from ignitetf.net.client import Client
from ignitetf.node.config import template_xml
from ignitetf.partitions import DEFAULT_PARTITIONS
from ignitetf.sql import check_name, statement
from ignitetf.tables.removal import drop_sql_table, remove_cache
from ignitetf.tables.spec import CacheSpec, make_cache, require_room_for, table_options
from ignitetf.tables.storage import carrier_table
from ignitetf.wire.answers import PartitionMap
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import DATA_TYPES
from ignitetf.wire.schema import Field, Schema

__all__ = [
    "UNSAFE_LOSS",
    "backups_of",
    "column_type",
    "create_cache",
    "create_table",
    "creation_error",
    "has_table",
    "loss_policy_of",
    "missing_template",
    "undone_if_interrupted",
]

# With this policy, a cache reads lost partitions as if they were empty.
UNSAFE_LOSS: Final = "IGNORE"
# Time limit of an interrupted call for the node to finish the request.
_MAKING_S: Final = 0.5
_POLL_S: Final = 0.02


def create_cache(client: Client, spec: CacheSpec, *, checked: bool = False) -> PartitionMap | None:
    """Create a cache for keys and values of any type; see `create_table`.

    Raises:
        CacheExists: A cache or table of this name exists.
        ConfigError: The cluster has no template for this number of partitions, or no SQL engine,
            which is needed to set the number; or the name is not valid in SQL.
        ServerOverloaded: The node's memory has no room for the partitions.
    """
    if not checked:
        _require_absent_with_room(client, spec)
    with _removed_if_interrupted(client, spec.name):
        if spec.partitions is None:
            _create_plain(client, spec)
            return None
        check_name(spec.name)
        table = carrier_table(spec.name)
        options = table_options(spec, spec.partitions)
        text = statement("create_cache", table=table, cache=spec.name, options=options)
        try:
            return _create(client, spec, text, table)
        except SqlUnavailable as error:
            if spec.partitions != DEFAULT_PARTITIONS:
                raise ConfigError(
                    f"{error.message}, so it cannot create a cache with {spec.partitions} partitions",
                    hint=f"omit the number: the cluster's default is {DEFAULT_PARTITIONS:,}",
                    partitions=spec.partitions,
                ) from error
        except ConfigError:
            if spec.partitions != DEFAULT_PARTITIONS:
                raise
        # Ignite's default number of partitions.
        _create_plain(client, spec)
        return client.partition_map(spec.name)


def create_table(
    client: Client,
    schema: Schema,
    name: str,
    spec: CacheSpec,
    index: Sequence[str] = (),
    *,
    checked: bool = False,
) -> PartitionMap | None:
    """Create the SQL table `name` with its new cache `spec.name`, for records of this schema.

    The columns are the key (`ID`, or the fields of a composite key) and the fields of the value,
    in capitals. Bare values that SQL cannot show (strings, and arrays except byte[]) get a cache
    without a table.

    Args:
        client: The connection.
        schema: Schema of the records.
        name: Name of the table; in capitals it needs no quotes in SQL.
        spec: The cache.
        index: Names of columns that each get an index.
        checked: True if the caller has checked that the cache is missing and fits in memory.

    Returns:
        The partition map of the cache, if a number of partitions was requested.

    Raises:
        CacheExists: A cache or table of this name exists.
        ConfigError: A name is not valid in SQL, or the cluster has no template for this number of
            partitions. Nothing remains.
        ServerOverloaded: The node's memory has no room for the partitions.
    """
    schema.check_identifiers()
    if not has_table(schema):
        return create_cache(client, spec, checked=checked)
    if not checked:
        _require_absent_with_room(client, spec)
    with _removed_if_interrupted(client, spec.name):
        found = _create_from_template(client, schema, name, spec)
        try:
            for column in index:
                _create_index(client, spec.name, name, column.upper())
        except Exception:
            remove_cache(client, spec.name)
            raise
    return found


def has_table(schema: Schema) -> bool:
    """Return whether SQL can show these records: all except bare values of types it lacks."""
    if schema.type_name is not None:
        return True
    code = schema.fields[0].type
    return DATA_TYPES[code].sql is not None and code is not TypeCode.STRING


def backups_of(client: Client, cache: str) -> int:
    """Return the number of backups of each partition; 0 if the cache does not exist.

    A replicated cache has a backup on each further node.

    Raises:
        SqlError: The cluster has no SQL engine, or does not show its views to this user.
    """
    for _, _, backups, mode, *_ in client.sql(statement("caches"), (cache, cache)):
        return max(0, len(client.nodes()) - 1) if mode == "REPLICATED" else int(backups)
    return 0


def loss_policy_of(client: Client, cache: str) -> str | None:
    """Return the partition loss policy of a cache; None if it is unknown."""
    try:
        rows = client.sql(statement("caches"), (cache, cache)).fetchall()
    except (SqlError, SqlUnavailable):
        return None
    return rows[0][5] if rows else None


def column_type(field: Field) -> str:
    """Return the SQL type with exactly the values of the field's binary type."""
    return DATA_TYPES[field.type].sql or "OTHER"


def missing_template(partitions: int) -> ConfigError:
    """Return the error for a cluster without a template for this number of partitions."""
    return ConfigError(
        f"the cluster has no cache template p{partitions}*, so it cannot make a cache with "
        f"{partitions} partitions",
        hint=f"start an embedded node with --template-partitions {partitions}, or put this into "
        f"the IgniteConfiguration of the nodes:\n{template_xml([partitions])}",
        partitions=partitions,
    )


def creation_error(error: SqlError, table: str, partitions: int) -> IgniteTFError:
    """Explain why a CREATE TABLE failed; returns the error itself if it says enough."""
    if "already exists" in error.message or "already indexed" in error.message:
        return CacheExists(
            f"table {table!r} exists",
            hint=f"choose another name, or remove it with 'ignitetf table drop {table}'",
            cache=table,
        )
    if f"Cache doesn't exist: p{partitions}" in error.message:
        return missing_template(partitions)
    return error


@contextlib.contextmanager
def undone_if_interrupted(exists: Callable[[], bool], remove: Callable[[], None]) -> Iterator[None]:
    """Remove what the block was creating if it is interrupted, and re-raise the interruption.

    Errors are not handled here: the node has then answered or is lost.

    Args:
        exists: Returns whether the object exists; it must not exist before the block.
        remove: Removes the object.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException:
        with contextlib.suppress(IgniteTFError):
            _undo(exists, remove)
        raise


def _create_from_template(
    client: Client, schema: Schema, name: str, spec: CacheSpec
) -> PartitionMap | None:
    """Create a table; with Ignite's own number of partitions this works without templates too."""
    partitions = spec.partitions
    if partitions is None and spec.mode == "PARTITIONED":
        partitions = DEFAULT_PARTITIONS
    text = _table_text(schema, name, spec, partitions)
    try:
        return _create(client, spec, text, name)
    except ConfigError:
        if partitions != DEFAULT_PARTITIONS:
            raise
        text = _table_text(schema, name, spec, None)
        return _create(client, spec, text, name)


def _table_text(schema: Schema, name: str, spec: CacheSpec, partitions: int | None) -> str:
    keys = _key_columns(schema)
    columns = [*keys, *((f.name.upper(), column_type(f)) for f in schema.fields)]
    options = table_options(spec, partitions)
    if schema.type_name is None:
        options["WRAP_VALUE"] = False
    else:
        options["VALUE_TYPE"] = schema.type_name
    if schema.key_type_name is not None:
        options["KEY_TYPE"] = schema.key_type_name
    if affinity_key := spec.affinity_key or schema.affinity_key:
        options["AFFINITY_KEY"] = affinity_key.upper()
    names = [key for key, _ in keys]
    return statement(
        "create_table", table=name, columns=columns, key=names, cache=spec.name, options=options
    )


def _create(client: Client, spec: CacheSpec, text: str, table: str) -> PartitionMap | None:
    """Run a CREATE TABLE and check the number of partitions; after a failure nothing remains.

    Returns:
        The partition map, if a number was requested (the check needs it).
    """
    try:
        client.sql(text).close()
    except SqlError as error:
        raise creation_error(error, table, spec.partitions or DEFAULT_PARTITIONS) from error
    if spec.partitions is None:
        return None
    # The map takes a fifth of the time of the view. In the map all partitions of a new cache have
    # owners; the view is queried only if the map does not confirm the number.
    found = client.partition_map(spec.name)
    count = spec.partitions
    if found.count != count and client.partition_count(spec.name) != count:
        with contextlib.suppress(CacheNotFound):
            drop_sql_table(client, "PUBLIC", table)
        raise missing_template(count)
    return found


def _create_index(client: Client, cache: str, table: str, column: str) -> None:
    text = statement("create_index", index=f"{cache}_{column}_IDX", table=table, columns=[column])
    client.sql(text).close()


def _removed_if_interrupted(client: Client, cache: str) -> contextlib.AbstractContextManager[None]:
    """Remove a cache that did not exist before, if its creation is interrupted."""
    return undone_if_interrupted(
        lambda: client.cache_exists(cache), lambda: remove_cache(client, cache)
    )


def _require_absent_with_room(client: Client, spec: CacheSpec) -> None:
    client.at_once(
        lambda: _require_absent(client, spec.name),
        lambda: require_room_for(client, spec),
    )


def _require_absent(client: Client, name: str) -> None:
    if client.cache_exists(name):
        raise CacheExists(
            f"cache {name!r} exists",
            hint=f"choose another name, or remove it with 'ignitetf cache drop {name}'",
            cache=name,
        )


def _create_plain(client: Client, spec: CacheSpec) -> None:
    try:
        make_cache(client, spec)
    except ServerError:
        _require_absent(client, spec.name)
        raise


def _key_columns(schema: Schema) -> list[tuple[str, str]]:
    if schema.key.type is TypeCode.OBJECT:
        return [(f.name.upper(), column_type(f)) for f in schema.key.fields]
    taken = {f.name.upper() for f in schema.fields}
    name = next(n for n in ("ID", "KEY", "KEY_ID", "CACHE_KEY", "ROW_KEY") if n not in taken)
    return [(name, column_type(schema.key))]


def _undo(exists: Callable[[], bool], remove: Callable[[], None]) -> None:
    """Remove the object once it exists; retry, since an unfinished one may refuse."""
    deadline = time.monotonic() + _MAKING_S
    while True:
        if exists():
            with contextlib.suppress(ServerError, CacheNotFound):
                remove()
                return
        if time.monotonic() > deadline:
            return
        time.sleep(_POLL_S)
