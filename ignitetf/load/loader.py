"""`load_dataset`: a source into a cache, with a journal while it runs and a manifest at the end.

source -> batches -> writer -> cache -> **manifest**

What is promised:
- a load that fails before its first row, or by bad input, leaves nothing behind;
- a load that is stopped in another way (killed, node lost, memory full) leaves what was stored
  and a journal, and `if_exists="resume"` makes exactly the full set of it;
- rows have fixed keys, so that a repeated load writes the same rows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from ignitetf.catalog import Manifest, drop_manifest, read_manifest, write_manifest
from ignitetf.client import Client, connect
from ignitetf.errors import (
    CacheExists,
    CacheNotFound,
    ConfigError,
    ConnectError,
    LoadInterrupted,
    RequestTimeout,
    SchemaError,
)
from ignitetf.load.caches import (
    DEFAULT_PARTITIONS,
    CacheSpec,
    create_cache,
    create_table,
    remove_cache,
)
from ignitetf.load.fill import Filler, Progress, index_schema, index_table
from ignitetf.load.finish import entries_of, manifest_of, require_stored, successor
from ignitetf.load.journal import Journal, drop_journal, read_journal, write_journal
from ignitetf.load.move import copy_entries
from ignitetf.load.options import IfExists, Layout, LoadOptions, LoadReport
from ignitetf.load.sources.base import Source
from ignitetf.load.tables import (
    as_source,
    fits,
    index_of,
    part_name,
    tables_of,
    told,
    type_name_of,
)
from ignitetf.load.typenames import with_free_name
from ignitetf.wire.blocks import block_schema

__all__ = ["IfExists", "LoadReport", "Progress", "check_target", "load_dataset"]

# A replacement is loaded into a cache of this ending, beside the one that it replaces.
_STAGING: Final = "__NEXT"
_SLIM_BYTES: Final = 200


def load_dataset(
    source: Any,
    cache: str,
    *,
    client: Client | None = None,
    partitions: int | None = None,
    backups: int = 0,
    if_exists: IfExists = "error",
    layout: Layout = "rows",
    index: Sequence[str] = (),
    limit: int | None = None,
    bad_records: Literal["fail", "skip"] = "fail",
    key: str | None = None,
    sql: bool = True,
    streamer: bool = False,
    origin: dict[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> LoadReport:
    """Load a source into a cache, and describe it in the catalog.

    Args:
        source: A source (`ignitetf.load.sources.open_source`), a mapping of names to arrays, or
            an iterable of dicts or of `Batch`.
        cache: Name of the cache and the SQL table; a second table of the source (annotations)
            gets its name after this one.
        client: Where to; None connects with the settings in force.
        partitions: Number of partitions of a new cache; None leaves it to the cluster.
        backups: Copies of each partition of a new cache.
        if_exists: `error`; `append` adds rows after those that are there; `replace` loads beside
            and then takes the place; `resume` goes on with a load that was stopped.
        layout: `rows`, or `blocks`: many rows in one entry, for data that are only trained on.
        index: Fields that get a SQL index; in the block layout, the fields of a slim table. Of
            several tables each takes those that it has.
        limit: Number of rows after which to stop; of a second table, all rows of those are taken.
        bad_records: What to do with bad records of an iterable; other sources have it already.
        key: Field that is the key, for mappings and iterables.
        sql: Whether to make a SQL table; False makes a bare cache.
        streamer: Write through the data streamer rather than by `put_all`. Apache Ignite 2.17 may
            halt a node when a client dies while it streams; see `writer`.
        origin: How the source was opened (`kind`, `options`); kept in the manifest, so that
            `verify` can open it again. Nothing secret belongs there.
        on_progress: Called with rows and bytes as they are handed to the node.

    Returns:
        The report, once everything is stored and described.

    Raises:
        CacheExists: There is such a cache, and `if_exists` is `error`.
        SourceError: The data are bad; a new cache is removed again.
        LoadInterrupted: The load stopped; what was stored is kept and can be resumed.
    """
    _check_options(if_exists, layout, limit)
    opened = as_source(source, key, bad_records)
    with contextlib.ExitStack() as stack:
        if client is None:
            client = stack.enter_context(connect())
        loads = []
        for table, part in tables_of(opened, cache):
            named = None if origin is None else {**origin, "part": part_name(opened, part)}
            columns = index_of(opened, part, index)
            options = LoadOptions(partitions, backups, layout, columns, limit, sql, named, streamer)
            if part is not opened:
                part.main_limit, options = limit, replace(options, limit=None)
            loads.append(_Load(client, part, table, options, on_progress))
        check_target(client, opened, cache, if_exists)
        if_exists = _begin(loads, if_exists)
        reports = [load.run(if_exists) for load in loads]
    return replace(reports[0], parts=tuple(reports[1:]))


def check_target(client: Client, source: Source, cache: str, if_exists: IfExists) -> None:
    """Raise CacheExists for the tables of a source that `load_dataset` would refuse."""
    names = [name for name, _ in tables_of(source, cache)]
    new = if_exists == "error" or (if_exists == "append" and not client.cache_exists(cache))
    for name in names if new else ():
        if client.cache_exists(name):
            raise _exists(name, read_journal(client, name))


class _Load:
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
            raise _exists(self.name, journal)
        if not exists:
            return self._load(self._journal("new", self.name))
        if if_exists == "append":
            return self._fill(self.begin_append(), fresh=False)
        raise _exists(self.name, None)

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
        self._require_alike(old)
        journal = self._journal("append", old.cache)
        if self.source.key_name is None:
            journal.key_base = _next_key(old) if key_base is None else key_base
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
        self._require_same(journal)
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
        manifest = read_manifest(self.client, self.name)
        return journal.mode == "replace" and (
            journal.phase == "move" or (manifest is not None and manifest.cache == journal.cache)
        )

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

    def _forget(self, cache: str) -> None:
        """Remove a cache and the journal; with the data set's own cache, its manifest too."""
        _drop(self.client, cache)
        if cache == self.name:
            drop_manifest(self.client, self.name)
        drop_journal(self.client, self.name)

    # What may not be

    def _require_same(self, journal: Journal) -> None:
        if journal.source != self.fingerprint:
            raise ConfigError(
                f"the source is not the one whose load into {self.name!r} was stopped",
                hint="has it changed since? begin again with --if-exists replace",
            )
        self._require_options(journal.options)

    def _require_options(self, options: Mapping[str, Any]) -> None:
        """Raise ConfigError unless an earlier load had the options of this one."""
        for option, value in self.options.identity(self.source).items():
            if option in options and options[option] != value:
                raise ConfigError(
                    f"the load into {self.name!r} began with {option} = {options[option]}, not"
                    f" {value}",
                    hint="resume with the same options, or begin again with --if-exists replace",
                )

    def _require_alike(self, old: Manifest) -> None:
        """Appended rows must be stored as those that are there."""
        mine, theirs = self.schema, old.schema
        if mine.key != theirs.key or not fits(mine, theirs):
            raise SchemaError(
                f"the records have other fields than those in {self.name!r}:"
                f" {told(mine)} instead of {told(theirs)}",
                hint="load them into a cache of their own",
            )
        if old.layout != self.options.layout:
            raise ConfigError(
                f"cache {self.name!r} has the layout {old.layout}",
                hint=f"append with --layout {old.layout}",
            )
        self.schema = theirs


