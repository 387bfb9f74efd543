"""The journal of a load: records the stored rows in Ignite while the load runs.

The journal is written before the cache is created and after each flush, and removed once the
manifest is written. So a loader that is killed at any moment leaves a journal whose rows are all
stored. Later rows may be stored too; they are written again with the same keys. At the end the
written rows are compared with the stored ones, and the manifest is built.
"""

from __future__ import annotations

import datetime
import itertools
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from ignitetf.errors import ConfigError, LoadInterrupted, SchemaError, SourceError
from ignitetf.load.sources.base import SPLIT, Source
from ignitetf.load.writer import Totals
from ignitetf.net.client import Client
from ignitetf.net.common import Question
from ignitetf.tables.catalog import SEPARATOR, Manifest, catalog
from ignitetf.tables.names import quoted
from ignitetf.tables.splits import by_values
from ignitetf.tables.storage import LoadFacts, Origin, Storage, index_table
from ignitetf.tables.texts import json_text
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import Schema

__all__ = [
    "Journal",
    "Mode",
    "add_journal",
    "drop_journal",
    "entries_of",
    "equal_keys_error",
    "journal_question",
    "manifest_of",
    "read_journal",
    "require_seen",
    "require_stored",
    "successor",
    "write_journal",
]

# Kinds of loads.
Mode = Literal["new", "append", "replace"]


@dataclass
class Journal:
    """An unfinished load.

    Attributes:
        name: Name of the data set.
        cache: The cache being filled.
        mode: `new`, `append` or `replace`.
        phase: `load`, or `move` once a replacement is loaded and gets the final name.
        schema: The records.
        source: Fingerprint of the source.
        storage: Selection and storage of the rows; must be equal to resume.
        position: Record of the source to continue with.
        key_base: Added to running keys (for `append`).
        rows: Rows stored by this load.
        nbytes: Bytes of their entries.
        checksum: Sum of their hashes.
        partition_rows: Rows by partition; empty if unknown.
        skipped: Bad records left out so far.
        partitions: Requested number of partitions; None leaves it to the cluster.
        backups: Copies of each partition.
        origin: Arguments that opened the source, for commands that open it again; None if unknown.
        load: Id of this load, which identifies its manifest.
        replaces: The caches that a replacement supersedes.
        blocks: Number of blocks in each partition so far; empty for the row layout.
        block_rows: Rows of each block so far, as in `LoadFacts`.
        topology: Version of the cluster's topology when this load began to write.
    """

    name: str
    cache: str
    mode: Mode
    schema: Schema
    source: str
    storage: Storage
    phase: Literal["load", "move"] = "load"
    position: int = 0
    key_base: int = 0
    rows: int = 0
    nbytes: int = 0
    checksum: int = 0
    partition_rows: list[int] = field(default_factory=list)
    skipped: int = 0
    partitions: int | None = None
    backups: int = 0
    origin: Origin | None = None
    load: str = field(default_factory=lambda: uuid.uuid4().hex)
    replaces: list[str] = field(default_factory=list)
    blocks: tuple[int, ...] = ()
    block_rows: tuple[int, ...] = ()
    topology: int | None = None

    def totals(self, partitions: int | None) -> Totals:
        """Return the totals of the stored rows, for a writer to continue from."""
        counts = None
        if partitions is not None and (self.partition_rows or self.rows == 0):
            counts = np.array(self.partition_rows or [0] * partitions, np.int64)
        return Totals(self.rows, self.nbytes, self.checksum, counts)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object from which `from_json` restores an equal journal."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        del out["storage"], out["blocks"], out["block_rows"]
        state = {"blocks": list(self.blocks), "block_rows": list(self.block_rows)}
        return {
            **out,
            "schema": self.schema.to_json(),
            "options": self.storage.to_json(),
            # An unsigned number of 64 bits; JSON readers of other languages keep fewer bits.
            "checksum": f"{self.checksum:016x}",
            "origin": None if self.origin is None else self.origin.to_json(),
            "state": state if self.storage.layout == "blocks" else {},
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Journal:
        """Restore a journal from the output of `to_json`; raises SchemaError for other input."""
        try:
            given = dict(entry)
            origin = given["origin"]
            given["schema"] = Schema.from_json(given["schema"])
            given["storage"] = Storage.from_json(given.pop("options"))
            given["checksum"] = int(given["checksum"], 16)
            given["origin"] = None if origin is None else Origin.from_json(origin)
            state = given.pop("state")
            given["blocks"] = tuple(state.get("blocks", ()))
            given["block_rows"] = tuple(state.get("block_rows", ()))
            return cls(**given)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SchemaError(
                f"the journal of an unfinished load cannot be read: {error!r}",
                hint="start again with --if-exists replace",
            ) from error


def read_journal(client: Client, name: str) -> Journal | None:
    """Return the journal of an unfinished load of this data set, or None."""
    entry = catalog(client).get_json(_entry_name(name))
    return None if entry is None else Journal.from_json(entry)


def journal_question(client: Client, name: str) -> Question[str | None]:
    """Return the request for the text of a data set's journal."""
    return catalog(client).question(_entry_name(name))


def write_journal(client: Client, journal: Journal) -> None:
    """Store a journal, replacing an older one."""
    catalog(client).put(_entry_name(journal.name), json_text(journal.to_json()))


def add_journal(client: Client, journal: Journal) -> bool:
    """Store a journal unless one exists; return whether it was stored.

    If an earlier try stored this journal and its answer was lost, this counts as stored now.
    """
    entry, text = _entry_name(journal.name), json_text(journal.to_json())
    return catalog(client).add(entry, text) or catalog(client).get(entry) == text


def drop_journal(client: Client, name: str) -> None:
    """Remove a journal if it exists."""
    catalog(client).delete(_entry_name(name))


def _entry_name(name: str) -> str:
    return f"{name}{SEPARATOR}journal"


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
        splits=(by_values(source.split_names, SPLIT),) if source.split_names else (),
        options=facts,
    )


