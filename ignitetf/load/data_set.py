"""The caches of a data set, and its names in SQL.

run -> **data_set** -> copy, caches, views

A data set in the row layout is one cache with a table. In the block layout it is one cache, and
optionally a slim table in a second cache. Cache names begin with the name of the data set, or of
its replacement while that is being loaded. The SQL names never change, because they are views
(`views`).

Ignite cannot rename a cache. So a replacement is loaded into a separate cache, and then copied into
a new one with the data set's name (`Replacement`). SQL shows the replacement before the old caches
are dropped, and the copy before the replacement is dropped; the manifest changes along with it.
Each step can be repeated after a kill:

- The manifest names the replacement before SQL shows it. Otherwise a later load would treat it as
  the remains of a failed load.
- The journal enters the phase `move` before the manifest names the copy. From then on only the
  journal shows that the replacement has still to be moved.
- SQL and the manifest may show the copy in any order: until the manifest names it, it is made
  again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Final, cast

from ignitetf.errors import (
    CacheExists,
    ConfigError,
    IgniteTFError,
    ServerError,
    ServerOverloaded,
)
from ignitetf.load.copy import copy_entries
from ignitetf.load.fill import index_schema
from ignitetf.load.journal import Journal, drop_journal, entries_of, require_stored, write_journal
from ignitetf.load.options import LoadOptions
from ignitetf.net.client import Client
from ignitetf.tables.caches import create_cache, create_table, has_table
from ignitetf.tables.catalog import Manifest, write_manifest
from ignitetf.tables.lease import Lease
from ignitetf.tables.removal import drop_caches, drop_found, find_caches, remove_cache
from ignitetf.tables.spec import CacheSpec, require_room_for
from ignitetf.tables.storage import (
    Storage,
    caches_of,
    carrier_table,
    helper_cache,
    index_table,
    rows_table,
)
from ignitetf.tables.views import Switch, require_free, taken_names
from ignitetf.wire.answers import PartitionMap
from ignitetf.wire.schema import Schema

__all__ = [
    "Replacement",
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
        options: Their storage options.
        checked: True if the caller has called `require_room_for_caches` and the caches do not
            exist.

    Returns:
        The partition map of the cache, if a number of partitions was requested.

    Raises:
        CacheExists: One of the caches exists; none of the new ones remains.
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
    """Return the specs of the caches of a data set; the cache of the records is the first."""
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

    In the block layout the slim table also gets the name of the data set, because its row count is
    right, unlike the number of blocks.
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
    """Raise CacheExists if another object already has a name that a data set needs.

    Args:
        client: The connection.
        name: Name of the data set.
        storage: Its storage options.
        schema: Its records.
        replaced: Returns the caches that the data set replaces.

    Returns:
        The caches that the data set replaces.
    """
    caches = caches_of(name, storage)
    # Other programs hardly use these table names, but a taken name would end a replacement late.
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
    """Raise CacheExists unless a load has made this cache.

    Args:
        cache: Its name.
        tables: Its tables.
        made: The content in the catalog: storage options and schema.
    """
    # The cache in the catalog may be gone, and another client may have made a new one of its name.
    if made is not None and tables:
        ours = bool(tables & {rows_table(cache), carrier_table(cache)})
    else:
        ours = made is not None and not _has_rows_table(*made)
    if not ours:
        raise CacheExists(
            f"cache {cache!r} was not created by an ignitetf load",
            hint="choose another name, or use --if-exists replace-foreign: it removes that cache"
            " and its entries after the new rows are loaded",
            cache=cache,
        )


def _has_rows_table(storage: Storage, schema: Schema) -> bool:
    return storage.layout == "rows" and storage.sql and has_table(schema)


# Assumed bytes of a row in a slim table; determines the page size of a copy.
_SLIM_BYTES: Final = 200


class Replacement:
    """A replacement that is completely loaded.

    Args:
        client: The connection.
        journal: The journal of its load.
        lease: The lease on the data set, already held.
    """

    def __init__(self, client: Client, journal: Journal, lease: Lease) -> None:
        self._client, self._journal, self._lease = client, journal, lease
        self._name = journal.name
        self._staging = caches_of(journal.cache, journal.storage)
        self._final = caches_of(journal.name, journal.storage)
        # The caches that it replaces, and those that an earlier try to copy it has made.
        self._superseded = list(dict.fromkeys([*journal.replaces, *self._final]))

    def _switch_to(self, cache: str) -> Switch:
        """Return a switch that makes SQL show `cache`."""
        shown = views_of(self._name, cache, self._journal.storage, self._journal.schema)
        return Switch(self._client, shown, self._journal.replaces, helper_cache(self._name))

    def take_place(self, record: Callable[[], Manifest | None]) -> None:
        """Replace the caches that the journal names.

        Args:
            record: Stores the manifest unless one exists, and returns the stored one: of the
                replacement, or of a complete copy.
        """
        manifest, switch = self._client.at_once(
            record, lambda: self._switch_to(self._journal.cache)
        )
        if manifest is None:  # someone has removed the data set
            remains = find_caches(self._client, self._staging)
        else:
            switch = self._shown_by_name(manifest, switch)
            (remains,) = switch.end(lambda: find_caches(self._client, self._staging))
        self._lease.check()
        drop_found(self._client, remains)
        drop_journal(self._client, self._name)

    def _shown_by_name(self, manifest: Manifest, switch: Switch) -> Switch:
        """Make the copy, unless the manifest names it already, and make SQL show it."""
        if manifest.cache != self._journal.cache:
            switch = self._switch_to(self._name)
            self._lease.check()
            switch.run()
            return switch
        self._copy(manifest, *self._show(switch))
        index = None if manifest.index is None else index_table(self._name)
        final = replace(manifest, cache=self._name, index=index)
        _, switch = self._client.at_once(
            lambda: require_stored(self._client, self._journal, final),
            lambda: self._switch_to(self._name),
        )
        self._lease.check()
        switch.run(lambda: write_manifest(self._client, final))
        return switch

    def _show(self, switch: Switch) -> tuple[int, bool]:
        """Make SQL show the replacement, and drop the caches that it replaces.

        Returns:
            The number of its partitions, and whether the nodes certainly have room for a copy.
        """
        self._lease.check()
        if switch.blocked:
            # A table made by others (CREATE TABLE): no view can take its name until it is gone.
            drop_caches(self._client, self._superseded)
        self._journal.phase = "move"
        partitions, _ = switch.run(
            lambda: self._client.partition_count(self._journal.cache),
            lambda: write_journal(self._client, self._journal),
        )
        old, has_room = switch.end(
            lambda: find_caches(self._client, self._superseded),
            self._has_room,
        )
        self._lease.check()
        drop_found(self._client, old)
        return partitions, has_room

    def _options(self) -> LoadOptions:
        # The options of the replacement, which this cluster has already accepted.
        storage = self._journal.storage
        return LoadOptions(
            self._journal.partitions,
            self._journal.backups,
            storage.layout,
            storage.index,
            limit=None,
            sql=storage.sql,
        )

    def _has_room(self) -> bool:
        """True if there is room for the copy before the replaced caches are dropped."""
        try:
            require_room_for_caches(self._client, self._journal.schema, self._name, self._options())
        except ServerOverloaded:
            return False
        return True

    def _copy(self, manifest: Manifest, partitions: int, has_room: bool) -> None:
        """Make the caches with the name of the data set, and copy all entries into them."""
        entries = entries_of(manifest)
        size = max(1, manifest.nbytes // max(1, entries))
        copy = functools.partial(
            copy_entries,
            self._client,
            partitions=partitions,
            entries=entries,
            check_lease=self._lease.check,
        )
        (rows, *slim), (rows_to, *slim_to) = self._staging, self._final
        try:
            copy(rows, rows_to, entry_bytes=size, make=lambda: self._make(has_room))
            for table, table_to in zip(slim, slim_to, strict=True):
                copy(table, table_to, entry_bytes=_SLIM_BYTES)
        except ServerOverloaded as error:
            # An incomplete copy is useless, and on a full node it would block all other work.
            self._lease.check()
            drop_caches(self._client, self._final)
            raise self._explained(error, "free memory (remove other data, or add nodes)") from error
        except CacheExists as error:
            raise self._explained(error, "remove the cache that has its name") from error
        except (ConfigError, ServerError) as error:
            raise self._explained(error, error.hint or "remove the cause") from error

    def _explained(self, error: IgniteTFError, help_: str) -> IgniteTFError:
        return error.hinted(
            f"{self._name!r} has its new rows, still in another cache; {help_}, then load"
            " again with --if-exists resume"
        )

    def _make(self, has_room: bool) -> None:
        self._lease.check()
        create_caches(
            self._client,
            self._journal.schema,
            self._name,
            self._options(),
            checked=has_room,
        )
