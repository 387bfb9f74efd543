"""`PageDecoder`: turns pages into batches.

scan -> **page decoder** -> collector, lookup

Small partitions are decoded together, because a page of a few rows costs as much as one of
thousands. If they cannot be decoded so, each is decoded alone, and the error names its partition.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ignitetf.errors import IgniteTFError, SchemaError, WireError
from ignitetf.net.binary_types import with_types
from ignitetf.net.client import Client
from ignitetf.net.retry import READ, Backoff
from ignitetf.read.error_context import Place
from ignitetf.wire.blocks import BlockDecoder
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.decoder import Decoder
from ignitetf.wire.frames import Page, join_pages
from ignitetf.wire.keysets import KeySet
from ignitetf.wire.schema import Batch, Column, Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["Decoded", "PageDecoder"]


log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Decoded:
    """What pages were decoded into.

    Attributes:
        parts: The records: a batch for each block, or one for all rows.
        counts: Records of each page.
        keys: The keys of each page, as the columns that they are in.
    """

    parts: list[Batch]
    counts: list[int]
    keys: list[list[Column]]


class PageDecoder:
    """Decodes the pages of one cache, for one thread.

    Args:
        client: Asked for types that the registry lacks.
        name: Name of the data set, for messages.
        schema: Fields to decode.
        registry: Known binary types.
        blocks: Whether entries are blocks of records.
        keys: Keys of the entries to keep; None keeps all.
        pool: Memory for pages that are joined.
        retry_s: Seconds in which a type is asked for again, if a connection is lost.

    Attributes:
        pool: That memory.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        schema: Schema,
        registry: TypeRegistry,
        *,
        blocks: bool = False,
        keys: KeySet | None = None,
        pool: BufferPool | None = None,
        retry_s: float = 0.0,
    ) -> None:
        self._client = client
        self._name = name
        self._registry = registry
        self._keys = keys
        self.pool = pool or BufferPool()
        self._blocks = blocks
        self._retry_s = retry_s
        self._decode: Callable[[Page], list[Batch]]
        if blocks:
            self._decode = BlockDecoder(schema, registry).decode
        else:
            rows = Decoder(schema, registry)
            self._decode = lambda page: [rows.decode(page)]

    @property
    def filters(self) -> bool:
        """Whether only some entries of a page are kept."""
        return self._keys is not None

    def chosen(self, partition: int | None, page: Page) -> Page:
        """Return a page of the entries that are kept; raises as `one`."""
        if self._keys is None:
            return page
        with Place(self._name, partition):
            return self._keys.entries(page)

    def one(self, partition: int | None, page: Page, first: int = 0) -> Decoded:
        """Decode a page, of which the entries that are not kept are left out.

        Args:
            partition: Its partition, if it is of a single one.
            page: The page.
            first: Number of its first entry, for messages.

        Raises:
            SchemaError: A record does not fit; names cache, partition, key and field.
        """
        with Place(self._name, partition, first=first):
            parts = self._parts(self.chosen(partition, page))
        return Decoded(parts, [sum(map(len, parts))], [_keys_of(parts)])

    def joined(self, partitions: Sequence[int], pages: Sequence[Page]) -> Decoded:
        """Decode the pages of several partitions at once; raises as `one`."""
        if len(pages) == 1:
            return self.one(partitions[0], pages[0])
        try:
            return self._joined(pages)
        except (SchemaError, WireError):
            for partition, page in zip(partitions, pages, strict=True):
                self.one(partition, page)
            raise

    def _joined(self, pages: Sequence[Page]) -> Decoded:
        if self._keys is not None:
            pages = [self._keys.entries(page) for page in pages]
        counts = [page.count for page in pages]
        parts = self._parts(join_pages(pages, self.pool.take))
        ends = np.cumsum(counts).tolist()
        if not self._blocks:
            key = parts[0].key
            keys = [
                [] if key is None else [key[end - count : end]]
                for end, count in zip(ends, counts, strict=True)
            ]
            return Decoded(parts, counts, keys)
        blocks = [parts[end - count : end] for end, count in zip(ends, counts, strict=True)]
        rows = [sum(map(len, own)) for own in blocks]
        return Decoded(parts, rows, [_keys_of(own) for own in blocks])

    def with_types(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work(*args)` with the types that it needs; as `net.binary_types.with_types`.

        A type is asked for over another connection, which may be lost though the page is here.
        """
        backoff = Backoff(READ)
        while True:
            try:
                return with_types(self._client, self._registry, work, *args)
            except IgniteTFError as error:
                if (wait := backoff.wait_s(error, self._retry_s)) is None:
                    raise
                log.warning("%s: %s; asking again in %.1f s", self._name, error, wait)
                time.sleep(wait)

    def place(self, partition: int | None, first: int = 0) -> Place:
        """Return the context of an error about records of which the first is number `first`."""
        return Place(self._name, partition, first=first)

    def _parts(self, page: Page) -> list[Batch]:
        return self.with_types(self._decode, page)


def _keys_of(parts: Sequence[Batch]) -> list[Column]:
    return [part.key for part in parts if part.key is not None]
