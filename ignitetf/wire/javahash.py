"""The hash code of binary objects: Java's array hash of many runs of bytes at once.

columns -> encode -> **hash codes** -> cache

It is most of the work of encoding large values, and in C three times as fast as in NumPy. So the
first larger batch looks for the native part (`native`), and without one NumPy serves.

Source of the hash code: Apache Ignite 2.17.0, `BinaryArrayIdentityResolver.hashCode0`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.native import native_library
from ignitetf.wire import hashing

__all__ = ["hash_rows", "hash_runs"]

_Bytes = NDArray[np.uint8]
_Positions = NDArray[np.int64]

_SOURCE: Final = Path(__file__).with_name("_hash.c")
# `WIDTH` of the C file.
_WIDTH: Final = 1024
# Less is hashed sooner than a library is loaded, let alone built.
_WORTH_BYTES: Final = 256 << 10


def hash_rows(rows: _Bytes) -> NDArray[np.uint32]:
    """Java's `31 * h + b` from 1 over the signed bytes of each row.

    Args:
        rows: Shape [n, m]; rows may be strided, their bytes must be contiguous.

    Returns:
        Shape [n]; view it as int32 for the number that Java has.
    """
    count, width = rows.shape
    if rows.size < _WORTH_BYTES or (native := _native()) is None:
        return hashing.hash_rows(rows)
    starts = np.arange(count, dtype=np.int64) * rows.strides[0]
    return native(rows.ctypes.data, starts, np.full(count, width, np.int64))


def hash_runs(flat: _Bytes, starts: _Positions, lengths: _Positions) -> NDArray[np.uint32]:
    """As `hash_rows`, for runs `flat[starts[i] : starts[i] + lengths[i]]` in rising order."""
    if int(lengths.sum()) < _WORTH_BYTES or (native := _native()) is None:
        return hashing.hash_runs(flat, starts, lengths)
    return native(flat.ctypes.data, starts, lengths)


@functools.cache
def _native() -> Callable[[int, _Positions, _Positions], NDArray[np.uint32]] | None:
    """The C function over runs from an address on; None where it cannot be had."""
    if (library := native_library(_SOURCE, "-O3")) is None:
        return None
    function = library.java_hash
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.restype = None
    function.argtypes = [
        pointer, pointer, pointer, number, pointer, ctypes.c_uint32, pointer
    ]  # fmt: skip
    falling = hashing.falling_powers(_WIDTH).view(np.uint32)
    factor = pow(hashing.JAVA, _WIDTH, 1 << 32)

    def hashes(address: int, starts: _Positions, lengths: _Positions) -> NDArray[np.uint32]:
        begin, size = (np.ascontiguousarray(a, np.int64) for a in (starts, lengths))
        out = np.empty(len(begin), np.uint32)
        function(
            address, begin.ctypes.data, size.ctypes.data, len(begin),
            falling.ctypes.data, factor, out.ctypes.data,
        )  # fmt: skip
        return out

    return hashes