def _begin(loads: Sequence[_Load], if_exists: IfExists) -> IfExists:
    """Prepare loads of several tables; how each of them is then to begin.

    Appended rows of all tables take the same running keys. So the journals of all are written
    before the first row, and a load that is stopped between two tables knows of both.
    """
    main, *others = loads
    if not others or if_exists not in ("append", "resume"):
        return if_exists
    found = [read_journal(load.client, load.name) for load in loads]
    journal = found[0]
    if if_exists == "append":
        for load, unfinished in zip(loads, found, strict=True):
            if unfinished is not None:
                raise _exists(load.name, unfinished)
        if not main.client.cache_exists(main.name):
            return "error"
        journal = main.begin_append()
    elif journal is None or journal.mode != "append":
        return if_exists
    for other, begun in zip(others, found[1:], strict=True):
        if begun is None:
            other.begin_append(journal.key_base)
    return "resume"


def _next_key(old: Manifest) -> int:
    """The first running key behind the rows of a data set."""
    if (found := old.options.get("next_key")) is None:
        raise ConfigError(
            f"the keys of {old.name!r} are no running numbers, so the next one is not known",
            hint="append with --key, or load into another cache",
        )
    return int(found)


def _drop(client: Client, cache: str) -> None:
    """Remove a cache, its table, and the slim table beside it; harmless where there are none."""
    for name in (cache, index_table(cache)):
        with contextlib.suppress(CacheNotFound):
            remove_cache(client, name)


def _exists(name: str, journal: Journal | None) -> CacheExists:
    if journal is not None:
        return CacheExists(
            f"cache {name!r} has an unfinished load, {journal.rows:,} rows are stored",
            hint="go on with --if-exists resume, or begin again with --if-exists replace",
            cache=name,
        )
    return CacheExists(
        f"cache {name!r} exists",
        hint="choose --if-exists append, replace or resume, or another name",
        cache=name,
    )


def _check_options(if_exists: str, layout: str, limit: int | None) -> None:
    if if_exists not in ("error", "append", "replace", "resume"):
        raise ConfigError(f"if_exists={if_exists!r}", hint="error, append, replace or resume")
    if layout not in ("rows", "blocks"):
        raise ConfigError(f"layout={layout!r}", hint="take 'rows' or 'blocks'")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit}: load at least one row")
