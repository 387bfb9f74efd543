"""Shared by all `ignitetf load` commands: options, the load itself, the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Any

import typer

from ignitetf.cli.options import Connect, parameter
from ignitetf.cli.output import Output, OutputOption, note, progress, show
from ignitetf.tables.storage import IfExists, Layout, OnBadRecord

if TYPE_CHECKING:
    from ignitetf.load.loader import LoadReport
    from ignitetf.load.sources.base import BadRecord, Source

__all__ = ["SHARED", "Target", "load"]

_SHOWN_BAD_RECORDS = 20


@dataclass(frozen=True)
class Target:
    """One cache to fill.

    Attributes:
        cache: Its name.
        open: Opens the source, given what to do with bad records.
        origin: Kind and options of the source, without its location.
    """

    cache: str
    open: Callable[[str], Source]
    origin: dict[str, Any]


SHARED = (
    parameter(
        "cache",
        str | None,
        typer.Option("--cache", metavar="NAME", help="Cache, and SQL table, to fill."),
        None,
    ),
    parameter(
        "partitions",
        int | None,
        typer.Option(help="Partitions of a new cache [default: by rows and bytes, 16 to 1024]."),
        None,
    ),
    parameter(
        "backups",
        int | None,
        typer.Option(
            min=0,
            help="Copies of each partition, after the first [default: 0; of a replacement, as before].",
        ),
        None,
    ),
    parameter("if_exists", IfExists, typer.Option(help="Action if the cache exists."), "error"),
    parameter(
        "layout", Layout, typer.Option(help="An entry is a row, or a block of many rows."), "rows"
    ),
    parameter(
        "index",
        str | None,
        typer.Option(metavar="COLUMN,...", help="Columns with a SQL index."),
        None,
    ),
    parameter(
        "sql",
        bool,
        typer.Option("--sql/--no-sql", help="Show the rows in SQL, as a table."),
        True,
    ),
    parameter(
        "limit",
        int | None,
        typer.Option(min=1, help="Stop after this many rows (of voc: images)."),
        None,
    ),
    parameter(
        "bad_records",
        OnBadRecord,
        typer.Option(help="Stop at an unreadable record, or skip it."),
        "fail",
    ),
    Parameter("output", Parameter.KEYWORD_ONLY, default="table", annotation=OutputOption),
)


def load(
    connect: Connect,
    targets: list[Target],
    *,
    cache: str | None,
    index: str | None,
    limit: int | None,
    if_exists: IfExists,
    bad_records: OnBadRecord,
    output: Output,
    **options: Any,
) -> None:
    """Load targets one after another and print the report; takes the values of `SHARED`."""
    from ignitetf.load.loader import check_target, load_dataset

    columns = tuple(c.strip().upper() for c in (index or "").split(",") if c.strip())
    # Open all sources and check all caches first, so that a bad one is found before any row is
    # stored.
    opened = [(target, target.open(bad_records)) for target in targets]
    reports: list[LoadReport] = []
    with connect() as client:
        for target, source in opened:
            check_target(client, source, target.cache, if_exists)
        for target, source in opened:
            rows = source.rows
            if limit is not None and rows is not None:
                rows = min(rows, limit)
            with progress(target.cache, rows) as advance:
                try:
                    report = load_dataset(
                        source,
                        target.cache,
                        client=client,
                        if_exists=if_exists,
                        index=columns,
                        limit=limit,
                        origin=target.origin,
                        on_progress=advance,
                        **options,
                    )
                except KeyboardInterrupt as error:
                    note(f"stopped; {_left(error, target.cache, source)}")
                    raise
            reports += [report, *report.parts]
    for text in dict.fromkeys(text for report in reports for text in report.notes):
        note(text)
    _note_bad_records([bad for report in reports for bad in report.bad_records])
    rows_out = [report.as_dict() for report in reports]
    show(rows_out[0] if len(rows_out) == 1 else rows_out, output)


def _left(error: KeyboardInterrupt, cache: str, source: Source) -> str:
    """Return a note about an interrupted load: its remains, and how to continue."""
    if getattr(error, "kept", False):
        if not source.resumable:
            return f"'ignitetf load ... --if-exists replace' starts again with {cache}"
        return f"'ignitetf load ... --if-exists resume' continues with {cache}"
    return f"no rows of it are left in {cache}"


def _note_bad_records(records: list[BadRecord]) -> None:
    """Print each bad record once: two tables of a source may skip the same one."""
    once = list(dict.fromkeys(records))
    for bad in once[:_SHOWN_BAD_RECORDS]:
        note(f"skipped {bad.name}: {bad.reason}")
    if (more := len(once) - _SHOWN_BAD_RECORDS) > 0:
        note(f"skipped {more:,} more")
