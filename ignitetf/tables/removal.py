"""Removes caches, tables and data sets together with their views, manifests and journals.

A command that removes or empties a data set holds its lease meanwhile, so it is refused while a
load is running.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from ignitetf.errors import CacheNotFound, SchemaError, SqlError
from ignitetf.net.client import Client, cache_id
from ignitetf.sql import statement
from ignitetf.tables.catalog import SEPARATOR, catalog, drop_manifest
from ignitetf.tables.describe import find_table, resolve
from ignitetf.tables.lease import Lease
from ignitetf.tables.storage import Storage
from ignitetf.tables.views import drop_views
from ignitetf.wire.codes import OpCode
from ignitetf.wire.requests import cache_request

__all__ = [
    "caches_of",
    "clear_cache",
    "drop_cache",
    "drop_caches",
    "drop_sql_table",
    "drop_table",
    "index_table",
    "remove_cache",
]


def index_table(cache: str) -> str:
    """Return the cache name of the slim table beside a cache of blocks."""
    return f"{cache}_INDEX"


def caches_of(cache: str, storage: Storage) -> list[str]:
    """Return a cache and, if the storage has one, the cache of its slim table."""
    return [cache, index_table(cache)] if storage.has_slim_table else [cache]


def drop_caches(client: Client, caches: Iterable[str]) -> None:
    """Remove those of the caches that exist, with their tables."""
    for name in caches:
        with contextlib.suppress(CacheNotFound):
            remove_cache(client, name)


def drop_cache(client: Client, name: str) -> None:
    """Remove a data set: caches, tables, views, manifest, and the remains of unfinished loads.

    Raises:
        CacheNotFound: There is no such cache.
        DataSetBusy: It is being loaded.
    """
    with _held(client, name) as (cache, data_set):
        caches = {cache} if cache == index_table(data_set) else _caches(client, data_set) | {cache}
        drop_caches(client, sorted(caches))
        if cache != index_table(data_set):
            drop_manifest(client, data_set)


def drop_table(client: Client, name: str) -> None:
    """Drop a table and its cache, or a whole data set if the name is one.

    Raises:
        CacheNotFound: There is no such table.
        DataSetBusy: It is being loaded.
    """
    table = find_table(client, name)
    data_set = _data_set(client, table["cache"])
    if data_set == table["table"] or data_set == table["cache"]:
        drop_cache(client, table["cache"] if data_set == table["cache"] else data_set)
        return
    with Lease(client, data_set, "removal", if_room=True):
        drop_views(client, table["base_table"])
        drop_sql_table(client, table["schema"], table["base_table"])


def clear_cache(client: Client, name: str) -> None:
    """Remove all entries of a cache and its manifest.

    Raises:
        CacheNotFound: There is no such cache.
        DataSetBusy: It is being loaded.
    """
    with _held(client, name) as (cache, data_set):
        client.call(OpCode.CACHE_CLEAR, cache_request(cache_id(cache)))
        drop_manifest(client, data_set)


def remove_cache(client: Client, cache: str) -> None:
    """Remove exactly this cache and its table; raises CacheNotFound if there is none."""
    client.require_cache(cache)
    rows = client.sql(statement("tables_of_cache"), (cache,)).fetchall()
    own = [table for schema, table in rows if schema == "PUBLIC"]
    if not own:
        client.destroy_cache(cache)
    for table in own:
        drop_views(client, table)
        drop_sql_table(client, "PUBLIC", table)


def drop_sql_table(client: Client, schema: str, table: str) -> None:
    """Drop a table; raises CacheNotFound if a call cut off by Ctrl-C has dropped it already."""
    try:
        client.sql(statement("drop_table", schema=schema, table=table)).close()
    except SqlError as error:
        if "Table doesn't exist" not in error.message:
            raise
        raise CacheNotFound(f"no table {table!r}", cache=table) from error


@contextlib.contextmanager
def _held(client: Client, name: str) -> Iterator[tuple[str, str]]:
    """Hold the lease of the data set that a cache belongs to; gives the cache and the data set."""
    cache = resolve(client, name)
    data_set = _data_set(client, cache)
    with Lease(client, data_set, "removal", if_room=True):
        yield cache, data_set


def _data_set(client: Client, cache: str) -> str:
    """Name of the data set stored in or being loaded into this cache; else the cache's name."""
    texts = catalog(client)
    for name, text in texts.all().items():
        if not name.endswith(f"{SEPARATOR}lease"):
            # What is damaged tells nothing, of whichever data set it is.
            with contextlib.suppress(SchemaError):
                held = texts.parse(name, text).get("cache")
                if cache in (held, index_table(held or "")):
                    return name.partition(SEPARATOR)[0]
    return cache


def _caches(client: Client, data_set: str) -> set[str]:
    """The caches of a data set, including those of a load that was stopped."""
    names = {data_set}
    # A damaged text tells no names, but must not keep anybody from removing the data set.
    with contextlib.suppress(SchemaError):
        if (manifest := catalog(client).get_json(data_set)) is not None:
            names |= {manifest.get("cache") or data_set, manifest.get("index") or data_set}
    with contextlib.suppress(SchemaError, KeyError, TypeError, AttributeError):
        if (journal := catalog(client).get_json(f"{data_set}{SEPARATOR}journal")) is not None:
            names |= set(caches_of(journal["cache"], Storage.from_json(journal["options"])))
    return names
