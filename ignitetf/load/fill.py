"""The loop of a load: passes batches of a source to a writer and keeps the journal up to date.

source -> batches -> **fill** -> writer

After a lost connection the loop retries from the last journal entry, for as long as the cluster may
need to recover. If the retries fail, it raises `LoadInterrupted`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ignitetf.load.blocks import Blocks, trim
from ignitetf.load.equal_keys import Ascending
from ignitetf.load.journal import Journal, write_journal
from ignitetf.load.options import interrupted_error
from ignitetf.load.sources.base import Source, batch_bytes
from ignitetf.load.writer import Writer, register_types
from ignitetf.net.client import Client
from ignitetf.net.failures import FAILURES, LOAD, Backoff
from ignitetf.tables.lease import Lease
from ignitetf.tables.storage import index_table
from ignitetf.wire.answers import NodeEndpoint, PartitionMap
from ignitetf.wire.blocks import BlockKeys, block_schema
from ignitetf.wire.columns import Batch, Column, Dense, Struct, values_of
from ignitetf.wire.schema import Schema

__all__ = ["Filler", "Owners", "Progress", "index_schema", "register_entries"]

Progress = Callable[[int, int], None]

# An interrupted load loses its rows since the last journal entry; each entry costs a flush.
_NOTE_S: Final = 2.0
# An entry waits for all requests in flight, which costs two round trips on a distant link. So two
# entries are at least this many round trips apart.
_NOTE_TRIPS: Final = 100


def _with_nulls(batch: Batch) -> set[str]:
    """Return the names of the columns that have a null."""
    return {
        name
        for name, column in batch.columns.items()
        if column.valid is not None and not column.valid.all()
    }


@dataclass(frozen=True)
class Owners:
    """The nodes that hold the partitions of a cache."""

    partitions: PartitionMap
    nodes: Sequence[NodeEndpoint]


class Filler:
    """Fills the cache that a journal names from a source.

    Args:
        client: The connection.
        source: The records; read from the position in the journal.
        journal: The progress of the load; kept up to date.
        lease: The lease on the data set, already held.
        on_progress: Called with rows and bytes as they are sent to the node.
    """

    def __init__(
        self,
        client: Client,
        source: Source,
        journal: Journal,
        lease: Lease,
        on_progress: Progress,
    ) -> None:
        self.client, self.source, self.journal = client, source, journal
        self.lease, self.on_progress = lease, on_progress
        storage = journal.storage
        self.layout, self.limit = storage.layout, storage.limit
        self.slim_fields = storage.index if storage.has_slim_table else ()
        self.with_nulls: set[str] = set()
        self._skipped_before = journal.skipped
        self._resume_at: int | None = None
        # The keys before the journal's position were not checked by this process.
        self.ascending = Ascending(seen_all=journal.position == 0 and journal.mode != "append")

    def run(self, *, fresh: bool, owners: Owners | None = None) -> None:
        """Write all rows from the journal's position to the end of the source.

        At the end the journal is updated; the caller stores it.

        Args:
            fresh: True if the cache is empty, so that no row can replace an older one.
            owners: Owners of the cache, if they are known and its types are registered.

        Raises:
            LoadInterrupted: The cluster did not recover, or refused a request. Stored rows are
                kept.
        """
        backoff = Backoff(LOAD)
        while True:
            before = self.journal.position
            try:
                return self._fill(owners, fresh=fresh)
            except FAILURES as error:
                if self.journal.position > before:
                    backoff.progress()
                # Retry for as long as the cluster may need to recover.
                wait_s = backoff.wait_s(error, self.client.settings.idle_timeout_s)
                if wait_s is not None:
                    time.sleep(wait_s)
                    fresh, owners = False, None
                    continue
                if self.journal.rows == 0 and self.journal.mode != "append":
                    # Perhaps no row is stored, so the caller decides whether to keep the cache.
                    raise
                raise interrupted_error(self.journal, error) from error

    def _fill(self, owners: Owners | None, *, fresh: bool) -> None:
        journal = self.journal
        self._skipped_before = journal.skipped
        with contextlib.ExitStack() as stack:
            # A new cache has the requested number of partitions: its creation checked that.
            asked = journal.partitions if fresh else None
            partitions = asked or self.client.partition_count(journal.cache)
            writer = stack.enter_context(self._writer(partitions, owners))
            slim = stack.enter_context(self._slim_writer()) if self.slim_fields else None
            keys = BlockKeys(partitions, journal.blocks)
            blocks = None
            if self.layout == "blocks":
                blocks = Blocks(writer, keys, journal.block_rows)
            if blocks is not None and not fresh:
                self.lease.check()
                trim(self.client, journal.cache, keys)
            note_s = _note_seconds(self.client)
            rows, next_note = journal.rows, time.monotonic() + note_s
            size = batch_bytes(journal.schema)
            for read in self.source.batches(journal.position, max_bytes=size):
                batch = self._prepared(read, rows)
                if len(batch):
                    self.with_nulls |= _with_nulls(batch)
                    if batch.key is not None:
                        self.ascending.add(batch.key)
                    (writer.write if blocks is None else blocks.add)(batch)
                    if slim is not None:
                        slim.write(
                            Batch(batch.key, {n: batch.columns[n] for n in self.slim_fields})
                        )
                rows += len(batch)
                self.on_progress(len(batch), batch.nbytes)
                if self.limit is not None and rows >= self.limit:
                    break
                if time.monotonic() >= next_note and (blocks is None or blocks.empty):
                    self._note(writer, slim, blocks)
                    self._store_journal()
                    next_note = time.monotonic() + note_s
            if blocks is not None:
                blocks.write()
            self._note(writer, slim, blocks)
            if blocks is not None and not fresh:
                self._store_journal()
                trim(self.client, journal.cache, keys)

    def _note(self, writer: Writer, slim: Writer | None, blocks: Blocks | None) -> None:
        """Flush everything, then write the journal."""
        writer.flush()
        if slim is not None:
            slim.flush()
        journal = self.journal
        totals, known = writer.totals, writer.totals.partition_rows
        journal.rows, journal.nbytes, journal.checksum = totals.rows, totals.nbytes, totals.checksum
        journal.partition_rows = [] if known is None else known.tolist()
        journal.position = self.source.position if self._resume_at is None else self._resume_at
        journal.skipped = self._skipped_before + len(self.source.skipped)
        if blocks is not None:
            journal.blocks = tuple(blocks.keys.used.tolist())
            journal.block_rows = blocks.block_rows

    def _store_journal(self) -> None:
        self.lease.check()
        write_journal(self.client, self.journal)

    def _writer(self, partitions: int, owners: Owners | None) -> Writer:
        journal = self.journal
        owners = owners or self._find_owners()
        if journal.topology is None:
            journal.topology = owners.partitions.version[0]
        # Without a partition map the cache has its own affinity function, so rows by partition are
        # unknown.
        counted = partitions if owners.partitions.count > 0 else None
        writer = Writer(
            self.client,
            journal.cache,
            journal.schema,
            entry_schema=_entry_schema(journal),
            partitions=counted,
            nodes=[node.node_id for node in owners.nodes],
            check_lease=self.lease.check,
        )
        writer.totals = journal.totals(counted)
        return writer

    def _find_owners(self) -> Owners:
        """Return the owners of the partitions; also registers the types of the entries."""
        found, nodes, _ = self.client.at_once(
            lambda: self.client.partition_map(self.journal.cache),
            self.client.nodes,
            lambda: register_entries(self.client, self.journal),
        )
        return Owners(found, nodes)

    def _slim_writer(self) -> Writer:
        schema = index_schema(self.journal.schema, self.slim_fields)
        register_types(self.client, schema)
        table = index_table(self.journal.cache)
        return Writer(self.client, table, schema, senders=1, check_lease=self.lease.check)

    def _prepared(self, batch: Batch, rows: int) -> Batch:
        """Return the batch cut at the limit, with running keys shifted past the existing ones."""
        if batch.key is None:
            first = self.source.position - len(batch)
            batch = Batch(Dense(np.arange(first, first + len(batch))), batch.columns)
        if self.limit is not None and rows + len(batch) > self.limit:
            batch = batch[: max(0, self.limit - rows)]
            if len(batch) and self.source.key_name is None:
                self._resume_at = int(values_of(batch.key)[-1]) + 1
        if self.journal.key_base and batch.key is not None:
            batch = Batch(self._moved(batch.key), batch.columns)
        return batch

    def _moved(self, key: Column) -> Column:
        """Return the key column with running keys shifted past the existing ones."""
        if isinstance(key, Struct):
            name = self.journal.schema.affinity_key
            assert name is not None
            return Struct({**key.fields, name: self._moved(key.fields[name])})
        return Dense(values_of(key) + self.journal.key_base)


def register_entries(client: Client, journal: Journal) -> None:
    """Register the binary types of the entries that a load writes."""
    register_types(client, _entry_schema(journal))


def _entry_schema(journal: Journal) -> Schema:
    return block_schema(journal.schema) if journal.storage.layout == "blocks" else journal.schema


def _note_seconds(client: Client) -> float:
    return max(_NOTE_S, _NOTE_TRIPS * min(client.delay.seconds, 0.1))


def index_schema(schema: Schema, index: Collection[str]) -> Schema:
    """Return the schema of the slim table, with the key and the indexed fields."""
    fields = tuple(f for f in schema.fields if f.name in index)
    return replace(schema, type_name=f"{schema.type_name}_INDEX", fields=fields)
