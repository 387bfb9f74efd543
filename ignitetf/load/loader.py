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
import datetime
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np

from ignitetf.catalog import Manifest, drop_manifest, read_manifest, write_manifest
from ignitetf.client import Client, connect
from ignitetf.errors import (
    CacheExists,
    CacheNotFound,
    ConfigError,
    ConnectError,
    IgniteTFError,
    LoadInterrupted,
    RequestTimeout,
    SchemaError,
    ServerError,
    SourceError,
)
from ignitetf.load.caches import CacheSpec, create_cache, create_table, drop_cache
from ignitetf.load.journal import Journal, drop_journal, read_journal, write_journal
from ignitetf.load.sources.base import BadRecord, Source
from ignitetf.load.writer import Writer, register_types
from ignitetf.transport import is_retryable
from ignitetf.wire.schema import Batch, Column, Schema

__all__ = ["IfExists", "LoadReport", "Progress", "check_target", "load_dataset"]

IfExists = Literal["error", "append", "replace", "resume"]
Layout = Literal["rows", "blocks"]
Progress = Callable[[int, int], None]

_BATCH_BYTES: Final = 4 << 20
# Between two of these the node may lose what it acknowledged; each costs a flush.
_CHECKPOINT_S: Final = 2.0
# A lost connection is tried again for this long, as the cluster may need it to recover.
_RETRY_BUDGET_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.2