def successor(client: Client, old: Manifest | None, new: Manifest, mode: str) -> Manifest:
    """Return the manifest that replaces the old one after a load of this mode.

    The splits stay: a row that is loaded again under its key stays in its split. Splits are removed
        if they are balanced by a field that a replacement lacks, or if the files make new ones.
    """
    if old is None:
        return new
    fields = {f.name for f in new.schema.fields if f in old.schema.fields}
    made = {name for each in new.splits for name in each.names}
    kept = [s for s in old.splits if (s.by is None or s.by in fields) and not made & set(s.names)]
    new = replace(new, splits=(*new.splits, *kept))
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
        # Some rows replaced others with the same key, or other clients have written. The hashes and
        # partitions of these rows are unknown.
        joined = replace(joined, rows=stored, checksum="", partition_rows=_partition_rows(joined))
    return joined


def _has_other_keys(manifest: Manifest, stored: int) -> bool:
    """Return whether running keys show that other clients have added or removed rows."""
    following = manifest.options.next_key
    if manifest.layout != "rows" or following is None:
        return False
    return following != stored + manifest.skipped


def _stored_rows(client: Client, manifest: Manifest) -> int:
    """Return the number of stored rows; some rows may have replaced others."""
    if manifest.layout == "rows":
        return client.cache_size(manifest.cache)
    return sum(manifest.options.block_rows) if manifest.options.block_rows else manifest.rows


def _partition_rows(manifest: Manifest) -> tuple[int, ...]:
    """Return the rows of each partition; empty unless the rows of all blocks are known."""
    left = iter(manifest.options.block_rows)
    return tuple(sum(itertools.islice(left, blocks)) for blocks in manifest.options.blocks)


def entries_of(manifest: Manifest) -> int:
    """Return the number of entries in the cache of a data set."""
    if manifest.layout == "rows":
        return manifest.rows
    return sum(manifest.options.blocks)


def equal_keys_error(equal: int, rows: int, key_name: str) -> SourceError:
    """Return the error for records with equal keys."""
    return SourceError(
        f"{equal:,} of {rows:,} records share their key with another record in {key_name}",
        hint="choose another --key, or omit it to number the records",
    )


def require_seen(client: Client, name: str, tables: Iterable[str]) -> None:
    """Check that SQL finds rows in tables whose caches have some.

    A node whose BinaryConfiguration has another BinaryIdMapper or BinaryNameMapper derives other
    type ids from the names than Ignite does by default; SQL then does not see the entries.

    Raises:
        ConfigError: SQL finds no rows.
    """
    for table in dict.fromkeys(tables):
        # An index finds the smallest key directly. To find any other row, a node reads a leaf of
        # the index with all its rows into the heap, and keeps them with the statement.
        least = client.sql(f"SELECT MIN(_KEY) FROM {quoted(table)}").fetchall()  # nosec B608
        if least[0][0] is None:
            raise ConfigError(
                f"SQL does not find the rows of {name}: the nodes have their own mapping of names"
                " to ids of binary types, not Apache Ignite's default",
                hint="load with --no-sql (sql=False), or remove the mappers from the nodes'"
                " BinaryConfiguration",
                cache=name,
            )


def require_stored(
    client: Client, journal: Journal, manifest: Manifest, key_name: str | None = None
) -> None:
    """Compare the written rows with the number of stored entries.

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
