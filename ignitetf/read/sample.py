"""Finds out what a cache without a manifest holds, from the first pages of some partitions.

queries -> **sample** -> schema -> reader
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ignitetf.errors import IgniteTFError, SchemaError, ServerError
from ignitetf.net.binary_types import with_types
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client, cache_id
from ignitetf.net.failures import READ, Backoff
from ignitetf.read.declared import (
    Declaration,
    check_names,
    declared_schema,
    seen_names,
    with_unseen,
)
from ignitetf.read.error_context import key_of
from ignitetf.read.options import ReadOptions
from ignitetf.read.queries import Selection
from ignitetf.read.table_fields import TableFields, table_fields
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import Page, read_first_page, read_first_sql_page
from ignitetf.wire.infer import Evidence, Where, infer_schema, key_column, observe_page
from ignitetf.wire.requests import cursor_request, scan_request, scan_requests
from ignitetf.wire.schema import Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["Sample", "Sampler"]

log = logging.getLogger(__name__)

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
        retry_s: Seconds for which to replace a lost connection.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        cache: str,
        options: ReadOptions,
        registry: TypeRegistry,
        selection: Selection | None,
        retry_s: float,
    ) -> None:
        self._client = client
        self._name = name
        self._cache = cache
        self._options = options
        self._registry = registry
        self._selection = selection
        self._retry_s = retry_s
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
        parts, whole = self._requests(self._options.page_size or _ENTRIES, partitions)
        self._observe(parts, partitions, key, value)
        if self._rows < _ROWS // 4 and len(partitions) < partition_count:
            self._observe([whole], [-1], key, value)
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

    def _requests(self, page: int, partitions: Sequence[int]) -> tuple[list[bytes], bytes]:
        """Return the requests for some partitions, and that for the whole cache."""
        if self._selection is not None:
            return self._selection.sample(page, partitions)
        cache = cache_id(self._cache)
        parts = [bytes(body) for body in scan_requests(cache, page, partitions)]
        return parts, scan_request(cache, page)

    def _observe(
        self, requests: Sequence[bytes], partitions: Sequence[int], key: Evidence, value: Evidence
    ) -> None:
        """Take in first pages until there are enough rows or bytes."""
        client, registry = self._client, self._registry
        self._bytes = self._rows = 0
        done, count = 0, 1
        while done < len(requests):
            part = requests[done : done + count]
            for number, page in enumerate(self._pages(part), done):
                if page.count == 0:
                    continue
                where = self._where(page, partitions[number])
                with_types(client, registry, observe_page, page, key, value, registry, where)
                self._rows += page.count
                self._bytes += page.data.nbytes
            if self._bytes > _BYTES or self._rows >= _ROWS:
                return
            done += len(part)
            each = max(1, self._bytes // done)
            count = int(max(1, min(4 * count, (_BYTES - self._bytes) // each)))

    def _pages(self, requests: Sequence[bytes]) -> list[Page]:
        """Return the first page of each request; their cursors are closed."""
        op = OpCode.QUERY_SCAN if self._selection is None else OpCode.QUERY_SQL_FIELDS

        backoff = Backoff(READ)
        while True:
            try:
                with self._client.channel() as channel:
                    return _first_pages(channel, op, requests)
            except IgniteTFError as error:
                if (wait := backoff.wait_s(error, self._retry_s)) is None:
                    raise
                log.warning("%s: %s; reading again in %.1f s", self._name, error, wait)
                time.sleep(wait)

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


def _first_pages(channel: Channel, op: OpCode, requests: Sequence[bytes]) -> list[Page]:
    """Return the first page of each query, and close what it leaves open."""
    found: list[Page] = []
    errors: list[ServerError] = []
    cursors: list[bytes] = []
    for number in channel.send_all(op, requests):
        try:
            body = channel.receive(number)
        except ServerError as error:
            errors.append(error)
            continue
        if op == OpCode.QUERY_SCAN:
            cursor, page = read_first_page(body)
        else:
            cursor, _, page = read_first_sql_page(body)
        found.append(page)
        if page.more:
            cursors.append(cursor_request(cursor))
    for number in channel.send_all(OpCode.RESOURCE_CLOSE, cursors) if cursors else ():
        channel.receive(number)
    if errors:
        raise errors[0]
    return found


def _spread_out(count: int, most: int) -> list[int]:
    """Return at most `most` partitions, evenly spread."""
    if count <= most:
        return list(range(count))
    return [i * count // most for i in range(most)]
