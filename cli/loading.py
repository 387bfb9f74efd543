"""What all `ignitetf load` commands share: their options, the loading, the report."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import Output, OutputOption, note, progress, show
from ignitetf.tables.storage import IfExists, Layout, OnBadRecord

if TYPE_CHECKING:
    from ignitetf.load.loader import LoadReport
    from ignitetf.load.sources.base import BadRecord, Source

__all__ = ["Target", "loading"]

_SHOWN_BAD_RECORDS = 20


@dataclass(frozen=True)
class Target:
    """One cache to fill.

    Attributes:
        cache: Its name.
        open: Opens the source, given the choice for bad records.
        origin: Kind and options of the source, without its place.
    """

    cache: str
    open: Callable[[str], Source]
    origin: dict[str, Any]


def loading(command: Callable[..., Iterable[Target]]) -> Callable[..., None]:
    """Make a command of a function that names its targets: shared options, loading, report.

    The function gets its own options, and `cache`, which is None unless `--cache` was given.
    """
    shared = inspect.signature(_shared, eval_str=True).parameters
    mine = inspect.signature(command, eval_str=True).parameters
    parameters = [p for name, p in mine.items() if name != "cache"] + list(shared.values())
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]

    def run(connect: Connect, **given: Any) -> None:
        options = _shared(**{name: given.pop(name) for name in shared})
        targets = list(command(cache=options.pop("cache"), **given))
        bad_records, output = options.pop("bad_records"), options.pop("output")
        _load(connect, targets, bad_records, options, output)

    functools.update_wrapper(run, command)
    del run.__wrapped__  # type: ignore[attr-defined]
    first = inspect.Parameter("connect", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([first, *parameters])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return connected(run)


def _shared(
    *,
    cache: Annotated[
        str | None, typer.Option("--cache", metavar="NAME", help="Cache, and SQL table, to fill.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(help="Partitions of a new cache [default: 1024].")
    ] = None,
    backups: Annotated[int, typer.Option(min=0, help="Copies of each partition.")] = 0,
    if_exists: Annotated[
        IfExists, typer.Option(help="What to do with a cache that is there.")
    ] = "error",
    layout: Annotated[
        Layout, typer.Option(help="An entry is a row, or a block of many rows.")
    ] = "rows",
    index: Annotated[
        str | None, typer.Option(metavar="COLUMN,...", help="Columns with a SQL index.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many rows (of voc: images).")
    ] = None,
    bad_records: Annotated[
        OnBadRecord, typer.Option(help="Stop at a record that cannot be read, or skip it.")
    ] = "fail",
    streamer: Annotated[
        bool,
        typer.Option(
            "--streamer/--put-all",
            help="Write through the data streamer; a load that is killed may halt the node.",
        ),
    ] = False,
    output: OutputOption = "table",
) -> dict[str, Any]:
    """The options that all commands have, their values as `load_dataset` and `_load` take them."""
    return {
        "cache": cache,
        "bad_records": bad_records,
        "output": output,
        "partitions": partitions,
        "backups": backups,
        "if_exists": if_exists,
        "layout": layout,
        "index": tuple(c.strip().upper() for c in (index or "").split(",") if c.strip()),
        "limit": limit,
        "streamer": streamer,
    }


def _load(
    connect: Connect,
    targets: list[Target],
    bad_records: str,
    options: dict[str, Any],
    output: Output,
) -> None:
    from ignitetf.load.loader import check_target, load_dataset

    # All sources are opened, and all caches looked at, before the first row is stored.
    opened = [(target, target.open(bad_records)) for target in targets]
    reports: list[LoadReport] = []
    with connect() as client:
        for target, source in opened:
            check_target(client, source, target.cache, options["if_exists"])
        for target, source in opened:
            cache = target.cache
            rows = source.rows
            if options["limit"] is not None and rows is not None:
                rows = min(rows, options["limit"])
            with progress(cache, rows) as advance:
                try:
                    report = load_dataset(
                        source,
                        cache,
                        client=client,
                        origin=target.origin,
                        on_progress=advance,
                        **options,
                    )
                except KeyboardInterrupt as error:
                    note(f"stopped; {_left(error, cache)}")
                    raise
            reports += [report, *report.parts]
    for text in dict.fromkeys(text for report in reports for text in report.notes):
        note(text)
    _tell_bad_records([bad for report in reports for bad in report.bad_records])
    rows_out = [report.as_dict() for report in reports]
    show(rows_out[0] if len(rows_out) == 1 else rows_out, output)


def _left(error: KeyboardInterrupt, cache: str) -> str:
    """What is left of a load that was interrupted, and the way on."""
    if getattr(error, "kept", False):
        return f"'ignitetf load ... --if-exists resume' goes on with {cache}"
    return f"nothing of it is left in {cache}"


def _tell_bad_records(records: list[BadRecord]) -> None:
    """Name the bad records, each once: two tables of one source may lack the same."""
    once = list(dict.fromkeys(records))
    for bad in once[:_SHOWN_BAD_RECORDS]:
        note(f"skipped {bad.name}: {bad.reason}")
    if (more := len(once) - _SHOWN_BAD_RECORDS) > 0:
        note(f"skipped {more:,} more")
