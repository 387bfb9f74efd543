"""Hashes many runs of bytes at once, in C if available and worthwhile, else in NumPy.

columns -> encode, checksum -> **hashes** -> cache, manifest

Hashing is most of the work of encoding large values and computing their checksum. Compared with
NumPy, C takes a fifth of the time for Java's hash codes, two thirds for those of the checksum, and
a fifth for a single row of 1 MB. The native part (`native`) is loaded for the first larger batch.

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

from ignitetf.errors import WireError
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
# Known row hashes by address, number and width of the rows.
RowHashes = dict[tuple[int, int, int], NDArray[np.uint64]]
# Function of the address, starts and lengths of runs, and of the number of bytes there (-1: the runs
# are known to be inside); returns one number per run.
_Hash = Callable[[int, _Positions, _Positions, int], NDArray[Any]]

_SOURCE: Final = Path(__file__).with_name("_hash.c")
# `WIDTH` and `WORDS` of the C file.
_WIDTH: Final = 1024
_WORDS: Final = 512
# Less than this is hashed faster than a library is loaded, let alone built. Once it is loaded, it
# hashes everything.
_WORTH_BYTES: Final = 256 << 10


def hash_rows(rows: _Bytes) -> NDArray[np.uint32]:
    """Compute Java's `31 * h + b`, starting at 1, over the signed bytes of each row.

    Args:
        rows: Shape [n, m]; rows may be strided, but the bytes of each must be contiguous.

    Returns:
        Shape [n]; view it as int32 for Java's value.
    """
    if (native := _native(rows.size)) is None:
        return hashing.hash_rows(rows)
    return native.java_hash(rows.ctypes.data, *_runs_of(rows), -1)


def hash_runs(flat: _Bytes, starts: _Positions, lengths: _Positions) -> NDArray[np.uint32]:
    """Like `hash_rows`, for runs `flat[starts[i] : starts[i] + lengths[i]]` in rising order.

    Raises:
        WireError: A run is not inside `flat`.
    """
    if (native := _native(int(lengths.sum()))) is None:
        return hashing.hash_runs(flat, starts, lengths)
    return native.java_hash(flat.ctypes.data, starts, lengths, flat.nbytes)


def hash_joined(
    pieces: Sequence[tuple[NDArray[np.uint32], int | _Positions]],
) -> NDArray[np.uint32]:
    """Combine the hash codes of the pieces of n rows.

    Args:
        pieces: At least one piece, in order: its hash codes as returned by `hash_runs`, uint32 [n],
            and its length in bytes, for all rows or for each, int64 [n].

    Returns:
        Shape [n].
    """
    (codes, _), *others = pieces
    for more, lengths in others:
        power = np.power(np.uint32(hashing.JAVA), np.uint32(lengths))
        codes = codes * power + (more - power)
    return codes


def row_hash_rows(rows: _Bytes) -> NDArray[np.uint64]:
    """Compute `hashing.row_hash_rows`; rows as for `hash_rows`."""
    if (native := _native(rows.size)) is None:
        return hashing.row_hash_rows(rows)
    return native.row_hash(rows.ctypes.data, *_runs_of(rows), -1)


def row_hash_runs(flat: _Bytes, starts: _Positions, lengths: _Positions) -> NDArray[np.uint64]:
    """Like `row_hash_rows`, for runs as in `hash_runs`."""
    if (native := _native(int(lengths.sum()))) is None:
        return hashing.row_hash_runs(flat, starts, lengths)
    return native.row_hash(flat.ctypes.data, starts, lengths, flat.nbytes)


def both_hashes(rows: _Bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """Compute `hash_rows` and `row_hash_rows` in one pass over the rows.

    Args:
        rows: Shape [n, m]; copied if not contiguous.

    Returns:
        Hash codes and row hashes, each of shape [n].
    """
    if (native := _native(rows.size)) is None:
        return hashing.hash_rows(rows), hashing.row_hash_rows(rows)
    return native.both_hashes(rows)


def mix(values: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """Compute `hashing.mix` of `values ^ salt`, shape [n]."""
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
        self.java_hash: _Hash = _bound(library, "java_hash", falling, java_factor)
        rising = hashing.row_powers(_WORDS + 1)
        row_factor = ctypes.c_uint64(int(rising[_WORDS]))
        self.row_hash: _Hash = _bound(library, "row_hash", rising, row_factor)
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


def _bound(library: Any, name: str, weights: NDArray[Any], factor: Any) -> _Hash:
    """Bind the weights to a C function over runs."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function, inside = library[name], library.inside
    inside.argtypes = [number, pointer, pointer, number]
    function.restype = None
    function.argtypes = [pointer, pointer, pointer, number, pointer, type(factor), pointer]
    # Looked up once, because asking an array for its address takes longer than hashing a short run.
    table = weights.ctypes.data

    def hashes(address: int, starts: _Positions, lengths: _Positions, nbytes: int) -> NDArray[Any]:
        begin, size = (np.ascontiguousarray(a, np.int64) for a in (starts, lengths))
        runs = begin.ctypes.data, size.ctypes.data, len(begin)
        if nbytes >= 0 and not inside(nbytes, *runs):
            raise WireError(f"a run to hash reaches beyond the {nbytes} bytes that it is part of")
        out = np.empty(len(begin), weights.dtype)
        function(address, *runs, table, factor, out.ctypes.data)
        return out

    return hashes


def _native(nbytes: int) -> _Native | None:
    """The C functions if available; they are loaded by the first call with enough bytes."""
    known = _loaded.cache_info().currsize > 0
    return _loaded() if known or nbytes >= _WORTH_BYTES else None


@functools.cache
def _loaded() -> _Native | None:
    library = native_library(_SOURCE)
    return None if library is None else _Native(library)
