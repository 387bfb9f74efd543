"""The end of a load: compares what was written with what is stored, and builds the manifest."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable
from dataclasses import replace

from ignitetf.errors import ConfigError, LoadInterrupted, SourceError
from ignitetf.load.journal import Journal
from ignitetf.load.sources.base import Source
from ignitetf.net.client import Client
from ignitetf.tables.catalog import Manifest
from ignitetf.tables.names import quoted
from ignitetf.tables.storage import LoadFacts, index_table
from ignitetf.wire.codes import TypeCode

__all__ = [
    "entries_of",
    "equal_keys_error",
    "manifest_of",
    "require_seen",
    "require_stored",
    "successor",
]


def manifest_of(journal: Journal, source: Source) -> Manifest:
    """Return the manifest of the rows that a finished load wrote."""
    runs = source.key_name is None and journal.schema.key.type is TypeCode.LONG
    facts = LoadFacts(
        journal.storage,
        backups=journal.backups,
        load=journal.load,
        next_key=journal.key_base + journal.position if runs else None,
        origin=journal.origin,
        blocks=journal.blocks,
        block_rows=journal.block_rows,
        topology=journal.topology,
    )
    return Manifest(
        name=journal.name,
        schema=journal.schema,
        cache=journal.cache,
        layout=journal.storage.layout,
        rows=journal.rows,
        partition_rows=tuple(journal.partition_rows),
        class_names=tuple(source.class_names or ()),
        checksum=f"{journal.checksum:016x}",
        source=journal.source,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        skipped=journal.skipped,
        nbytes=journal.nbytes,
        index=index_table(journal.cache) if journal.storage.has_slim_table else None,
        options=facts,
    )


def successor(client: Client, old: Manifest | None, new: Manifest, mode: str) -> Manifest:
    """Return the manifest that replaces the old one after a load of this mode.

    The splits stay: a row that is loaded again under its key is in the split it was in. Only those
    balanced by a field that a replacement does not have are gone.
    """
    if old is None:
        return new
    fields = {f.name for f in new.schema.fields if f in old.schema.fields}
    splits = tuple(s for s in old.splits if s.by is None or s.by in fields)
    new = replace(new, splits=splits)
    if mode != "append":
        return replace(new, version=old.version + 1)
    counts: tuple[int, ...] = ()
    if len(old.partition_rows) == len(new.partition_rows):
        pairs = zip(old.partition_rows, new.partition_rows, strict=True)
        counts = tuple(a + b for a, b in pairs)
    total = (int(old.checksum or "0", 16) + int(new.checksum, 16)) % (1 << 64)
    joined = replace(
        new,
        options=replace(new.options, backups=old.options.backups),
        rows=old.rows + new.rows,
        partition_rows=counts,
        checksum=f"{total:016x}" if old.checksum else "",
        source=f"{old.source} {new.source}".strip(),
        version=old.version + 1,
        skipped=old.skipped + new.skipped,
        nbytes=old.nbytes + new.nbytes,
        class_names=new.class_names or old.class_names,
    )
    stored = _stored_rows(client, joined)
    if stored != joined.rows or _has_other_keys(joined, stored):
        # Some rows replaced others with the same key, or others have written: their hashes, and
        # which partitions they are in, are not known.
        joined = replace(joined, rows=stored, checksum="", partition_rows=_partition_rows(joined))
    return joined


def _has_other_keys(manifest: Manifest, stored: int) -> bool:
    """Return whether running keys show that others have added or removed rows."""
    following = manifest.options.next_key
    if manifest.layout != "rows" or following is None:
        return False
    return following != stored + manifest.skipped


def _stored_rows(client: Client, manifest: Manifest) -> int:
    """Return how many rows are stored, of which some may have replaced others."""
    if manifest.layout == "rows":
        return client.cache_size(manifest.cache)
    return sum(manifest.options.block_rows) if manifest.options.block_rows else manifest.rows


def _partition_rows(manifest: Manifest) -> tuple[int, ...]:
    """Return the rows of each partition if those of each of its blocks are known."""
    left = iter(manifest.options.block_rows)
    return tuple(sum(itertools.islice(left, blocks)) for blocks in manifest.options.blocks)


def entries_of(manifest: Manifest) -> int:
    """Return the number of entries in the cache of a data set."""
    if manifest.layout == "rows":
        return manifest.rows
    return sum(manifest.options.blocks)


def equal_keys_error(equal: int, rows: int, key_name: str) -> SourceError:
    """Return the error for records of which some have the key of another."""
    return SourceError(
        f"{equal:,} of {rows:,} records have the key of another record in {key_name}",
        hint="choose another --key, or none for a running number",
    )


def require_seen(client: Client, name: str, tables: Iterable[str]) -> None:
    """Check that SQL finds rows in tables whose caches have some.

    Nodes whose BinaryConfiguration has another BinaryIdMapper or BinaryNameMapper derive other ids
    from the names of types than Ignite does by default; SQL overlooks the entries then.

    Raises:
        ConfigError: It finds none.
    """
    for table in dict.fromkeys(tables):
        rows = client.sql(f"SELECT 1 FROM {quoted(table)} LIMIT 1").fetchall()  # nosec B608
        if not rows:
            raise ConfigError(
                f"SQL does not find the rows of {name}: the nodes derive the ids of binary types"
                " from their names in another way than Apache Ignite does by default",
                hint="load with --no-sql (sql=False), or leave the mappers out of the nodes'"
                " BinaryConfiguration",
                cache=name,
            )


def require_stored(
    client: Client, journal: Journal, manifest: Manifest, key_name: str | None = None
) -> None:
    """Compare what was written with what the cluster counts.

    Raises:
        SourceError: Several records have the same key.
        LoadInterrupted: Entries are missing, or others were added.
    """
    stored, expected = client.cache_size(manifest.cache), entries_of(manifest)
    rows = manifest.layout == "rows"
    if stored == expected or (rows and journal.mode == "append"):
        return
    if stored < expected and key_name and rows:
        raise equal_keys_error(expected - stored, expected, key_name)
    raise LoadInterrupted(
        f"cache {manifest.cache!r}: {stored:,} entries are stored, {expected:,} were written",
        hint="did a node leave, or another client write? load again with --if-exists replace",
        rows=stored,
    )
