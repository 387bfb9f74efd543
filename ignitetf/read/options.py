"""`ReadOptions`: what to read from a cache, and how.

**options** -> reader -> rows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ignitetf.errors import ConfigError
from ignitetf.read.nulls import NullPolicy, check_policy

__all__ = ["PAGE_BYTES", "ReadOptions"]

# About as many bytes as a batch has that is handed over at once.
PAGE_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class ReadOptions:
    """What to read from a cache, and how.

    Attributes:
        fields: Names of value fields, None for all.
        where: SQL condition that the node evaluates, None for all entries.
        where_params: Values for the `?` in it.
        table: The SQL table to read if the cache has several; None for its only one.
        split: Name of the split to read, see `splits.find_split`; None for all rows.
        schema: Declared schema, see `declared`.
        nulls: Policy for nulls.
        raw_nulls: Leave nulls in the columns, marked by `valid`; no policy is applied.
        skip_unreadable: Leave out fields that cannot be read, instead of raising.
        page_size: Entries in a page; None lets the link decide.
        readers: Connections at once, at least one to each node.
        retry_s: Seconds allowed for replacing a lost connection, None for the `idle_timeout_s` of
            the settings.
        version: Required version of the manifest.
        on_change: `error`, `warn` or `ignore` if a partition has another number of entries than the
            manifest says.
    """

    fields: Sequence[str] | None = None
    where: str | None = None
    where_params: tuple[Any, ...] = ()
    table: str | None = None
    split: str | None = None
    schema: Any = None
    nulls: NullPolicy = "error"
    raw_nulls: bool = False
    skip_unreadable: bool = False
    page_size: int | None = None
    readers: int = 1
    retry_s: float | None = None
    version: int | None = None
    on_change: str = "error"

    @property
    def selects(self) -> bool:
        """Whether only some entries are read."""
        return self.where is not None or self.table is not None

    def check(self) -> None:
        """Raise ConfigError for an unusable value."""
        check_policy(self.nulls)
        if self.page_size is not None and not 0 < self.page_size < 1 << 31:
            raise ConfigError(f"page_size must be above zero, not {self.page_size}")
        if self.readers < 1:
            raise ConfigError(f"readers must be 1 or more, not {self.readers}")
        if self.on_change not in ("error", "warn", "ignore"):
            raise ConfigError(f"on_change={self.on_change!r}", hint="one of error, warn, ignore")
        if self.where_params and self.where is None:
            raise ConfigError("parameters without a condition", hint="pass where=")
