"""The options of a load and their checks, the number of partitions, and the report.

anything -> source of each table, **options** -> loader, run

Before a load, the options are checked. The checks also find an existing cache and an unfinished
earlier load.

If the user gives no number of partitions for a new data set, it is derived from rows and bytes. A
partition needs memory even without rows, and a scan requests each partition separately. So a
partition should have at least a mebibyte and sixteen rows. A partition of large rows should have
about one page, which a reader receives directly into its place. Larger ones cost heap: before a
node answers a scan, it reads up to hundreds of rows of the partition. The nodes of a cluster and
the workers of a job share the partitions, so there are at least sixteen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, get_args

from ignitetf.errors import (
    CacheExists,
    ConfigError,
    IgniteTFError,
    LoadInterrupted,
    SchemaError,
)
from ignitetf.load.journal import Journal, entries_of
from ignitetf.load.sources.base import BadRecord, Source, open_source
from ignitetf.load.sources.values import difference
from ignitetf.net.client import Client
from ignitetf.notebook import pairs
from ignitetf.partitions import DEFAULT_PARTITIONS, LARGE_ROW_BYTES
from ignitetf.tables.caches import has_table
from ignitetf.tables.catalog import Manifest
from ignitetf.tables.storage import IfExists, Layout, OnBadRecord, Origin, Storage, rows_table
from ignitetf.wire.blocks import block_schema
from ignitetf.wire.datatypes import DATA_TYPES, Family
from ignitetf.wire.schema import BYTES, Schema

__all__ = [
    "LoadOptions",
    "LoadReport",
    "as_source",
    "check_options",
    "exists_error",
    "index_of",
    "interrupted_error",
    "next_key",
    "part_name",
    "partitions_for",
    "require_alike",
    "require_named_classes",
    "require_same_source",
    "require_same_storage",
    "tables_of",
    "type_name_of",
]

# Types that SQL can compare; an index on any other type would hold whole Java objects.
# Bad records that a notebook names.
_SHOWN_BAD: Final = 20
_INDEXED: Final = frozenset(
    row.code for row in DATA_TYPES.values() if row.sql and row.family is not Family.ARRAY
)


@dataclass(frozen=True)
class LoadReport:
    """Result of a load.

    Attributes:
        cache: Name of the data set.
        rows: Rows of the source that are now stored.
        skipped: Bad records left out.
        bytes: Bytes of the stored entries.
        seconds: Duration of this call.
        rows_per_s: Rows written by this call, per second.
        mb_per_s: Megabytes (10^6) written by this call, per second.
        resumed_rows: Rows stored by an earlier call.
        bad_records: Names of this call's bad records, each with the reason.
        notes: Remarks on the interpretation of the data, such as columns that became text.
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

    def _repr_html_(self) -> str:
        facts = self.as_dict()
        bad = [f"skipped {bad.name}: {bad.reason}" for bad in self.bad_records[:_SHOWN_BAD]]
        if (left := len(self.bad_records) - _SHOWN_BAD) > 0:
            bad.append(f"skipped {left:,} more")
        said = [*self.notes, *bad]
        return pairs(facts, note="\n".join(said)) + "".join(p._repr_html_() for p in self.parts)

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers without the lists, as commands print them."""
        out = asdict(self)
        del out["bad_records"], out["notes"], out["parts"]
        return out


@dataclass(frozen=True)
class LoadOptions:
    """Storage options of a data set; see `load_dataset`."""

    partitions: int | None
    backups: int | None
    layout: Layout
    index: tuple[str, ...]
    limit: int | None
    sql: bool
    origin: Origin | None = None
    # Number for a new cache if `partitions` is None; used only if the cluster supports it.
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
                    f"column {name!r} cannot be indexed: its type is"
                    f" {schema[name].type.name.lower()}",
                    hint="index numbers, texts, times or UUIDs",
                )
        if self.layout == "blocks":
            block_schema(schema)

    def storage(self, source: Source) -> Storage:
        """Return the storage settings: selection and storage of the rows of a source."""
        return Storage(
            layout=self.layout,
            index=self.index,
            limit=self.limit,
            main_limit=source.main_limit,
            sql=self.sql,
            bad_records=source.bad_records,
        )


def as_source(source: Any, key: str | None, bad_records: OnBadRecord) -> Source:
    """Return the source itself, or a source made from Python records or an Arrow stream."""
    if isinstance(source, Source):
        return source
    if isinstance(source, str):
        raise ConfigError(
            f"{source!r} is a string, not a source",
            hint="open_source('csv', path) of ignitetf.load.sources opens files",
        )
    kind = "stream" if hasattr(source, "__arrow_c_stream__") else "records"
    return open_source(kind, source, key=key, bad_records=bad_records)


def tables_of(source: Source, name: str) -> Iterator[tuple[str, Source]]:
    """Yield the name and source of each table: first the source itself, under the given name."""
    yield name, source
    for part, other in source.parts.items():
        if other is not source:
            yield f"{name}_{part.upper()}", other


def index_of(source: Source, part: Source, index: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of `index` that a table has."""
    known = {name for table in source.parts.values() for name in table.schema.names}
    return tuple(n for n in index if n in part.schema.names or n not in known)


def part_name(source: Source, part: Source) -> str:
    """Return the name of a table within its source."""
    return next(name for name, other in source.parts.items() if other is part)


def type_name_of(schema: Schema, name: str) -> str | None:
    """Return the name of the value type, for the table; bare values have none."""
    if schema.type_name is None:
        return None
    word = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return word if not word[:1].isdigit() else f"_{word}"


