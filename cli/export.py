"""`ignitetf export`: data sets to files."""

from __future__ import annotations

from typing import Annotated

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import OutputOption, progress, show

app = typer.Typer(help="Write a data set to files.")


@app.command("export")
@connected
def export(
    connect: Connect,
    cache: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the cache, data set or table.")
    ],
    target: Annotated[str, typer.Argument(help="File, folder or fsspec URL (igfs://...).")],
    format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="folder, tfrecord, parquet, webdataset or huggingface [default: by the suffix of"
            " TARGET].",
        ),
    ] = None,
    fields: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these fields.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Only rows of this SQL condition.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the rows of a split.")
    ] = None,
    shards: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Number of files; several are written into the folder TARGET."
        ),
    ] = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file, or a folder of an export.")
    ] = False,
    output: OutputOption = "table",
) -> None:
    """Write a data set as folders, TFRecord, Parquet or shards.

    The report has the command that loads the files again as the same data.

    Example: ignitetf export MNIST_TRAIN mnist --format tfrecord --shards 8
    """
    from ignitetf.export.export import export_dataset
    from ignitetf.tables.catalog import read_manifest
    from ignitetf.tables.describe import data_name

    wanted = tuple(name.strip() for name in fields.split(",")) if fields else None
    with connect() as client:
        manifest = read_manifest(client, data_name(client, cache).name)
        whole = manifest is not None and where is None and split is None
        with progress(f"export {cache}", manifest.rows if manifest and whole else None) as advance:
            report = export_dataset(
                cache,
                target,
                client=client,
                format=format,  # type: ignore[arg-type]
                fields=wanted,
                where=where,
                split=split,
                shards=shards,
                overwrite=overwrite,
                on_progress=advance,
            )
    show(report.as_dict(), output)
