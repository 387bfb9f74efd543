"""The keys of blocks, which put each block into the partition of its rows.

partition -> **block keys** -> load, reading of blocks

A block's key is the smallest long of its partition that no earlier block uses. So a repeated load
writes the same keys, and a reader needs only the number of blocks in each partition to know them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.blocks import BLOCK_KEY
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import Column, Schema

__all__ = ["BlockKeys", "encode_longs"]

# How many longs have their partitions computed up front; more are added when these run out.
_FIRST_KEYS: Final = 1 << 12


class BlockKeys:
    """Hands out the keys of each partition: the longs that map to it, ascending.

    Args:
        count: Number of partitions.
        used: How many keys each partition has used already.
    """

    def __init__(self, count: int, used: Sequence[int] = ()) -> None:
        self.count = count
        self.used = np.array(used if len(used) else [0] * count, np.int64)
        self._sorted = np.empty(0, np.int64)
        self._bounds = np.zeros(count + 1, np.int64)
        self._grow(max(_FIRST_KEYS, 64 * count))

    def reserve(self, partition: int, number: int) -> NDArray[np.int64]:
        """Return the next `number` keys of a partition and mark them as used."""
        keys = self.peek(partition, number)
        self.used[partition] += number
        return keys

    def peek(self, partition: int, number: int) -> NDArray[np.int64]:
        """Return the next `number` keys of a partition without marking them as used."""
        while True:
            first = int(self._bounds[partition] + self.used[partition])
            if first + number <= self._bounds[partition + 1]:
                return self._sorted[first : first + number]
            self._grow(2 * len(self._sorted))

    def handed_out(self) -> NDArray[np.int64]:
        """Return the keys that are used, partition after partition, ascending in each."""
        while (np.diff(self._bounds) < self.used).any():
            self._grow(2 * len(self._sorted))
        begins = self._bounds[:-1]
        spans = zip(begins.tolist(), (begins + self.used).tolist(), strict=True)
        return np.concatenate([self._sorted[begin:end] for begin, end in spans])

    def _grow(self, limit: int) -> None:
        keys = np.arange(limit, dtype=np.int64)
        found = partitions_of(Schema(None, BLOCK_KEY, ()), Column(keys), self.count)
        assert found is not None
        self._sorted = np.argsort(found, kind="stable")
        self._bounds = np.concatenate(([0], np.cumsum(np.bincount(found, minlength=self.count))))


def encode_longs(keys: NDArray[np.int64]) -> bytes:
    """Return keys of blocks as the objects that a request for them has."""
    objects = np.empty((len(keys), 9), np.uint8)
    objects[:, 0] = TypeCode.LONG
    objects[:, 1:] = keys.astype("<i8").view(np.uint8).reshape(-1, 8)
    return objects.tobytes()
