"""What scans take of a node's heap, and how many it serves at once.

**heap** -> load, read

A node makes each page in its heap, and takes all rows of a leaf of its index there before it answers
a scan. Its heap is often 1 GB (Ignite's own default); if it is full, the node answers "Java heap
space".
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "LEAF_ROWS",
    "scan_bytes",
    "scans_at_once",
]

# A leaf has an item of 12 bytes for each row.
LEAF_ROWS: Final = 336
# Bytes of rows that the scans of a reader may take into the heap of a node: others read as well.
_ROWS_BYTES: Final = 128 << 20


def scan_bytes(row_bytes: float, partition_rows: float) -> float:
    """Return the bytes of rows that a node takes into its heap for a scan of a partition."""
    return row_bytes * min(LEAF_ROWS, partition_rows)


def scans_at_once(scan: float) -> int:
    """Return how many scans that take `scan` bytes each may be open on a node."""
    return int(_ROWS_BYTES // max(1.0, scan))
