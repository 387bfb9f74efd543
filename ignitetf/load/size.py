"""How many partitions a new data set gets where nobody says it: by its rows and its bytes.

source -> **number of partitions** -> cache

A partition takes memory before it has a row, and a scan asks for each by itself. So a partition
should have a mebibyte or more, and sixteen rows or more. Of large rows it should have a page, which
a reader receives into its place, and not much more: before a node answers a scan, it takes up to
hundreds of rows of the partition into its heap. The nodes of a cluster and the workers of a job
share the partitions, so there are at least sixteen.
"""

from __future__ import annotations

from typing import Final

from ignitetf.load.sources.base import Source
from ignitetf.partitions import DEFAULT_PARTITIONS, LARGE_ROW_BYTES
from ignitetf.wire.schema import BYTES

__all__ = ["partitions_for"]

_LEAST: Final = 16
_ROWS_EACH: Final = 16
_BYTES_EACH: Final = 1 << 20
_LARGE_ROWS_EACH: Final = 16 << 20  # bytes


def partitions_for(source: Source, limit: int | None = None) -> int | None:
    """Return the number of partitions for the records of a source.

    Args:
        source: The records.
        limit: At most so many of them are loaded.

    Returns:
        A power of two from 16 to 1,024; None if neither rows nor bytes are known.
    """
    rows, size = source.rows, _bytes_of(source)
    if limit is not None:
        if rows and size is not None:
            size = size * min(rows, limit) // rows
        rows = limit if rows is None else min(rows, limit)
    if rows and size is not None and size // rows >= LARGE_ROW_BYTES:
        known = [size // _LARGE_ROWS_EACH]
    else:
        each = ((rows, _ROWS_EACH), (size, _BYTES_EACH))
        known = [number // least for number, least in each if number is not None]
    if not known:
        return None
    wanted = max(_LEAST, min(*known, DEFAULT_PARTITIONS))
    return int(1 << (wanted - 1).bit_length())


def _bytes_of(source: Source) -> int | None:
    """Return about as many bytes as the records have; None if that is not known."""
    if source.nbytes is not None or source.rows is None:
        return source.nbytes
    fields = source.schema.fields
    if any(f.ragged or f.dtype == BYTES or f.fields for f in fields):
        return None
    return source.rows * sum(f.size * f.dtype.itemsize for f in fields)
