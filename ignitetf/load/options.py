"""The options of a load, and its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ignitetf.errors import ConfigError
from ignitetf.load.sources.base import BadRecord, Source
from ignitetf.tables.storage import Layout, Origin, Storage
from ignitetf.wire.blocks import block_schema
from ignitetf.wire.datatypes import DATA_TYPES, Family
from ignitetf.wire.schema import Schema

__all__ = ["LoadOptions", "LoadReport"]

# Types that SQL can compare; an index on any other type would hold whole Java objects.
_INDEXED: Final = frozenset(
    row.code for row in DATA_TYPES.values() if row.sql and row.family is not Family.ARRAY
)


@dataclass(frozen=True)
class LoadReport:
    """What a load did.

    Attributes:
        cache: Name of the data set.
        rows: Rows of the source that are now stored.
        skipped: Bad records left out.
        bytes: Bytes of the stored entries.
        seconds: Duration of this call.
        rows_per_s: Rows written by this call, per second.
        mb_per_s: Megabytes (10^6) written by this call, per second.
        resumed_rows: Rows stored by an earlier call.
        bad_records: Names of this call's bad records, and why each is bad.
        notes: Remarks on how the data were interpreted, such as columns that became text.
        parts: Reports of further tables filled from the source (annotations).
    """

    cache: str
    rows: int
    skipped: int
    bytes: int
    seconds: float
    rows_per_s: float
    mb_per_s: float
    resumed_rows: int = 0
    bad_records: tuple[BadRecord, ...] = ()
    notes: tuple[str, ...] = ()
    parts: tuple[LoadReport, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Return the figures without the lists, as commands print them."""
        out = asdict(self)
        del out["bad_records"], out["notes"], out["parts"]
        return out


@dataclass(frozen=True)
class LoadOptions:
    """How a data set is stored; see `load_dataset`."""

    partitions: int | None
    backups: int | None
    layout: Layout
    index: tuple[str, ...]
    limit: int | None
    sql: bool
    origin: Origin | None = None
    streamer: bool = False
    # For a new cache where `partitions` is None, if the cluster can make one with so many.
    fitting_partitions: int | None = None

    def check(self, schema: Schema) -> None:
        """Raise ConfigError for options that do not fit the records."""
        if unknown := [name for name in self.index if name not in schema.names]:
            raise ConfigError(
                f"no column {unknown[0]!r} to index", hint=f"columns: {', '.join(schema.names)}"
            )
        for name in self.index:
            if schema[name].type not in _INDEXED:
                raise ConfigError(
                    f"column {name!r} holds {schema[name].type.name.lower()}, which no index helps"
                    " to find",
                    hint="index numbers, texts, times or UUIDs",
                )
        if self.layout == "blocks":
            block_schema(schema)

    def storage(self, source: Source) -> Storage:
        """Return which rows of a source are stored, and how."""
        return Storage(
            layout=self.layout,
            index=self.index,
            limit=self.limit,
            main_limit=source.main_limit,
            sql=self.sql,
            bad_records=source.bad_records,
        )
