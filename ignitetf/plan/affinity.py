"""Which node owns which partition, for clusters that are not there.

nodes, partitions -> **rendezvous hashing** -> owners, the primary one first

Source: Apache Ignite's RendezvousAffinityFunction: each partition goes to the nodes with the lowest
hashes of (node, partition), which are Thomas Wang's of 64 bits. The real one hashes consistent ids;
here nodes have random numbers, so that partitions are spread as unevenly as they are there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["rendezvous_owners"]


def rendezvous_owners(
    partitions: int, nodes: int, copies: int = 1, seed: int = 0
) -> NDArray[np.int64]:
    """Return the nodes that have each partition, the primary one first.

    Args:
        partitions: Number of partitions.
        nodes: Number of nodes.
        copies: Copies of each partition, the primary one included; at most one a node.
        seed: Of the nodes' numbers.

    Returns:
        Numbers of nodes, int64 [partitions, min(copies, nodes)].
    """
    names = np.random.default_rng(seed).integers(0, 1 << 32, nodes, dtype=np.uint64)
    numbers = np.arange(partitions, dtype=np.uint64)
    hashes = _mixed(names[None, :] | (numbers[:, None] << np.uint64(32))).view(np.int64)
    return np.argsort(hashes, axis=1, kind="stable")[:, : min(copies, nodes)]


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes; sums wrap around, as Java's do."""
    found: NDArray[np.uint64] = ~values + (values << np.uint64(21))
    found ^= found >> np.uint64(24)
    found = found + (found << np.uint64(3)) + (found << np.uint64(8))
    found ^= found >> np.uint64(14)
    found = found + (found << np.uint64(2)) + (found << np.uint64(4))
    found ^= found >> np.uint64(28)
    return found + (found << np.uint64(31))
