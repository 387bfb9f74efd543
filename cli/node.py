"""`ignitetf node`: start, stop and look at embedded nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from ignitetf.cli.output import Output, OutputOption, note, show

if TYPE_CHECKING:
    from ignitetf.node.jars import Progress

app = typer.Typer(help="Start, stop and look at embedded nodes.", no_args_is_help=True)

NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the node.")]


@app.command()
def start(
    name: NameOption = "default",
    port: Annotated[
        Optional[int],  # noqa: UP045 (evaluated at run time)
        typer.Option(help="Port for clients [default: 10800]; further members take the next."),
    ] = None,
    nodes: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="Members, a real cluster on this machine [default: 1]."),
    ] = None,
    memory: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="SIZE", help="Memory for the data of each member [default: 2g]."),
    ] = None,
    persist: Annotated[bool, typer.Option("--persist", help="Keep the data on disk.")] = False,
    template_partitions: Annotated[
        Optional[list[int]],  # noqa: UP045
        typer.Option(
            metavar="N", help="A partition count for caches beside 1, 2, 4 ... 1024; repeatable."
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Limit for the start.")] = 120,
    jars: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="DIR", help="Folder with the jars; nothing is fetched then."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start a node; returns when it answers a query.

    Example: ignitetf node start --memory 4g
    """
    from ignitetf.node import Node

    with _log_of_failure(), _download() as progress:
        node = Node.start(
            name,
            port,
            nodes,
            memory,
            persist or None,
            template_partitions or (),
            timeout,
            jars=jars,
            note=note,
            progress=progress,
        )
    if node.already_running:
        note(f"node {name!r} already runs")
    show(node.status().as_dict(), output)


@app.command()
def stop(
    name: NameOption = "default",
    all_nodes: Annotated[bool, typer.Option("--all", help="Stop every node.")] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time to end by itself before it is killed.")
    ] = 60,
) -> None:
    """Stop a node; data that are not kept on disk are gone then.

    Example: ignitetf node stop
    """
    from ignitetf.node.embedded import node_names, stop_node

    names = node_names() if all_nodes else [name]
    if not names:
        note("no node runs")
    for each in names:
        stop_node(each, timeout_s=timeout, note=note)


@app.command()
def status(
    name: NameOption = "default",
    all_nodes: Annotated[bool, typer.Option("--all", help="Show every node.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show whether a node runs, where it is reached, and its processes.

    Example: ignitetf node status --output json
    """
    from ignitetf.node.embedded import node_names, node_status

    if all_nodes:
        show([node_status(each).as_dict() for each in node_names()], output)
    else:
        show(node_status(name).as_dict(), output)


@app.command()
def logs(
    name: NameOption = "default",
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Lines of each log.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with each new line, until Ctrl-C.")
    ] = False,
    member: Annotated[int, typer.Option(min=1, help="Which member to follow, counted from 1.")] = 1,
) -> None:
    """Print the end of a node's logs; those of a node that has ended, too.

    Example: ignitetf node logs -n 100 --follow
    """
    from ignitetf.node.logs import follow as follow_file
    from ignitetf.node.logs import last_lines, main_log, member_directories
    from ignitetf.node.state import node_directory

    directories = member_directories(node_directory(name))
    if follow:
        chosen = directories[min(member, len(directories)) - 1]
        for line in follow_file(main_log(chosen), lines):
            print(line, flush=True)
    for directory in directories:
        if len(directories) > 1:
            note(f"== {directory.name}")
        for line in last_lines(main_log(directory), lines):
            print(line)


@app.command()
def config(
    name: NameOption = "default",
    member: Annotated[int, typer.Option(min=1, help="Which member, counted from 1.")] = 1,
) -> None:
    """Print the Spring XML of a running node.

    Example: ignitetf node config > node.xml
    """
    from ignitetf.errors import ConfigError
    from ignitetf.node import Node

    files = Node.attach(name).xml_files
    if member > len(files):
        raise ConfigError(f"--member {member}: node {name!r} has {len(files)}")
    sys.stdout.write(files[member - 1].read_text(encoding="utf-8"))


@contextmanager
def _log_of_failure() -> Iterator[None]:
    """Print the end of the node's log before the error that is about it."""
    from ignitetf.errors import NodeError

    try:
        yield
    except NodeError as error:
        if tail := error.fields.get("log_tail"):
            note(str(tail))
        raise


@contextmanager
def _download() -> Iterator[Progress | None]:
    """Progress of a download on stderr: a bar on a terminal, else one line."""
    if not sys.stderr.isatty():
        yield _line_once()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    bar = Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True), transient=True)

    def advance(label: str, done: int, total: int) -> None:
        if not bar.task_ids:
            bar.add_task(label, total=total)
            bar.start()
        bar.update(bar.task_ids[0], completed=done)
        if done >= total:
            bar.stop()

    try:
        yield advance
    finally:
        bar.stop()


def _line_once() -> Progress:
    said: set[str] = set()

    def advance(label: str, done: int, total: int) -> None:
        if label not in said:
            said.add(label)
            note(f"{label} ({total / 1e6:.0f} MB)")

    return advance
