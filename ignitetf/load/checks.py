"""Checks before a load: its options, an existing cache, and an earlier unfinished load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from ignitetf.errors import (
    CacheExists,
    ConfigError,
    IgniteTFError,
    LoadInterrupted,
    SchemaError,
)
from ignitetf.load.finish import entries_of
from ignitetf.load.journal import Journal
from ignitetf.load.sources.difference import difference
from ignitetf.load.targets import has_same_fields
from ignitetf.net.client import Client
from ignitetf.tables.caches import has_table
from ignitetf.tables.catalog import Manifest
from ignitetf.tables.storage import IfExists, Layout, Storage, rows_table
from ignitetf.wire.schema import Schema

__all__ = [
    "check_options",
    "exists_error",
    "interrupted_error",
    "next_key",
    "require_alike",
    "require_named_classes",
    "require_same_source",
    "require_same_storage",
]


def check_options(if_exists: str, layout: str, limit: int | None) -> None:
    """Raise ConfigError for invalid load options."""
    if if_exists not in get_args(IfExists):
        raise ConfigError(f"if_exists={if_exists!r}", hint=f"take {', '.join(get_args(IfExists))}")
    if layout not in get_args(Layout):
        raise ConfigError(f"layout={layout!r}", hint="take 'rows' or 'blocks'")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit}: load at least one row")


def require_same_source(journal: Journal, fingerprint: str, *, resumable: bool = True) -> None:
    """Raise ConfigError unless the interrupted load read the same source."""
    if not resumable:
        raise ConfigError(
            f"the load into {journal.name!r} cannot go on: its source has no fixed order of rows",
            hint="begin again with --if-exists replace",
        )
    if journal.source != fingerprint:
        raise ConfigError(
            f"the source is not the one whose load into {journal.name!r} was stopped",
            hint="has it changed since? begin again with --if-exists replace",
        )


def require_same_storage(name: str, mine: Storage, earlier: Storage) -> None:
    """Raise ConfigError unless the earlier load of `name` stores the same rows in the same way."""
    began = earlier.to_json()
    for option, value in mine.to_json().items():
        if began[option] != value:
            raise ConfigError(
                f"the load into {name!r} began with {option} = {began[option]}, not {value}",
                hint="resume with the same options, or begin again with --if-exists replace",
            )


def require_alike(schema: Schema, layout: str, old: Manifest) -> None:
    """Raise an error unless rows can be appended to an existing data set.

    Raises:
        SchemaError: The records have other fields.
        ConfigError: The layout is different.
    """
    if schema.key != old.schema.key or not has_same_fields(schema, old.schema):
        raise SchemaError(
            f"the records have other fields than those in {old.name!r}:"
            f" {difference(schema, old.schema)}",
            hint="load them into a cache of their own",
        )
    if old.layout != layout:
        raise ConfigError(
            f"cache {old.name!r} has the layout {old.layout}",
            hint=f"append with --layout {old.layout}",
        )


def require_named_classes(names: Sequence[str] | None, old: Manifest) -> None:
    """Raise ConfigError if labels of records have names, and those of the rows there have none."""
    if names and old.rows and not old.class_names and "LABEL" in old.schema.names:
        raise ConfigError(
            f"the labels of {old.name!r} are numbers without names, and a label of the records has"
            f" the name {names[0]!r}",
            hint="give the records numbers, or load them into a cache of their own",
        )


def next_key(client: Client, old: Manifest) -> int:
    """Return the first running key after the rows of a data set, those of others among them.

    Raises:
        ConfigError: The keys are not running numbers, or others have added rows and SQL does not
            show their keys.
    """
    if (found := old.options.next_key) is None:
        raise ConfigError(
            f"the keys of {old.name!r} are not running numbers, so the next one is not known",
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
            f"others have written to {old.name!r} since it was loaded, under keys that SQL does not"
            " show, so the next one is not known",
            hint="append with --key, or load into another cache",
        )
    return found


def interrupted_error(journal: Journal, error: IgniteTFError) -> LoadInterrupted:
    """Return the error for an interrupted load whose cache and journal are kept."""
    return LoadInterrupted(
        f"the load into {journal.name!r} stopped, {journal.rows:,} rows are known to be stored:"
        f" {error.message.removeprefix(f'cache {journal.name!r}: ')}",
        hint="when the cause is removed, go on with --if-exists resume",
        rows=journal.rows,
        cache=journal.name,
    )


def exists_error(name: str, journal: Journal | None) -> CacheExists:
    """Return the error for a cache that exists already or has this unfinished load."""
    if journal is not None:
        return CacheExists(
            f"cache {name!r} has an unfinished load, {journal.rows:,} rows are stored",
            hint="go on with --if-exists resume, or begin again with --if-exists replace",
            cache=name,
        )
    return CacheExists(
        f"cache {name!r} exists",
        hint="choose --if-exists append, replace or resume, or another name",
        cache=name,
    )
