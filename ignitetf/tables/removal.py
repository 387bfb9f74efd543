"""Removes caches, tables and data sets with their views, manifests and journals.

A command that removes or empties a data set holds its lease, so it is refused while a load is
running. The parts of a data set are found by its names and by the catalog, which is cleared last.
So an interrupted removal can be repeated, also if another program has removed a part (`DROP
TABLE`).
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ignitetf.errors import CacheNotFound, ConfigError, SchemaError, SqlError
from ignitetf.net.client import Client, cache_id, connect
from ignitetf.sql import statement
from ignitetf.tables.catalog import (
    SEPARATOR,
    Manifest,
    catalog,
    drop_manifest,
    forget_journal,
    write_manifest,
)
from ignitetf.tables.describe import find_table, resolve
from ignitetf.tables.lease import Lease
from ignitetf.tables.names import quoted
from ignitetf.tables.nodes import wait_dropped
from ignitetf.tables.storage import (
    Storage,
    caches_of,
    helper_cache,
    index_table,
    is_staging,
    rows_table,
)
from ignitetf.tables.views import drop_views, shown_cache, taken_names
from ignitetf.wire.codes import OpCode
from ignitetf.wire.requests import cache_request

__all__ = [
    "Found",
    "clear_cache",
    "count_removable",
    "drop_cache",
    "drop_caches",
    "drop_dataset",
    "drop_found",
    "drop_sql_table",
    "drop_table",
    "find_caches",
    "find_removable",
    "remove_cache",
]


class Found(NamedTuple):
    """The cache and data set that a name refers to, for a removal.

    Attributes:
        cache: The cache; it may be missing if the name is that of a data set.
        data_set: The data set that the cache belongs to; otherwise the cache's name.
    """

    cache: str
    data_set: str


@dataclass(frozen=True)
class Parts:
    """A cache with the tables and views that are removed with it.

    Attributes:
        cache: Its name.
        tables: Its tables, each with its schema.
        views: The views over them.
    """

    cache: str
    tables: Sequence[tuple[str, str]]
    views: Sequence[str]


def find_parts(client: Client, cache: str) -> Parts:
    """Return the parts to remove with a cache; raises CacheNotFound if it does not exist."""
    tables, views = client.at_once(
        lambda: client.about("tables_of_cache", (cache,)),
        lambda: client.about("views_of_cache", (cache,)),
    )
    if not tables:
        client.require_cache(cache)
    return Parts(cache, [(schema, table) for schema, table in tables], [view for (view,) in views])


def find_caches(client: Client, caches: Iterable[str]) -> list[Parts]:
    """Return the parts to remove with each of these caches that exists."""

    def find(cache: str) -> list[Parts]:
        try:
            return [find_parts(client, cache)]
        except CacheNotFound:
            return []

    found = client.at_once(*(functools.partial(find, cache) for cache in caches))
    return [parts for each in found for parts in each]


def drop_found(client: Client, found: Iterable[Parts]) -> None:
    """Remove these caches, with their tables and views, from every node."""
    found = list(found)
    for parts in found:
        with contextlib.suppress(CacheNotFound):
            _remove(client, parts)
    wait_dropped(client, [parts.cache for parts in found if parts.tables])


def drop_caches(client: Client, caches: Iterable[str]) -> None:
    """Remove the caches that exist, with their tables."""
    drop_found(client, find_caches(client, caches))


def find_removable(client: Client, name: str) -> Found:
    """Return the cache and data set of a name, even if only its catalog entries remain.

    Raises:
        CacheNotFound: Neither a cache nor a data set has this name.
    """
    entries = catalog(client).all()
    if _has_records(entries, name):
        return Found(name, name)
    try:
        cache = resolve(client, name)
    except CacheNotFound:
        # A killed process may have left only the lease.
        if f"{name}{SEPARATOR}lease" in entries:
            return Found(name, name)
        raise
    return Found(cache, _data_set(entries, cache))


def count_removable(client: Client, name: str) -> tuple[str, int]:
    """Return the cache of a name and its number of entries; raises as `find_removable` does."""
    cache = find_removable(client, name).cache
    with contextlib.suppress(CacheNotFound):
        cache = resolve(client, name)
        return cache, client.cache_size(cache)
    return cache, 0


def drop_cache(client: Client, name: str) -> None:
    """Remove a data set: caches, tables, views, manifest, and the remains of unfinished loads.

    Raises:
        CacheNotFound: The cache does not exist.
        DataSetBusy: It is being loaded.
    """
    with _held(client, name) as (cache, data_set):
        if cache == index_table(data_set):
            drop_caches(client, [cache])
        else:
            _drop_all(client, data_set, cache)


def drop_dataset(name: str, *, client: Client | None = None, missing_ok: bool = False) -> None:
    """Remove a data set or another cache, with its tables, views and unfinished loads.

    Args:
        name: Name of the data set or cache.
        client: The connection; None connects with the current settings.
        missing_ok: True if it may be missing.

    Raises:
        CacheNotFound: Neither a cache nor a data set has this name.
        DataSetBusy: It is being loaded.
    """
    with contextlib.nullcontext(client) if client is not None else connect() as connected:
        try:
            drop_cache(connected, name)
        except CacheNotFound:
            if not missing_ok:
                raise


def drop_table(client: Client, name: str) -> None:
    """Drop a table and its cache, or a whole data set if the name is one.

    Raises:
        CacheNotFound: The table does not exist.
        DataSetBusy: It is being loaded.
    """
    try:
        table = find_table(client, name)
    except CacheNotFound:
        if _has_records(catalog(client).all(), name):
            return drop_cache(client, name)
        raise
    data_set = _data_set(catalog(client).all(), table["cache"])
    if data_set == table["table"] or data_set == table["cache"]:
        drop_cache(client, table["cache"] if data_set == table["cache"] else data_set)
        return
    with Lease(client, data_set, "removal", if_room=True):
        drop_views(client, table["base_table"])
        drop_sql_table(client, table["schema"], table["base_table"])
        wait_dropped(client, [table["cache"]])


def clear_cache(client: Client, name: str) -> None:
    """Remove all entries of a cache; a data set remains, without rows.

    An incomplete data set, whose load or replacement was stopped, is removed.

    Raises:
        CacheNotFound: The cache does not exist.
        ConfigError: It is the slim table of a data set, whose rows would stay.
        DataSetBusy: It is being loaded.
    """
    with _held(client, name) as (cache, data_set):
        if cache == index_table(data_set):
            raise ConfigError(
                f"cache {cache!r} belongs to the data set {data_set!r}; its rows would stay",
                hint=f"'ignitetf cache clear {data_set}' empties all of it",
            )
        found, journal = _recorded(client, data_set), _recorded(client, _journal(data_set))
        if found is None and journal is None:
            _clear(client, cache)
        elif (manifest := _whole(client, found, journal)) is None:
            _drop_all(client, data_set, cache)
        else:
            own = _own_caches(manifest)
            drop_caches(client, sorted(_caches(client, data_set) - own))
            for each in sorted(own):
                _clear(client, each)
            write_manifest(client, _without_rows(manifest))
            forget_journal(client, data_set)


def _clear(client: Client, cache: str) -> None:
    client.call(OpCode.CACHE_CLEAR, cache_request(cache_id(cache)))


def _without_rows(manifest: Manifest) -> Manifest:
    """Return the manifest of a data set after its rows were removed; rows may be appended."""
    facts = manifest.options
    return replace(
        manifest,
        rows=0,
        partition_rows=(0,) * len(manifest.partition_rows),
        checksum="0" * 16,
        source="",
        version=manifest.version + 1,
        skipped=0,
        nbytes=0,
        options=replace(
            facts,
            next_key=None if facts.next_key is None else 0,
            origin=None,
            blocks=(0,) * len(facts.blocks),
            block_rows=(),
        ),
    )


def _whole(
    client: Client, found: Mapping[str, Any] | None, journal: Mapping[str, Any] | None
) -> Manifest | None:
    """Return the manifest if the data set is complete in the cache of its name; otherwise None."""
    try:
        manifest = Manifest.from_json(found or {})
    except SchemaError:
        return None
    moving = journal is not None and journal.get("phase") == "move"
    if moving or manifest.cache != manifest.name:
        return None
    return manifest if _own_caches(manifest) <= set(client.cache_names()) else None


def _own_caches(manifest: Manifest) -> set[str]:
    return {manifest.cache, manifest.index or manifest.cache}


def remove_cache(client: Client, cache: str) -> None:
    """Remove exactly this cache and its table; raises CacheNotFound if it does not exist."""
    parts = find_parts(client, cache)
    _remove(client, parts)
    wait_dropped(client, [cache] if parts.tables else [])


def _remove(client: Client, parts: Parts) -> None:
    for view in parts.views:
        client.sql(statement("drop_view", view=view)).close()
    try:
        for schema, table in parts.tables:
            drop_sql_table(client, schema, table)
    except SqlError as error:
        # If the cache was made from a configuration, as by Java, its tables are removed with it.
        if "Only cache created with CREATE TABLE" not in error.message:
            raise
    else:
        if parts.tables:
            return
    client.destroy_cache(parts.cache)


def drop_sql_table(client: Client, schema: str, table: str) -> None:
    """Drop a table; raises CacheNotFound if an interrupted call has already dropped it."""
    try:
        client.sql(f"DROP TABLE {quoted(schema)}.{quoted(table)}").close()
    except SqlError as error:
        if "Table doesn't exist" not in error.message:
            raise
        raise CacheNotFound(f"no table {table!r}", cache=table) from error


@contextlib.contextmanager
def _held(client: Client, name: str) -> Iterator[Found]:
    """Hold the lease of the data set that a name refers to; yields what was found."""
    found = find_removable(client, name)
    with Lease(client, found.data_set, "removal", if_room=True):
        yield found


def _data_set(entries: Mapping[str, str], cache: str) -> str:
    """Return the data set stored in or being loaded into this cache, or the cache's name."""
    for name, text in entries.items():
        if not name.endswith(f"{SEPARATOR}lease"):
            # Skip damaged entries, whichever data set they belong to.
            with contextlib.suppress(ValueError, AttributeError):
                held = json.loads(text).get("cache")
                if cache in (held, index_table(held or "")):
                    return name.partition(SEPARATOR)[0]
    return cache


