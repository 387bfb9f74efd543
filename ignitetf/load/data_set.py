"""Where a data set is stored: its caches, and the names it has in SQL.

run -> **data_set** -> caches, views

A data set in the row layout is one cache with a table. In the block layout it is one cache, and
optionally a slim table in a second cache. Cache names begin with the name of the data set, or of
its replacement while that is being loaded. The SQL names never change, because they are views
(`views`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from ignitetf.errors import CacheExists
from ignitetf.load.fill import index_schema
from ignitetf.load.options import LoadOptions
from ignitetf.net.client import Client
from ignitetf.tables.caches import create_cache, create_table, has_table
from ignitetf.tables.removal import remove_cache
from ignitetf.tables.spec import CacheSpec, require_room_for
from ignitetf.tables.storage import Storage, caches_of, carrier_table, index_table, rows_table
from ignitetf.tables.views import require_free, taken_names
from ignitetf.wire.answers import PartitionMap
from ignitetf.wire.schema import Schema

__all__ = [
    "create_caches",
    "require_made_by_load",
    "require_new_names",
    "require_room_for_caches",
    "views_of",
]


def create_caches(
    client: Client, schema: Schema, cache: str, options: LoadOptions, *, checked: bool = False
) -> PartitionMap | None:
    """Create the caches and tables of a data set.

    Args:
        client: The connection.
        schema: The records.
        cache: Name of the cache of the records.
        options: How they are stored.
        checked: Whether `require_room_for_caches` was called, and there are no such caches.

    Returns:
        The partition map of the cache, if a number of partitions was asked for.

    Raises:
        CacheExists: One of them exists; none is left behind.
    """
    spec, *others = _specs(schema, cache, options)
    if options.layout == "rows" and options.sql:
        table = rows_table(cache)
        return create_table(client, schema, table, spec, options.index, checked=checked)
    found = create_cache(client, spec, checked=checked)
    for slim in others:
        fields, table = index_schema(schema, options.index), rows_table(slim.name)
        try:
            create_table(client, fields, table, slim, options.index, checked=checked)
        except CacheExists:
            remove_cache(client, spec.name)
            raise
    return found


def require_room_for_caches(
    client: Client, schema: Schema, cache: str, options: LoadOptions
) -> None:
    """Raise ServerOverloaded unless the node has room for each of the caches of a data set."""
    for spec in _specs(schema, cache, options):
        require_room_for(client, spec)


def _specs(schema: Schema, cache: str, options: LoadOptions) -> list[CacheSpec]:
    """Return what the caches of a data set shall be; that of the records is the first."""
    spec = CacheSpec(
        cache,
        partitions=options.partitions,
        backups=options.backups or 0,
        affinity_key=schema.affinity_key,
    )
    if options.layout == "blocks" and options.index:
        return [spec, replace(spec, name=index_table(cache))]
    return [spec]


def views_of(name: str, cache: str, storage: Storage, schema: Schema) -> dict[str, str]:
    """Return the SQL names of a data set and the table in `cache` that each one shows.

    In the block layout the slim table also gets the name of the data set: its row count is right,
    while the number of blocks would not be.
    """
    if storage.layout == "blocks":
        slim = rows_table(index_table(cache))
        return {name: slim, index_table(name): slim} if storage.index else {}
    return {name: rows_table(cache)} if _has_rows_table(storage, schema) else {}


def require_new_names(
    client: Client,
    name: str,
    storage: Storage,
    schema: Schema,
    replaced: Callable[[], list[str]] = list,
) -> list[str]:
    """Raise CacheExists if something else already has a name that a data set needs.

    Args:
        client: The connection.
        name: Name of the data set.
        storage: How it will be stored.
        schema: Its records.
        replaced: Finds the caches that it replaces.

    Returns:
        The caches that it replaces.
    """
    caches = caches_of(name, storage)
    # The names of tables are of use to nobody else, but taken they would end a replacement late.
    rows, *slim = caches
    table = rows_table(rows) if _has_rows_table(storage, schema) else carrier_table(rows)
    shown = views_of(name, name, storage, schema)
    names = [*shown, table, *map(rows_table, slim)]
    there, taken, old = client.at_once(
        client.cache_names, lambda: taken_names(client, names), replaced
    )
    require_free(client, taken, old)
    for cache in caches:
        if cache in there and cache not in old:
            raise CacheExists(
                f"cache {cache!r} exists",
                hint="choose another name, or remove it with 'ignitetf cache drop'",
                cache=cache,
            )
    return cast("list[str]", old)


def require_made_by_load(cache: str, tables: set[str], made: tuple[Storage, Schema] | None) -> None:
    """Raise CacheExists unless a cache is one that a load has made.

    Args:
        cache: Its name.
        tables: Its tables.
        made: What the catalog says is in it: how that is stored, and its records.
    """
    # The catalog may speak of a cache that is gone, and others have made one of its name.
    if made is not None and tables:
        ours = bool(tables & {rows_table(cache), carrier_table(cache)})
    else:
        ours = made is not None and not _has_rows_table(*made)
    if not ours:
        raise CacheExists(
            f"cache {cache!r} was made by others, not by a load",
            hint="choose another name; or --if-exists replace-foreign, which removes that cache"
            " with all it holds once the new rows are loaded",
            cache=cache,
        )


def _has_rows_table(storage: Storage, schema: Schema) -> bool:
    return storage.layout == "rows" and storage.sql and has_table(schema)
