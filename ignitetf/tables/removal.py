"""Removes caches, tables and data sets together with their views, manifests and journals.

A command that removes or empties a data set holds its lease meanwhile, so it is refused while a
load is running.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ignitetf.errors import CacheNotFound, SchemaError, SqlError
from ignitetf.net.client import Client, cache_id
from ignitetf.net.together import together
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
    "drop_found",
    "drop_sql_table",
    "drop_table",
    "find_caches",
    "index_table",
    "remove_cache",
]


def index_table(cache: str) -> str:
    """Return the cache name of the slim table beside a cache of blocks."""
    return f"{cache}_INDEX"


def caches_of(cache: str, storage: Storage) -> list[str]:
    """Return a cache and, if the storage has one, the cache of its slim table."""
    return [cache, index_table(cache)] if storage.has_slim_table else [cache]


@dataclass(frozen=True)
class Parts:
    """What goes with a cache when it is removed.

    Attributes:
        cache: Its name.
        tables: Its tables.
        views: The views over them.
    """

    cache: str
    tables: Sequence[str]
    views: Sequence[str]


def find_parts(client: Client, cache: str) -> Parts:
    """Return what is to be removed with a cache; raises CacheNotFound if there is none."""
    tables, views = together(
        client,
        lambda: client.about("tables_of_cache", (cache,)),
        lambda: client.about("views_of_cache", (cache,)),
    )
    if not tables:
        client.require_cache(cache)
    own = [table for schema, table in tables if schema == "PUBLIC"]
    return Parts(cache, own, [view for (view,) in views])


def find_caches(client: Client, caches: Iterable[str]) -> list[Parts]:
    """Return what is to be removed with those of the caches that exist."""

    def find(cache: str) -> list[Parts]:
        try:
            return [find_parts(client, cache)]
        except CacheNotFound:
            return []

    found = together(client, *(functools.partial(find, cache) for cache in caches))
    return [parts for each in found for parts in each]


def drop_found(client: Client, found: Iterable[Parts]) -> None:
    """Remove these caches, with their tables and views."""
    for parts in found:
        with contextlib.suppress(CacheNotFound):
            _remove(client, parts)


def drop_caches(client: Client, caches: Iterable[str]) -> None:
    """Remove those of the caches that exist, with their tables."""
    drop_found(client, find_caches(client, caches))


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
    _remove(client, find_parts(client, cache))


def _remove(client: Client, parts: Parts) -> None:
    if not parts.tables:
        client.destroy_cache(parts.cache)
    for view in parts.views:
        client.sql(statement("drop_view", view=view)).close()
    for table in parts.tables:
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