def _has_same_fields(mine: Schema, theirs: Schema) -> bool:
    """True if rows fit an existing schema: same fields, and nulls only where it allows them.

    Their order does not matter, because values are matched by name.
    """
    known = {field.name: field for field in theirs.fields}
    return len(mine.fields) == len(known) and all(
        (there := known.get(field.name)) is not None
        and replace(field, nullable=field.nullable or there.nullable) == there
        for field in mine.fields
    )


def check_options(if_exists: str, layout: str, limit: int | None) -> None:
    """Raise ConfigError for invalid load options."""
    if if_exists not in get_args(IfExists):
        raise ConfigError(
            f"if_exists={if_exists!r}", hint=f"choose {', '.join(get_args(IfExists))}"
        )
    if layout not in get_args(Layout):
        raise ConfigError(f"layout={layout!r}", hint="choose 'rows' or 'blocks'")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit}: load at least one row")


def require_same_source(journal: Journal, fingerprint: str, *, resumable: bool = True) -> None:
    """Raise ConfigError unless the interrupted load read the same source."""
    if not resumable:
        raise ConfigError(
            f"the load into {journal.name!r} cannot be resumed: its source has no fixed order of rows",
            hint="start again with --if-exists replace",
        )
    if journal.source != fingerprint:
        raise ConfigError(
            f"this is not the source whose load into {journal.name!r} was stopped",
            hint="if the source changed, start again with --if-exists replace",
        )


def require_same_storage(name: str, mine: Storage, earlier: Storage) -> None:
    """Raise ConfigError unless the earlier load of `name` stores the same rows in the same way."""
    began = earlier.to_json()
    for option, value in mine.to_json().items():
        if began[option] != value:
            raise ConfigError(
                f"the load into {name!r} began with {option} = {began[option]}, not {value}",
                hint="resume with the same options, or start again with --if-exists replace",
            )


def require_alike(schema: Schema, layout: str, old: Manifest) -> None:
    """Raise an error unless rows can be appended to an existing data set.

    Raises:
        SchemaError: The records have other fields.
        ConfigError: The layout is different.
    """
    if schema.key != old.schema.key or not _has_same_fields(schema, old.schema):
        raise SchemaError(
            f"the records do not have the fields of {old.name!r}: {difference(schema, old.schema)}",
            hint="load them into a separate cache",
        )
    if old.layout != layout:
        raise ConfigError(
            f"cache {old.name!r} has the layout {old.layout}",
            hint=f"append with --layout {old.layout}",
        )


def require_named_classes(names: Sequence[str] | None, old: Manifest) -> None:
    """Raise ConfigError if new labels have class names but the stored rows have none."""
    if names and old.rows and not old.class_names and "LABEL" in old.schema.names:
        raise ConfigError(
            f"the labels of {old.name!r} are numbers without class names, but the records have"
            f" class names such as {names[0]!r}",
            hint="give the records numbers, or load them into a separate cache",
        )


def next_key(client: Client, old: Manifest) -> int:
    """Return the first running key after the rows of a data set, including rows of other clients.

    Raises:
        ConfigError: The keys are not running numbers, or other clients have added rows whose keys
            SQL does not show.
    """
    if (found := old.options.next_key) is None:
        raise ConfigError(
            f"the keys of {old.name!r} are not running numbers, so the next key is unknown",
            hint="append with --key, or load into another cache",
        )
    storage = old.options.storage
    table = old.cache if old.layout == "rows" else old.index
    if table is not None and storage.sql and has_table(old.schema):
        quoted = rows_table(table).replace('"', '""')
        ((largest,),) = client.sql(f'SELECT MAX(_KEY) FROM "{quoted}"').fetchall()  # nosec B608
        return found if largest is None else max(found, int(largest) + 1)
    if client.cache_size(old.cache) > entries_of(old):
        raise ConfigError(
            f"another client has written to {old.name!r} since it was loaded, under keys that"
            " SQL does not show, so the next key is unknown",
            hint="append with --key, or load into another cache",
        )
    return found


def interrupted_error(journal: Journal, error: IgniteTFError) -> LoadInterrupted:
    """Return the error for an interrupted load whose cache and journal are kept."""
    return LoadInterrupted(
        f"the load into {journal.name!r} stopped, at least {journal.rows:,} rows are stored:"
        f" {error.message.removeprefix(f'cache {journal.name!r}: ')}",
        hint="remove the cause, then continue with --if-exists resume",
        rows=journal.rows,
        cache=journal.name,
    )


def exists_error(name: str, journal: Journal | None) -> CacheExists:
    """Return the error for a cache that exists already or has this unfinished load."""
    if journal is not None:
        return CacheExists(
            f"cache {name!r} has an unfinished load, {journal.rows:,} rows are stored",
            hint="continue with --if-exists resume, or start again with --if-exists replace",
            cache=name,
        )
    return CacheExists(
        f"cache {name!r} exists",
        hint="choose --if-exists append, replace or resume, or another name",
        cache=name,
    )


_LEAST: Final = 16
_ROWS_EACH: Final = 16
_BYTES_EACH: Final = 1 << 20
_LARGE_ROWS_EACH: Final = 16 << 20  # bytes


def partitions_for(source: Source, limit: int | None = None) -> int | None:
    """Return the number of partitions for the records of a source.

    Args:
        source: The records.
        limit: Maximum number of records to load.

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
    """Return the approximate bytes of the records; None if unknown."""
    if source.nbytes is not None or source.rows is None:
        return source.nbytes
    fields = source.schema.fields
    if any(f.ragged or f.dtype == BYTES or f.fields for f in fields):
        return None
    return source.rows * sum(f.size * f.dtype.itemsize for f in fields)
