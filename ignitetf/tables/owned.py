"""The names that belong to a data set: of its caches, their tables, and what a load makes beside.

**names** -> caches, views, removal
"""

from __future__ import annotations

import re
from typing import Final

from ignitetf.tables.storage import Storage

__all__ = [
    "caches_of",
    "carrier_table",
    "helper_cache",
    "index_table",
    "is_staging",
    "rows_table",
    "staging_cache",
]

_NEXT: Final = "__NEXT_"
_ID: Final = 8
_STAGING: Final = re.compile(rf"{_NEXT}[0-9a-f]{{{_ID}}}(?:_INDEX)?\Z")


def index_table(cache: str) -> str:
    """Return the cache name of the slim table beside a cache of blocks."""
    return f"{cache}_INDEX"


def caches_of(cache: str, storage: Storage) -> list[str]:
    """Return a cache and, if the storage has one, the cache of its slim table."""
    return [cache, index_table(cache)] if storage.has_slim_table else [cache]


def rows_table(cache: str) -> str:
    """Return the name of the SQL table of a cache that belongs to a data set."""
    return f"{cache}__ROWS"


def carrier_table(cache: str) -> str:
    """Return the name of the table that only carries a cache made for entries of any type."""
    # A table with the cache's own name would claim that the cache is empty.
    return f"{cache}__CACHE"


def staging_cache(data_set: str, load: str) -> str:
    """Return the cache into which the load of this id puts a replacement.

    No other load of the data set ever writes there.
    """
    return f"{data_set}{_NEXT}{load[:_ID]}"


def is_staging(cache: str, data_set: str) -> bool:
    """Return whether a cache has the name of a replacement, or of its slim table."""
    return cache.startswith(data_set) and bool(_STAGING.match(cache, len(data_set)))


def helper_cache(data_set: str) -> str:
    """Return the table, and its cache, that is there while SQL changes over to a replacement."""
    return f"{data_set}__SWITCH"
