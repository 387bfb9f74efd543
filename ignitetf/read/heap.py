"""What scans take of a node's heap: how many connections it serves at once, and with what pages.

**heap** -> options, arguments, plan

A node makes each page in its heap, and takes all rows of a leaf of its index there before it answers
a scan. Its heap is often 1 GB (Ignite's own default); if it is full, the node answers "Java heap
space".
"""

from __future__ import annotations

from typing import Final

__all__ = ["LEAF_ROWS", "OPEN_SCANS", "connections_at_once", "page_bytes_at_once"]

# A leaf has an item of 12 bytes for each row.
LEAF_ROWS: Final = 336
# A connection has the scan of one partition open, and the next.
OPEN_SCANS: Final = 2
# Of pages that were asked for and have not been sent: with 2 GB of heap a node made so many bytes at
# a time, and ran out of it at 128 MB, since a page takes twice as much while it grows.
_PAGES_BYTES: Final = 64 << 20
_ROWS_BYTES: Final = 512 << 20


def page_bytes_at_once(connections: int) -> int:
    """Return the bytes of a page of which so many connections may ask a node for two each."""
    return _PAGES_BYTES // (OPEN_SCANS * max(1, connections))


def connections_at_once(row_bytes: float, partition_rows: float, processes: float) -> int:
    """Return how many connections of each process may read from a node.

    Args:
        row_bytes: Bytes of a row.
        partition_rows: Rows of a partition.
        processes: Processes that read from it.
    """
    scan = OPEN_SCANS * min(LEAF_ROWS, partition_rows) * row_bytes
    return int(_ROWS_BYTES // max(1.0, scan * processes))
