"""`ignitetf load`: data sets into caches, one sub-command for each kind of source."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from ignitetf.cli.loading import Target, loading

if TYPE_CHECKING:
    from ignitetf.load.sources.base import Source

app = typer.Typer(help="Load a data set into a cache.", no_args_is_help=True)


# A part of a data set.
Split = Literal["train", "test"]


SourceArgument = Annotated[str, typer.Argument(help="File, folder or fsspec URL.")]
SourcesArgument = Annotated[
    list[str], typer.Argument(help="Files of one table, patterns, folders or fsspec URLs.")
]
KeyOption = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column that is the key [default: a running number]."),
]


@app.command()
@loading
def mnist(
    cache: str | None,
    place: Annotated[
        str | None, typer.Argument(metavar="[SOURCE]", help="As --source.", show_default=False)
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder with the four files [default: download them]."),
    ] = None,
    split: Annotated[
        Split | None, typer.Option(help="One part only [default: both; with --cache: train].")
    ] = None,
) -> Iterable[Target]:
    """Load MNIST into MNIST_TRAIN and MNIST_TEST.

    Example: ignitetf load mnist --source data/mnist --partitions 8
    """
    return _splits("mnist", source or place, cache, split)


@app.command()
@loading
def digits(
    cache: str | None,
    split: Annotated[
        Split | None, typer.Option(help="One part only [default: both; with --cache: train].")
    ] = None,
) -> Iterable[Target]:
    """Load the digits of scikit-learn into DIGITS_TRAIN and DIGITS_TEST.

    Example: ignitetf load digits
    """
    return _splits("digits", None, cache, split)


@app.command()
@loading
def images(
    cache: str | None,
    source: SourceArgument,
    labels: Annotated[
        str | None, typer.Option(metavar="CSV", help="Table of path and label.")
    ] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Store pixels, not files.")] = False,
    resize: Annotated[
        str | None, typer.Option(metavar="HEIGHTxWIDTH", help="Scale all images; stores pixels.")
    ] = None,
    channels: Annotated[int, typer.Option(help="Of pixels: 1 grey, 3 RGB, 4 RGBA.")] = 3,
    check_pixels: Annotated[
        bool,
        typer.Option(
            "--check-pixels/--no-check-pixels",
            help="Check that files decode to their last pixel, or headers (and CRCs of PNG) only.",
        ),
    ] = True,
) -> Iterable[Target]:
    """Load image files: a folder with a folder for each class, or a CSV of path and label.

    Example: ignitetf load images photos --cache PHOTOS --resize 224x224
    """
    options = {
        "labels": labels,
        "decode": decode,
        "resize": resize,
        "channels": channels,
        "check_pixels": check_pixels,
    }
    return [_target("images", source, cache, options)]


@app.command()
@loading
def voc(
    cache: str | None,
    source: SourceArgument,
    image_set: Annotated[
        str | None, typer.Option(metavar="NAME", help="A list in ImageSets/Main, such as train.")
    ] = None,
    decode: Annotated[
        str | None,
        typer.Option(metavar="HEIGHTxWIDTH", help="Store pixels, cropped or padded to this size."),
    ] = None,
    channels: Annotated[int, typer.Option(help="Of pixels: 1 grey, 3 RGB, 4 RGBA.")] = 3,
) -> Iterable[Target]:
    """Load PASCAL VOC (or ImageNet DET) images and, beside them, their annotations.

    Example: ignitetf load voc VOC2012 --cache VOC --image-set train
    """
    options = {"image_set": image_set, "decode": decode, "channels": channels}
    return [_target("voc", source, cache, options)]


@app.command()
@loading
def npz(
    cache: str | None,
    source: Annotated[list[str], typer.Argument(help="Files (.npz, .npy).")],
    labels: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with the labels.")
    ] = None,
    arrays: Annotated[
        str | None, typer.Option(metavar="[FIELD=]ARRAY,...", help="Arrays to load [default: all].")
    ] = None,
    key: KeyOption = None,
) -> Iterable[Target]:
    """Load NumPy arrays as fields; their first dimension is the record.

    Example: ignitetf load npz train_x.npz --labels train_y.npz --cache TRAIN
    """
    options = {"labels": labels, "arrays": arrays, "key": key}
    return [_target("npz", source, cache, options)]


@app.command()
@loading
def csv(
    cache: str | None,
    source: SourcesArgument,
    key: KeyOption = None,
    types: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN:TYPE,...",
            help="Types, where the first 4 MB should not decide: varchar, double, decimal(10,2), ...",
        ),
    ] = None,
    delimiter: Annotated[str, typer.Option(help="Between columns.")] = ",",
) -> Iterable[Target]:
    """Load CSV files with a heading.

    Example: ignitetf load csv cells.csv --cache CELLS --key CELL_ID
    """
    options = {"key": key, "types": types, "delimiter": delimiter}
    return [_target("csv", source, cache, options)]


@app.command()
@loading
def parquet(cache: str | None, source: SourcesArgument, key: KeyOption = None) -> Iterable[Target]:
    """Load Parquet files.

    Example: ignitetf load parquet part-1.parquet part-2.parquet --cache CELLS
    """
    return [_target("parquet", source, cache, {"key": key})]


@app.command()
@loading
def tfrecord(
    cache: str | None,
    source: SourcesArgument,
    features: Annotated[
        str | None,
        typer.Option(metavar="NAME:TYPE[SHAPE],...", help="Features to load [default: all]."),
    ] = None,
    key: KeyOption = None,
) -> Iterable[Target]:
    """Load TFRecord files of tf.train.Example.

    Example: ignitetf load tfrecord train.tfrecord --cache TRAIN
    """
    return [_target("tfrecord", source, cache, {"features": features, "key": key})]


@app.command()
@loading
def idx(
    cache: str | None,
    source: SourceArgument,
    labels: Annotated[
        str | None, typer.Option(metavar="FILE", help="IDX file with the labels.")
    ] = None,
) -> Iterable[Target]:
    """Load IDX files, the format of MNIST.

    Example: ignitetf load idx images-idx3-ubyte --labels labels-idx1-ubyte --cache LETTERS
    """
    return [_target("idx", source, cache, {"labels": labels})]


def _splits(kind: str, place: str | None, cache: str | None, split: Split | None) -> list[Target]:
    if cache is not None and split is None:
        split = "train"
    wanted = [split] if split is not None else get_args(Split)
    targets = []
    for each in wanted:
        name = cache or f"{kind.upper()}_{each.upper()}"
        targets.append(_target_of(kind, place, name, {"split": each}))
    return targets


def _target(kind: str, place: str | list[str], cache: str | None, options: Any) -> Target:
    given = {name: value for name, value in options.items() if value is not None}
    name = cache or _name_of(place if isinstance(place, str) else place[0])
    return _target_of(kind, place, name, given)


def _target_of(kind: str, place: str | list[str] | None, name: str, options: Any) -> Target:
    from ignitetf.load.sources import open_source

    def opened(bad_records: str) -> Source:
        return open_source(kind, place, bad_records=bad_records, **options)

    return Target(name, opened, {"kind": kind, "options": options})


def _name_of(place: str) -> str:
    """The name of a cache for a file: its own, without endings, in capitals."""
    from ignitetf.load.sources.base import column_name

    return column_name(PurePosixPath(place.rstrip("/*")).name.split(".")[0])
