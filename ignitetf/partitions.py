"""Limits, defaults and memory needs of the partitions of Ignite's caches.

Source: Apache Ignite 2.17.0, its constants and, for the pages, by measurement (see `node.config`).
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "DEFAULT_PARTITIONS",
    "LARGE_ROW_BYTES",
    "MAX_PARTITIONS",
    "PAGES_PER_PARTITION",
    "REPLICATED_PARTITIONS",
    "RESERVE_PAGES",
    "RESERVE_PART",
]

MAX_PARTITIONS: Final = 65_000  # CacheConfiguration.MAX_PARTITIONS_COUNT
DEFAULT_PARTITIONS: Final = 1024  # RendezvousAffinityFunction's own
REPLICATED_PARTITIONS: Final = 512  # the same for a replicated cache

# Rows of at least this many bytes are large: they arrive faster in larger pages and over two
# connections.
LARGE_ROW_BYTES: Final = 8 << 10

# Pages of the data region that an empty partition takes.
PAGES_PER_PARTITION: Final = 2
# When a cache is created, 1/RESERVE_PART of the region and at least RESERVE_PAGES pages stay free,
# for rows written meanwhile and for the 350 pages or so that Ignite needs to move rows.
RESERVE_PART: Final = 32
RESERVE_PAGES: Final = 512
