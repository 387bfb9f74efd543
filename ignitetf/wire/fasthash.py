"""Hashes of many runs of bytes at once, in C where it can be had and it is worth it, else in NumPy.

columns -> encode, checksum -> **hashes** -> cache, manifest

They are most of the work of encoding large values and of their checksum. In C Java's hash codes
take a fifth of the time that NumPy takes, those of the checksum two thirds, of a single row of
1 MB a fifth. The first larger batch looks for the native part (`native`).

Source of the hash code: Apache Ignite 2.17.0, `BinaryArrayIdentityResolver.hashCode0`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.native import native_library
from ignitetf.wire import hashing

__all__ = [
    "RowHashes",
    "both_hashes",
    "hash_joined",
    "hash_rows",
    "hash_runs",
    "mix",
    "row_hash_rows",
    "row_hash_runs",
]

_Bytes = NDArray[np.uint8]
_Positions = NDArray[np.int64]
# What is known of rows: their address, number and width -> their row hashes.
RowHashes = dict[tuple[int, int, int], NDArray[np.uint64]]
# Address, first bytes and lengths of runs -> a number of each.
_Hash = Callable[[int, _Positions, _Positions], NDArray[Any]]

_SOURCE: Final = Path(__file__).with_name("_hash.c")
# `WIDTH` and `WORDS` of the C file.
_WIDTH: Final = 1024
_WORDS: Final = 512
# Less is hashed sooner than a library is loaded, let alone built; once it is, all is hashed there.
_WORTH_BYTES: Final = 256 << 10


def hash_rows(rows: _Bytes) -> NDArray[np.uint32]:
    """Java's `31 * h + b` from 1 over the signed bytes of each row.

    Args:
        rows: Shape [n, m]; rows may be strided, their bytes must be contiguous.

    Returns:
        Shape [n]; view it as int32 for the number that Java has.
    """
    if (native := _native(rows.size)) is None:
        return hashing.hash_rows(rows)
    return native.java_hash(rows.ctypes.data, *_runs_of(rows))


def hash_runs(flat: _Bytes, starts: _Positions, lengths: _Positions) -> NDArray[np.uint32]:
    """As `hash_rows`, for runs `flat[starts[i] : starts[i] + lengths[i]]` in rising order."""
    if (native := _native(int(lengths.sum()))) is None:
        return hashing.hash_runs(flat, starts, lengths)
    return native.java_hash(flat.ctypes.data, starts, lengths)


def hash_joined(
    pieces: Sequence[tuple[NDArray[np.uint32], int | _Positions]],
) -> NDArray[np.uint32]:
    """The hash codes of n rows that lie in pieces.

    Args:
        pieces: In their order, of each the hash codes as `hash_runs` gives them, uint32 [n], and
            the length in bytes, of all or of each, int64 [n]. At least one.

    Returns:
        Shape [n].
    """
    (codes, _), *others = pieces
    for more, lengths in others:
        power = np.power(np.uint32(hashing.JAVA), np.uint32(lengths))
        codes = codes * power + (more - power)
    return codes


def row_hash_rows(rows: _Bytes) -> NDArray[np.uint64]:
    """As `hashing.row_hash_rows`; rows as for `hash_rows`."""
    if (native := _native(rows.size)) is None:
        return hashing.row_hash_rows(rows)
    return native.row_hash(rows.ctypes.data, *_runs_of(rows))


def row_hash_runs(flat: _Bytes, starts: _Positions, lengths: _Positions) -> NDArray[np.uint64]:
    """As `row_hash_rows`, for runs as those of `hash_runs`."""
    if (native := _native(int(lengths.sum()))) is None:
        return hashing.row_hash_runs(flat, starts, lengths)
    return native.row_hash(flat.ctypes.data, starts, lengths)


def both_hashes(rows: _Bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """What `hash_rows` and `row_hash_rows` give, in one pass over the rows.

    Args:
        rows: Shape [n, m]; copied where they are not contiguous.

    Returns:
        Hash codes and row hashes, each of shape [n].
    """
    if (native := _native(rows.size)) is None:
        return hashing.hash_rows(rows), hashing.row_hash_rows(rows)
    return native.both_hashes(rows)


def mix(values: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """As `hashing.mix` of `values ^ salt`, shape [n]."""
    if (native := _native(values.nbytes)) is None:
        return hashing.mix(values ^ np.uint64(salt))
    return native.mix(values, salt)


def _runs_of(rows: _Bytes) -> tuple[_Positions, _Positions]:
    count, width = rows.shape
    return np.arange(count, dtype=np.int64) * rows.strides[0], np.full(count, width, np.int64)


class _Native:
    """The functions of the C file.

    Args:
        library: Its shared object.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        falling = hashing.falling_powers(_WIDTH).view(np.uint32)
        java_factor = ctypes.c_uint32(pow(hashing.JAVA, _WIDTH, 1 << 32))
        self.java_hash: _Hash = _bound(library.java_hash, falling, java_factor)
        rising = hashing.row_powers(_WORDS + 1)
        row_factor = ctypes.c_uint64(int(rising[_WORDS]))
        self.row_hash: _Hash = _bound(library.row_hash, rising, row_factor)
        self._tables = falling, rising
        self._weights = falling.ctypes.data, java_factor, rising.ctypes.data, row_factor
        self._mix, self._both = library.mix, library.both_hashes
        self._mix.restype = self._both.restype = None
        pointer, count, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64
        self._mix.argtypes = [pointer, count, number, pointer]
        weights: list[Any] = [pointer, ctypes.c_uint32, pointer, ctypes.c_uint64]
        self._both.argtypes = [pointer, count, count, *weights, pointer, pointer]

    def both_hashes(self, rows: _Bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """See `both_hashes`."""
        rows = np.ascontiguousarray(rows)
        codes, hashes = np.empty(len(rows), np.uint32), np.empty(len(rows), np.uint64)
        self._both(
            rows.ctypes.data, *rows.shape, *self._weights, codes.ctypes.data, hashes.ctypes.data
        )
        return codes, hashes

    def mix(self, values: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
        """See `mix`."""
        given = np.ascontiguousarray(values, np.uint64)
        out = np.empty(given.shape, np.uint64)
        self._mix(given.ctypes.data, given.size, salt, out.ctypes.data)
        return out


def _bound(function: Any, weights: NDArray[Any], factor: Any) -> _Hash:
    """A C function over runs, with the weights that it takes."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.restype = None
    function.argtypes = [pointer, pointer, pointer, number, pointer, type(factor), pointer]
    # Asking an array for its address takes longer than a short run.
    table = weights.ctypes.data

    def hashes(address: int, starts: _Positions, lengths: _Positions) -> NDArray[Any]:
        begin, size = (np.ascontiguousarray(a, np.int64) for a in (starts, lengths))
        out = np.empty(len(begin), weights.dtype)
        function(
            address, begin.ctypes.data, size.ctypes.data, len(begin),
            table, factor, out.ctypes.data,
        )  # fmt: skip
        return out

    return hashes


def _native(nbytes: int) -> _Native | None:
    """The C functions, where they can be had; the first call of so many bytes looks for them."""
    known = _loaded.cache_info().currsize > 0
    return _loaded() if known or nbytes >= _WORTH_BYTES else None


@functools.cache
def _loaded() -> _Native | None:
    library = native_library(_SOURCE)
    return None if library is None else _Native(library)
