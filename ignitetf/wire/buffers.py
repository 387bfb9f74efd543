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
# Below this a copy costs less than to align it.
_TINY: Final = 1 << 10
# A block serves requests down to this share of its size.
_LEAST_USE: Final = 0.25


class BufferPool:
    """Buffers for one thread that takes them; any thread may drop them.

    Args:
        max_idle_bytes: Unused blocks beyond this are given back to the system.
    """

    def __init__(self, max_idle_bytes: int = 64 << 20) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._blocks: list[_Block] = []

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """An uninitialised array uint8 `[nbytes]`, from 1 KiB on aligned to 64 bytes."""
        if nbytes < _SMALL:
            return np.empty(nbytes, np.uint8) if nbytes < _TINY else _Block(nbytes).view(nbytes)
        idle = [i for i in range(len(self._blocks)) if self._is_idle(i)]
        most = nbytes / _LEAST_USE
        fitting = [i for i in idle if nbytes <= self._blocks[i].nbytes <= most]
        if fitting:
            smallest = min(fitting, key=lambda i: self._blocks[i].nbytes)
            return self._blocks[smallest].view(nbytes)
        self._forget(idle)
        # A sixteenth more, so that pages of slightly different size share their blocks.
        block = _Block(nbytes + nbytes // 16)
        self._blocks.append(block)
        return block.view(nbytes)

    def rest(self, least: int, most: int) -> None:
        """Keep less until the next use: unused blocks from `least` bytes on, `most` bytes in all.

        Small blocks cost little to have again, and pools that rest may be many.
        """
        kept = 0
        for index in reversed(range(len(self._blocks))):
            if not self._is_idle(index):
                continue
            size = self._blocks[index].nbytes
            if size < least or kept + size > most:
                del self._blocks[index]
            else:
                kept += size

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, in use and idle."""
        return sum(b.nbytes for b in self._blocks)

    def _is_idle(self, index: int) -> bool:
        # The block and the argument of getrefcount hold one reference each.
        return sys.getrefcount(self._blocks[index].memory) <= 2

    def _forget(self, idle: list[int]) -> None:
        """Drop the oldest idle blocks beyond the limit."""
        kept = 0
        for index in reversed(idle):
            kept += self._blocks[index].nbytes
            if kept > self._max_idle_bytes:
                del self._blocks[index]


class _Block:
    """Memory of at least `nbytes` from the next multiple of the alignment on."""

    __slots__ = ("begin", "memory", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = np.empty(nbytes + ALIGNMENT, np.uint8)
        # Asking an array for its address takes longer than all else here.
        self.begin = -self.memory.ctypes.data % ALIGNMENT

    def view(self, nbytes: int) -> NDArray[np.uint8]:
        """The first bytes."""
        return self.memory[self.begin : self.begin + nbytes]