def _journal(data_set: str) -> str:
    return f"{data_set}{SEPARATOR}journal"


def _recorded(client: Client, entry: str) -> Mapping[str, Any] | None:
    """Return an entry of the catalog; empty if it is damaged, None if it does not exist."""
    try:
        return catalog(client).get_json(entry)
    except SchemaError:
        return {}


def _drop_all(client: Client, data_set: str, cache: str) -> None:
    """Remove a cache and its data set: views first, catalog entries last."""
    for view in _views(client, data_set):
        client.sql(statement("drop_view", view=view)).close()
    drop_caches(client, sorted(_caches(client, data_set) | {cache}))
    drop_manifest(client, data_set)


def _caches(client: Client, data_set: str) -> set[str]:
    """Return the caches of a data set, including those of a load that was stopped."""
    names = {data_set}
    if (manifest := _recorded(client, data_set)) is not None:
        names |= {manifest.get("cache") or data_set, manifest.get("index") or data_set}
    # A damaged text has no names, but must not prevent the removal of the data set.
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        if (journal := _recorded(client, _journal(data_set))) is not None:
            names |= set(caches_of(journal["cache"], Storage.from_json(journal["options"])))
    names |= {name for name in client.cache_names() if _is_own_cache(client, name, data_set)}
    entries = catalog(client).all()
    return {name for name in names if name == data_set or not _has_records(entries, name)}


def _is_own_cache(client: Client, cache: str, data_set: str) -> bool:
    """True if a load of the data set uses this cache name, and a load made this cache."""
    made = {index_table(data_set): rows_table(index_table(data_set))}
    made[helper_cache(data_set)] = helper_cache(data_set)
    if cache in made:
        return ("PUBLIC", made[cache]) in client.about("tables_of_cache", (cache,))
    return is_staging(cache, data_set)


def _views(client: Client, data_set: str) -> list[str]:
    """Return the views that a load made for a data set, including those without a table."""
    names = [data_set]
    if not _has_records(catalog(client).all(), index_table(data_set)):
        names.append(index_table(data_set))
    return [
        name
        for kind, name, text in taken_names(client, names)
        if kind == "VIEW"
        and (shown := shown_cache(text)) is not None
        and (shown in names or is_staging(shown, data_set))
    ]


def _has_records(entries: Mapping[str, str], name: str) -> bool:
    """True if the catalog has a manifest or a journal of this name."""
    return name in entries or _journal(name) in entries
