"""`load_dataset`: loads a source into a cache, keeps a journal, and finally writes a manifest.

source -> batches -> writer -> cache -> **manifest**

Guarantees:
- a load that fails before its first row, or because of bad input, leaves nothing in the cluster;
- a load that stops for another reason (killed, node lost, memory full) keeps the stored rows and a journal, and `if_exists="resume"` completes it to exactly the full set;
- rows have fixed keys, so a repeated load writes the same rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ignitetf.load.fill import Progress
from ignitetf.load.journal import read_journal
from ignitetf.load.options import (
    LoadOptions,
    LoadReport,
    as_source,
    check_options,
    exists_error,
    index_of,
    part_name,
    partitions_for,
    tables_of,
)
from ignitetf.load.run import Load
from ignitetf.load.sources.base import Source
from ignitetf.net.client import Client, connect
from ignitetf.notebook import progress_bar
from ignitetf.sql import check_name
from ignitetf.tables.lease import is_held
from ignitetf.tables.storage import IfExists, Layout, OnBadRecord, Origin, is_replacing

__all__ = ["LoadReport", "Progress", "check_target", "load_dataset"]

# Connections for the writes of a load, and additional ones for the copy of a replacement.
_LOAD_CONNECTIONS: Final = 2
_COPY_CONNECTIONS: Final = 3


def load_dataset(
    source: Any,
    cache: str,
    *,
    client: Client | None = None,
    partitions: int | None = None,
    backups: int | None = None,
    if_exists: IfExists = "error",
    layout: Layout = "rows",
    index: Sequence[str] = (),
    limit: int | None = None,
    bad_records: OnBadRecord = "fail",
    key: str | None = None,
    sql: bool = True,
    origin: Mapping[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> LoadReport:
    """Load a source into a cache and record it in the catalog.

    Args:
        source: A source (`ignitetf.load.sources.open_source`), a mapping of names to arrays, an
            object with `__arrow_c_stream__` (a table or reader of pyarrow, a frame of Polars or
            pandas, a relation of DuckDB, a cursor, result or rows of ignitetf), whose types are
            those of a Parquet file, or an iterable of dicts or of `Batch`.
        cache: Name of the cache and the SQL table; a second table of the source (annotations) gets
            a name derived from it.
        client: The connection; None connects with the current settings.
        partitions: Number of partitions of a new cache; None takes a power of two from 16 to 1,024
            that fits rows and bytes, see `size.partitions_for`.
        backups: Copies of each partition of a new cache, in addition to the first; None keeps the
            number of a replaced data set, otherwise makes none.
        if_exists: `error`; `append` adds rows to the existing ones; `replace` loads into a separate
            cache, which then gets the name; `replace-foreign` does so even if another program made
            the existing cache, which is then removed; `resume` continues an interrupted load.
        layout: `rows`, or `blocks`: many rows in one entry, for data only used for training.
        index: Fields that get a SQL index; in the block layout, the fields of a slim table. If
            there are several tables, each takes the fields it has.
        limit: Number of rows to load; a second table gets all rows that belong to these.
        bad_records: Handling of bad records of an iterable or a stream; other sources have
            their own setting.
        key: Field to use as the key, for mappings, streams and iterables.
        sql: True to create a SQL table; False creates a plain cache.
        origin: Arguments that opened the source (`kind`, `options`), kept in the manifest so that `verify`
            can open it again. It must not contain secrets.
        on_progress: Called with rows and bytes as they are sent to the node; None shows a progress
            bar in a notebook.

    Returns:
        The report, once everything is stored and recorded.

    Raises:
        CacheExists: The cache exists, and `if_exists` is `error`; or another program made it, and
            `if_exists` is `replace`.
        SourceError: The data are bad; a new cache is removed again.
        LoadInterrupted: The load stopped; the stored rows are kept, and it can be resumed.
        DataSetBusy: Another load or a removal of the data set is running, or started while this
            process was suspended.
    """
    check_options(if_exists, layout, limit)
    opened = as_source(source, key, bad_records)
    columns = tuple(dict.fromkeys(index))
    opening = None if origin is None else Origin.from_json(origin)
    fitting = partitions_for(opened, limit)
    options = LoadOptions(partitions, backups, layout, columns, limit, sql, opening, fitting)
    with contextlib.ExitStack() as stack:
        connected = client if client is not None else stack.enter_context(connect())
        if on_progress is None:
            on_progress = stack.enter_context(progress_bar(cache, _rows_of(opened, limit)))
        for name, _ in tables_of(opened, cache) if sql else ():
            check_name(name)
        loads = _loads(connected, opened, cache, options, on_progress)
        if len(loads) > 1:
            # Otherwise an existing second table would only be found after the load of the first.
            check_target(connected, opened, cache, if_exists)
        return _run(loads, if_exists)


def _rows_of(source: Source, limit: int | None) -> int | None:
    """Return the number of rows that will be loaded; None if it is unknown."""
    if source.rows is None or limit is None:
        return source.rows
    return min(source.rows, limit)


def check_target(client: Client, source: Source, cache: str, if_exists: IfExists) -> None:
    """Raise CacheExists if `load_dataset` would refuse a table of the source."""
    names = [name for name, _ in tables_of(source, cache)]
    new = if_exists == "error" or (if_exists == "append" and not client.cache_exists(cache))
    for name in names if new else ():
        # If the cache is being loaded now, the error of its lease is more useful.
        if client.cache_exists(name) and not is_held(client, name):
            raise exists_error(name, read_journal(client, name))


def _loads(
    client: Client, source: Source, cache: str, options: LoadOptions, on_progress: Progress | None
) -> list[Load]:
    """Return a load for each table of a source, with the options that apply to it."""
    loads = []
    for table, part in tables_of(source, cache):
        origin = options.origin
        named = None if origin is None else replace(origin, part=part_name(source, part))
        own = replace(options, index=index_of(source, part, options.index), origin=named)
        if part is not source:
            part.main_limit, own = options.limit, replace(own, limit=None)
        loads.append(Load(client, part, table, own, on_progress))
    return loads


def _run(loads: Sequence[Load], if_exists: IfExists) -> LoadReport:
    """Load the tables of a source in turn; returns the first report, which contains the others."""
    with contextlib.ExitStack() as leases:
        if (if_exists == "error" or is_replacing(if_exists)) and len(loads) == 1:
            loads[0].acquire_lease(leases)
        else:
            for load in loads:
                leases.enter_context(load.lease)
        # Connections are opened before requests need them; a silent node does not block this call.
        copies = _COPY_CONNECTIONS if is_replacing(if_exists) else 0
        loads[0].client.open_ahead(_LOAD_CONNECTIONS + copies)
        try:
            begin = _begin(loads, if_exists)
            main, *others = [load.run(begin) for load in loads]
        except KeyboardInterrupt as error:
            # The command line uses this to report whether the load can be resumed.
            error.kept = any(load.unfinished for load in loads)  # type: ignore[attr-defined]
            error.add_note(_left(loads[0]) if error.kept else f"nothing is left in {loads[0].name}")  # type: ignore[attr-defined]
            raise
    return replace(main, parts=tuple(others))


def _left(load: Load) -> str:
    """Return a note about an interrupted load: its remains, and how to continue."""
    again = "resume" if load.source.resumable else "replace"
    does = "continues" if load.source.resumable else "begins again"
    return f"hint: the stored rows of {load.name} are kept; if_exists={again!r} {does}"


def _begin(loads: Sequence[Load], if_exists: IfExists) -> IfExists:
    """Prepare loads of several tables, and return the `if_exists` for each of them.

    Appended rows of all tables use the same running keys. So all journals are written before the
    first row, and a load that stops between two tables knows about both.
    """
    main, *others = loads
    if others and if_exists == "replace":
        for load in loads:
            load.inspect(if_exists)
    if not others or if_exists not in ("append", "resume"):
        return if_exists
    found = [read_journal(load.client, load.name) for load in loads]
    journal = found[0]
    if if_exists == "append":
        for load, unfinished in zip(loads, found, strict=True):
            if unfinished is not None:
                raise exists_error(load.name, unfinished)
        if not main.client.cache_exists(main.name):
            return "error"
        journal = main.begin_append()
    elif journal is None or journal.mode != "append":
        return if_exists
    for other, begun in zip(others, found[1:], strict=True):
        if begun is None:
            other.begin_append(journal.key_base)
    return "resume"
