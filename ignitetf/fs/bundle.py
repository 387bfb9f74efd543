"""Read the required sizes of data files from a TensorFlow checkpoint's `.index`.

units -> **bundle**

This works without TensorFlow, so that checkpoints can be pushed from machines that lack it.

The index is a table of sorted keys (LevelDB's format, `tensorflow/core/lib/io/table*.cc`): blocks
with a checksum each, one block that points to the others, and a 48-byte footer that points to that
one. The empty key holds a `BundleHeaderProto`; every other key holds a `BundleEntryProto` that
locates one tensor (`tensorflow/core/protobuf/tensor_bundle.proto`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from ignitetf.crc import masked_crc32c

__all__ = ["Damaged", "data_sizes", "has_magic", "wire_fields"]

_MAGIC: Final = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_BYTES: Final = 48
_TRAILER_BYTES: Final = 5  # compression type (1), CRC-32C (4)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_HEADER_SHARDS: Final = 1
_ENTRY_SHARD, _ENTRY_OFFSET, _ENTRY_SIZE = 3, 4, 5
_MOST_SHARDS: Final = 100_000  # file names have five digits for the shard


class Damaged(Exception):
    """The bytes are not a valid index; the message says what is wrong."""


def has_magic(tail: bytes) -> bool:
    """Whether a file that ends in these bytes can be an index."""
    return tail.endswith(_MAGIC)


def data_sizes(index: bytes) -> list[int]:
    """Return the minimum size in bytes of each data file, by its number.

    Raises:
        Damaged: The index is truncated or corrupt.
    """
    if len(index) < _FOOTER_BYTES or not has_magic(index):
        raise Damaged("is cut short, or no index of a checkpoint")
    sizes: list[int] | None = None
    try:
        _, at = _handle(index, len(index) - _FOOTER_BYTES)  # skips the metadata block
        root, _ = _handle(index, at)
        for _, place in _entries(_block(index, *root)):
            for key, value in _entries(_block(index, *_handle(place, 0)[0])):
                fields = {n: v for n, v in wire_fields(value) if isinstance(v, int)}
                if not key:
                    count = fields.get(_HEADER_SHARDS, 0)
                    if not 0 <= count < _MOST_SHARDS:
                        raise Damaged(f"says that there are {count} data files")
                    sizes = [0] * count
                    continue
                if sizes is None:
                    raise Damaged("has no header")
                end = fields.get(_ENTRY_OFFSET, 0) + fields.get(_ENTRY_SIZE, 0)
                shard = fields.get(_ENTRY_SHARD, 0)
                # A tensor stored in slices has separate keys for them and no bytes of its own.
                if end:
                    sizes[shard] = max(sizes[shard], end)
    except (IndexError, struct.error) as error:
        raise Damaged("is damaged: something in it leads outside") from error
    if not sizes:
        raise Damaged("names no data files")
    return sizes


def wire_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field of a Protocol Buffers message.

    Raises:
        Damaged: A field extends past the end.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind in (_BYTES, _FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            if kind == _BYTES:
                size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise Damaged(f"has a field of the unknown kind {kind}")
        if at > len(data):
            raise Damaged("is cut short")
        yield tag >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Damaged("is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return a block's (offset, size) and the position after the handle."""
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _block(index: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    if end + _TRAILER_BYTES > len(index):
        raise Damaged("is damaged: a block lies outside")
    kind, stored = struct.unpack_from("<BI", index, end)
    if stored != masked_crc32c(index[offset : end + 1]):
        raise Damaged("is damaged: a block does not match its checksum")
    if kind:
        raise Damaged("is compressed (TensorFlow 1.1 did that), which cannot be checked")
    return index[offset:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block; keys share a prefix with the key before."""
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 * (restarts + 1)
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        more, at = _varint(block, at)
        size, at = _varint(block, at)
        key = key[:shared] + block[at : at + more]
        at += more
        yield key, block[at : at + size]
        at += size
