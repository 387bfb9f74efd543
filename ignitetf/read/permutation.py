"""A permutation of 0 ... N-1 that is computed where it is needed, and never stored.

seed, epoch, N -> **permutation** -> the keys of an epoch in random order

A Feistel network permutes the smallest range of 2^k numbers that holds all N. A result beyond N is
permuted again until it is one of the N ("cycle walking"), on average less than once, so what is
left is a permutation of them. Any position costs the same, whatever came before it, which is why a
training can go on from a position alone.

Halves of a few bits have too few functions to mix them: of the 24 orders of 4 numbers, a network
of one-bit halves reaches only half. Up to 2^16 numbers are therefore sorted by hashes instead.

The results are the same on every machine and with every version of NumPy: only sums, products and
shifts of 64-bit integers, and a stable sort.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Permutation"]

# Up to this many numbers are sorted: 5 ms and 512 KB.
_SORTED: Final = 1 << 16
# Four changes of each half; after three, statistical tests find no pattern any more.
_ROUNDS: Final = 8
# Odd constants of the finalizers of SplitMix64 and MurmurHash3, which spread a change of any input
# bit over all bits.
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


class Permutation:
    """The order of N numbers that belongs to a seed and an epoch, or to a part of one.

    Args:
        count: N, at most 2^63.
        seed: Seed, any non-negative integer.
        epoch: Number of the epoch.
        part: Number of a part of the epoch that is permuted alone; None for the epoch as a whole.
    """

    def __init__(self, count: int, seed: int, epoch: int, part: int | None = None) -> None:
        self.count = count
        name = f"{seed}:{epoch}" if part is None else f"{seed}:{epoch}:{part}"
        digest = hashlib.blake2b(name.encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = np.frombuffer(digest, "<u8").astype(np.uint64)
        bits = max(2, (count - 1).bit_length())
        self._low = np.uint64(bits // 2)
        self._low_mask = np.uint64((1 << (bits // 2)) - 1)
        self._high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
        self._table = self._sorted() if count <= _SORTED else None

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number at each position.

        Args:
            positions: Positions from 0 to N - 1, of any shape and in any order.

        Returns:
            int64 of the same shape.
        """
        if self._table is not None:
            return self._table[positions]
        found = self._network(positions.reshape(-1).astype(np.uint64))
        limit = np.uint64(self.count)
        beyond = np.flatnonzero(found >= limit)
        while len(beyond):
            again = self._network(found[beyond])
            found[beyond] = again
            beyond = beyond[again >= limit]
        return found.view(np.int64).reshape(positions.shape)

    def _sorted(self) -> NDArray[np.int64]:
        """Return all numbers in the order of their hashes."""
        numbers = np.arange(self.count, dtype=np.uint64)
        hashes = _mixed(_mixed(numbers * _STEP, self._keys[0]), self._keys[1])
        return np.argsort(hashes, kind="stable").astype(np.int64, copy=False)

    def _network(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low, high = numbers & self._low_mask, numbers >> self._low
        for number, key in enumerate(self._keys):
            # The upper bits of a product depend on all bits of its factors.
            if number % 2:
                low ^= (_mixed(high, key) >> np.uint64(32)) & self._low_mask
            else:
                high ^= (_mixed(low, key) >> np.uint64(32)) & self._high_mask
        high <<= self._low
        high |= low
        return high


def _mixed(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Return a hash of each value: 64 bits, each of which depends on every bit of value and key."""
    mixed = values + key
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed
