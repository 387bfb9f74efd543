"""`ignitetf verify`: whether a cache holds what its manifest and its source say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import Output, OutputOption, note, progress, show

if TYPE_CHECKING:
    from ignitetf.catalog import Manifest
    from ignitetf.load.sources.base import Source

app = typer.Typer(help="Check the rows of a cache.")


@app.command()
@connected
def verify(
    connect: Connect,
    cache: Annotated[str, typer.Argument(help="Name of the data set.")],
    source: Annotated[
        Optional[list[str]],  # noqa: UP045 (evaluated at run time)
        typer.Option(metavar="PLACE", help="Compare with this file or folder, too; repeatable."),
    ] = None,
    kind: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="KIND", help="Kind of the source [default: as it was loaded]."),
    ] = None,
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Decode encoded images.")
    ] = True,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check rows, checksum, duplicates, images and partitions; exit code 1 when one is wrong.

    Example: ignitetf verify MNIST_TRAIN --source data/mnist
    """
    from ignitetf.catalog import read_manifest
    from ignitetf.explore.verify import verify as run

    with connect() as client:
        client.require_cache(cache)
        manifest = read_manifest(client, cache)
        opened = _open(source, kind, manifest) if source else None
        with progress(f"verify {cache}", None if manifest is None else manifest.rows) as advance:
            report = run(client, cache, opened, images=images, on_progress=advance)
    show(report.as_dict(), output)
    for finding in report.findings:
        note(f"wrong: {finding.check}: {finding.found}")
    if not report.ok:
        raise typer.Exit(1)


def _open(places: list[str], kind: str | None, manifest: Manifest | None) -> Source:
    """The source, opened as for the load; `--kind` opens it without the load's options."""
    from ignitetf.errors import ConfigError
    from ignitetf.load.sources import open_source

    place: str | list[str] = places if len(places) > 1 else places[0]
    origin: dict[str, Any] = {} if manifest is None else manifest.options.get("origin") or {}
    if kind is None and not origin:
        raise ConfigError(
            "the manifest does not tell how the source was opened",
            hint="say it with --kind: mnist, images, voc, npz, csv, parquet, tfrecord or idx",
        )
    if kind is not None and kind != origin.get("kind"):
        return open_source(kind, place)
    options = dict(origin["options"])
    location = None if origin["kind"] == "digits" else place
    skip = None if manifest is None else manifest.options.get("bad_records")
    source = open_source(origin["kind"], location, bad_records=skip or "fail", **options)
    return source.parts.get(origin.get("part", ""), source)
