"""`ignitetf table`: SQL tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ignitetf.cli.group import UsageError
from ignitetf.cli.options import (
    BackupsOption,
    Connect,
    PartitionsOption,
    Yes,
    confirm,
    connected,
)
from ignitetf.cli.output import NESTED, OutputOption, note, say, show
from ignitetf.errors import ConfigError

app = typer.Typer(help="Create, list, describe and drop SQL tables.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Name of the table.", show_default=False)]
_COLUMNS = ("schema", "table", "cache", "rows")
_FIELDS = ("name", "type", "key", "nullable", "affinity")


@app.command()
@connected
def create(
    connect: Connect,
    source: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE.sql", help="mnist, images, voc, or a file.", show_default=False
        ),
    ],
    partitions: PartitionsOption = None,
    backups: BackupsOption = 0,
    name: Annotated[
        str | None, typer.Option(help="Name of the table; names of several begin with it.")
    ] = None,
    output: OutputOption = "table",
) -> None:
    """Create tables from ignitetf's statements or a file.

    In a file, {options} before the closing quote of WITH "CACHE_NAME=..." is replaced by
    --partitions and --backups, and {name} by --name.

    Example: ignitetf table create mnist --partitions 16
    """
    from ignitetf.tables.statements import create_tables

    text, stem = _statements(source)
    _check_places(text, named=name is not None, sized=partitions is not None or backups > 0)
    with connect() as client:
        made = create_tables(
            client, text, name=name or stem, partitions=partitions, backups=backups
        )
    if not made:
        note("the statements created no table")
    show(made, output, columns=_COLUMNS)


@app.command("ls")
@connected
def list_(connect: Connect, output: OutputOption = "table") -> None:
    """List the tables with their caches and numbers of rows.

    Example: ignitetf table ls
    """
    from ignitetf.tables.describe import list_tables

    with connect() as client:
        rows = list_tables(client)
    show(rows, output, columns=_COLUMNS)


@app.command()
@connected
def describe(connect: Connect, name: NameArgument, output: OutputOption = "table") -> None:
    """Show the columns of a table.

    JSON includes its cache and indexes.

    Example: ignitetf table describe MNIST_TRAIN
    """
    from ignitetf.tables.describe import describe_table

    with connect() as client:
        found = describe_table(client, name)
    if output in NESTED:
        show(found, output)
    else:
        show(found["fields"], output, columns=_FIELDS)


@app.command()
@connected
def drop(
    connect: Connect, name: NameArgument, yes: Yes = False, output: OutputOption = "table"
) -> None:
    """Remove a table, its rows and its cache.

    Example: ignitetf table drop MNIST_TRAIN --yes
    """
    from ignitetf.tables.describe import find_table
    from ignitetf.tables.removal import drop_table

    with connect() as client:
        table = find_table(client, name)
        rows = client.cache_size(table["cache"])
        confirm(f"Remove {table['table']} with its {rows} rows?", yes)
        drop_table(client, name)
    say(
        f"table {table['table']} was removed",
        {"table": table["table"], "removed_rows": rows},
        output,
    )


def _statements(source: str) -> tuple[str, str]:
    """Return the text of the statements, and the default for `{name}`."""
    from ignitetf.sql import TABLES, text_of

    if source.lower() in TABLES:
        return text_of(source.lower()), source.upper()
    if not source.endswith(".sql"):
        raise UsageError(f"{source!r} is not one of {', '.join(TABLES)}, and not a file *.sql")
    path = Path(source)
    try:
        return path.read_text(encoding="utf-8-sig"), path.stem.upper()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not UTF-8 text") from error


def _check_places(text: str, *, named: bool, sized: bool) -> None:
    from ignitetf.sql import placeholders

    places = placeholders(text)
    if sized and "options" not in places:
        raise UsageError("--partitions and --backups need {options} in the file")
    if named and "name" not in places:
        raise UsageError("--name needs {name} in the file")
