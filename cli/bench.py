"""`ignitetf bench`: rates on this cluster, compared with the machine's limits and other ways."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ignitetf.cli.group import UsageError
from ignitetf.cli.options import Connect, StorageWorkload, WorkloadOption, connected
from ignitetf.cli.output import Output, OutputOption, note, show
from ignitetf.cli.quiet import quiet_tensorflow

if TYPE_CHECKING:
    from ignitetf.bench.read import Rate

_TABLE: Final = (
    "profile",
    "way",
    "rows_per_s",
    "mb_per_s",
    "ratio",
    "ratio_ahead",
    "wait",
    "receive",
    "decode",
    "hand_over",
    "start_ms",
)
_SWEEP: Final = ("partitions", "nodes")
_STORAGE: Final = (
    "workload",
    "way",
    "accelerators",
    "utilisation",
    "needed",
    "mb_per_s",
    "memory_mb",
    "first_ms",
    "wait_p50_ms",
    "wait_p99_ms",
    "cpu_s_per_gb",
    "samples",
)

app = typer.Typer(
    help="Measure rates, compared with the limit of the machine.", no_args_is_help=True
)


class ReadProfile(StrEnum):
    """Kinds of rows to read; an enumeration, because Typer does not accept a list of literals."""

    MNIST = "mnist"
    B100 = "100b"
    KB1 = "1kb"
    KB10 = "10kb"
    KB100 = "100kb"
    MB1 = "1mb"
    BLOBS = "blobs"
    SQL = "sql"
    PARTITIONS = "partitions"


class WriteProfile(StrEnum):
    """Rows to write."""

    MNIST = "mnist"
    MB1 = "1mb"
    PNG = "png"


@app.callback()
def bench() -> None:
    """Measure rates, compared with the limit of the machine."""


@app.command()
@connected
def read(
    connect: Connect,
    rows: Annotated[
        list[ReadProfile] | None,
        typer.Option(
            help="Rows: mnist (784 bytes); a size; blobs of about 20 KB; sql (five small columns);"
            " or partitions: 1 MB in pages of 20 MB, in 1 to 2,048 partitions; repeatable"
            " [default: mnist, 1mb]."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of measurements of each way.")] = 5,
    partitions: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Partitions of the cache [default: 8]; repeatable for --rows partitions."
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of rows [default: by the kind of rows]."),
    ] = None,
    way: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this way to read; repeatable.")
    ] = None,
    nodes: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=8,
            metavar="N",
            help="For --rows partitions: start embedded nodes, N at a time; repeatable.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Draw the rates; needs the extra 'plot'.")
    ] = None,
    output: OutputOption = "table",
) -> None:
    """Measure each way to read, relative to a bare socket.

    All ways read the same rows, in turn. `ratio` is the rate relative to a bare socket.

    `ratio` compares with a socket that requests page by page, `ratio_ahead` with one that requests
    ahead. `wait`, `receive`, `decode` and `hand_over` are shares of the time; they overlap.
    `start_ms` is the time that TensorFlow needs before each scan. `--count 60000` reads epochs of
    the size of MNIST.

    Example: ignitetf bench read --rows mnist --output json --plot rates.png
    """
    wanted = rows or [ReadProfile.MNIST, ReadProfile.MB1]
    sweep = ReadProfile.PARTITIONS in wanted
    if nodes and not sweep:
        raise UsageError("--nodes needs --rows partitions")
    if partitions and len(partitions) > 1 and wanted != [ReadProfile.PARTITIONS]:
        raise UsageError("several --partitions need --rows partitions alone")
    if plot is not None:
        from ignitetf.bench.plot import check_plot

        check_plot(plot)
    quiet_tensorflow()
    rates = _read(connect, wanted, rounds, (partitions or [8])[0], count, way)
    if sweep:
        rates += _read_partitions(connect, nodes, partitions, count, rounds)
    _show_rates(rates, plot, output, sweep)


def _read(
    connect: Connect,
    wanted: list[ReadProfile],
    rounds: int,
    partitions: int,
    count: int | None,
    ways: list[str] | None,
) -> list[Rate]:
    """Return the rates of all profiles except `partitions`."""
    from ignitetf.bench.read import bench_read

    rates = []
    for item in wanted:
        if item is ReadProfile.PARTITIONS:
            continue
        note(f"reading {item.value} rows, {rounds} rounds")
        rates += bench_read(
            connect.settings(),
            item.value,
            rounds=rounds,
            partitions=partitions,
            rows=count,
            ways=ways,
        )
    return rates


def _read_partitions(
    connect: Connect,
    nodes: list[int] | None,
    partitions: list[int] | None,
    count: int | None,
    rounds: int,
) -> list[Rate]:
    """Return the rates for different numbers of partitions and nodes."""
    from ignitetf.bench.sweep import PARTITIONS, bench_partitions

    return bench_partitions(
        connect.settings,
        nodes=nodes or (),
        partitions=partitions or PARTITIONS,
        rows=count,
        rounds=rounds,
        note=note,
    )


def _show_rates(rates: list[Rate], plot: Path | None, output: Output, sweep: bool) -> None:
    """Print the rates, and plot them if requested."""
    from dataclasses import asdict

    if plot is not None:
        from ignitetf.bench.plot import plot_rates

        plot_rates(rates, plot)
        note(f"drawn to {plot}")
    # A table is too narrow for the shape of the rows.
    names = None if output != "table" else _TABLE + (_SWEEP if sweep else ())
    show([asdict(r) for r in rates], output, names)


@app.command()
@connected
def write(
    connect: Connect,
    rows: Annotated[
        list[WriteProfile] | None,
        typer.Option(help="mnist (784 bytes), 1mb, png (files); repeatable [default: all]."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of measurements of each way.")] = 5,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the cache.")] = 8,
    output: OutputOption = "table",
) -> None:
    """Measure each way to write, relative to encoded requests.

    All ways write the same rows, in turn. The reference sends requests that were encoded before.

    Example: ignitetf bench write --rows mnist --output json
    """
    from dataclasses import asdict

    from ignitetf.bench.write import bench_write

    rates = []
    for item in rows or list(WriteProfile):
        note(f"writing {item.value} rows, {rounds} rounds")
        rates += bench_write(connect.settings(), item.value, rounds=rounds, partitions=partitions)
    show([asdict(r) for r in rates], output)


@app.command()
@connected
def fs(
    connect: Connect,
    size: Annotated[int, typer.Option(min=8, help="Size of the file in MiB.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="Number of measurements of each way.")] = 3,
    files: Annotated[int, typer.Option(min=1, help="Files in the directory listed.")] = 10_000,
    output: OutputOption = "table",
) -> None:
    """Measure files in igfs:// in MB/s, relative to requests.

    The reference sends bare requests with the same chunks.

    Example: ignitetf bench fs --size 256 --output json
    """
    from ignitetf.bench.fs import bench_fs

    quiet_tensorflow()
    report = bench_fs(
        connect.settings(), size_bytes=size << 20, rounds=rounds, files=files, say=note
    )
    show(report, output)


@app.command()
@connected
def storage(
    connect: Connect,
    workload: WorkloadOption = StorageWorkload.RESNET50,
    accelerators: Annotated[
        int,
        typer.Option(min=1, max=1024, metavar="N", help="Maximum number of accelerators to try."),
    ] = 64,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Duration of the try of each number.")
    ] = 5.0,
    way: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Way of reading, as the table names it; repeatable.",
            show_default="all that can run here",
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=64, metavar="N", help="Processes of each way.")
    ] = 1,
    size: Annotated[
        int, typer.Option(min=1, metavar="MB", help="Most megabytes of samples.")
    ] = 2000,
    output: OutputOption = "table",
) -> None:
    """Find how many accelerators this cluster keeps busy.

    For comparison, the same samples are read from files: TFRecord, one file for each sample,
    Parquet, Lance and ArrayRecord, if the packages are installed.

    An accelerator is a thread that takes a batch and sleeps for a step. The processes feed 1, 2, 4
    ... of them. `accelerators` is the largest number that was busy for the needed share of the
    time. The bare socket only receives the same pages: its rate is the limit of the nodes.

    Example: ignitetf bench storage --workload resnet50 --accelerators 16 --output json
    """
    from dataclasses import asdict

    from ignitetf.bench.storage import bench_storage
    from ignitetf.bench.workloads import WORKLOADS

    found = bench_storage(
        connect.settings(),
        WORKLOADS[workload.value],
        ways=way or (),
        processes=processes,
        accelerators=accelerators,
        most_bytes=size * 10**6,
        seconds=seconds,
        say=note,
    )
    show([asdict(s) for s in found], output, None if output == "json" else _STORAGE)
