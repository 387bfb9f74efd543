"""`CacheReader`: a cache opened for reading; reads partitions as batches of columns.

contents, reading -> **reader** -> batches -> rows

Opening determines the fields of the cache: from its manifest; without one from the declared schema;
without that from the first pages. `reading` reads the rows. The reader keeps what later passes use.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, DataChanged, SchemaError
from ignitetf.net.binary_types import with_types
from ignitetf.net.client import Client
from ignitetf.net.results import only_value
from ignitetf.read.contents import (
    Changes,
    Contents,
    Opened,
    contents_of,
    disprove,
    explained,
    has_moved,
    look_up,
)
from ignitetf.read.fields import Sampler, choose_fields, merge, parse_declaration
from ignitetf.read.keys import RecordContext
from ignitetf.read.landing import RowLayout
from ignitetf.read.options import ReadOptions, apply_nulls, check_masks
from ignitetf.read.scans import ScanReading, UnitBatch, count_entries, count_keys
from ignitetf.read.selection import Selection, Split, find_selection, find_split
from ignitetf.tables.caches import UNSAFE_LOSS, loss_policy_of
from ignitetf.tables.describe import data_name
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.columns import Batch, Column
from ignitetf.wire.decode import Decoder, decode_column
from ignitetf.wire.frames import Page
from ignitetf.wire.objects import unwrap
from ignitetf.wire.schema import Field, Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["CacheReader"]


class CacheReader:
    """A cache whose schema is known; `batches` reads it.

    Raises:
        CacheNotFound: The cache does not exist.
        SchemaError: The cache is empty or ambiguous and nothing is declared; or a field is unknown.
    """

    def __init__(self, client: Client, name: str, options: ReadOptions) -> None:
        """Connect to the cache, and determine its schema and its number of rows."""
        options.check()
        self.client = client
        found = look_up(client, name)
        if found.manifest is None and found.partitions is None:
            # Without such a data set or cache, it may be the SQL name of a table in another cache.
            name, table = data_name(client, name)
            found = look_up(client, name)
            options = replace(options, table=options.table or table)
        self.manifest = found.manifest
        self.node_count = len(found.nodes)
        self.name = name
        self.options = options
        self.cache = name if self.manifest is None else self.manifest.cache
        self.partition_count = found.partitions or client.partition_count(self.cache)
        self._check_version()
        self._may_be_lost = False
        self.contents = self._find_contents(found)
        # The split to read. Its counts are added later if the manifest does not have them.
        self.split = (
            None if options.split is None else find_split(name, self.manifest, options.split)
        )
        if self.split is not None and not self._has_split_counts(self.split):
            self.split = replace(self.split, counts=())
        counts = self.contents.counts
        self.changes = Changes(name, options.on_change, self.partition_count, counts)
        self.registry = TypeRegistry(client.zone)
        self.entry_bytes = 0.0  # stored bytes of a record
        self.block_rows = 1.0  # records in an entry of the cache
        self.dropped = 0
        self.left_out: dict[str, SchemaError] = {}  # fields that cannot be read, and why
        # Memory of shuffled windows, kept between epochs.
        self.window_pools: list[BufferPool] = []
        self._layouts: dict[tuple[Hashable, ...], RowLayout] = {}
        self.selection = self._find_selection()
        self.schema = self._open_schema()
        self._check_lost()

    # Opening

    def _find_contents(self, found: Opened) -> Contents:
        entries, manifest = found.entries, found.manifest
        if entries is None:
            entries = self.entry_count()
        stored = 0 if manifest is None or self.is_blocks else manifest.rows
        if manifest is not None and entries < stored and has_moved(self.client, manifest):
            entries = self.client.settled_size(self.cache, stored)
            self._may_be_lost = entries < stored
        return contents_of(found, entries, counts_matter=self.options.on_change != "error")

    def _has_split_counts(self, split: Split) -> bool:
        """Return True if the counts of the splits belong to the rows that the cache has now."""
        rows = sum(map(sum, split.division.rows))
        return self.contents.is_as_loaded and rows == self.contents.rows

    def _check_lost(self) -> None:
        """Report partitions that were lost with a node and that this cache returns as empty."""
        if self._may_be_lost and self.manifest is not None and (lost := self._lost()):
            with self.explained():
                self.changes.check_lost(lost, self.manifest.rows, self.contents.rows)

    def _lost(self) -> list[int]:
        """Return the partitions that had rows, are empty now, and may have been lost with a node.

        Only for a cache that is smaller than after its load, if `has_moved`. Counts the rows. If
        the cache answers requests for lost partitions with an error, returns nothing.
        """
        assert self.manifest is not None
        stored = self.manifest.partition_rows
        policy = loss_policy_of(self.client, self.cache)
        if len(stored) != self.partition_count or policy not in (UNSAFE_LOSS, None):
            return []
        counts = self.partition_counts(range(self.partition_count))
        return [p for p, (a, b) in enumerate(zip(stored, counts, strict=True)) if a and not b]

    def _check_version(self) -> None:
        wanted = self.options.version
        if wanted is None:
            return
        found = None if self.manifest is None else self.manifest.version
        if found != wanted:
            raise DataChanged(
                f"{self.name}: version {wanted} was asked for, the cache has"
                f" {'no manifest' if found is None else f'version {found}'}",
                cache=self.name,
            )

    def _open_schema(self) -> Schema:
        declared = None
        if self.options.schema is not None:
            declared = parse_declaration(self.options.schema)
        if self.manifest is not None:
            schema = self.manifest.schema
            if self.manifest.rows:
                self.entry_bytes = self.manifest.nbytes / self.manifest.rows
            if self.is_blocks:
                self.block_rows = self.manifest.rows / max(1, self.contents.entries)
        else:
            found = Sampler(
                self.client, self.name, self.cache, self.options, self.registry, self.selection,
                self.retry_s,
            ).sample(self.partition_count, declared)  # fmt: skip
            schema = found.schema
            self.entry_bytes, self.left_out = found.entry_bytes, found.left_out
        if declared is not None:
            schema = merge(declared, schema)
        fields = choose_fields(schema, self.options.fields)
        schema = replace(schema, fields=fields)
        if schema.key.has_times:
            schema = schema.in_zone(self.client.zone)
        if not fields:  # only the keys; values may have any type
            schema = replace(schema, type_name="")
        if self.options.nulls == "mask":
            check_masks(schema)
        return schema

    @property
    def is_blocks(self) -> bool:
        """True if entries are blocks of records."""
        return self.manifest is not None and self.manifest.layout == "blocks"

    def _find_selection(self) -> Selection | None:
        if not self.options.selects:
            return None
        if self.is_blocks:
            raise ConfigError(
                f"cache {self.name!r} has the block layout: the node cannot look into its rows",
                hint="load it with --layout rows, or use Dataset.filter",
                cache=self.name,
            )
        data_set = None if self.manifest is None else self.manifest.name
        return find_selection(self.client, self.cache, self.options, data_set)

    def whole_table(self) -> Selection | None:
        """Return the SQL table that has all entries of the cache as rows; None without one."""
        try:
            table = find_selection(self.client, self.cache, replace(self.options, where=None))
        except ConfigError:
            return None
        rows = self.client.sql(f"SELECT COUNT(*) FROM {table.table.sql}")  # nosec B608
        return table if only_value(rows) == self.entry_count() else None

    # Sizes

    def entry_count(self) -> int:
        """Return the number of entries that the cache has now."""
        return self.client.cache_size(self.cache)

    @property
    def own_keys(self) -> int | None:
        """The number of rows if their keys are 0, 1, 2 ... (generated by a load), or None."""
        return self.contents.own_keys

    def row_count(self, partitions: Sequence[int]) -> int | None:
        """Return the number of records in these partitions; None if it is only known by reading."""
        if not self.counts_are_exact:
            return None
        if self.split is not None:
            return sum(self.split.counts[p] for p in partitions) if self.split.counts else None
        if len(partitions) == self.partition_count:
            return self.contents.rows
        counts = self.contents.counts
        return sum(counts[p] for p in partitions) if counts else None

    @property
    def counts_are_exact(self) -> bool:
        """True if every entry of a partition becomes a row."""
        return not self.options.selects and self.options.nulls != "drop"

    @property
    def has_counts(self) -> bool:
        """True if the number of entries in each partition is known without reading."""
        if self.split is not None:
            return bool(self.split.counts)
        return bool(self.contents.counts)

    @property
    def is_rewritten(self) -> bool:
        """True if other programs have written to this data set since its load."""
        return self.manifest is not None and not self.contents.is_as_loaded

    def estimated_counts(self, partitions: Sequence[int]) -> list[int]:
        """Return the approximate number of entries in each partition, at least one."""
        return [max(1, self.contents.rows // max(1, self.partition_count))] * len(partitions)

    def partition_counts(self, partitions: Sequence[int]) -> list[int]:
        """Return the entries per partition: from the load, or counted by SQL or by a scan."""
        if self.split is not None:
            return [self.split.counts[p] for p in partitions]
        if not self.contents.counts and self.is_rewritten:
            every = count_keys(self) or self._scanned_counts(range(self.partition_count))
            self.contents = self.contents.counted(every)
            for partition, count in enumerate(every):
                self.changes.count_found(partition, count)
        if self.contents.counts:
            return [self.contents.counts[p] for p in partitions]
        counts = self._scanned_counts(partitions)
        if not self.is_blocks:
            for partition, count in zip(partitions, counts, strict=True):
                self.changes.count_found(partition, count)
        return counts

    def _scanned_counts(self, partitions: Sequence[int]) -> list[int]:
        """Return the entries per partition, counted by a scan without decoding."""
        return count_entries(self, partitions)

    @functools.cached_property
    def unit_bytes(self) -> float:
        """Approximate bytes of a partition at the first use; 0 if unknown.

        Partitions that are known to be empty are not read, so they do not count in this average.
        """
        counts = self.contents.counts
        used = len(counts) - counts.count(0) or self.partition_count
        return self.entry_bytes * self.contents.rows / max(1, used)

    # Reading

    @property
    def retry_s(self) -> float:
        """Seconds without progress for which a lost connection is replaced; 0 replaces none."""
        limit = self.options.retry_s
        return self.client.settings.idle_timeout_s if limit is None else limit

    def batches(
        self,
        partitions: Sequence[int],
        ends: Sequence[int] | None = None,
        batch_rows: int | None = None,
    ) -> Generator[UnitBatch, None, None]:
        """Yield the records of the partitions, in the given order, and by key hash within each.

        A `UnitBatch` with `batch` None marks an end.

        Args:
            partitions: The partitions.
            ends: Ascending indexes into `partitions`. A batch must end where such a partition ends;
                None for all partitions. Otherwise a batch may have records of several partitions.
            batch_rows: Rows of the batches that will be cut; None if it is not known.

        Raises:
            SchemaError: A record does not match the schema; names cache, key and field, and for a
                scan the partition.
            DataChanged: A partition has other rows than before.
        """
        ends = range(len(partitions)) if ends is None else ends
        with self.explained():
            yield from ScanReading(self, partitions, ends, batch_rows=batch_rows).batches()

    @property
    def scanned_schema(self) -> Schema:
        """The fields that are read, including those that decide the split of a row."""
        return self.schema if self.split is None else self.split.scanned(self.schema)

    def row_layout(self, schema: Schema, rows: int) -> RowLayout:
        """Return the layout for groups of `rows` rows; it is kept for later passes."""
        place = (schema.type_name, schema.key.type, schema.names, rows)
        found = self._layouts.get(place)
        if found is None:
            found = self._layouts[place] = RowLayout(
                schema, self.registry, rows, self.entry_bytes * self.block_rows
            )
        return found

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the cause of a read error; see `contents.explained`."""
        try:
            with explained(self.client, self.name, self.cache, self.partition_count):
                yield
        except DataChanged:
            disprove(self.manifest)  # the next open counts the rows that exist
            raise

    def check_entries(self) -> None:
        """Compare the number of entries now with the number when the data set was opened.

        Reading a selection of rows does not show that other rows are lost.
        """
        if self.manifest is None:
            return
        had = self.contents.entries
        size = self.client.settled_size(self.cache, had)
        with self.explained():
            self.changes.check_size(had, size, "when it was opened")

    def no_rows(self) -> Batch:
        """Return a batch without rows, with all columns."""
        empty = Page(0, False, np.empty(0, np.uint8))
        return self.without_nulls(Decoder(self.schema, self.registry).decode(empty), None)

    def decoded(self, data: NDArray[np.uint8], at: NDArray[np.int64], field: Field) -> Column:
        """Decode the objects at these positions of a page, one for each row."""
        at = unwrap(data, at) if len(at) else at
        return with_types(self.client, self.registry, decode_column, data, at, field, self.registry)

    def without_nulls(self, batch: Batch, partition: int | None) -> Batch:
        """Return the batch after applying the policy for nulls; counts the dropped records."""
        if self.options.raw_nulls:
            return batch
        with RecordContext(self.name, partition, batch):
            batch, dropped = apply_nulls(batch, self.options.nulls)
        self.dropped += dropped
        return batch
