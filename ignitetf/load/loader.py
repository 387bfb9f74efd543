"""`load_dataset`: a source into a cache, with a journal while it runs and a manifest at the end.

source -> batches -> writer -> cache -> **manifest**

What is promised:
- a load that fails before its first row, or by bad input, leaves nothing behind;
- a load that is stopped in another way (killed, node lost, memory full) leaves what was stored
  and a journal, and `if_exists="resume"` makes exactly the full set of it;
- rows have fixed keys, so that a repeated load writes the same rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ignitetf.load.checks import check_options, exists_error
from ignitetf.load.fill import Progress
from ignitetf.load.journal import read_journal
from ignitetf.load.options import LoadOptions, LoadReport
from ignitetf.load.run import Load
from ignitetf.load.sources.base import Source
from ignitetf.load.targets import as_source, index_of, part_name, tables_of
from ignitetf.net.client import Client, connect
from ignitetf.tables.lease import is_held
from ignitetf.tables.storage import IfExists, Layout, OnBadRecord, Origin

__all__ = ["LoadReport", "Progress", "check_target", "load_dataset"]


def load_dataset(
    source: Any,
    cache: str,
    *,
    client: Client | None = None,
    partitions: int | None = None,
    backups: int = 0,
    if_exists: IfExists = "error",
    layout: Layout = "rows",
    index: Sequence[str] = (),
    limit: int | None = None,
    bad_records: OnBadRecord = "fail",
    key: str | None = None,
    sql: bool = True,
    streamer: bool = False,
    origin: Mapping[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> LoadReport:
    """Load a source into a cache, and describe it in the catalog.

    Args:
        source: A source (`ignitetf.load.sources.open_source`), a mapping of names to arrays, or
            an iterable of dicts or of `Batch`.
        cache: Name of the cache and the SQL table; a second table of the source (annotations)
            gets its name after this one.
        client: Where to; None connects with the settings in force.
        partitions: Number of partitions of a new cache; None leaves it to the cluster.
        backups: Copies of each partition of a new cache.
        if_exists: `error`; `append` adds rows after those that are there; `replace` loads beside
            and then takes the place; `resume` goes on with a load that was stopped.
        layout: `rows`, or `blocks`: many rows in one entry, for data that are only trained on.
        index: Fields that get a SQL index; in the block layout, the fields of a slim table. Of
            several tables each takes those that it has.
        limit: Number of rows after which to stop; of a second table, all rows of those are taken.
        bad_records: What to do with bad records of an iterable; other sources have it already.
        key: Field that is the key, for mappings and iterables.
        sql: Whether to make a SQL table; False makes a bare cache.
        streamer: Write through the data streamer rather than by `put_all`. Apache Ignite 2.17 may
            halt a node when a client dies while it streams; see `sender`.
        origin: How the source was opened (`kind`, `options`); kept in the manifest, so that
            `verify` can open it again. Nothing secret belongs there.
        on_progress: Called with rows and bytes as they are handed to the node.

    Returns:
        The report, once everything is stored and described.

    Raises:
        CacheExists: There is such a cache, and `if_exists` is `error`.
        SourceError: The data are bad; a new cache is removed again.
        LoadInterrupted: The load stopped; what was stored is kept and can be resumed.
        DataSetBusy: Another load, or a command that removes it, is at work on the data set; or
            took it over when this process had stood still.
    """
    check_options(if_exists, layout, limit)
    opened = as_source(source, key, bad_records)
    columns = tuple(dict.fromkeys(index))
    opening = None if origin is None else Origin.from_json(origin)
    options = LoadOptions(partitions, backups, layout, columns, limit, sql, opening, streamer)
    with contextlib.nullcontext(client) if client is not None else connect() as connected:
        check_target(connected, opened, cache, if_exists)
        return _run(_loads(connected, opened, cache, options, on_progress), if_exists)


def check_target(client: Client, source: Source, cache: str, if_exists: IfExists) -> None:
    """Raise CacheExists for the tables of a source that `load_dataset` would refuse."""
    names = [name for name, _ in tables_of(source, cache)]
    new = if_exists == "error" or (if_exists == "append" and not client.cache_exists(cache))
    for name in names if new else ():
        # Of one that is just being loaded, its lease has more to say.
        if client.cache_exists(name) and not is_held(client, name):
            raise exists_error(name, read_journal(client, name))


def _loads(
    client: Client, source: Source, cache: str, options: LoadOptions, on_progress: Progress | None
) -> list[Load]:
    """A load for each table of a source, with the options that are for it."""
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
    """Fill the tables of a source one after another; the report of the first names the others."""
    with contextlib.ExitStack() as leases:
        for load in loads:
            leases.enter_context(load.lease)
        try:
            begin = _begin(loads, if_exists)
            main, *others = [load.run(begin) for load in loads]
        except KeyboardInterrupt as error:
            # The command line says by it whether there is something to go on with.
            error.kept = any(load.unfinished for load in loads)  # type: ignore[attr-defined]
            raise
    return replace(main, parts=tuple(others))


def _begin(loads: Sequence[Load], if_exists: IfExists) -> IfExists:
    """Prepare loads of several tables; how each of them is then to begin.

    Appended rows of all tables take the same running keys. So the journals of all are written
    before the first row, and a load that is stopped between two tables knows of both.
    """
    main, *others = loads
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
