"""`ignitetf bench`: rates of this machine, side by side with its limits and with others."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Optional

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import Output, OutputOption, note, show

app = typer.Typer(help="Measure rates beside the limit of the machine.", no_args_is_help=True)


class ReadProfile(str, Enum):
    """Rows to read."""

    MNIST = "mnist"
    B100 = "100b"
    KB1 = "1kb"
    KB10 = "10kb"
    KB100 = "100kb"
    MB1 = "1mb"


class WriteProfile(str, Enum):
    """Rows to write."""

    MNIST = "mnist"
    MB1 = "1mb"


@app.callback()
def bench() -> None:
    """Measure rates beside the limit of the machine."""


@app.command()
@connected
def read(
    connect: Connect,
    rows: Annotated[
        Optional[list[ReadProfile]],  # noqa: UP045 (evaluated at run time)
        typer.Option(help="Rows: mnist (784 bytes) or a size; repeatable [default: mnist, 1mb]."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times each way is run.")] = 5,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the cache.")] = 8,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read the same rows in every way, in turn; `ratio` is to a bare socket.

    Example: ignitetf bench read --rows mnist --output json
    """
    from dataclasses import asdict

    from ignitetf.explore.bench_read import bench_read

    rates = []
    for item in rows or [ReadProfile.MNIST, ReadProfile.MB1]:
        note(f"reading {item.value} rows, {rounds} rounds")
        rates += bench_read(connect.settings(), item.value, rounds=rounds, partitions=partitions)
    show([asdict(r) for r in rates], output)


@app.command()
@connected
def write(
    connect: Connect,
    rows: Annotated[
        Optional[list[WriteProfile]],  # noqa: UP045 (evaluated at run time)
        typer.Option(help="Rows: mnist (784 bytes) or 1mb; repeatable [default: both]."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times each way is run.")] = 5,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the cache.")] = 8,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write the same rows in every way, in turn, beside requests that were encoded before.

    Example: ignitetf bench write --rows mnist --output json
    """
    from dataclasses import asdict

    from ignitetf.explore.bench_write import bench_write

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
    rounds: Annotated[int, typer.Option(min=1, help="Times each way is run.")] = 3,
    files: Annotated[int, typer.Option(min=1, help="Files in the directory listed.")] = 10_000,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write and read a file in igfs:// beside bare requests with the same chunks; MB/s.

    Example: ignitetf bench fs --size 256 --output json
    """
    import os

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from ignitetf.explore.bench_fs import bench_fs

    report = bench_fs(
        connect.settings(), size_bytes=size << 20, rounds=rounds, files=files, say=note
    )
    show(report, output)
