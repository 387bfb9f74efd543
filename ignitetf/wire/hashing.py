"""Hashes many byte runs at once in NumPy: Java's array hash, and the checksum of stored rows.

columns -> encode, checksum -> fasthash -> **hashes** -> cache, manifest

Both are polynomials, computed as dot products. Runs of equal length form a matrix. Runs of
different lengths lie in one flat buffer and are summed with weights that fall along the whole
buffer; this works because an odd base has an inverse modulo a power of two.

Source of the hash code: Apache Ignite 2.17.0, `BinaryArrayIdentityResolver.hashCode0`.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "JAVA",
    "falling_powers",
    "hash_rows",
    "hash_runs",
    "mix",
    "row_hash_rows",
    "row_hash_runs",
    "row_powers",
]

_Bytes = NDArray[np.uint8]

# Elements of a temporary array: 256 KiB of int32 fit into the second-level cache.
_BLOCK: Final = 1 << 16
# Words of a row processed at a time, so that their weights fit into the first-level cache.
_WORDS: Final = 1 << 12
# A longer run is processed as a matrix of its own.
_LONG_RUN: Final = 1 << 14
JAVA: Final = 31
# Base of the row checksum; any large, random-looking odd number would do.
_ROW: Final = 0x9E3779B97F4A7C15


def hash_rows(rows: _Bytes) -> NDArray[np.uint32]:
    """Compute Java's `31 * h + b`, starting at 1, over the signed bytes of each row.

    Args:
        rows: Shape [n, m]; rows may be strided, but the bytes of each must be contiguous.

    Returns:
        Shape [n]; view it as int32 for Java's value.
    """
    n, width = rows.shape
    out = np.full(n, 1, np.uint32)
    for left in range(0, width, _BLOCK):
        part = rows[:, left : left + _BLOCK].view(np.int8)
        columns = part.shape[1]
        weights = falling_powers(columns)
        out *= np.uint32(pow(JAVA, columns, 1 << 32))
        step = max(1, _BLOCK // columns)
        for top in range(0, n, step):
            wide = part[top : top + step].astype(np.int32)
            out[top : top + step] += np.einsum("ij,j->i", wide, weights).view(np.uint32)
    return out


def hash_runs(
    flat: _Bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Like `hash_rows`, for runs `flat[starts[i] : starts[i] + lengths[i]]` in rising order."""
    out = np.empty(len(starts), np.uint32)
    short = lengths <= _LONG_RUN
    for i in np.flatnonzero(~short).tolist():
        run = flat[starts[i] : starts[i] + lengths[i]]
        out[i] = hash_rows(run[None, :])[0]
    index = np.flatnonzero(short)
    for group in _windows(starts[index], lengths[index], _BLOCK):
        rows = index[group]
        first = int(starts[rows[0]])
        begin = starts[rows] - first
        size = lengths[rows]
        last = int((begin + size).max())
        wide = flat[first : first + last].view(np.int8).astype(np.int32).view(np.uint32)
        wide *= _powers(JAVA, True, 32)[:last]
        power = _powers(JAVA, False, 32)
        total = _sums(wide, begin, size) * power[np.maximum(begin + size - 1, 0)]
        out[rows] = np.where(size > 0, total, 0).astype(np.uint32) + power[size]
    return out


