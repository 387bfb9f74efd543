"""`Load`: one source into one cache, from the way to begin to the report.

begin -> journal -> fill -> check -> manifest -> **report**
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ignitetf.catalog import drop_manifest, read_manifest, write_manifest
from ignitetf.client import Client
from ignitetf.errors import (
    CacheNotFound,
    ConfigError,
    ConnectError,
    LoadInterrupted,
    RequestTimeout,
)
from ignitetf.load.caches import (
    DEFAULT_PARTITIONS,
    CacheSpec,
    create_cache,
    create_table,
    remove_cache,
)
from ignitetf.load.checks import (
    exists_error,
    next_key,
    require_alike,
    require_same_options,
    require_same_source,
)
from ignitetf.load.fill import Filler, Progress, index_schema, index_table
from ignitetf.load.finish import entries_of, manifest_of, require_stored, successor
from ignitetf.load.journal import Journal, drop_journal, read_journal, write_journal
from ignitetf.load.move import copy_entries
from ignitetf.load.options import IfExists, LoadOptions, LoadReport
from ignitetf.load.sources.base import Source
from ignitetf.load.tables import type_name_of
from ignitetf.load.typenames import with_free_name
from ignitetf.wire.blocks import block_schema

__all__ = ["Load"]

# A replacement is loaded into a cache of this ending, beside the one that it replaces.
_STAGING: Final = "__NEXT"
_SLIM_BYTES: Final = 200


class Load:
    """One source into one cache."""

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
        self.schema = replace(source.schema, type_name=type_name_of(source.schema, name))
        options.check(self.schema)
        self.resumed = 0

    def run(self, if_exists: IfExists) -> LoadReport:
        """Load as `if_exists` says."""
        self.began = time.perf_counter()
        exists = self.client.cache_exists(self.name)
        journal = read_journal(self.client, self.name)
        if if_exists == "resume":
            return self._resume(exists, journal)
        if if_exists == "replace":
            return self._replace(exists, journal)
        if journal is not None and (exists or journal.mode == "replace"):
            raise exists_error(self.name, journal)
        if not exists:
            return self._load(self._journal("new", self.name))
        if if_exists == "append":
            return self._fill(self.begin_append(), fresh=False)
        raise exists_error(self.name, None)

    # The ways to begin

    def begin_append(self, key_base: int | None = None) -> Journal:
        """Check that rows can be added, and write the journal of it.

        Args:
            key_base: Where running keys begin; None takes the end of those that are there.
        """
        if key_base is not None and not self.client.cache_exists(self.name):
            journal = self._journal("new", self.name)
            journal.key_base = key_base
            write_journal(self.client, journal)
            return journal
        old = read_manifest(self.client, self.name)
        if old is None:
            raise ConfigError(
                f"cache {self.name!r} was not loaded by ignitetf, so its rows are not known",
                hint="write to it with SQL, or load into another cache",
            )
        require_alike(self.schema, self.options.layout, old)
        self.schema = old.schema
        journal = self._journal("append", old.cache)
        if self.source.key_name is None:
            journal.key_base = next_key(old) if key_base is None else key_base
        if "blocks" in old.options:
            journal.state = {"blocks": old.options["blocks"]}
        write_journal(self.client, journal)
        return journal

    def _replace(self, exists: bool, journal: Journal | None) -> LoadReport:
        """Load beside, then take the place; readers see the old or the new rows, never both."""
        if journal is not None and self._taken(journal):
            self._move(journal)
            journal, exists = None, True
        if not exists or (journal is not None and journal.mode == "new"):
            self._forget(self.name)
            return self._load(self._journal("new", self.name))
        self._keep_partitions()
        staging = self.name + _STAGING
        self._forget(staging)
        return self._load(self._journal("replace", staging))

    def _resume(self, exists: bool, journal: Journal | None) -> LoadReport:
        if journal is None:
            return self._resume_finished(exists)
        require_same_source(journal, self.fingerprint)
        self._require_options(journal.options)
        self.resumed = journal.rows
        self.options = replace(self.options, partitions=journal.partitions, backups=journal.backups)
        if self._taken(journal):
            self._move(journal)
            return self._report(journal)
        if not self.client.cache_exists(journal.cache):
            self.resumed = 0
            again = self._journal(journal.mode, journal.cache)
            return self._load(replace(again, key_base=journal.key_base))
        return self._fill(journal, fresh=False)

    def _taken(self, journal: Journal) -> bool:
        """Whether a replacement is loaded and has only to be copied under its name."""
        if journal.mode != "replace":
            return False
        manifest = read_manifest(self.client, self.name)
        if manifest is not None and manifest.cache == journal.cache:
            # Somebody may have removed it since; then it has to be loaded again.
            return self.client.cache_exists(journal.cache)
        return journal.phase == "move"

    def _keep_partitions(self) -> None:
        """A replacement has as many partitions as the old cache unless a number was given."""
        if self.options.partitions is None:
            found = self.client.partition_count(self.name)
            if found != DEFAULT_PARTITIONS:
                self.options = replace(self.options, partitions=found)

    def _resume_finished(self, exists: bool) -> LoadReport:
        """Nothing was interrupted: load what is missing altogether, or nothing."""
        if not exists:
            return self._load(self._journal("new", self.name))
        manifest = read_manifest(self.client, self.name)
        if manifest is None or self.fingerprint not in manifest.source.split():
            raise ConfigError(
                f"cache {self.name!r} holds no unfinished load of this source",
                hint="--if-exists append adds to it, --if-exists replace takes its place",
            )
        if manifest.source == self.fingerprint:
            self._require_options(manifest.options)
        journal = self._journal("new", self.name)
        journal.rows, journal.nbytes = manifest.rows, manifest.nbytes
        journal.skipped, self.resumed = manifest.skipped, manifest.rows
        return self._report(journal)

    # The work

    def _load(self, journal: Journal) -> LoadReport:
        """Make the journal's cache and fill it; leaves nothing when that fails by bad input."""
        stored = [self.schema]
        if self.options.layout == "blocks":
            slim = index_schema(self.schema, list(self.options.index))
            stored = [block_schema(self.schema), slim]
        journal.schema = self.schema = with_free_name(self.client, self.schema, stored)
        write_journal(self.client, journal)
        try:
            self._create(journal.cache)
            return self._fill(journal, fresh=True)
        except BaseException as error:
            kept = (LoadInterrupted, KeyboardInterrupt, ConnectError, RequestTimeout)
            if not isinstance(error, kept) or (journal.rows == 0 and journal.phase == "load"):
                with contextlib.suppress(ConnectError, RequestTimeout):
                    self._forget(journal.cache)
            raise

    def _fill(self, journal: Journal, *, fresh: bool) -> LoadReport:
        Filler(
            self.client, self.source, journal, self.on_progress, streamer=self.options.streamer
        ).run(fresh=fresh)
        manifest = manifest_of(journal, self.source)
        require_stored(self.client, journal, manifest, self.source.key_name)
        old = read_manifest(self.client, self.name)
        if old is None or old.options.get("load") != journal.load:
            write_manifest(self.client, successor(self.client, old, manifest, journal.mode))
        if journal.mode == "replace":
            journal.phase = "move"
            write_journal(self.client, journal)
            self._move(journal)
        else:
            drop_journal(self.client, self.name)
        return self._report(journal)

    def _create(self, cache: str) -> None:
        spec = CacheSpec(
            cache,
            partitions=self.options.partitions,
            backups=self.options.backups,
            affinity_key=self.schema.affinity_key,
        )
        if self.options.layout == "blocks":
            create_cache(self.client, spec)
            if self.options.index:
                slim = index_schema(self.schema, list(self.options.index))
                table = index_table(cache)
                slim_spec = replace(spec, name=table)
                create_table(self.client, slim, table, slim_spec, self.options.index)
        elif self.options.sql:
            create_table(self.client, self.schema, cache, spec, self.options.index)
        else:
            create_cache(self.client, spec)

    def _move(self, journal: Journal) -> None:
        """Copy a loaded replacement into a new cache of the data set's name.

        The manifest names the replacement until the copy is whole, so that readers that follow
        it never see a part; SQL sees the rows come.
        """
        manifest = read_manifest(self.client, self.name)
        if manifest is None or manifest.cache == self.name:
            _drop(self.client, journal.cache)
            drop_journal(self.client, self.name)
            return
        self.options = replace(self.options, partitions=self.client.partition_count(journal.cache))
        _drop(self.client, self.name)
        self._create(self.name)
        size = max(1, manifest.nbytes // max(1, entries_of(manifest)))
        copy_entries(self.client, journal.cache, self.name, entry_bytes=size)
        if manifest.index is not None:
            source, target = index_table(journal.cache), index_table(self.name)
            copy_entries(self.client, source, target, entry_bytes=_SLIM_BYTES)
        require_stored(self.client, journal, replace(manifest, cache=self.name))
        index = None if manifest.index is None else index_table(self.name)
        write_manifest(self.client, replace(manifest, cache=self.name, index=index))
        _drop(self.client, journal.cache)
        drop_journal(self.client, self.name)

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
        )

    def _journal(self, mode: str, cache: str) -> Journal:
        return Journal(
            name=self.name,
            cache=cache,
            mode=mode,
            schema=self.schema,
            source=self.fingerprint,
            options=self.options.identity(self.source),
            partitions=self.options.partitions,
            backups=self.options.backups,
            origin=self.options.origin,
        )

    def _require_options(self, earlier: Mapping[str, Any]) -> None:
        require_same_options(self.name, self.options.identity(self.source), earlier)

    def _forget(self, cache: str) -> None:
        """Remove a cache and the journal; with the data set's own cache, its manifest too."""
        _drop(self.client, cache)
        if cache == self.name:
            drop_manifest(self.client, self.name)
        drop_journal(self.client, self.name)


def _drop(client: Client, cache: str) -> None:
    """Remove a cache, its table, and the slim table beside it; harmless where there are none."""
    for name in (cache, index_table(cache)):
        with contextlib.suppress(CacheNotFound):
            remove_cache(client, name)
