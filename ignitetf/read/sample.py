"""Finds out what a cache without a manifest holds, from the first pages of some partitions.

scan -> **sample** -> schema -> reader
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ignitetf.errors import SchemaError
from ignitetf.net.binary_types import with_types
from ignitetf.net.client import Client, cache_id
from ignitetf.read.declared import (
    Declaration,
    check_names,
    declared_schema,
    seen_names,
    with_unseen,
)
from ignitetf.read.error_context import key_of
from ignitetf.read.options import PAGE_BYTES, ReadOptions
from ignitetf.read.page_query import Query, RetryPolicy
from ignitetf.read.queries import Selection, scan_query
from ignitetf.read.scan import scan_units
from ignitetf.read.table_fields import TableFields, table_fields
from ignitetf.wire.evidence import Evidence, Where, observe_page
from ignitetf.wire.frames import Page
from ignitetf.wire.infer import infer_schema, key_column
from ignitetf.wire.requests import scan_request
from ignitetf.wire.schema import Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["Sample", "Sampler"]

_PARTITIONS: Final = 64
_ENTRIES: Final = 64  # of a page
_ROWS: Final = 4096
_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class Sample:
    """What was found.

    Attributes:
        schema: The records; with a declaration, its fields where they were seen.
        entry_bytes: Stored bytes of a record, on average; 0 of an empty cache.
        left_out: Fields that cannot be read, and why; empty unless they may be left out.
    """

    schema: Schema
    entry_bytes: float = 0.0
    left_out: dict[str, SchemaError] = field(default_factory=dict)


class Sampler:
    """Reads records of a cache to learn its schema.

    Args:
        client: The connection.
        name: Name of the data set, for messages.
        cache: Name of the cache.
        options: What to read.
        registry: Receives the binary types that the records have.
        selection: The SQL table and condition, if there are any.
        retry: How long to try to replace a lost connection.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        cache: str,
        options: ReadOptions,
        registry: TypeRegistry,
        selection: Selection | None,
        retry: RetryPolicy,
    ) -> None:
        self._client = client
        self._name = name
        self._cache = cache
        self._options = options
        self._registry = registry
        self._selection = selection
        self._retry = retry
        self._bytes = self._rows = 0

    def sample(self, partition_count: int, declared: Declaration | None) -> Sample:
        """Return the schema seen in the first pages of some partitions.

        If those have so few entries that hardly any were seen, a scan of the whole cache follows.

        Raises:
            SchemaError: The cache is empty or ambiguous and nothing is declared.
        """
        if declared is not None and declared.every:
            declared = None
        key, value = Evidence(), Evidence()
        partitions = _spread_out(partition_count, _PARTITIONS)
        query, whole = self._queries(self._options.page_size or _ENTRIES)
        self._observe(query, partitions, key, value)
        if self._rows < _ROWS // 4 and len(partitions) < partition_count:
            self._observe(whole, [-1], key, value)
        only: Sequence[str] | None = self._options.fields
        if declared is not None:
            only = None if declared.plain else list(declared.fields)
        table = table_fields(self._client, self._cache, self._selection)
        if self._rows == 0:
            return Sample(self._empty(declared, table))
        if table is not None:
            table.complete(key, value, only or ())
        if only is not None and not isinstance(only, str):
            columns = None if table is None else table.names
            check_names(only, value, self._registry, columns)
        if declared is not None:
            only = seen_names(declared, value)
        left_out: dict[str, SchemaError] = {}
        ignored = left_out if self._options.skip_unreadable else None
        try:
            found = infer_schema(key, value, self._registry, only, ignored)
        except SchemaError as error:
            raise error.at(self._name, cache=self._name) from error
        if declared is not None:
            found = with_unseen(declared, found, value)
        return Sample(found, self._bytes / self._rows, left_out)

    def _queries(self, page: int) -> tuple[Query, Query]:
        """Return the query of a partition, and that of the whole cache."""
        if self._selection is not None:
            return self._selection.sample(page)
        query = scan_query(self._cache, page, None, PAGE_BYTES)
        request = scan_request(cache_id(self._cache), page)
        return query, replace(query, bodies=lambda _: [request])

    def _observe(
        self, query: Query, partitions: Sequence[int], key: Evidence, value: Evidence
    ) -> None:
        """Take in pages until there are enough rows or bytes."""
        client, registry = self._client, self._registry
        self._bytes = self._rows = 0
        with contextlib.closing(scan_units(client, query, partitions, retry=self._retry)) as pages:
            for item in pages:
                if (page := item.page) is None or page.count == 0:
                    continue
                where = self._where(page, partitions[item.unit])
                with_types(client, registry, observe_page, page, key, value, registry, where)
                self._rows += page.count
                self._bytes += page.data.nbytes
                if self._bytes > _BYTES or self._rows >= _ROWS:
                    break

    def _where(self, page: Page, partition: int) -> Where:
        """Return a function that locates a record of this page, for an error about it."""

        def where(row: int) -> dict[str, Any]:
            facts: dict[str, Any] = {"cache": self._name}
            if partition >= 0:
                facts["partition"] = partition
            key = key_column(page, row, self._registry)
            return facts if key is None else {**facts, "key": key_of(key, 0)}

        return where

    def _empty(self, declared: Declaration | None, table: TableFields | None) -> Schema:
        if table is not None and (schema := table.schema()) is not None:
            return schema
        if declared is None:
            raise SchemaError(
                f"cache {self._name!r} is empty, its fields cannot be told",
                hint="pass schema={'FIELD': (dtype, shape), ...}, or load data first",
                cache=self._name,
            )
        return declared_schema(declared)


def _spread_out(count: int, most: int) -> list[int]:
    """Return at most `most` partitions, evenly spread."""
    if count <= most:
        return list(range(count))
    return [i * count // most for i in range(most)]
