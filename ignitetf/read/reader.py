"""`CacheReader`: a cache opened for reading; turns partitions into batches of columns.

scan -> **reader** -> batches -> rows

Opening determines what the cache holds: from its manifest, else from the declared schema, else from
the first pages. Reading decodes pages, applies the policy for nulls, and compares pages that had to
be fetched again with those delivered before.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, DataChanged, SchemaError
from ignitetf.net.binary_types import with_types
from ignitetf.net.client import Client
from ignitetf.net.round_trips import FAR_S
from ignitetf.net.sql_result import only_value
from ignitetf.partitions import LARGE_ROW_BYTES
from ignitetf.read.changes import Changes, explained
from ignitetf.read.collector import Collector
from ignitetf.read.contents import (
    Contents,
    Opened,
    contents_of,
    disprove,
    find_lost,
    has_moved,
    look_up,
)
from ignitetf.read.cursor import Times
from ignitetf.read.declared import choose_fields, merge, parse_declaration
from ignitetf.read.error_context import Place
from ignitetf.read.keys import IntegerKeys, Numbers, by_partition
from ignitetf.read.nulls import apply_nulls, check_masks
from ignitetf.read.options import ReadOptions, page_bytes_for
from ignitetf.read.page_decoder import PageDecoder
from ignitetf.read.page_query import Ends, Query, RetryPolicy
from ignitetf.read.queries import Selection, find_selection, scan_query
from ignitetf.read.reading import ScanReading, count_entries, count_keys
from ignitetf.read.sample import Sampler
from ignitetf.read.splits import Split, find_split
from ignitetf.read.unit_reading import UnitBatch
from ignitetf.read.window import MANY_ROWS
from ignitetf.tables.describe import data_name
from ignitetf.wire.blocks import BlockDecoder
from ignitetf.wire.buffers import ALIGNED_ROWS, BufferPool
from ignitetf.wire.builder import BatchBuilder
from ignitetf.wire.columns import decode_column
from ignitetf.wire.decoder import Decoder
from ignitetf.wire.forms import Form
from ignitetf.wire.frames import Page
from ignitetf.wire.keysets import KeySet
from ignitetf.wire.objects import unwrap
from ignitetf.wire.schema import Batch, Column, Field, Schema
from ignitetf.wire.types import TypeRegistry

if TYPE_CHECKING:
    from ignitetf.read.landing import RowLayout

__all__ = ["CacheReader", "uses_core"]

_CORE: Final = os.environ.get("IGNITETF_ENGINE") != "old"

_MOST_PAGE_BYTES: Final = 32 << 20
_MAX_PAGE_ENTRIES: Final = 65_536


def uses_core(reader: CacheReader) -> bool:
    """Whether rows are read through the core, which is being built."""
    return _CORE


class CacheReader:
    """A cache whose schema is known; `batches` reads it.

    Attributes:
        if_near: Options to read with from the next pass on if requests show that the link is near,
            where those in use are for a distant one; else None.

    Raises:
        CacheNotFound: There is no such cache.
        SchemaError: The cache is empty or ambiguous and nothing is declared; or a field is unknown.
    """

    def __init__(self, client: Client, name: str, options: ReadOptions) -> None:
        """Determine what the cache holds."""
        options.check()
        self.client = client
        found = look_up(client, name)
        if found.manifest is None and found.partitions is None:
            # Only then it may be the SQL name of a table whose cache has another one.
            name, table = data_name(client, name)
            found = look_up(client, name)
            options = replace(options, table=options.table or table)
        self.manifest = found.manifest
        self.node_count = len(found.nodes)
        self.name = name
        self.options = options
        self.if_near: ReadOptions | None = None
        self.cache = name if self.manifest is None else self.manifest.cache
        self.partition_count = found.partitions or client.partition_count(self.cache)
        self._check_version()
        self._may_be_lost = False
        self.contents = self._find_contents(found)
        # What to read of it; its counts are filled in if the manifest does not have them.
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
        self.times = Times()  # of all batches read
        # Memory of shuffled windows and of joined pages, kept between epochs.
        self.window_pools: list[BufferPool] = []
        self.page_pools: list[BufferPool] = []
        self._layouts: dict[tuple[str | None, tuple[str, ...], int], RowLayout] = {}
        self._forms: list[Form] = []  # of the rows, learned in one epoch for the next ones
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
        """Whether the rows of the splits were counted when they were those that are here."""
        rows = sum(map(sum, split.division.rows))
        return self.contents.is_as_loaded and rows == self.contents.rows

    def _check_lost(self) -> None:
        """Report partitions that were lost with a node, which this cache answers as empty."""
        if self._may_be_lost and self.manifest is not None and (lost := find_lost(self)):
            with self.explained():
                self.changes.check_lost(lost, self.manifest.rows, self.contents.rows)

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
                self.retry,
            ).sample(self.partition_count, declared)  # fmt: skip
            schema = found.schema
            self.entry_bytes, self.left_out = found.entry_bytes, found.left_out
        if declared is not None:
            schema = merge(declared, schema)
        fields = choose_fields(schema, self.options.fields)
        schema = replace(schema, fields=fields)
        if schema.key.has_times:
            schema = schema.in_zone(self.client.zone)
        if not fields:  # the keys alone, whatever the values are
            schema = replace(schema, type_name="")
        if self.options.nulls == "mask":
            check_masks(schema)
        return schema

    @property
    def is_blocks(self) -> bool:
        """Whether entries are blocks of records."""
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
        """Return the SQL table that has all entries of the cache as rows, if there is one."""
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
        """The number of rows if their keys are 0, 1, 2 ..., as a load gives them out, else None."""
        return self.contents.own_keys

    @functools.cached_property
    def own_numbers(self) -> list[Numbers] | None:
        """Such keys by partition, ascending; None if they are not where the load counted them."""
        if self.own_keys is None:
            return None
        found = by_partition(IntegerKeys(self.schema, self.own_keys), self.partition_count)
        counted = list(self.contents.counts)
        return found if found is not None and [len(part) for part in found] == counted else None

    def row_count(self, partitions: Sequence[int]) -> int | None:
        """Return the number of records in these partitions; None if only reading can tell."""
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
        """Whether every entry of a partition becomes a row."""
        return not self.options.selects and self.options.nulls != "drop"

    @property
    def has_counts(self) -> bool:
        """Whether the number of entries in each partition is known without reading."""
        if self.split is not None:
            return bool(self.split.counts)
        return bool(self.contents.counts)

    @property
    def is_rewritten(self) -> bool:
        """Whether others have written to this data set since its load."""
        return self.manifest is not None and not self.contents.is_as_loaded

    def estimated_counts(self, partitions: Sequence[int]) -> list[int]:
        """Return the approximate number of entries in each partition, at least one."""
        return [max(1, self.contents.rows // max(1, self.partition_count))] * len(partitions)

    def partition_counts(self, partitions: Sequence[int]) -> list[int]:
        """Return the entries per partition: as loaded, else by their keys, or a scan of all."""
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
        """Return the entries per partition, by a scan without decoding."""
        return count_entries(self, partitions)

    def page_size(self) -> int:
        """Entries in a page: the option, else as many as make a page of a scan."""
        if self.options.page_size is not None:
            return self.options.page_size
        stored_bytes = max(self.entry_bytes * self.block_rows, 64.0)
        return int(max(1, min(_MAX_PAGE_ENTRIES, self.scan_page_bytes // stored_bytes)))

    @property
    def scan_page_bytes(self) -> int:
        """About as many bytes as a page of a scan has.

        Less where many connections ask a node for pages, more where a page takes long to come.
        """
        options = self.options
        connections = options.shards * max(1, options.readers // max(1, self.node_count))
        near = page_bytes_for(self.entry_bytes, self.unit_bytes, connections)
        return max(near, min(_MOST_PAGE_BYTES, options.in_flight_bytes))

    @functools.cached_property
    def unit_bytes(self) -> float:
        """About as many bytes as a partition had at the first use; 0 if that is not known.

        Where it is known which ones are empty, and so not read, as many as each of the others had.
        """
        counts = self.contents.counts
        used = len(counts) - counts.count(0) or self.partition_count
        return self.entry_bytes * self.contents.rows / max(1, used)

    @property
    def page_bytes(self) -> int:
        """About as many bytes as a batch has, and as a page has at most."""
        return page_bytes_for(self.entry_bytes, self.unit_bytes)

    # Reading

    @property
    def retry(self) -> RetryPolicy:
        """How long to try to replace a lost connection."""
        limit = self.options.retry_s
        return RetryPolicy(self.client.settings.idle_timeout_s if limit is None else limit)

    def expect(self, shards: int) -> None:
        """Expect so many processes to read at once: then pages are smaller, the rows the same."""
        self.options = replace(self.options, shards=shards)

    def scan_query(self, page_size: int) -> Query:
        """Return the query for all entries of a partition."""
        page, readers = self.scan_page_bytes, self.options.readers
        if not self.entry_bytes:
            return scan_query(self.cache, page_size, None, page, readers)
        entries = self.unit_bytes / (self.entry_bytes * self.block_rows)
        return scan_query(self.cache, page_size, self.unit_bytes, page, readers, entries)

    def batches(
        self, partitions: Sequence[int], ends: Sequence[int] | None = None
    ) -> Generator[UnitBatch, None, None]:
        """Yield the records of the partitions, in the given order, and by key hash within each.

        A batch with `batch` None and `count` 0 marks an end.

        Args:
            partitions: The partitions.
            ends: Indexes into the partitions, ascending, at whose end a batch must end; None for
                all of them. Else a batch may have the records of several partitions.

        Raises:
            SchemaError: A record does not fit; names cache, key and field, and if it was scanned the
                partition.
            DataChanged: A page fetched again has other keys than before.
        """
        ends = range(len(partitions)) if ends is None else ends
        self._correct_distance()
        with self.explained():
            yield from ScanReading(self, partitions, ends).batches()

    @property
    def scanned_schema(self) -> Schema:
        """The fields that are read, with those that tell the split of a row."""
        return self.schema if self.split is None else self.split.scanned(self.schema)

    def row_layout(self, schema: Schema, rows: int) -> RowLayout:
        """Return how rows land in groups of so many; it is kept for later passes."""
        from ignitetf.read.landing import RowLayout

        place = (schema.type_name, schema.names, rows)
        found = self._layouts.get(place)
        if found is None:
            found = self._layouts[place] = RowLayout(
                schema, self.registry, rows, self.entry_bytes * self.block_rows
            )
        return found

    def _correct_distance(self) -> None:
        """Read as over a near link if it was taken for a distant one, as on a busy machine."""
        near = self.if_near
        if near is not None and self.client.quickest_s < FAR_S:
            self.options, self.if_near = replace(near, shards=self.options.shards), None

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raise what is behind an error of reading, as `changes.explained`."""
        try:
            with explained(self.client, self.name, self.cache, self.partition_count):
                yield
        except DataChanged:
            disprove(self.manifest)  # who opens it again counts what is there
            raise

    def check_entries(self) -> None:
        """Compare the entries that a data set has now with those it had when it was opened.

        A selection of rows does not show by itself that others are lost.
        """
        if self.manifest is None:
            return
        had = self.contents.entries
        size = self.client.settled_size(self.cache, had)
        with self.explained():
            self.changes.check_size(had, size, "when it was opened")

    def adapted(self, query: Query) -> Query:
        """Return a query as this reader makes it: what it may hold ahead, and who counts its times.

        A node works on one page of a partition at a time. So that it works on several partitions,
        each connection takes rows apart while those before them are still to come.
        """
        ahead = self.client.settings.ahead_bytes
        return replace(query, times=self.times, run_bytes=self.page_bytes, ahead_bytes=ahead)

    def collector(
        self, keys: KeySet | None, pool: BufferPool, ends: Ends, doublings: int = 0
    ) -> Collector:
        """Return what takes the rows of pages apart, for one thread.

        Args:
            keys: Keys of the entries to keep; None keeps all.
            pool: Memory.
            ends: The units with which a batch must end.
            doublings: How many times a batch has twice as many rows as the one before it. The first
                one has about a page.
        """
        schema = self.schema if self.split is None else self.split.scanned(self.schema)
        decoder, builder = self.decoder(keys, schema, pool), None
        rows = self._batch_rows
        if rows and BatchBuilder.can_build(schema):
            builder = self.builder(pool, rows, schema, doublings)
        multiple = ALIGNED_ROWS if rows >= MANY_ROWS else 1
        known_rows = self.changes.known_rows
        return Collector(decoder, builder, self.page_bytes, multiple, ends, known_rows)

    def builder(
        self, pool: BufferPool, rows: int, schema: Schema | None = None, doublings: int = 0
    ) -> BatchBuilder:
        """Return a `BatchBuilder` for so many rows; `can_build` has told that there is one."""
        chosen, forms = self.schema if schema is None else schema, self._forms
        row_bytes = self.entry_bytes
        return BatchBuilder(chosen, self.registry, pool, rows, row_bytes, forms, doublings)

    @property
    def _batch_rows(self) -> int:
        """Rows of a batch of about a page; 0 if pages are decoded as a whole, as blocks are."""
        if self.is_blocks:
            return 0
        rows = int(self.page_bytes // max(self.entry_bytes, 64.0))
        if self.entry_bytes >= LARGE_ROW_BYTES:
            return max(1, rows)
        step = ALIGNED_ROWS if rows < 2 * MANY_ROWS else MANY_ROWS
        return max(step, round(rows / step) * step)

    def decoder(
        self,
        keys: KeySet | None = None,
        schema: Schema | None = None,
        pool: BufferPool | None = None,
    ) -> PageDecoder:
        """Return what decodes pages, for one thread.

        Args:
            keys: Keys of the entries to keep; None keeps all.
            schema: Fields to decode; None for those of the reader.
            pool: Memory for pages that are joined.
        """
        return PageDecoder(
            self.client,
            self.name,
            self.schema if schema is None else schema,
            self.registry,
            blocks=self.is_blocks,
            keys=keys,
            pool=pool,
            retry_s=self.retry.budget_s,
        )

    def no_rows(self) -> Batch:
        """Return a batch without rows, with all columns."""
        empty = Page(0, False, np.empty(0, np.uint8))
        return self.without_nulls(Decoder(self.schema, self.registry).decode(empty), None)

    def decoded(self, data: NDArray[np.uint8], at: NDArray[np.int64], field: Field) -> Column:
        """Decode objects that stand at these positions of a page, one in each row."""
        at = unwrap(data, at) if len(at) else at
        return with_types(self.client, self.registry, decode_column, data, at, field, self.registry)

    def block_decoder(self) -> Callable[[Page], tuple[NDArray[np.int64], list[Batch]]]:
        """Return a function that decodes a page of blocks into their keys and their records."""
        decode = BlockDecoder(self.schema, self.registry).keyed

        def decode_in(page: Page) -> tuple[NDArray[np.int64], list[Batch]]:
            with Place(self.name, None):
                return with_types(self.client, self.registry, decode, page)

        return decode_in

    def without_nulls(self, batch: Batch, partition: int | None) -> Batch:
        """Return the batch after the policy for nulls; counts the records that it drops."""
        if self.options.raw_nulls:
            return batch
        with Place(self.name, partition, batch):
            batch, dropped = apply_nulls(batch, self.options.nulls)
        self.dropped += dropped
        return batch
