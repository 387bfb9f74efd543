"""Checks whether the pixels of PNG files can be decoded, without decoding them.

bytes -> **chunks, CRCs, rows** -> pictures

A file with valid CRCs can still lack pixels, if its writer was interrupted. So the rows are
unpacked, which is most of the work of decoding, and their number and filters are checked. Rows are
not kept, so memory stays small.

Source: W3C PNG specification, third edition, sections 5, 7 and 8.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

from ignitetf.crc import crc32
from ignitetf.pictures import PNG_SIGNATURE

_zlib: Any = zlib
with contextlib.suppress(ImportError):  # no wheel for this processor
    # Two to three times as fast as zlib.
    from isal import isal_zlib

    _zlib = isal_zlib

__all__ = ["PngError", "sound_png"]

_HEAD: Final = struct.Struct(">IIBBBBB")
# Allowed bits per sample, and samples per pixel, by colour type.
_DEPTHS: Final = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_SAMPLES: Final = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PALETTE: Final = 3
# First column, first row and steps of the seven passes of an interlaced image.
_PASSES: Final = (
    (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4),
    (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2),
)  # fmt: skip
_MAX_FILTER: Final = 4
_PIECE_BYTES: Final = 1 << 20
# Larger data are unpacked in pieces: deflate packs up to 1,032 to 1, too much for memory.
_FEW_BYTES: Final = 64 << 10
_UNPACK_ERRORS: Final = (zlib.error, _zlib.error)


class PngError(ValueError):
    """The pixels of a PNG cannot be decoded; the text is the reason."""


def sound_png(data: bytes, *, pixels: bool = True) -> tuple[int, int] | None:
    """Return height and width of a PNG without errors; None if a decoder must check it.

    Args:
        data: The file.
        pixels: True to check the rows, too; otherwise only the CRCs of the chunks.

    Raises:
        PngError: The chunks are intact, but the pixels in them are not. Some decoders then show
            black pixels; TensorFlow's raises an error.
    """
    if data[:8] != PNG_SIGNATURE:
        return None
    head: tuple[int, ...] | None = None
    packed, palette, at = [], False, 8
    view = memoryview(data)
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        kind = data[at + 4 : at + 8]
        if data[end : end + 4] != crc32(view[at + 4 : end]).to_bytes(4, "big"):
            return None
        if head is None:
            if kind != b"IHDR" or end != at + 8 + _HEAD.size:
                return None
            head = _HEAD.unpack_from(data, at + 8)
            if not _is_possible(head):
                return None
        if kind == b"IDAT":
            packed.append(view[at + 8 : end])
        elif kind == b"PLTE":
            palette = True
        elif kind == b"IEND":
            width, height, _, colour = head[:4]
            if not packed:
                return None
            if colour == _PALETTE and not palette:
                raise PngError("its palette is missing")
            return (height, width) if not pixels or _rows_are_whole(head, packed) else None
        at = end + 4
    return None


def _is_possible(head: tuple[int, ...]) -> bool:
    width, height, depth, colour, packing, filters, interlace = head
    known = depth in _DEPTHS.get(colour, ()) and not packing and not filters and interlace <= 1
    return known and width > 0 and height > 0


def _rows_are_whole(head: tuple[int, ...], packed: list[memoryview]) -> bool:
    """True if the rows unpack, have the number the header says, and each begin with a filter.

    False if the end of the stream is missing in a way that decoders may accept.
    """
    width, height, depth, colour, _, _, interlace = head
    row_bytes = 1 + (width * depth * _SAMPLES[colour] + 7) // 8
    try:
        # Nearly all images of a training set are this small.
        if not interlace and len(packed) == 1 and len(packed[0]) <= _FEW_BYTES:
            size = height * row_bytes
            raw = _zlib.decompress(packed[0], 15, min(size, _PIECE_BYTES))
            _require(len(raw), size, max(raw[:size:row_bytes], default=0))
            return True
        return _unpack_pieces(list(_passes(head)), packed)
    except _UNPACK_ERRORS as error:
        raise PngError(f"its pixels cannot be decompressed: {error}") from error


def _unpack_pieces(passes: list[tuple[int, int]], packed: list[memoryview]) -> bool:
    """Return the result of `_rows_are_whole` for larger images, in bounded memory."""
    size = sum(rows * row_bytes for rows, row_bytes in passes)
    unpacker, position = _zlib.decompressobj(), 0
    for piece in _unpacked(unpacker, packed):
        _require(size, size, _largest_filter(passes, piece, position))
        position += len(piece)
        if position > size:
            break
    _require(position, size, 0)
    return bool(unpacker.eof) or position > size


def _require(found: int, size: int, largest_filter: int) -> None:
    if largest_filter > _MAX_FILTER:
        raise PngError(f"a row has the filter {largest_filter}, which does not exist")
    if found < size:
        raise PngError(f"rows are missing: found {found:,} of {size:,} bytes of pixels")


def _unpacked(unpacker: Any, packed: list[memoryview]) -> Iterator[bytes]:
    for part in packed:
        rest: Any = part
        while len(rest) and not unpacker.eof:
            yield unpacker.decompress(rest, _PIECE_BYTES)
            rest = unpacker.unconsumed_tail


def _passes(head: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the rows, and bytes per row with its filter, of each pass; one if not interlaced."""
    width, height, depth, colour, _, _, interlace = head
    bits = depth * _SAMPLES[colour]
    for x, y, dx, dy in _PASSES if interlace else ((0, 0, 1, 1),):
        columns, rows = max(0, -(-(width - x) // dx)), max(0, -(-(height - y) // dy))
        if columns and rows:
            yield rows, 1 + (columns * bits + 7) // 8


def _largest_filter(passes: list[tuple[int, int]], piece: bytes, position: int) -> int:
    """Return the largest filter of the rows that begin in a piece at `position` of the data."""
    begin = largest = 0
    for rows, row_bytes in passes:
        end = begin + rows * row_bytes
        if begin < position + len(piece) and end > position:
            first = max(begin, begin + -(-(position - begin) // row_bytes) * row_bytes)
            filters = piece[first - position : max(0, end - position) : row_bytes]
            largest = max(largest, *filters) if filters else largest
        begin = end
    return largest
