"""`ignitetf load`: data sets into caches, one sub-command for each kind of source."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import Output, OutputOption, note, progress, show

if TYPE_CHECKING:
    from ignitetf.load.loader import LoadReport
    from ignitetf.load.sources.base import BadRecord, Source

app = typer.Typer(help="Load a data set into a cache.", no_args_is_help=True)

_SHOWN_BAD_RECORDS = 20


class IfExists(str, Enum):
    """What to do with a cache that is there."""

    ERROR = "error"
    APPEND = "append"
    REPLACE = "replace"
    RESUME = "resume"


class Layout(str, Enum):
    """How records are stored."""

    ROWS = "rows"
    BLOCKS = "blocks"


class BadRecords(str, Enum):
    """What to do with a record that cannot be read."""

    FAIL = "fail"
    SKIP = "skip"


class Split(str, Enum):
    """A part of a data set."""

    TRAIN = "train"
    TEST = "test"


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


SourceArgument = Annotated[str, typer.Argument(help="File, folder or fsspec URL.")]
SourcesArgument = Annotated[
    list[str], typer.Argument(help="Files of one table, patterns, folders or fsspec URLs.")
]
KeyOption = Annotated[
    Optional[str],  # noqa: UP045 (evaluated at run time)
    typer.Option(metavar="COLUMN", help="Column that is the key [default: a running number]."),
]


def loading(command: Callable[..., Iterable[Target]]) -> Callable[..., None]:
    """Make a command of a function that names its targets: shared options, loading, report.

    The function gets its own options, and `cache`, which is None unless `--cache` was given.
    """

    def run(
        connect: Connect,
        *,
        cache: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option("--cache", metavar="NAME", help="Cache, and SQL table, to fill."),
        ] = None,
        partitions: Annotated[
            Optional[int],  # noqa: UP045
            typer.Option(help="Partitions of a new cache [default: 1024]."),
        ] = None,
        backups: Annotated[int, typer.Option(min=0, help="Copies of each partition.")] = 0,
        if_exists: Annotated[
            IfExists, typer.Option(help="What to do with a cache that is there.")
        ] = IfExists.ERROR,
        layout: Annotated[
            Layout, typer.Option(help="An entry is a row, or a block of many rows.")
        ] = Layout.ROWS,
        index: Annotated[
            Optional[str],  # noqa: UP045
            typer.Option(metavar="COLUMN,...", help="Columns with a SQL index."),
        ] = None,
        limit: Annotated[
            Optional[int],  # noqa: UP045
            typer.Option(min=1, help="Stop after this many rows (of voc: images)."),
        ] = None,
        bad_records: Annotated[
            BadRecords, typer.Option(help="Stop at a record that cannot be read, or skip it.")
        ] = BadRecords.FAIL,
        streamer: Annotated[
            bool,
            typer.Option(
                "--streamer/--put-all",
                help="Write through the data streamer; a load that is killed may halt the node.",
            ),
        ] = False,
        output: OutputOption = Output.TABLE,
        **own: Any,
    ) -> None:
        options = {
            "partitions": partitions,
            "backups": backups,
            "if_exists": if_exists.value,
            "layout": layout.value,
            "index": tuple(c.strip().upper() for c in (index or "").split(",") if c.strip()),
            "limit": limit,
            "streamer": streamer,
        }
        targets = list(command(cache=cache, **own))
        _load(connect, targets, bad_records.value, options, output)

    shared = inspect.signature(run, eval_str=True).parameters
    mine = inspect.signature(command, eval_str=True).parameters
    merged = [p for name, p in mine.items() if name != "cache"]
    merged += [p for name, p in shared.items() if name not in ("own", "connect")]
    merged = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in merged]
    first = inspect.Parameter("connect", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    functools.update_wrapper(run, command)
    del run.__wrapped__  # type: ignore[attr-defined]
    signature = inspect.Signature([first, *merged])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in merged}
    return connected(run)


@app.command()
@loading
def mnist(
    cache: str | None,
    place: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="[SOURCE]", help="As --source.", show_default=False),
    ] = None,
    source: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="DIR", help="Folder with the four files [default: download them]."),
    ] = None,
    split: Annotated[
        Optional[Split],  # noqa: UP045
        typer.Option(help="One part only [default: both; with --cache: train]."),
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
        Optional[Split],  # noqa: UP045
        typer.Option(help="One part only [default: both; with --cache: train]."),
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
        Optional[str],  # noqa: UP045
        typer.Option(metavar="CSV", help="Table of path and label."),
    ] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Store pixels, not files.")] = False,
    resize: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="HEIGHTxWIDTH", help="Scale all images; stores pixels."),
    ] = None,
    channels: Annotated[int, typer.Option(help="Of pixels: 1 grey, 3 RGB, 4 RGBA.")] = 3,
) -> Iterable[Target]:
    """Load image files: a folder with a folder for each class, or a CSV of path and label.

    Example: ignitetf load images photos --cache PHOTOS --resize 224x224
    """
    options = {"labels": labels, "decode": decode, "resize": resize, "channels": channels}
    return [_target("images", source, cache, options)]


@app.command()
@loading
def voc(
    cache: str | None,
    source: SourceArgument,
    image_set: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME", help="A list in ImageSets/Main, such as train."),
    ] = None,
    decode: Annotated[
        Optional[str],  # noqa: UP045
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
        Optional[str],  # noqa: UP045
        typer.Option(metavar="FILE", help="File with the labels."),
    ] = None,
    arrays: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="[FIELD=]ARRAY,...", help="Arrays to load [default: all]."),
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
        Optional[str],  # noqa: UP045
        typer.Option(metavar="COLUMN:TYPE,...", help="Types that the first rows do not show."),
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
        Optional[str],  # noqa: UP045
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
        Optional[str],  # noqa: UP045
        typer.Option(metavar="FILE", help="IDX file with the labels."),
    ] = None,
) -> Iterable[Target]:
    """Load IDX files, the format of MNIST.

    Example: ignitetf load idx images-idx3-ubyte --labels labels-idx1-ubyte --cache LETTERS
    """
    return [_target("idx", source, cache, {"labels": labels})]


def _splits(kind: str, place: str | None, cache: str | None, split: Split | None) -> list[Target]:
    if cache is not None and split is None:
        split = Split.TRAIN
    wanted = [split] if split is not None else list(Split)
    targets = []
    for each in wanted:
        name = cache or f"{kind.upper()}_{each.name}"
        targets.append(_target_of(kind, place, name, {"split": each.value}))
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
                except KeyboardInterrupt:
                    note(f"stopped; 'ignitetf load ... --if-exists resume' goes on with {cache}")
                    raise
            reports += [report, *report.parts]
    _tell_bad_records([bad for report in reports for bad in report.bad_records])
    rows_out = [report.as_dict() for report in reports]
    show(rows_out[0] if len(rows_out) == 1 else rows_out, output)


def _tell_bad_records(records: list[BadRecord]) -> None:
    """Name the bad records, each once: two tables of one source may lack the same."""
    once = list(dict.fromkeys(records))
    for bad in once[:_SHOWN_BAD_RECORDS]:
        note(f"skipped {bad.name}: {bad.reason}")
    if (more := len(once) - _SHOWN_BAD_RECORDS) > 0:
        note(f"skipped {more:,} more")
