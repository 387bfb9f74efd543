"""`PageDecoder`: turns pages into batches, and marks their keys to see whether they change.

scan -> **page decoder** -> reader

Small partitions are decoded together, because a page of a few rows costs as much as one of
thousands. If they cannot be decoded so, each is decoded alone, and the error names its partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ignitetf.errors import SchemaError, WireError
from ignitetf.net.binary_types import with_types
from ignitetf.net.client import Client
from ignitetf.read.changes import fingerprint, fingerprints
from ignitetf.read.error_context import Place
from ignitetf.wire.blocks import BlockDecoder
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.decoder import Decoder
from ignitetf.wire.frames import Page, join_pages
from ignitetf.wire.keysets import KeySet
from ignitetf.wire.schema import Batch, Schema
from ignitetf.wire.types import TypeRegistry

__all__ = ["Decoded", "PageDecoder", "cut"]


@dataclass(frozen=True)
class Decoded:
    """What pages were decoded into.

    Attributes:
        parts: The records: a batch for each block, or one for all rows.
        counts: Records of each page.
        marks: Checksum of the keys of each page.
    """

    parts: list[Batch]
    counts: list[int]
    marks: list[int]


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
    ) -> None:
        self._client = client
        self._name = name
        self._registry = registry
        self._keys = keys
        self._pool = pool or BufferPool()
        self._blocks = blocks
        self._decode: Callable[[Page], list[Batch]]
        if blocks:
            self._decode = BlockDecoder(schema, registry).decode
        else:
            rows = Decoder(schema, registry)
            self._decode = lambda page: [rows.decode(page)]

    def one(self, partition: int | None, page: Page) -> Decoded:
        """Decode a page of a partition, if it is of a single one.

        Raises:
            SchemaError: A record does not fit; names cache, partition, key and field.
        """
        with Place(self._name, partition):
            if self._keys is not None:
                page = self._keys.entries(page)
            parts = self._parts(page)
        return Decoded(parts, [sum(map(len, parts))], [fingerprint(parts)])

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
        parts = self._parts(join_pages(pages, self._pool.take))
        if not self._blocks:
            return Decoded(parts, counts, fingerprints(parts[0], counts))
        ends = np.cumsum(counts).tolist()
        blocks = [parts[end - count : end] for end, count in zip(ends, counts, strict=True)]
        rows = [sum(map(len, own)) for own in blocks]
        return Decoded(parts, rows, [fingerprint(own) for own in blocks])

    def _parts(self, page: Page) -> list[Batch]:
        return with_types(self._client, self._registry, self._decode, page)


def cut(parts: Iterable[Batch], sizes: Iterable[int]) -> Generator[list[Batch], None, None]:
    """Yield the parts anew, cut so that each list has one of the sizes in rows."""
    waiting = deque(part for part in parts if len(part))
    for size in sizes:
        found = []
        while size > 0:
            part = waiting.popleft()
            if len(part) > size:
                waiting.appendleft(part[size:])
                part = part[:size]
            found.append(part)
            size -= len(part)
        yield found
