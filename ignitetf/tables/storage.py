"""Storage facts of a data set, as in its manifest and journal; and its names.

The values that users choose from are also defined here, for both the library and the command line,
so this module imports nothing heavy. The JSON uses the names of the attributes.

The functions return names of a data set: its caches, their tables, and helpers of a load.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

__all__ = [
    "IfExists",
    "Layout",
    "LoadFacts",
    "OnBadRecord",
    "Origin",
    "Storage",
    "caches_of",
    "carrier_table",
    "helper_cache",
    "index_table",
    "is_replacing",
    "is_staging",
    "rows_table",
    "staging_cache",
]

# Action if the cache already exists.
IfExists = Literal["error", "append", "replace", "resume", "replace-foreign"]
# Form of an entry: one record, or a block of columns.
Layout = Literal["rows", "blocks"]
# Handling of a record that cannot be read.
OnBadRecord = Literal["fail", "skip"]


def is_replacing(if_exists: IfExists) -> bool:
    """True if a load replaces existing data."""
    return if_exists in ("replace", "replace-foreign")


@dataclass(frozen=True)
class Storage:
    """Selection and storage of the rows; a resumed load must use the same values.

    Attributes:
        layout: `rows`, or `blocks`.
        index: Fields with a SQL index; for blocks, the fields of the slim table.
        limit: Maximum number of rows; None for all.
        main_limit: For a secondary table, the number of records of the main table it belongs to.
        sql: True if rows have a SQL table.
        bad_records: Handling of records that cannot be read.
    """

    layout: Layout = "rows"
    index: tuple[str, ...] = ()
    limit: int | None = None
    main_limit: int | None = None
    sql: bool = True
    bad_records: OnBadRecord = "fail"

    @property
    def has_slim_table(self) -> bool:
        """True if a table with the keys and some fields exists in addition to the blocks."""
        return self.layout == "blocks" and bool(self.index)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns back into an equal value."""
        return {**asdict(self), "index": list(self.index)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Storage:
        """Restore a value from the JSON object of `to_json`; missing names get their defaults."""
        given = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        given["index"] = tuple(given.get("index", ()))
        return cls(**given)


@dataclass(frozen=True)
class Origin:
    """Arguments that opened a source, except for its location; a command reopens it with them.

    Attributes:
        kind: Kind of the source.
        options: Options of the function that opens this kind.
        part: The table of the source, if it has several.
    """

    kind: str
    options: Mapping[str, Any]
    part: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns back into an equal value."""
        part = {} if self.part is None else {"part": self.part}
        return {"kind": self.kind, "options": dict(self.options), **part}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Origin:
        """Restore a value from the JSON object of `to_json`."""
        return cls(data["kind"], data["options"], data.get("part"))


@dataclass(frozen=True)
class LoadFacts:
    """Facts about a load that its manifest records.

    Attributes:
        storage: Selection and storage of the rows.
        backups: Copies of each partition of the cache.
        load: Name of the load.
        next_key: The generated key after the last row; None if the data have keys of their own.
        origin: Arguments that opened the source; None if unknown.
        blocks: Number of blocks in each partition; empty for rows.
        block_rows: Rows of each block, partition after partition, in the order of their keys; empty
            for rows, and if they are unknown.
        topology: Version of the cluster's topology when the load began to write; None if unknown.
    """

    storage: Storage = Storage()
    backups: int = 0
    load: str = ""
    next_key: int | None = None
    origin: Origin | None = None
    blocks: tuple[int, ...] = ()
    block_rows: tuple[int, ...] = ()
    topology: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns back into an equal value."""
        out = {**self.storage.to_json(), "backups": self.backups, "load": self.load}
        if self.next_key is not None:
            out["next_key"] = self.next_key
        if self.topology is not None:
            out["topology"] = self.topology
        if self.origin is not None:
            out["origin"] = self.origin.to_json()
        if self.storage.layout == "blocks":
            out["blocks"] = list(self.blocks)
            out["block_rows"] = list(self.block_rows)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LoadFacts:
        """Restore a value from the JSON object of `to_json`; missing names get their defaults."""
        origin = data.get("origin")
        return cls(
            Storage.from_json(data),
            data.get("backups", 0),
            data.get("load", ""),
            data.get("next_key"),
            None if origin is None else Origin.from_json(origin),
            tuple(data.get("blocks", ())),
            tuple(data.get("block_rows", ())),
            data.get("topology"),
        )


_NEXT: Final = "__NEXT_"
_ID: Final = 8
_STAGING: Final = re.compile(rf"{_NEXT}[0-9a-f]{{{_ID}}}(?:_INDEX)?\Z")


def index_table(cache: str) -> str:
    """Return the cache name of the slim table for a cache of blocks."""
    return f"{cache}_INDEX"


def caches_of(cache: str, storage: Storage) -> list[str]:
    """Return a cache and, if the storage has one, the cache of its slim table."""
    return [cache, index_table(cache)] if storage.has_slim_table else [cache]


def rows_table(cache: str) -> str:
    """Return the name of the SQL table of a cache that belongs to a data set."""
    return f"{cache}__ROWS"


def carrier_table(cache: str) -> str:
    """Return the name of the table that only creates a cache for entries of any type."""
    # A table with the cache's own name would claim that the cache is empty.
    return f"{cache}__CACHE"


def staging_cache(data_set: str, load: str) -> str:
    """Return the cache in which the load of this id stores a replacement.

    No other load of the data set ever writes there.
    """
    return f"{data_set}{_NEXT}{load[:_ID]}"


def is_staging(cache: str, data_set: str) -> bool:
    """Return whether a cache has the name of a replacement, or of its slim table."""
    return cache.startswith(data_set) and bool(_STAGING.match(cache, len(data_set)))


def helper_cache(data_set: str) -> str:
    """Return the name of the table and cache that exist while SQL switches to a replacement."""
    return f"{data_set}__SWITCH"
