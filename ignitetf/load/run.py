"""`Load`: loads one source into one cache, from the first checks to the report.

begin -> journal -> fill -> check -> manifest -> **report**
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from ignitetf.errors import (
    CacheExists,
    ConfigError,
    ConnectError,
    DataSetBusy,
    IgniteTFError,
    LoadInterrupted,
    RequestTimeout,
    SqlError,
)
from ignitetf.load.data_set import (
    Replacement,
    create_caches,
    require_made_by_load,
    require_new_names,
    require_room_for_caches,
    views_of,
)
from ignitetf.load.equal_keys import settle_equal_keys
from ignitetf.load.fill import Filler, Owners, Progress, index_schema, register_entries
from ignitetf.load.journal import (
    Journal,
    Mode,
    add_journal,
    drop_journal,
    journal_question,
    manifest_of,
    read_journal,
    require_seen,
    require_stored,
    successor,
    write_journal,
)
from ignitetf.load.options import (
    LoadOptions,
    LoadReport,
    exists_error,
    interrupted_error,
    next_key,
    require_alike,
    require_named_classes,
    require_same_source,
    require_same_storage,
    type_name_of,
)
from ignitetf.load.sources.base import Source
from ignitetf.net.client import Client
from ignitetf.partitions import DEFAULT_PARTITIONS
from ignitetf.tables.caches import UNSAFE_LOSS, backups_of, loss_policy_of
from ignitetf.tables.catalog import (
    Manifest,
    forget_manifest,
    manifest_question,
    read_manifest,
    write_manifest,
)
from ignitetf.tables.lease import Lease
from ignitetf.tables.removal import drop_caches
from ignitetf.tables.storage import IfExists, Storage, caches_of, is_replacing, staging_cache
from ignitetf.tables.typenames import with_free_name
from ignitetf.tables.views import publish
from ignitetf.wire.answers import NodeEndpoint, PartitionMap
from ignitetf.wire.blocks import block_schema
from ignitetf.wire.schema import Schema

__all__ = ["Load"]


class _TargetFacts(NamedTuple):
    """Facts about the cluster that a load of new caches needs.

    Attributes:
        replaces: The caches that it replaces.
        schema: Its records, with an unused type name.
        nodes: The server nodes.
    """

    replaces: list[str]
    schema: Schema
    nodes: list[NodeEndpoint]


class Load:
    """Loads one source into one cache."""

    def __init__(
        self,
        client: Client,
        source: Source,
        name: str,
        options: LoadOptions,
        on_progress: Progress | None,
    ) -> None:
        self.client, self.source, self.name, self.options = client, source, name, options
        self.on_progress = on_progress or (lambda rows, nbytes: None)
        self.fingerprint = source.fingerprint()
        self.requested = options.partitions
        self.schema = replace(source.schema, type_name=type_name_of(source.schema, name))
        options.check(self.schema)
        self.resumed = 0
        self.notes: list[str] = []
        self.lease = Lease(client, name, "load")
        # The journal of this load while it exists; `resume` continues from it.
        self.unfinished: Journal | None = None
        # Facts collected before the lease was taken; None if something prevents the load.
        self._facts: _TargetFacts | None = None

    def acquire_lease(self, leases: contextlib.ExitStack) -> None:
        """Take the lease for a load that may be the first of its name, and collect facts meanwhile.

        If another client creates the data set meanwhile, later steps notice it: the journal is only
        added if none exists, and the names are checked again.

        Args:
            leases: Releases the lease at its end.
        """
        _, self._facts = self.client.at_once(
            lambda: leases.enter_context(self.lease), self._collect_facts
        )

    def _collect_facts(self) -> _TargetFacts | None:
        """Return the facts for a new load; None if something prevents it (reported later)."""
        given = self.options
        new = self._journal("new", self.name)
        self._choose_partitions(new)
        try:
            exists, known, facts = self.client.at_once(
                lambda: self.client.cache_exists(self.name),
                lambda: self.client.ask(
                    journal_question(self.client, self.name),
                    manifest_question(self.client, self.name),
                ),
                lambda: self._survey(new),
            )
        except IgniteTFError:
            return None
        finally:
            self.options = given
        return None if exists or known != [None, None] else facts

    def run(self, if_exists: IfExists) -> LoadReport:
        """Load according to `if_exists`; the caller holds the lease.

        Raises:
            LoadInterrupted: The cluster did not recover; stored rows are kept.
            DataSetBusy: The lease was lost; no more rows are written.
        """
        self.began = time.perf_counter()
        try:
            return self._run(if_exists)
        except (ConnectError, RequestTimeout) as error:
            if self.unfinished is None:
                raise
            raise interrupted_error(self.unfinished, error) from error

    def _run(self, if_exists: IfExists) -> LoadReport:
        if self._facts is not None:
            given = self.options
            try:
                return self._load(self._journal("new", self.name), facts=self._facts)
            except CacheExists:
                if not is_replacing(if_exists):
                    raise
                self.options = given
        exists, journal = self.inspect(if_exists)
        if if_exists == "resume":
            return self._resume(exists, journal)
        if is_replacing(if_exists):
            return self._replace(exists, journal)
        if journal is not None and (exists or journal.mode == "replace"):
            raise exists_error(self.name, journal)
        if not exists:
            return self._load_first()
        if if_exists == "append":
            return self._fill(self.begin_append(), fresh=False)
        raise exists_error(self.name, None)

    # Kinds of loads

    def begin_append(self, key_base: int | None = None) -> Journal:
        """Check that rows can be appended; writes and returns the journal.

        Args:
            key_base: First running key; None continues after the existing ones.
        """
        if key_base is not None and not self.client.cache_exists(self.name):
            journal = self._journal("new", self.name)
            journal.key_base = key_base
            self._note(journal)
            return journal
        old = read_manifest(self.client, self.name)
        if old is None:
            raise ConfigError(
                f"cache {self.name!r} was not loaded by ignitetf, so its rows are unknown",
                hint="write to it with SQL, or load into another cache",
            )
        require_alike(self.schema, self.options.layout, old)
        require_named_classes(self.source.class_names, old)
        self.source.use_classes(old.class_names)
        self.schema = old.schema
        journal = self._journal("append", old.cache)
        if self.source.key_name is None:
            journal.key_base = next_key(self.client, old) if key_base is None else key_base
        journal.blocks, journal.block_rows = old.options.blocks, old.options.block_rows
        self._note(journal)
        return journal

    def inspect(self, if_exists: IfExists) -> tuple[bool, Journal | None]:
        """Return whether the cache of this name exists, and the journal of an unfinished load.

        Raises:
            CacheExists: Another program made it, and `if_exists` is `replace`.
        """
        more: list[Callable[[], Any]] = [
            lambda: read_manifest(self.client, self.name),
            lambda: self.client.about("tables_of_cache", (self.name,)),
        ]
        exists, journal, *found = self.client.at_once(
            lambda: self.client.cache_exists(self.name),
            lambda: read_journal(self.client, self.name),
            *(more if if_exists == "replace" else ()),
        )
        if exists and found:
            manifest, tables = found
            made = None
            if manifest is not None:
                made = manifest.options.storage, manifest.schema
            elif journal is not None and journal.mode == "new":
                made = journal.storage, journal.schema
            require_made_by_load(self.name, {table for _, table in tables}, made)
        return exists, journal

    def _replace(self, exists: bool, journal: Journal | None) -> LoadReport:
        """Load into a staging cache, then swap; readers see the old or the new rows, never both."""
        if journal is not None:
            manifest = read_manifest(self.client, self.name)
            if self._is_loaded(journal, manifest):
                self._take_place(journal, lambda: manifest)
                journal, exists = None, True
        if journal is not None and journal.mode != "append":
            drop_caches(self.client, caches_of(journal.cache, journal.storage))
            drop_journal(self.client, self.name)
            exists = exists and journal.mode != "new"
        if not exists:
            if journal is not None and self.options.backups is None:
                # The unfinished load requested this number.
                self.options = replace(self.options, backups=journal.backups)
            return self._load_first()
        self._keep_distribution()
        new = self._journal("replace", self.name)
        new.cache = staging_cache(self.name, new.load)
        return self._load(new)

    def _load_first(self) -> LoadReport:
        """Load a data set that has no rows yet."""
        return self._load(
            self._journal("new", self.name),
            # Otherwise readers would take the new rows for rows of a removed data set.
            lambda: forget_manifest(self.client, self.name),
        )

    def _caches(self) -> list[str]:
        """Return the current caches of the data set."""
        manifest = read_manifest(self.client, self.name)
        slim = None if manifest is None else manifest.index
        return [self.name] if slim is None else [self.name, slim]

    def _resume(self, exists: bool, journal: Journal | None) -> LoadReport:
        if journal is None:
            return self._resume_finished(exists)
        require_same_source(journal, self.fingerprint, resumable=self.source.resumable)
        self._require_storage(journal.storage)
        self.resumed = journal.rows
        self.options = replace(self.options, partitions=journal.partitions, backups=journal.backups)
        manifest = read_manifest(self.client, self.name)
        if self._is_loaded(journal, manifest):
            self._take_place(journal, lambda: manifest)
            return self._report(journal)
        missing = not self.client.cache_exists(journal.cache)
        if missing or (journal.rows == 0 and journal.mode != "append"):
            # It is unknown whether rows are stored, and which caches were created.
            drop_caches(self.client, caches_of(journal.cache, journal.storage))
            self.resumed = 0
            again = self._journal(journal.mode, journal.cache)
            again.key_base, again.replaces = journal.key_base, journal.replaces
            return self._load(again)
        if journal.mode == "append" and manifest is not None:
            self.source.use_classes(manifest.class_names)
        self.unfinished = journal
        return self._fill(journal, fresh=False)

    def _is_loaded(self, journal: Journal, manifest: Manifest | None) -> bool:
        """True if a replacement is loaded and only has to be copied to its final name."""
        if journal.mode != "replace":
            return False
        if manifest is not None and manifest.cache == journal.cache:
            # Another client may have removed it since; then it must be loaded again.
            return self.client.cache_exists(journal.cache)
        return journal.phase == "move"

    def _keep_distribution(self) -> None:
        """Keep the partitions and copies of the old cache, unless the options request others."""
        options = self.options
        partitions, backups = self.client.at_once(
            lambda: options.partitions or self.client.partition_count(self.name),
            lambda: self._backups_kept() if options.backups is None else options.backups,
        )
        if options.partitions is None and partitions == DEFAULT_PARTITIONS:
            partitions = None
        self.options = replace(options, partitions=partitions, backups=backups)

    def _backups_kept(self) -> int:
        try:
            return backups_of(self.client, self.name)
        except SqlError:  # a cluster without SQL, or views that this user must not see
            manifest = read_manifest(self.client, self.name)
            return 0 if manifest is None else manifest.options.backups

    def _resume_finished(self, exists: bool) -> LoadReport:
        """Resume without an interrupted load: load the data set if it is missing."""
        if not exists:
            return self._load_first()
        manifest = read_manifest(self.client, self.name)
        if manifest is None or self.fingerprint not in manifest.source.split():
            raise ConfigError(
                f"cache {self.name!r} has no unfinished load of this source",
                hint="--if-exists append adds rows to it, --if-exists replace replaces its rows",
            )
        if manifest.source == self.fingerprint:
            self._require_storage(manifest.options.storage)
        journal = self._journal("new", self.name)
        journal.rows, journal.nbytes = manifest.rows, manifest.nbytes
        journal.skipped, self.resumed = manifest.skipped, manifest.rows
        return self._report(journal)

    # The work

    def _load(
        self,
        journal: Journal,
        *calls: Callable[[], object],
        facts: _TargetFacts | None = None,
    ) -> LoadReport:
        """Create the journal's caches and fill them; after bad input nothing remains.

        Args:
            journal: The journal of the load.
            *calls: Calls to run before the caches are created.
            facts: Facts collected before the lease was taken; None collects them now.
        """
        is_early = facts is not None
        if is_early:
            calls = (lambda: self._require_none(journal), *calls)
        self._choose_partitions(journal)
        journal.replaces, named, nodes = facts or self._survey(journal)
        journal.schema = self.schema = named
        creates = made = False
        try:
            self.client.at_once(
                lambda: self._note(journal, only_add=is_early),
                lambda: register_entries(self.client, journal),
                *calls,
            )
            creates = True
            found = self._create_new(journal)
            made = True
            owners = None if found is None else Owners(found, nodes)
            return self._fill(journal, fresh=True, owners=owners)
        except BaseException as error:
            # Once SQL shows a replacement, it may be the only copy of the data set.
            if journal.phase == "load" and not _is_kept(error, made=made):
                # After CacheExists, the caches belong to another client.
                ours = creates and not isinstance(error, CacheExists)
                with contextlib.suppress(ConnectError, RequestTimeout):
                    self._forget(journal, caches=ours)
            raise

    def _survey(self, journal: Journal) -> _TargetFacts:
        """Return the facts for a load; raises an error if a name is taken or memory is too small."""
        stored = [self.schema]
        if self.options.layout == "blocks":
            slim = index_schema(self.schema, self.options.index)
            stored = [block_schema(self.schema), slim]
        replaces, named, _, nodes = self.client.at_once(
            lambda: self._replaced(journal),
            lambda: with_free_name(self.client, self.schema, stored),
            lambda: require_room_for_caches(self.client, self.schema, journal.cache, self.options),
            self.client.nodes,
        )
        return _TargetFacts(replaces, named, nodes)

    def _require_none(self, journal: Journal) -> None:
        """Raise CacheExists if caches with the names of a new load exist."""
        there = self.client.cache_names()
        if any(cache in there for cache in caches_of(journal.cache, journal.storage)):
            raise exists_error(self.name, None)

    def _replaced(self, journal: Journal) -> list[str]:
        """Return the caches that a new load replaces; raises CacheExists if a name is taken."""
        if journal.replaces:  # an earlier attempt has checked the names
            return journal.replaces
        replaced = self._caches if journal.mode == "replace" else list
        return require_new_names(self.client, self.name, journal.storage, self.schema, replaced)

    def _fill(self, journal: Journal, *, fresh: bool, owners: Owners | None = None) -> LoadReport:
        filler = Filler(self.client, self.source, journal, self.lease, self.on_progress)
        filler.run(fresh=fresh, owners=owners)
        if filler.with_nulls:
            self.notes.append(
                f"{self.name}: some rows have no value in {', '.join(sorted(filler.with_nulls))};"
                " reading batches needs nulls='mask', 'default' or 'drop'"
            )
        key_name = self.source.key_name
        if key_name is not None and filler.layout == "blocks" and not filler.ascending.holds:
            settle_equal_keys(self.client, journal, key_name, self.lease)
        manifest = manifest_of(journal, self.source)
        views = {}
        if fresh or journal.mode == "new":
            views = views_of(self.name, self.name, journal.storage, journal.schema)
        shown = views_of(self.name, journal.cache, journal.storage, journal.schema)
        tables = shown.values() if journal.rows else ()
        self.lease.check()
        _, _, _, old, _, policy = self.client.at_once(
            lambda: write_journal(self.client, journal),
            lambda: require_stored(self.client, journal, manifest, self.source.key_name),
            lambda: require_seen(self.client, self.name, tables),
            lambda: read_manifest(self.client, self.name),
            lambda: views and self.client.has_views,
            lambda: loss_policy_of(self.client, journal.cache),
        )
        if policy == UNSAFE_LOSS and journal.mode != "append":
            self.notes.append(
                f"{self.name}: the cluster has no cache template of ignitetf, so a partition that is"
                " lost with its node reads as empty"
            )
        self.lease.check()
        if journal.mode == "replace":
            # From now on the replacement may be the only copy of the data set.
            journal.phase = "move"
            self._take_place(journal, lambda: self._record(old, manifest, journal))
            return self._report(journal)
        self.client.at_once(
            lambda: self._record(old, manifest, journal),
            lambda: publish(self.client, views),
        )
        self._drop_journal()
        return self._report(journal)

    def _record(self, old: Manifest | None, manifest: Manifest, journal: Journal) -> Manifest:
        """Write the manifest, unless this load wrote it before it was interrupted."""
        if old is not None and old.options.load == journal.load:
            return old
        new = successor(self.client, old, manifest, journal.mode)
        write_manifest(self.client, new)
        return new

    def _choose_partitions(self, journal: Journal) -> None:
        """Choose the number of partitions for the rows of a new cache, unless one was requested."""
        if journal.mode == "new" and journal.partitions is None:
            journal.partitions = self.options.fitting_partitions
            self.options = replace(self.options, partitions=journal.partitions)

    def _create_new(self, journal: Journal) -> PartitionMap | None:
        """Create the caches; uses the cluster's default number if it lacks the chosen one."""
        try:
            return self._create(journal.cache, checked=True)
        except ConfigError as error:
            if self.requested is not None or "partitions" not in error.fields:
                raise
            journal.partitions = None
            self.options = replace(self.options, partitions=None)
            self._note(journal)
            return self._create(journal.cache)

    def _create(self, cache: str, *, checked: bool = False) -> PartitionMap | None:
        self.lease.check()
        return create_caches(self.client, self.schema, cache, self.options, checked=checked)

    def _take_place(self, journal: Journal, record: Callable[[], Manifest | None]) -> None:
        """Finish a replacement that is loaded, by moving it to the final name."""
        self.unfinished = journal
        Replacement(self.client, journal, self.lease).take_place(record)
        self.unfinished = None

    # The end

    def _report(self, journal: Journal) -> LoadReport:
        seconds = max(time.perf_counter() - self.began, 1e-9)
        written = journal.rows - self.resumed
        share = written / journal.rows if journal.rows else 0.0
        return LoadReport(
            cache=self.name,
            rows=journal.rows,
            skipped=journal.skipped,
            bytes=journal.nbytes,
            seconds=round(seconds, 3),
            rows_per_s=round(written / seconds, 1),
            mb_per_s=round(journal.nbytes * share / seconds / 1e6, 1),
            resumed_rows=self.resumed,
            bad_records=tuple(self.source.skipped),
            notes=(*self.source.notes, *self.notes),
        )

    def _journal(self, mode: Mode, cache: str) -> Journal:
        return Journal(
            name=self.name,
            cache=cache,
            mode=mode,
            schema=self.schema,
            source=self.fingerprint,
            storage=self.options.storage(self.source),
            partitions=self.options.partitions,
            backups=self.options.backups or 0,
            origin=self.options.origin,
        )

    def _require_storage(self, earlier: Storage) -> None:
        require_same_storage(self.name, self.options.storage(self.source), earlier)

    def _note(self, journal: Journal, *, only_add: bool = False) -> None:
        """Write the journal of a new load.

        Args:
            journal: The journal.
            only_add: True to raise an error if a journal exists.

        Raises:
            CacheExists: A journal exists, and `only_add` is set.
        """
        self.lease.check()
        if only_add and not add_journal(self.client, journal):
            raise exists_error(self.name, read_journal(self.client, self.name))
        self.unfinished = journal
        if not only_add:
            write_journal(self.client, journal)

    def _drop_journal(self) -> None:
        drop_journal(self.client, self.name)
        self.unfinished = None

    def _forget(self, journal: Journal, *, caches: bool) -> None:
        """Remove the journal of a failed load, if it has one, and with `caches` its caches."""
        self.lease.check()
        if caches:
            drop_caches(self.client, caches_of(journal.cache, journal.storage))
        if self.unfinished is journal:
            self._drop_journal()


def _is_kept(error: BaseException, *, made: bool) -> bool:
    """True if a load that ended with this error can be resumed, or lost its lease."""
    if isinstance(error, (DataSetBusy, LoadInterrupted, ConnectError, RequestTimeout)):
        return True
    # Ctrl-C or a signal: the stored rows are kept, because removing them takes long.
    return made and not isinstance(error, Exception)
