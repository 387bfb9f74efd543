"""Hashes of many runs of bytes at once: Java's array hash, and the checksum of stored rows.

columns -> encode, checksum -> **hashing** (hash.c) -> cache, manifest

Source of the hash code: Apache Ignite 2.17.0, `BinaryArrayIdentityResolver.hashCode0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import ignitetf._core._native as core

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

_JAVA: Final = np.uint32(31)


def hash_rows(rows: _Bytes) -> NDArray[np.uint32]:
    """Compute Java's `31 * h + b`, starting at 1, over the signed bytes of each row.

    Args:
        rows: Shape [n, m]; rows may be strided, but the bytes of each must be contiguous.

    Returns:
        Shape [n]; view it as int32 for Java's value.
    """
    out = np.empty(len(rows), np.uint32)
    core.hash_rows(rows, out)
    return out


def hash_runs(flat: _Bytes, starts: _Positions, lengths: _Positions) -> NDArray[np.uint32]:
    """Like `hash_rows`, for runs `flat[starts[i] : starts[i] + lengths[i]]`.

    Raises:
        ValueError: A run is not inside `flat`.
    """
    out = np.empty(len(starts), np.uint32)
    core.hash_runs(flat, _positions(starts), _positions(lengths), out)
    return out


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
        power = np.power(_JAVA, np.uint32(lengths))
        codes = codes * power + (more - power)
    return codes


def row_hash_rows(rows: _Bytes) -> NDArray[np.uint64]:
    """Compute a 64-bit hash of each row for checksums; rows as for `hash_rows`.

    Changing a single byte always changes the hash; other changes escape with probability 2^-64.
    """
    out = np.empty(len(rows), np.uint64)
    core.row_hash_rows(rows, out)
    return out


def row_hash_runs(flat: _Bytes, starts: _Positions, lengths: _Positions) -> NDArray[np.uint64]:
    """Like `row_hash_rows`, for runs as in `hash_runs`."""
    out = np.empty(len(starts), np.uint64)
    core.row_hash_runs(flat, _positions(starts), _positions(lengths), out)
    return out


def both_hashes(rows: _Bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """Compute `hash_rows` and `row_hash_rows` in one pass over the rows."""
    codes, hashes = np.empty(len(rows), np.uint32), np.empty(len(rows), np.uint64)
    core.both_hashes(rows, codes, hashes)
    return codes, hashes


def mix(values: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """Spread every bit of `values ^ salt` over all bits, so that differences do not cancel in sums."""
    given = np.ascontiguousarray(values, np.uint64)
    out = np.empty(given.shape, np.uint64)
    core.mix(given, salt, out)
    return out


def _positions(values: Any) -> _Positions:
    return np.ascontiguousarray(values, np.int64)
