"""`verify --epoch`: checks that the shards of an epoch return every stored key exactly once.

rows -> **keys in the order of training** -> hashes, compared with a plain scan

All shards of an epoch are read in turn, as their workers read them. Their keys are compared with
the keys that a scan of the partitions finds. The hash of the sequence depends only on data, seed,
epoch and shards. If two clusters have equal hashes, or one cluster has equal hashes at two times,
training sees the same rows in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ignitetf.net.client import Client
from ignitetf.read.access import key_order_of
from ignitetf.read.arguments import order_of
from ignitetf.read.batches import closing_batches
from ignitetf.read.blocks import RowOrder
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.rows import EpochRows
from ignitetf.read.scan_order import WINDOW_BYTES, OrderName, Position, Shard
from ignitetf.wire.checksum import batch_hashes
from ignitetf.wire.columns import Batch
from ignitetf.wire.schema import Schema

__all__ = ["EpochReport", "KeySequence", "verify_epoch"]

_DIGEST_BYTES = 8


@dataclass
class EpochReport:
    """The result of reading an epoch.

    Attributes:
        cache: Name of the data set.
        order: `scan`, `keys` or `global`.
        seed: Seed of the shuffle; None for the plain order.
        epoch: Number of the epoch.
        shards: Number of shards.
        readers: Connections at once.
        stored: Number of keys in the cache.
        expected: Rows when it was opened; None without a manifest.
        rows: Rows that all shards returned.
        missing: Stored keys that no shard returned.
        repeated: Rows whose key was returned before.
        unknown: Keys that were returned but are not stored.
        shard_rows: Rows of each shard.
        shard_sequences: Hash of each shard's keys, in order.
        sequence: Hash of all keys, in order, shard by shard.
    """

    cache: str
    order: OrderName
    seed: int | None
    epoch: int
    shards: int
    readers: int
    stored: int = 0
    expected: int | None = None
    rows: int = 0
    missing: int = 0
    repeated: int = 0
    unknown: int = 0
    shard_rows: list[int] = field(default_factory=list)
    shard_sequences: list[str] = field(default_factory=list)
    sequence: str = ""

    @property
    def ok(self) -> bool:
        """True if every stored key was read exactly once, and no other key."""
        complete = self.expected is None or self.expected == self.stored
        return complete and not (self.missing or self.repeated or self.unknown)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures and `ok`."""
        return {"ok": self.ok, **asdict(self)}


def verify_epoch(
    client: Client,
    cache: str,
    *,
    order: OrderName = "scan",
    seed: int | None = None,
    epoch: int = 0,
    shards: int = 1,
    readers: int = 1,
    window_bytes: int = WINDOW_BYTES,
    page_size: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> EpochReport:
    """Read all shards of an epoch, and compare their keys with the stored ones.

    Args:
        client: The connection.
        cache: Name of the data set.
        order: As in `IgniteDataset`.
        seed: As `shuffle` of `IgniteDataset`.
        epoch: Number of the epoch.
        shards: Number of shards.
        readers: Connections at once for each shard.
        window_bytes: As in `IgniteDataset`.
        page_size: As in `IgniteDataset`.
        on_progress: Called with rows and bytes as they are read.

    Raises:
        CacheNotFound: The cache does not exist.
        ConfigError: Seed, shards, readers or window are unusable.
        DataChanged: Entries were added or removed since it was opened.
        PartitionLost: A partition has no owner left.
    """
    Shard(0, shards)  # checks the number of shards
    options = ReadOptions(raw_nulls=True, readers=readers, page_size=page_size)
    reader = CacheReader(client, cache, options)
    report = EpochReport(cache, order, seed, epoch, shards, readers)
    if reader.manifest is not None:
        report.expected = reader.contents.rows
    hashes = _Hashes(reader.schema, on_progress)
    seen = _read_shards(reader, report, hashes, window_bytes)
    pages = reader.batches(list(range(reader.partition_count)))
    stored = _sorted(list(hashes.of(item.batch for item in pages if item.batch is not None)))
    report.stored = len(stored)
    _compare(report, _sorted(seen), stored)
    return report


def _read_shards(
    reader: CacheReader, report: EpochReport, hashes: _Hashes, window_bytes: int
) -> list[NDArray[np.uint64]]:
    """Return the key hashes of all shards of the epoch; fills in the report's sequences."""
    partitions = list(range(reader.partition_count))
    whole, seen = KeySequence(), []
    order: RowOrder | None = None
    for index in range(report.shards):
        shard = Shard(index, report.shards)
        if report.order == "scan":
            order = order_of(reader, partitions, report.seed, None, shard, window_bytes)
        elif order is None:
            order = key_order_of(reader, report.order, report.seed, None, None, shard, window_bytes)
        rows = EpochRows(reader, order, shard, Position(report.epoch))
        own = KeySequence()
        for keys in hashes.of(closing_batches(rows.column_batches())):
            own.add(keys)
            whole.add(keys)
            seen.append(keys)
        report.shard_rows.append(own.rows)
        report.shard_sequences.append(own.digest())
    report.sequence, report.rows = whole.digest(), whole.rows
    return seen


class _Hashes:
    """Computes the key hashes of batches, and reports each batch to the caller's progress."""

    def __init__(self, schema: Schema, on_progress: Callable[[int, int], None] | None) -> None:
        self._only_key = Schema(schema.type_name, schema.key, ())
        self._on_progress = on_progress

    def of(self, batches: Iterable[Batch]) -> Iterator[NDArray[np.uint64]]:
        for batch in batches:
            assert batch.key is not None
            yield batch_hashes(self._only_key, Batch(batch.key))
            if self._on_progress is not None:
                self._on_progress(len(batch), batch.nbytes)


class KeySequence:
    """The hash of a sequence of keys that arrives in parts; the split points do not matter."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self.rows = 0

    def add(self, keys: NDArray[np.uint64]) -> None:
        """Add the hashes of the keys that follow."""
        self._hash.update(np.ascontiguousarray(keys, "<u8").tobytes())
        self.rows += len(keys)

    def digest(self) -> str:
        """Return the hash of all keys so far."""
        return self._hash.hexdigest()


def _sorted(parts: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return np.sort(np.concatenate([*parts, np.empty(0, np.uint64)]))


def _compare(report: EpochReport, seen: NDArray[np.uint64], stored: NDArray[np.uint64]) -> None:
    once = np.unique(seen)
    report.repeated = len(seen) - len(once)
    report.missing = len(np.setdiff1d(stored, once, assume_unique=True))
    report.unknown = len(np.setdiff1d(once, stored, assume_unique=True))