@dataclass(frozen=True)
class LoadReport:
    """What a load did.

    Attributes:
        cache: Name of the data set.
        rows: Rows of the source that are stored now.
        skipped: Bad records that were left out.
        bytes: Bytes of the stored entries.
        seconds: Time of this call.
        rows_per_s: Rows written by this call, by its time.
        mb_per_s: Megabytes (10^6) written by this call, by its time.
        resumed_rows: Rows that an earlier call had stored.
        bad_records: Names and reasons of the bad records of this call.
        parts: Reports of further tables that the source filled (annotations).
    """

    cache: str
    rows: int
    skipped: int
    bytes: int
    seconds: float
    rows_per_s: float
    mb_per_s: float
    resumed_rows: int = 0
    bad_records: tuple[BadRecord, ...] = ()
    parts: tuple[LoadReport, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """The figures, without the lists: what commands print."""
        out = asdict(self)
        del out["bad_records"], out["parts"]
        return out


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
        index: Fields that get a SQL index; in the block layout, the fields of a slim table.
        limit: Number of rows after which to stop.
        bad_records: What to do with bad records of an iterable; other sources have it already.
        key: Field that is the key, for mappings and iterables.
        sql: Whether to make a SQL table; False makes a bare cache.
        on_progress: Called with rows and bytes as they are handed to the node.

    Returns:
        The report, once everything is stored and described.

    Raises:
        CacheExists: There is such a cache, and `if_exists` is `error`.
        SourceError: The data are bad; a new cache is removed again.
        LoadInterrupted: The load stopped; what was stored is kept and can be resumed.
    """
    _check_options(if_exists, layout, limit)
    opened = _as_source(source, key, bad_records)
    with contextlib.ExitStack() as stack:
        if client is None:
            client = stack.enter_context(connect())
        reports = []
        for table, part in _tables(opened, cache):
            options = _Options(partitions, backups, layout, tuple(index), limit, sql)
            load = _Load(client, part, table, options, on_progress)
            reports.append(load.run(if_exists))
    return replace(reports[0], parts=tuple(reports[1:]))


def check_target(client: Client, source: Source, cache: str, if_exists: IfExists) -> None:
    """Raise CacheExists for the tables of a source that `load_dataset` would refuse."""
    for name, _ in _tables(source, cache):
        if if_exists == "error" and client.cache_exists(name):
            raise _exists(name, read_journal(client, name))


@dataclass(frozen=True)
class _Options:
    partitions: int | None
    backups: int
    layout: Layout
    index: tuple[str, ...]
    limit: int | None
    sql: bool

    def identity(self, source: Source) -> dict[str, Any]:
        """What decides which rows are stored and how; a resumed load must have the same."""
        return {
            "layout": self.layout,
            "index": list(self.index),
            "limit": self.limit,
            "sql": self.sql,
            "bad_records": source.bad_records,
        }


class _Load:
    """One source into one cache."""

    def __init__(
        self,
        client: Client,
        source: Source,
        name: str,
        options: _Options,
        on_progress: Progress | None,
    ) -> None:
        self.client, self.source, self.name, self.options = client, source, name, options
        self.on_progress = on_progress or (lambda rows, nbytes: None)
        self.fingerprint = source.fingerprint()
        self.schema = replace(source.schema, type_name=_type_name(source.schema, name))
        self.resumed = 0
        self.began = time.perf_counter()

    def run(self, if_exists: IfExists) -> LoadReport:
        """Load as `if_exists` says."""
        exists = self.client.cache_exists(self.name)
        journal = read_journal(self.client, self.name)
        if if_exists == "resume":
            return self._resume(exists, journal)
        if not exists and (if_exists != "append" or journal is None):
            return self._new("new")
        if if_exists == "append":
            return self._append(journal)
        if if_exists == "replace":
            return self._replace()
        raise _exists(self.name, journal)

    # The ways to begin

    def _new(self, mode: str) -> LoadReport:
        """Make the cache and fill it; nothing is left behind when that fails by bad input."""
        journal = self._journal(mode, self.name)
        write_journal(self.client, journal)
        try:
            self._create(self.name)
            manifest = self._fill(journal, fresh=True)
        except (LoadInterrupted, KeyboardInterrupt, ConnectError, RequestTimeout):
            if journal.rows == 0:
                self._forget()
            raise
        except BaseException:
            self._forget()
            raise
        return self._finish(journal, manifest)

    def _append(self, journal: Journal | None) -> LoadReport:
        if journal is not None:
            raise _exists(self.name, journal)
        old = read_manifest(self.client, self.name)
        if old is None:
            raise ConfigError(
                f"cache {self.name!r} was not loaded by ignitetf, so its rows are not known",
                hint="write to it with SQL, or load into another cache",
            )
        self._require_alike(old)
        journal = self._journal("append", old.cache)
        if self.source.key_name is None:
            journal.key_base = int(old.options.get("next_key", old.rows))
        write_journal(self.client, journal)
        manifest = self._fill(journal, fresh=False)
        return self._finish(journal, self._joined(old, manifest))

    def _resume(self, exists: bool, journal: Journal | None) -> LoadReport:
        if journal is None:
            return self._resume_finished(exists)
        self._require_same(journal)
        self.resumed = journal.rows
        if not exists:
            journal.position = journal.rows = journal.nbytes = journal.checksum = 0
            journal.partition_rows, self.resumed = [], 0
            self._create(self.name)
        manifest = self._fill(journal, fresh=False)
        if journal.mode == "append":
            old = read_manifest(self.client, self.name)
            if old is not None:
                manifest = self._joined(old, manifest)
        return self._finish(journal, manifest)

    def _resume_finished(self, exists: bool) -> LoadReport:
        """Nothing was interrupted: load what is missing altogether, or nothing."""
        if not exists:
            return self._new("new")
        manifest = read_manifest(self.client, self.name)
        if manifest is None or self.fingerprint not in manifest.source.split():
            raise ConfigError(
                f"cache {self.name!r} holds no unfinished load of this source",
                hint="--if-exists append adds to it, --if-exists replace takes its place",
            )
        self.resumed = manifest.rows
        return self._report(manifest.rows, manifest.nbytes, manifest.skipped)

    def _replace(self) -> LoadReport:
        old = read_manifest(self.client, self.name)
        self._forget()
        report = self._new("new")
        new = read_manifest(self.client, self.name)
        if old is not None and new is not None:
            write_manifest(self.client, replace(new, version=old.version + 1))
        return report

    # The work

    def _create(self, cache: str) -> None:
        spec = CacheSpec(
            cache,
            partitions=self.options.partitions,
            backups=self.options.backups,
            affinity_key=self.schema.affinity_key,
        )
        if self.options.sql:
            create_table(self.client, self.schema, cache, spec, self.options.index)
        else:
            create_cache(self.client, spec)

    def _fill(self, journal: Journal, *, fresh: bool) -> Manifest:
        """Write all rows from the journal's position on; tries again after a lost connection."""
        deadline = time.monotonic() + _RETRY_BUDGET_S
        pause = _FIRST_PAUSE_S
        while True:
            before = journal.position
            try:
                return self._write(journal, fresh=fresh)
            except (ServerError, ConnectError, RequestTimeout) as error:
                if journal.position > before:
                    deadline, pause = time.monotonic() + _RETRY_BUDGET_S, _FIRST_PAUSE_S
                if not is_retryable(error) or time.monotonic() > deadline:
                    raise self._interrupted(journal, error) from error
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
                fresh = False

    def _write(self, journal: Journal, *, fresh: bool) -> Manifest:
        client, schema = self.client, journal.schema
        register_types(client, schema)
        count = client.partition_count(journal.cache)
        with Writer(client, journal.cache, schema, partitions=count, overwrite=not fresh) as writer:
            writer.totals = journal.totals(count)
            rows = journal.rows
            next_checkpoint = time.monotonic() + _CHECKPOINT_S
            skipped = journal.skipped
            for batch in self.source.batches(journal.position, max_bytes=_BATCH_BYTES):
                batch = self._cut(batch, rows, journal.key_base)
                if len(batch) == 0:
                    break
                writer.write(batch)
                rows += len(batch)
                self.on_progress(len(batch), batch.nbytes)
                if time.monotonic() >= next_checkpoint:
                    writer.flush()
                    journal.note(
                        writer.totals, self.source.position, skipped + len(self.source.skipped)
                    )
                    write_journal(client, journal)
                    next_checkpoint = time.monotonic() + _CHECKPOINT_S
            writer.flush()
        journal.note(writer.totals, self.source.position, skipped + len(self.source.skipped))
        write_journal(client, journal)
        return self._manifest(journal)

    def _cut(self, batch: Batch, rows: int, key_base: int) -> Batch:
        """The batch up to the limit, with its running keys moved behind those that are there."""
        if self.options.limit is not None:
            batch = batch[: max(0, self.options.limit - rows)]
        if batch.key is None:
            first = self.source.position - len(batch)
            batch = Batch(Column(np.arange(first, first + len(batch))), batch.columns)
        if key_base and batch.key is not None:
            keys = np.asarray(batch.key.values) + key_base
            batch = Batch(Column(keys), batch.columns)
        return batch

    # The end

    def _manifest(self, journal: Journal) -> Manifest:
        options: dict[str, Any] = {**journal.options, "backups": self.options.backups}
        if self.source.key_name is None:
            options["next_key"] = journal.key_base + journal.position
        return Manifest(
            name=self.name,
            schema=journal.schema,
            cache=journal.cache,
            layout=self.options.layout,
            rows=journal.rows,
            partition_rows=tuple(journal.partition_rows),
            class_names=tuple(self.source.class_names or ()),
            checksum=f"{journal.checksum:016x}",
            source=journal.source,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            skipped=journal.skipped,
            nbytes=journal.nbytes,
            options=options,
        )

    def _finish(self, journal: Journal, manifest: Manifest) -> LoadReport:
        """Compare with what the cluster counts, then write the manifest and end the journal."""
        stored = self.client.cache_size(manifest.cache)
        if stored < manifest.rows and journal.mode == "new" and self.source.key_name:
            self._forget()
            raise SourceError(
                f"{manifest.rows - stored:,} of {manifest.rows:,} records have the key of another"
                f" record in {self.source.key_name}",
                hint="choose another --key, or none for a running number",
            )
        if stored != manifest.rows and journal.mode == "append":
            # Rows with known keys took the place of others; hashes of those are not known.
            manifest = replace(manifest, rows=stored, checksum="", partition_rows=())
        elif stored != manifest.rows:
            raise LoadInterrupted(
                f"cache {manifest.cache!r}: {stored:,} rows are stored, {manifest.rows:,} were"
                " written",
                hint="did a node leave, or another client write? load again with"
                " --if-exists replace",
                rows=stored,
            )
        write_manifest(self.client, manifest)
        drop_journal(self.client, self.name)
        return self._report(journal.rows, journal.nbytes, journal.skipped)

    def _joined(self, old: Manifest, new: Manifest) -> Manifest:
        """The manifest of the rows that were there and those that were added."""
        counts: tuple[int, ...] = ()
        if len(old.partition_rows) == len(new.partition_rows):
            pairs = zip(old.partition_rows, new.partition_rows, strict=True)
            counts = tuple(a + b for a, b in pairs)
        checksum = ""
        if old.checksum and new.checksum:
            total = int(old.checksum, 16) + int(new.checksum, 16)
            checksum = f"{total % (1 << 64):016x}"
        return replace(
            new,
            rows=old.rows + new.rows,
            partition_rows=counts,
            checksum=checksum,
            source=f"{old.source} {new.source}".strip(),
            version=old.version + 1,
            skipped=old.skipped + new.skipped,
            nbytes=old.nbytes + new.nbytes,
            class_names=new.class_names or old.class_names,
        )

    def _report(self, rows: int, nbytes: int, skipped: int) -> LoadReport:
        seconds = max(time.perf_counter() - self.began, 1e-9)
        written = rows - self.resumed
        share = written / rows if rows else 0.0
        return LoadReport(
            cache=self.name,
            rows=rows,
            skipped=skipped,
            bytes=nbytes,
            seconds=round(seconds, 3),
            rows_per_s=round(written / seconds, 1),
            mb_per_s=round(nbytes * share / seconds / 1e6, 1),
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
        )

    def _forget(self) -> None:
        """Remove the cache, its table, manifest and journal."""
        with contextlib.suppress(CacheNotFound):
            drop_cache(self.client, self.name)
        drop_manifest(self.client, self.name)

    # What may not be

    def _require_same(self, journal: Journal) -> None:
        if journal.source != self.fingerprint:
            raise ConfigError(
                f"the source is not the one whose load into {self.name!r} was stopped",
                hint="has it changed since? begin again with --if-exists replace",
            )
        given = self.options.identity(self.source)
        for option, value in journal.options.items():
            if option in given and given[option] != value:
                raise ConfigError(
                    f"the load into {self.name!r} began with {option} = {value}, not"
                    f" {given[option]}",
                    hint="resume with the same options, or begin again with --if-exists replace",
                )

    def _require_alike(self, old: Manifest) -> None:
        """Appended rows must be stored as those that are there."""
        mine, theirs = self.schema, old.schema
        if (mine.key.type, mine.fields) != (theirs.key.type, theirs.fields):
            raise SchemaError(
                f"the records have other fields than those in {self.name!r}:"
                f" {_told(mine)} instead of {_told(theirs)}",
                hint="load them into a cache of their own",
            )
        if old.layout != self.options.layout:
            raise ConfigError(
                f"cache {self.name!r} has the layout {old.layout}",
                hint=f"append with --layout {old.layout}",
            )
        self.schema = theirs

    def _interrupted(self, journal: Journal, error: IgniteTFError) -> IgniteTFError:
        if journal.rows == 0 and journal.mode == "new":
            return error
        return LoadInterrupted(
            f"the load into {self.name!r} stopped, {journal.rows:,} rows are stored:"
            f" {error.message}",
            hint="when the cause is removed, go on with --if-exists resume",
            rows=journal.rows,
            cache=self.name,
        )


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


def _as_source(source: Any, key: str | None, bad_records: Literal["fail", "skip"]) -> Source:
    if isinstance(source, Source):
        return source
    if isinstance(source, str):
        raise ConfigError(
            f"{source!r} is a text, not a source",
            hint="open_source('csv', path) of ignitetf.load.sources opens files",
        )
    from ignitetf.load.sources import open_source

    return open_source("records", source, key=key, bad_records=bad_records)


def _tables(source: Source, name: str) -> Iterator[tuple[str, Source]]:
    """Name and source of each table: the source itself first, under the name that was given."""
    yield name, source
    for part, other in source.parts.items():
        if other is not source:
            yield f"{name}_{part.upper()}", other


def _type_name(schema: Schema, name: str) -> str | None:
    """The value type is called as the table; bare values have none."""
    if schema.type_name is None:
        return None
    word = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return word if not word[:1].isdigit() else f"_{word}"


def _told(schema: Schema) -> str:
    kinds = [f"{f.name} {f.type.name.lower()}" for f in (schema.key, *schema.fields)]
    return ", ".join(kinds)
