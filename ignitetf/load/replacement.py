"""`Replacement`: a loaded replacement takes the place of the data set that it replaces.

run -> **replacement** -> copy, views, caches

Ignite cannot rename a cache, so what was loaded into a cache beside the data set's is copied into a
new one with its name. SQL shows the replacement before the old caches are dropped, and the copy
before the replacement is dropped; the manifest changes along with it. Each step can be repeated
after a kill:

- The manifest names the replacement before SQL shows it, since only then a later load knows that
  it is no remains of a failed one.
- The journal says that the replacement has only to be moved before the manifest names the copy,
  which from then on is all that says so.
- Whether SQL or the manifest shows the copy first does not matter: until the manifest names it, it
  is made anew.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ignitetf.errors import (
    CacheExists,
    ConfigError,
    IgniteTFError,
    ServerError,
    ServerOverloaded,
)
from ignitetf.load.copy import copy_entries
from ignitetf.load.data_set import create_caches, require_room_for_caches, views_of
from ignitetf.load.finish import entries_of, require_stored
from ignitetf.load.journal import Journal, drop_journal, write_journal
from ignitetf.load.options import LoadOptions
from ignitetf.net.client import Client
from ignitetf.tables.catalog import Manifest, write_manifest
from ignitetf.tables.lease import Lease
from ignitetf.tables.removal import drop_caches, drop_found, find_caches
from ignitetf.tables.storage import caches_of, helper_cache, index_table
from ignitetf.tables.views import Switch

__all__ = ["Replacement"]

# Assumed bytes of a row in a slim table, from which the page size of a copy follows.
_SLIM_BYTES: Final = 200


class Replacement:
    """A replacement that is loaded, and whose rows are whole.

    Args:
        client: The connection.
        journal: Of its load.
        lease: The lease on the data set, already held.
    """

    def __init__(self, client: Client, journal: Journal, lease: Lease) -> None:
        self._client, self._journal, self._lease = client, journal, lease
        self._name = journal.name
        self._staging = caches_of(journal.cache, journal.storage)
        self._final = caches_of(journal.name, journal.storage)
        # What it supersedes, or an earlier copy of it has made.
        self._superseded = list(dict.fromkeys([*journal.replaces, *self._final]))

    def _switch_to(self, cache: str) -> Switch:
        """Prepare to let SQL show `cache`."""
        shown = views_of(self._name, cache, self._journal.storage, self._journal.schema)
        return Switch(self._client, shown, self._journal.replaces, helper_cache(self._name))

    def take_place(self, record: Callable[[], Manifest | None]) -> None:
        """Let it take the place of what the journal says it replaces.

        Args:
            record: Stores its manifest, unless there is one, and returns what is stored then: the
                replacement's, or that of a copy which is whole.
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
        """Make the copy, unless the manifest names it already, and let SQL show it."""
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
        """Let SQL show it, and drop what it replaces.

        Returns:
            The number of its partitions, and whether there is known to be room for a copy.
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
        old, roomy = switch.end(
            lambda: find_caches(self._client, self._superseded),
            self._has_room,
        )
        self._lease.check()
        drop_found(self._client, old)
        return partitions, roomy

    def _options(self) -> LoadOptions:
        # As the replacement was made, so that what this cluster could make once it makes again.
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
        """Whether there is room for the copy even beside what is still to be dropped."""
        try:
            require_room_for_caches(self._client, self._journal.schema, self._name, self._options())
        except ServerOverloaded:
            return False
        return True

    def _copy(self, manifest: Manifest, partitions: int, roomy: bool) -> None:
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
            copy(rows, rows_to, entry_bytes=size, make=lambda: self._make(roomy))
            for table, table_to in zip(slim, slim_to, strict=True):
                copy(table, table_to, entry_bytes=_SLIM_BYTES)
        except ServerOverloaded as error:
            # A part of the copy is of no use, and on a full node nothing else could be done.
            self._lease.check()
            drop_caches(self._client, self._final)
            raise self._explained(error, "make room (more nodes, or other data removed)") from error
        except CacheExists as error:
            raise self._explained(error, "remove what others made under its name") from error
        except (ConfigError, ServerError) as error:
            raise self._explained(error, error.hint or "remove the cause") from error

    def _explained(self, error: IgniteTFError, help_: str) -> IgniteTFError:
        return error.hinted(
            f"{self._name!r} already has its new rows, in another cache for now; {help_}, then load"
            " again with --if-exists resume"
        )

    def _make(self, roomy: bool) -> None:
        self._lease.check()
        create_caches(
            self._client,
            self._journal.schema,
            self._name,
            self._options(),
            checked=roomy,
        )
