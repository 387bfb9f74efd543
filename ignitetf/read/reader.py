"""`CacheReader`: a cache opened for reading; turns partitions into batches of columns.

scan -> **reader** -> batches -> rows

Opening determines what the cache holds: from its manifest, else from the declared schema, else from
the first pages. Reading decodes pages, applies the policy for nulls, and compares pages that had to
be fetched again with those delivered before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from ignitetf.errors import (
    ConfigError,
    DataChanged,
    PartitionLost,
    SchemaError,
)
from ignitetf.net.binary_types import with_types
from ignitetf.net.client import Client, cache_id
from ignitetf.read.changes import Changes, fingerprint, with_lost_partitions
from ignitetf.read.cursor import Times
from ignitetf.read.declared import (
    Declaration,
    check_names,
    choose_fields,
    declared_schema,
    merge,
    parse_declaration,
    seen_names,
    with_unseen,
)
from ignitetf.read.error_context import Place, key_of
from ignitetf.read.nulls import apply_nulls, check_masks
from ignitetf.read.options import LARGE_ROW_BYTES, PAGE_BYTES, ReadOptions
from ignitetf.read.queries import Selection, find_selection, scan_query
from ignitetf.read.scan import Query, RetryPolicy, scan_units
from ignitetf.tables.catalog import Manifest, read_manifest
from ignitetf.wire.blocks import BlockDecoder
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.decoder import Decoder
from ignitetf.wire.evidence import Evidence, Where, observe_page
from ignitetf.wire.frames import Page
from ignitetf.wire.infer import infer_schema, key_column
from ignitetf.wire.keysets import KeySet
from ignitetf.wire.requests import scan_request
from ignitetf.wire.schema import Batch, Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["CacheReader", "UnitBatch"]

_LARGE_PAGE_BYTES: Final = 16 << 20
_MAX_PAGE_ENTRIES: Final = 65_536
# How many partitions and entries are sampled to find the schema of a cache without a manifest.
_PROBE_PARTITIONS: Final = 64
_PROBE_ENTRIES: Final = 64
_PROBE_ROWS: Final = 4096
_PROBE_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class UnitBatch:
    """A batch of one partition.

    Attributes:
        unit: Index into the requested partitions.
        first: Number of the batch's first record within its partition, before nulls are dropped.
        count: Records of the partition in it, before nulls are dropped; 0 at the partition's end.
        batch: The records.
    """

    unit: int
    first: int
    count: int
    batch: Batch | None


class CacheReader:
    """A cache whose schema is known; `batches` reads it.

    Raises:
        CacheNotFound: There is no such cache.
        SchemaError: The cache is empty or ambiguous and nothing is declared; or a field is unknown.
    """

    def __init__(self, client: Client, name: str, options: ReadOptions) -> None:
        """Determine what the cache holds."""
        options.check()
        self.client = client
        self.name = name
        self.options = options
        self.manifest: Manifest | None = read_manifest(client, name)
        self.cache = name if self.manifest is None else self.manifest.cache
        client.require_cache(self.cache)
        self._check_version()
        self.partition_count = client.partition_count(self.cache)
        counts = () if self.manifest is None else self.manifest.partition_rows
        self.changes = Changes(name, options.on_change, counts)
        self.registry = TypeRegistry()
        self.entry_bytes = 0.0  # stored bytes of a record
        self.block_rows = 1.0  # records in an entry of the cache
        self.dropped = 0
        self.left_out: dict[str, SchemaError] = {}  # fields that cannot be read, and why
        self.times = Times()  # of all batches read
        self.window_pools: list[BufferPool] = []  # memory of shuffled windows, kept between epochs
        self._selection = self._find_selection()
        self.schema = self._open_schema()

    # Opening

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
            if self._is_blocks:
                self.block_rows = self.manifest.rows / max(1, self._size())
        else:
            schema = self._probe(declared)
        if declared is not None:
            schema = merge(declared, schema)
        fields = choose_fields(schema, self.options.fields)
        if not fields:
            raise next(
                iter(self.left_out.values()),
                SchemaError(f"{self.name}: no field is left to read"),
            )
        schema = replace(schema, fields=fields)
        if self.options.nulls == "mask":
            check_masks(schema)
        return schema

    def _probe(self, declared: Declaration | None) -> Schema:
        """Return the schema seen in the first pages of some partitions.

        If those have so few entries that hardly any were seen, a scan of the whole cache follows.
        """
        key, value = Evidence(), Evidence()
        partitions = _spread_out(self.partition_count, _PROBE_PARTITIONS)
        page = self.options.page_size or _PROBE_ENTRIES
        if self._selection is None:
            query, request = self._scan_query(page), scan_request(cache_id(self.cache), page)
            whole = replace(query, body=lambda _: request)
        else:
            query, whole = self._selection.sample(page)
        rows = self._observe(query, partitions, key, value)
        if rows < _PROBE_ROWS // 4 and len(partitions) < self.partition_count:
            rows = self._observe(whole, [-1], key, value)
        if rows == 0:
            return self._empty(declared)
        only: Sequence[str] | None = self.options.fields
        if declared is not None:
            only = None if declared.plain else list(declared.fields)
        if only is not None and not isinstance(only, str):
            check_names(only, value, self.registry)
        if declared is not None:
            only = seen_names(declared, value)
        left_out = self.left_out if self.options.skip_unreadable else None
        try:
            found = infer_schema(key, value, self.registry, only, left_out)
        except SchemaError as error:
            raise error.at(self.name, cache=self.name) from error
        return found if declared is None else with_unseen(declared, found, value)

    def _observe(
        self, query: Query, partitions: Sequence[int], key: Evidence, value: Evidence
    ) -> int:
        """Take in pages until there are enough rows or bytes, and return the number of rows."""
        rows = nbytes = 0
        with contextlib.closing(
            scan_units(self.client, query, partitions, retry=self._retry)
        ) as pages:
            for item in pages:
                if (page := item.page) is None or page.count == 0:
                    continue
                where = self._where(page, partitions[item.unit])
                with_types(
                    self.client, self.registry, observe_page, page, key, value, self.registry, where
                )
                rows += page.count
                nbytes += page.data.nbytes
                if nbytes > _PROBE_BYTES or rows >= _PROBE_ROWS:
                    break
        self.entry_bytes = nbytes / rows if rows else 0.0
        return rows

    def _where(self, page: Page, partition: int) -> Where:
        """Return a function that locates a record of this page, for an error about it."""

        def where(row: int) -> dict[str, Any]:
            facts: dict[str, Any] = {"cache": self.name}
            if partition >= 0:
                facts["partition"] = partition
            key = key_column(page, row, self.registry)
            return facts if key is None else {**facts, "key": key_of(key, 0)}

        return where

    def _empty(self, declared: Declaration | None) -> Schema:
        if declared is None:
            raise SchemaError(
                f"cache {self.name!r} is empty, its fields cannot be told",
                hint="pass schema={'FIELD': (dtype, shape), ...}, or load data first",
                cache=self.name,
            )
        return declared_schema(declared)

    @property
    def _is_blocks(self) -> bool:
        return self.manifest is not None and self.manifest.layout == "blocks"

    def _find_selection(self) -> Selection | None:
        if not self.options.selects:
            return None
        if self._is_blocks:
            raise ConfigError(
                f"cache {self.name!r} has the block layout: the node cannot look into its rows",
                hint="load it with --layout rows, or use Dataset.filter",
                cache=self.name,
            )
        data_set = None if self.manifest is None else self.manifest.name
        return find_selection(self.client, self.cache, self.options, data_set)

    # Sizes

    def _size(self) -> int:
        return self.client.cache_size(self.cache)

    def row_count(self, partitions: Sequence[int]) -> int | None:
        """Return the number of records in these partitions; None if only reading can tell."""
        if not self.counts_are_exact:
            return None
        if len(partitions) == self.partition_count:
            if self.manifest is not None and self._is_blocks:
                return self.manifest.rows
            return self._size()
        if self.manifest is not None and self.manifest.partition_rows:
            return sum(self.manifest.partition_rows[p] for p in partitions)
        return None

    @property
    def counts_are_exact(self) -> bool:
        """Whether every entry of a partition becomes a row."""
        return not self.options.selects and self.options.nulls != "drop"

    def estimated_counts(self, partitions: Sequence[int]) -> list[int]:
        """Return the approximate number of entries in each partition, at least one."""
        return [max(1, self._size() // max(1, self.partition_count))] * len(partitions)

    def partition_counts(self, partitions: Sequence[int]) -> list[int]:
        """Return the entries per partition: from the manifest, else by a scan without decoding."""
        if self.manifest is not None and self.manifest.partition_rows:
            return [self.manifest.partition_rows[p] for p in partitions]
        counts = [0] * len(partitions)
        query = self._scan_query(self.page_size())
        with contextlib.closing(
            scan_units(self.client, query, partitions, retry=self._retry)
        ) as pages:
            for item in pages:
                if item.page is not None and item.replay < 0:
                    counts[item.unit] += item.page.count
        if not self._is_blocks:
            for partition, count in zip(partitions, counts, strict=True):
                self.changes.count_found(partition, count)
        return counts

    def page_size(self) -> int:
        """Entries in a page: the option, else as many as make about `PAGE_BYTES`."""
        if self.options.page_size is not None:
            return self.options.page_size
        stored_bytes = max(self.entry_bytes * self.block_rows, 64.0)
        return int(max(1, min(_MAX_PAGE_ENTRIES, self._page_bytes // stored_bytes)))

    @property
    def _page_bytes(self) -> int:
        return _LARGE_PAGE_BYTES if self.entry_bytes >= LARGE_ROW_BYTES else PAGE_BYTES

    # Reading

    @property
    def _retry(self) -> RetryPolicy:
        limit = self.options.retry_s
        return RetryPolicy(self.client.settings.idle_timeout_s if limit is None else limit)

    def _scan_query(self, page_size: int) -> Query:
        rows = self.manifest.rows if self.manifest is not None else 0
        unit_bytes = self.entry_bytes * (rows or self._size()) / max(1, self.partition_count)
        known = unit_bytes if self.entry_bytes else None
        return scan_query(self.cache, page_size, known, self._page_bytes)

    def batches(self, partitions: Sequence[int]) -> Generator[UnitBatch, None, None]:
        """Yield the records of the partitions, in the given order, and by key hash within each.

        A batch with `batch` None and `count` 0 marks the end of each partition.

        Raises:
            SchemaError: A record does not fit; names cache, partition, key and field.
            DataChanged: A page fetched again has other keys than before.
        """
        page, selection = self.page_size(), self._selection
        keys: KeySet | None = None
        if selection is None or not selection.condition.by_row:
            query = self._scan_query(page)
            keys = None if selection is None else selection.keys(self.client, self._retry)
        else:
            query = selection.query(page)
        query = replace(query, decoder=partial(self._decoder, keys), times=self.times)
        changes = self.changes
        seen: list[int] = []
        unit, first, again, rows = -1, 0, 0, 0
        every = len(partitions) == self.partition_count
        size = len(keys) if every and keys is not None else None
        # For blocks only the manifest knows the number of rows.
        if every and selection is None and not (changes.counts or self._is_blocks):
            size = self._size()
        pages = scan_units(
            self.client, query, partitions, readers=self.options.readers, retry=self._retry
        )
        try:
            for item in pages:
                partition = partitions[item.unit]
                if item.unit != unit:
                    unit, first, seen = item.unit, 0, []
                if item.page is None:
                    if 0 < again < len(seen):
                        changes.check_again(partition, seen, len(seen), 0)
                    if selection is None:
                        changes.check_count(partition, first)
                        changes.check_keys(partition, seen)
                    rows += first
                    yield UnitBatch(unit, first, 0, None)
                    continue
                parts, mark = item.page
                if item.replay >= 0:
                    changes.check_again(partition, seen, item.replay, mark)
                    again = item.replay + 1
                    continue
                again = 0
                seen.append(mark)
                for part in parts:
                    if (count := len(part)) == 0:
                        continue
                    yield UnitBatch(unit, first, count, self._without_nulls(part, partition))
                    first += count
            changes.check_size(size, rows)
        except (DataChanged, PartitionLost) as error:
            found = with_lost_partitions(self.client, self.name, self.cache, error)
            if found is error:
                raise
            raise found from error
        finally:
            pages.close()

    def _decoder(self, keys: KeySet | None) -> Callable[[int, Page], tuple[list[Batch], int]]:
        """Return a function that decodes a page into batches and their fingerprint.

        A page of rows becomes one batch, a page of blocks one batch per block.

        Args:
            keys: Keys of the entries to keep; None keeps all.
        """
        if self._is_blocks:
            decode = BlockDecoder(self.schema, self.registry).decode
        else:
            rows = Decoder(self.schema, self.registry)

            def decode(page: Page) -> list[Batch]:
                return [rows.decode(page)]

        def decode_in(partition: int, page: Page) -> tuple[list[Batch], int]:
            with Place(self.name, partition):
                if keys is not None:
                    page = keys.entries(page)
                parts = with_types(self.client, self.registry, decode, page)
                return parts, fingerprint(parts)

        return decode_in

    def _without_nulls(self, batch: Batch, partition: int) -> Batch:
        if self.options.raw_nulls:
            return batch
        with Place(self.name, partition, batch):
            batch, dropped = apply_nulls(batch, self.options.nulls)
        self.dropped += dropped
        return batch


def _spread_out(count: int, most: int) -> list[int]:
    """Return at most `most` partitions, evenly spread."""
    if count <= most:
        return list(range(count))
    return [i * count // most for i in range(most)]
