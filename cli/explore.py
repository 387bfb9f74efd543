"""`ignitetf head`, `stats` and `preview`: inspect a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import NESTED, OutputOption, note, progress, show

head_app = typer.Typer(help="Print the first records of a cache.")
stats_app = typer.Typer(help="Print statistics of a cache's columns.")
preview_app = typer.Typer(help="Draw a contact sheet of a cache's images.")

_SHOWN_ELEMENTS = 8
_CacheArgument = Annotated[str, typer.Argument(help="Name of the cache, data set or table.")]


@head_app.command("head")
@connected
def head(
    connect: Connect,
    cache: _CacheArgument,
    count: Annotated[int, typer.Option("--rows", "-n", min=1, help="Records to show.")] = 10,
    fields: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these fields.")
    ] = None,
    output: OutputOption = "table",
) -> None:
    """Print some records in the order in which training reads them: by partition, not by key.

    Example: ignitetf head MNIST_TRAIN -n 3
    """
    from ignitetf.explore.head import class_of, first_rows
    from ignitetf.tables.catalog import read_manifest
    from ignitetf.tables.describe import data_name

    wanted = tuple(name.strip() for name in fields.split(",")) if fields else None
    with connect() as client:
        rows = first_rows(client, cache, count, fields=wanted, on_left_out=_note_left_out)
        manifest = read_manifest(client, data_name(client, cache).name)
    if output == "table":
        rows = [{name: _brief(value) for name, value in row.items()} for row in rows]
        for row in rows:
            if name := class_of(row.get("LABEL"), manifest.class_names if manifest else ()):
                row["LABEL"] = f"{row['LABEL']} {name}"
    show(rows, output)


def _note_left_out(name: str, reason: str) -> None:
    note(f"skipped {name}: {reason}")


def _brief(value: Any) -> Any:
    """Replace arrays of more than a few elements by their dtype and shape."""
    if getattr(value, "size", 0) > _SHOWN_ELEMENTS:
        return f"{value.dtype} {list(value.shape)}"
    return value


@stats_app.command("stats")
@connected
def stats(connect: Connect, cache: _CacheArgument, output: OutputOption = "table") -> None:
    """Print rows, partitions, and statistics of each column.

    Statistics are the range, the mean, and the numbers of nulls and values.

    Example: ignitetf stats MNIST_TRAIN --output json
    """
    from ignitetf.explore.stats import dataset_stats

    with connect() as client, progress(f"read {cache}", None) as advance:
        found = dataset_stats(client, cache, on_progress=advance)
    if output in NESTED:
        show(found.as_dict(), output)
        return
    rows: list[dict[str, Any]] = []
    for column in found.as_dict()["columns"]:
        names = found.class_names if column["name"] == "LABEL" else []
        top = ", ".join(
            f"{_named(value, names)}: {count}" for value, count in list(column["top"].items())[:3]
        )
        rows.append({**column, "shape": str(list(column["shape"])), "top": top})
    show(rows, output)
    for name, reason in found.left_out.items():
        _note_left_out(name, reason)
    note(
        f"{cache}: {found.rows:,} rows, {found.bytes / 1e6:,.1f} MB in {found.layout},"
        f" {found.partitions:,} partitions of {min(found.partition_rows):,} to"
        f" {max(found.partition_rows):,} rows"
    )


def _named(value: str, names: list[str]) -> str:
    """Return a label as statistics count it, with the name of its class."""
    known = value.isdecimal() and int(value) < len(names)
    return f"{value} {names[int(value)]}" if known else value


@preview_app.command("preview")
@connected
def preview(
    connect: Connect,
    cache: _CacheArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE.png", help="Write the sheet to this file; do not draw it."
        ),
    ] = None,
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Field of the images [default: the first].")
    ] = None,
    count: Annotated[int, typer.Option("--rows", "-n", min=1, help="Images to show.")] = 64,
    where: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Only rows of this SQL condition.")
    ] = None,
    columns: Annotated[int, typer.Option(min=1, help="Images per row.")] = 8,
    size: Annotated[int, typer.Option(min=8, max=1024, help="Pixels of each image.")] = 96,
    output: OutputOption = "table",
) -> None:
    """Draw images with their labels, in the terminal or as PNG.

    All classes have the same number of images, as far as possible.

    Example: ignitetf preview MNIST_TRAIN --where "LABEL < 3" --out sheet.png
    """
    import shutil
    import sys

    from ignitetf.errors import ConfigError
    from ignitetf.explore.preview import contact_sheet

    if out is None and not sys.stdout.isatty():
        raise ConfigError("the output is not a terminal", hint="write a file with --out")
    if out is not None and out.suffix.lower() != ".png":
        raise ConfigError(f"{out}: the sheet is a PNG", hint="name a file that ends in .png")
    with connect() as client:
        sheet = contact_sheet(
            client, cache, field=field, count=count, columns=columns, size=size, where=where
        )
    if out is None:
        typer.echo(sheet.text(shutil.get_terminal_size().columns))
        return
    sheet.image.save(out)
    found = {"file": str(out), "field": sheet.field, "images": sheet.shown}
    show({**found, "undecodable": sheet.undecodable}, output)
