"""`BufferPool`: large buffers that are used again once nobody looks at them.

A fresh buffer of some megabytes costs more than what is done with it: the kernel has to find and
clear its pages, at about a gigabyte a second. A pool hands out views of blocks it keeps, and gives
a block out again when no view of it is left, which the reference count of the block tells.
"""

from __future__ import annotations

import sys
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALIGNMENT", "BufferPool"]

# TensorFlow takes an array over without a copy if its data begin at a multiple of this.
ALIGNMENT: Final = 64
# Below this the allocator itself keeps memory and is quicker.
_SMALL: Final = 64 << 10
# A block serves requests down to this share of its size.
_LEAST_USE: Final = 0.25


class BufferPool:
    """Buffers for one thread that takes them; any thread may drop them.

    Args:
        max_idle_bytes: Unused blocks beyond this are given back to the system.
    """

    def __init__(self, max_idle_bytes: int = 64 << 20) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._blocks: list[NDArray[np.uint8]] = []

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """An uninitialised array uint8 `[nbytes]`, aligned to 64 bytes."""
        if nbytes < _SMALL:
            return _aligned(np.empty(nbytes + ALIGNMENT, np.uint8), nbytes)
        idle = [i for i in range(len(self._blocks)) if self._is_idle(i)]
        fitting = [i for i in idle if nbytes + ALIGNMENT <= len(self._blocks[i])]
        fitting = [i for i in fitting if nbytes >= _LEAST_USE * len(self._blocks[i])]
        if fitting:
            smallest = min(fitting, key=lambda i: len(self._blocks[i]))
            return _aligned(self._blocks[smallest], nbytes)
        self._forget(idle)
        # A sixteenth more, so that pages of slightly different size share their blocks.
        block = np.empty(nbytes + nbytes // 16 + ALIGNMENT, np.uint8)
        self._blocks.append(block)
        return _aligned(block, nbytes)

    def rest(self, least: int, most: int) -> None:
        """Keep less until the next use: unused blocks from `least` bytes on, `most` bytes in all.

        Small blocks cost little to have again, and pools that rest may be many.
        """
        kept = 0
        for index in reversed(range(len(self._blocks))):
            if not self._is_idle(index):
                continue
            size = len(self._blocks[index])
            if size < least or kept + size > most:
                del self._blocks[index]
            else:
                kept += size

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, in use and idle."""
        return sum(len(b) for b in self._blocks)

    def _is_idle(self, index: int) -> bool:
        # The list and the argument of getrefcount hold one reference each.
        return sys.getrefcount(self._blocks[index]) <= 2

    def _forget(self, idle: list[int]) -> None:
        """Drop the oldest idle blocks beyond the limit."""
        kept = 0
        for index in reversed(idle):
            kept += len(self._blocks[index])
            if kept > self._max_idle_bytes:
                del self._blocks[index]


def _aligned(block: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    offset = -block.ctypes.data % ALIGNMENT
    return block[offset : offset + nbytes]
