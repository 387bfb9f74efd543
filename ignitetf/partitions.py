"""What Ignite allows and takes for the partitions of a cache.

Source: Apache Ignite 2.17.0, its constants and, for the pages, by measurement (see `node.guard`).
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "DEFAULT_PARTITIONS",
    "MAX_PARTITIONS",
    "PAGES_PER_PARTITION",
    "REPLICATED_PARTITIONS",
    "RESERVE_PAGES",
    "RESERVE_PART",
]

MAX_PARTITIONS: Final = 65_000  # CacheConfiguration.MAX_PARTITIONS_COUNT
DEFAULT_PARTITIONS: Final = 1024  # RendezvousAffinityFunction's own
REPLICATED_PARTITIONS: Final = 512  # the same, of a replicated cache

# A partition takes so many pages of the data region before it has a row.
PAGES_PER_PARTITION: Final = 2
# Of the region, one part in so many, and at least so many pages, stay free when a cache is made:
# rows that are written meanwhile, and the 350 pages or so that Ignite moves rows by.
RESERVE_PART: Final = 32
RESERVE_PAGES: Final = 512
