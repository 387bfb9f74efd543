"""`BufferPool`: large buffers that are reused once no view of them is left.

A fresh buffer of several megabytes costs more than the work done in it, because the kernel has to
find and clear its pages, at about a gigabyte per second. A pool keeps its blocks, hands out views
of them, and reuses a block when its reference count shows that no view is left.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALIGNED_ROWS", "ALIGNMENT", "BufferPool", "address_of"]

# TensorFlow uses an array without a copy if its data begin at a multiple of this.
ALIGNMENT: Final = 64
# This many rows take a multiple of ALIGNMENT bytes, whatever the size of a row.
ALIGNED_ROWS: Final = 64
# Below this the allocator reuses memory itself, and faster.
_SMALL: Final = 64 << 10
# Below this a copy is cheaper than alignment.
_TINY: Final = 1 << 10
# A block is only used for requests of at least this share of its size.
_LEAST_USE: Final = 0.25


def address_of(data: Any) -> int:
    """Return the address of contiguous memory; five times as fast as NumPy's own way."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(data))
    except (TypeError, ValueError):  # read-only, or empty
        return int(np.asarray(data).ctypes.data)


class BufferPool:
    """Buffers that one thread takes; any thread may drop them.

    Args:
        max_idle_bytes: Unused blocks beyond this total are freed.
    """

    def __init__(self, max_idle_bytes: int = 64 << 20) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._blocks: list[_Block] = []

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Return an uninitialised uint8 array `[nbytes]`, aligned to 64 bytes from 1 KiB on."""
        if nbytes < _SMALL:
            return np.empty(nbytes, np.uint8) if nbytes < _TINY else _Block(nbytes).view(nbytes)
        idle = [i for i in range(len(self._blocks)) if self._is_idle(i)]
        most = nbytes / _LEAST_USE
        fitting = [i for i in idle if nbytes <= self._blocks[i].nbytes <= most]
        if fitting:
            smallest = min(fitting, key=lambda i: self._blocks[i].nbytes)
            return self._blocks[smallest].view(nbytes)
        self._forget(idle)
        # A sixteenth more, so that pages of slightly different sizes can share blocks.
        block = _Block(nbytes + nbytes // 16)
        self._blocks.append(block)
        return block.view(nbytes)

    def shrink(self, least: int, most: int) -> None:
        """Free unused blocks, except those of at least `least` bytes, up to `most` bytes in all.

        Small blocks are cheap to allocate again, and there may be many idle pools.
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
        # The block and getrefcount's argument each hold one reference.
        return sys.getrefcount(self._blocks[index].memory) <= 2

    def _forget(self, idle: list[int]) -> None:
        """Drop the oldest idle blocks beyond the limit."""
        kept = 0
        for index in reversed(idle):
            kept += self._blocks[index].nbytes
            if kept > self._max_idle_bytes:
                del self._blocks[index]


class _Block:
    """Memory with at least `nbytes` after the first aligned address."""

    __slots__ = ("begin", "memory", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = np.empty(nbytes + ALIGNMENT, np.uint8)
        # Cached, because reading an array's address is the slowest step here. Its `ctypes`
        # attribute imports a module, which is impossible at the end of a program.
        self.begin = -self.memory.__array_interface__["data"][0] % ALIGNMENT

    def view(self, nbytes: int) -> NDArray[np.uint8]:
        """Return the first `nbytes` bytes."""
        return self.memory[self.begin : self.begin + nbytes]
