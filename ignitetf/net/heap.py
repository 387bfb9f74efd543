"""What scans take of a node's heap: how many it serves at once, and with what pages.

**heap** -> load, read, plan

A node makes each page in its heap, and takes all rows of a leaf of its index there before it answers
a scan. Its heap is often 1 GB (Ignite's own default); if it is full, the node answers "Java heap
space".
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "LEAF_ROWS",
    "OPEN_SCANS",
    "connections_at_once",
    "page_bytes_at_once",
    "scan_bytes",
    "scans_at_once",
]

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


def scan_bytes(row_bytes: float, partition_rows: float) -> float:
    """Return the bytes of rows that a scan of a partition takes into the heap at a time."""
    return row_bytes * min(LEAF_ROWS, partition_rows)


def scans_at_once(scan: float) -> int:
    """Return how many scans, each of which takes so many bytes, a node may be asked for."""
    return int(_ROWS_BYTES // max(1.0, scan))


def connections_at_once(scan: float, page: float, shards: int, nodes: int) -> int:
    """Return how many connections, to all nodes together, each of so many shards may have.

    Args:
        scan: What a scan takes, see `scan_bytes`.
        page: Bytes of the smallest page.
        shards: Processes, each of which reads from all nodes.
        nodes: The nodes.
    """
    asked = OPEN_SCANS * shards
    fit = min(scans_at_once(asked * scan), _PAGES_BYTES // max(1.0, asked * page))
    return nodes * int(fit)
