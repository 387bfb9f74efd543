"""Computes CRC-32C of many pieces of a buffer at once, in NumPy.

A CRC is linear over XOR: every piece is cut into lanes of 64 bytes, one vectorised loop computes
the CRC of all lanes, and lanes are joined with the operator "append so many zero bytes". Zeros in
front of a lane change nothing, so a short first lane is not a special case.

Source: the Castagnoli polynomial of RFC 3720, reflected; the mask of TensorFlow's record files.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

__all__ = ["crc32c", "crc32c_many", "masked"]

_POLYNOMIAL = 0x82F63B78
_LANE = 64
_MASK_DELTA = 0xA282EAD8

U32 = NDArray[np.uint32]


@functools.cache
def _table() -> U32:
    """Return the CRC of every byte value."""
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(_POLYNOMIAL), values >> 1)
    return values


@functools.cache
def _table_list() -> list[int]:
    return [int(value) for value in _table()]


@functools.cache
def _append_zeros(log2_bytes: int) -> U32:
    """Return the operator "append 2**k zero bytes" as four tables of 256 values."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if log2_bytes == 0:
        images = _table()[bits & 0xFF] ^ (bits >> 8)
    else:
        half = _append_zeros(log2_bytes - 1)
        images = _apply(half, _apply(half, bits))
    tables = np.zeros((4, 256), np.uint32)
    values = np.arange(256)
    for bit in range(8):
        rows = np.where((values >> bit) & 1, np.uint32(0xFFFFFFFF), np.uint32(0))
        for byte in range(4):
            tables[byte] ^= rows & images[8 * byte + bit]
    return tables


@functools.cache
def _append_word() -> tuple[U32, U32]:
    """Return the operator "append four zero bytes" for the lower and the upper half of a value."""
    halves = np.arange(1 << 16, dtype=np.uint32)
    tables = _append_zeros(2)
    upper: U32 = np.left_shift(halves, 16, dtype=np.uint32)
    return _apply(tables, halves), _apply(tables, upper)


def _apply(tables: U32, values: U32) -> U32:
    out: U32 = (
        tables[0][values & 0xFF]
        ^ tables[1][(values >> 8) & 0xFF]
        ^ tables[2][(values >> 16) & 0xFF]
        ^ tables[3][values >> 24]
    )
    return out


def _after_zeros(values: U32, counts: NDArray[np.int64], unit_log2: int) -> U32:
    """Return each value with `counts * 2**unit_log2` zero bytes appended to it."""
    bit = 0
    while (remaining := counts >> bit).any():
        chosen = np.flatnonzero(remaining & 1)
        values[chosen] = _apply(_append_zeros(unit_log2 + bit), values[chosen])
        bit += 1
    return values


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of a few bytes, computed one by one."""
    table = _table_list()
    value = 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def crc32c_many(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> U32:
    """Return the CRC-32C of the pieces `buffer[starts[i] : starts[i] + lengths[i]]`."""
    if not len(starts):
        return np.empty(0, np.uint32)
    lanes = np.maximum(1, -(-lengths // _LANE))
    first = np.concatenate(([0], np.cumsum(lanes)[:-1]))
    piece = np.repeat(np.arange(len(starts)), lanes)
    behind = lanes[piece] - 1 - (np.arange(len(piece)) - first[piece])  # lanes after this one
    position = starts[piece] + lengths[piece] - _LANE * (behind + 1)
    low, high = _append_word()
    values = np.zeros(len(piece), np.uint32)
    for word in _words(buffer, position, starts[piece]):
        values = values ^ word
        values = low[values & 0xFFFF] ^ high[values >> 16]
    values = _after_zeros(values, behind, _LANE.bit_length() - 1)
    out: U32 = np.bitwise_xor.reduceat(values, first)
    seeds = np.full(len(starts), 0xFFFFFFFF, np.uint32)
    out ^= _after_zeros(seeds, lengths, 0)
    whole: U32 = np.invert(out)
    return whole


def _words(
    buffer: NDArray[np.uint8], position: NDArray[np.int64], begins: NDArray[np.int64]
) -> U32:
    """Return the lanes as little-endian words `[16, lanes]`, with zeros in front of short ones."""
    if len(buffer) < _LANE:
        pad = _LANE - len(buffer)
        buffer = np.concatenate((np.zeros(pad, np.uint8), buffer))
        position, begins = position + pad, begins + pad
    windows = np.lib.stride_tricks.sliding_window_view(buffer, _LANE)
    lanes = windows[np.maximum(position, 0)]
    if (short := np.flatnonzero(position < begins)).size:
        index = position[short][:, np.newaxis] + np.arange(_LANE)
        inside = index >= begins[short][:, np.newaxis]
        lanes[short] = np.where(inside, buffer.take(index, mode="clip"), 0)
    words: U32 = np.ascontiguousarray(lanes.view("<u4").T)
    return words


def masked(crc: U32) -> U32:
    """Return the CRC as record files store it: rotated and shifted."""
    rotated: U32 = np.bitwise_or(crc >> 15, np.left_shift(crc, 17, dtype=np.uint32))
    return rotated + np.uint32(_MASK_DELTA)
