"""`ignitetf verify`: check a cache's content, or that an epoch reads every record once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import Output, OutputOption, note, progress, show

if TYPE_CHECKING:
    from ignitetf.load.sources.base import Source
    from ignitetf.tables.catalog import Manifest

app = typer.Typer(help="Check the rows of a cache.")


@app.command()
@connected
def verify(
    connect: Connect,
    cache: Annotated[str, typer.Argument(help="Name of the data set.")],
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="PLACE", help="Also compare with this file or folder; repeatable."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="Kind of the source [default: the kind that was loaded]."
        ),
    ] = None,
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="Decode encoded images.")
    ] = True,
    epoch: Annotated[
        bool,
        typer.Option(
            "--epoch", help="Read an epoch instead, and check that it has every key once."
        ),
    ] = False,
    number: Annotated[int, typer.Option(min=0, help="With --epoch: number of the epoch.")] = 0,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="With --epoch: seed of the shuffle [default: plain order]."),
    ] = None,
    order: Annotated[
        str, typer.Option(metavar="ORDER", help="With --epoch: scan, keys or global.")
    ] = "scan",
    shards: Annotated[int, typer.Option(min=1, help="With --epoch: number of workers.")] = 1,
    readers: Annotated[int, typer.Option(min=1, help="With --epoch: number of connections.")] = 1,
    output: OutputOption = "table",
) -> None:
    """Check a data set; exit code 1 if anything is wrong.

    It checks rows, checksum, duplicates, images and partitions.

    With --epoch, read an epoch with the given sharding, compare its keys with the stored ones, and
    print the hash of their sequence.

    Example: ignitetf verify MNIST_TRAIN --source data/mnist
    Example: ignitetf verify MNIST_TRAIN --epoch --seed 7 --shards 4
    """
    if epoch:
        _verify_epoch(connect, cache, number, order, seed, shards, readers, source, output)
        return
    from ignitetf.explore.verify import verify as run
    from ignitetf.tables.catalog import read_manifest
    from ignitetf.tables.describe import data_name

    with connect() as client:
        cache = data_name(client, cache).name
        manifest = read_manifest(client, cache)
        opened = _open(source, kind, manifest) if source else None
        with progress(f"verify {cache}", None if manifest is None else manifest.rows) as advance:
            report = run(client, cache, opened, images=images, on_progress=advance)
    show(report.as_dict(), output)
    for finding in report.findings:
        note(f"wrong: {finding.check}: {finding.found}")
    if not report.ok:
        raise typer.Exit(1)


def _verify_epoch(
    connect: Connect,
    cache: str,
    number: int,
    order: str,
    seed: int | None,
    shards: int,
    readers: int,
    source: list[str] | None,
    output: Output,
) -> None:
    from ignitetf.errors import ConfigError
    from ignitetf.explore.epoch import verify_epoch
    from ignitetf.read.arguments import order_name
    from ignitetf.tables.describe import data_name

    if source:
        raise ConfigError("--epoch cannot be used with --source", hint="run verify once for each")
    with connect() as client:
        cache = data_name(client, cache).name
        with progress(f"verify epoch {number} of {cache}", None) as advance:
            report = verify_epoch(
                client, cache, order=order_name(order), seed=seed, epoch=number, shards=shards,
                readers=readers, on_progress=advance,
            )  # fmt: skip
    show(report.as_dict(), output)
    if not report.ok:
        note(
            f"wrong: {report.missing:,} keys missing, {report.repeated:,} repeated,"
            f" {report.unknown:,} unknown"
        )
        raise typer.Exit(1)


def _open(places: list[str], kind: str | None, manifest: Manifest | None) -> Source:
    """Open the source with the options of the load, or without them if `--kind` differs."""
    from ignitetf.errors import ConfigError
    from ignitetf.load.sources import KINDS, open_source

    place: str | list[str] = places if len(places) > 1 else places[0]
    origin = None if manifest is None else manifest.options.origin
    if kind is not None and (origin is None or kind != origin.kind):
        return open_source(kind, place)
    if manifest is None or origin is None:
        raise ConfigError(
            "the manifest does not have the kind of the source",
            hint=f"give --kind: {', '.join(n for n, k in KINDS.items() if k.location)}",
        )
    location = place if KINDS[origin.kind].location else None
    bad_records = manifest.options.storage.bad_records
    source = open_source(origin.kind, location, bad_records=bad_records, **origin.options)
    return source.parts.get(origin.part or "", source)