def row_hash_rows(rows: _Bytes) -> NDArray[np.uint64]:
    """Compute a 64-bit hash of each row for checksums, with the same result as `row_hash_runs`.

    Changing a single byte always changes the hash; other changes escape with probability 2^-64.
    """
    n, width = rows.shape
    if width % 8 == 0 and rows.flags.c_contiguous:
        return mix(
            _word_sums(rows.reshape(-1).view("<u8").reshape(n, width // 8)) + np.uint64(width)
        )
    out = np.zeros(n, np.uint64)
    step = max(1, 8 * _BLOCK // max(width, 1))
    buffer = np.zeros((min(step, n), -(-width // 8) * 8), np.uint8)
    for top in range(0, n, step):
        part = rows[top : top + step]
        padded = buffer[: len(part)]
        padded[:, :width] = part
        out[top : top + step] = _word_sums(padded.view("<u8"))
    return mix(out + np.uint64(width))


def _word_sums(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sum each row's words with the weights 1, _ROW, _ROW^2, ..."""
    weights = row_powers(_WORDS)
    out = np.zeros(len(words), np.uint64)
    for left in range(0, words.shape[1], _WORDS):
        part = words[:, left : left + _WORDS]
        factor = np.uint64(pow(_ROW, left, 1 << 64))
        out += np.einsum("ij,j->i", part, weights[: part.shape[1]]) * factor
    return out


def row_hash_runs(
    flat: _Bytes, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Like `row_hash_rows`, for runs of different lengths in one buffer, in rising order."""
    words = -(-lengths // 8)
    out = np.zeros(len(starts), np.uint64)
    source = flat.data
    for group in _windows(np.cumsum(words) - words, words, _BLOCK):
        if len(group) == 1:
            i = int(group[0])
            out[i] = row_hash_rows(flat[None, starts[i] : starts[i] + lengths[i]])[0]
            continue
        size = words[group]
        begin = np.cumsum(size) - size
        padded = np.zeros(int(size.sum()) * 8, np.uint8)
        target = padded.data
        to, at, count = (begin * 8).tolist(), starts[group].tolist(), lengths[group].tolist()
        for p, q, k in zip(to, at, count, strict=True):
            target[p : p + k] = source[q : q + k]
        wide = padded.view("<u8") * row_powers(len(padded) // 8)
        total = _sums(wide, begin, size) * _powers(_ROW, True, 64)[begin]
        out[group] = mix(total + lengths[group].astype(np.uint64))
    return out


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit over all bits, so that differences do not cancel in sums of hashes."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _windows(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], span: int
) -> list[NDArray[np.int64]]:
    """Group consecutive runs so that each group spans at most `span` elements or is one run."""
    groups = []
    ends = starts + lengths
    at = 0
    while at < len(starts):
        stop = max(at + 1, int(np.searchsorted(ends, starts[at] + span, "right")))
        groups.append(np.arange(at, stop))
        at = stop
    return groups


def _sums(values: NDArray[Any], begin: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[Any]:
    """Sum each run, modulo the dtype's range; runs are in rising order and may have gaps."""
    # reduceat takes pairs of bounds; one extra element makes the last bound valid.
    bounds = np.empty(2 * len(begin), np.int64)
    bounds[0::2] = begin
    bounds[1::2] = begin + size
    total: NDArray[Any] = np.add.reduceat(np.append(values, values.dtype.type(0)), bounds)[0::2]
    total[size == 0] = 0
    return total


@functools.lru_cache(maxsize=64)
def falling_powers(count: int) -> NDArray[np.int32]:
    """Return 31^(count-1) to 31^0 modulo 2^32."""
    return np.ascontiguousarray(_powers(JAVA, False, 32)[:count][::-1]).view(np.int32)


def row_powers(count: int) -> NDArray[np.uint64]:
    """Return a row hash's weights of the first words, modulo 2^64: uint64 [count], a view."""
    return _powers(_ROW, False, 64)[:count]


@functools.lru_cache(maxsize=16)
def _table(base: int, inverse: bool, bits: int, size: int) -> NDArray[Any]:
    dtype = np.uint32 if bits == 32 else np.uint64
    factors = np.full(size, pow(base, -1, 1 << bits) if inverse else base, dtype)
    factors[0] = 1
    return np.multiply.accumulate(factors, dtype=dtype)


def _powers(base: int, inverse: bool, bits: int) -> NDArray[Any]:
    """base^0, base^1, ... (or of its inverse) modulo 2^bits, enough for one block."""
    return _table(base, inverse, bits, _BLOCK + _LONG_RUN + 1)
