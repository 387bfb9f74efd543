"""`ignitetf node`: start, stop and inspect embedded nodes."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ignitetf.cli.output import Output, OutputOption, note, say, show

if TYPE_CHECKING:
    from ignitetf.node.jars import Progress
    from ignitetf.node.security import Security

app = typer.Typer(help="Start, stop and inspect embedded nodes.", no_args_is_help=True)

user_app = typer.Typer(help="Manage the users of a secured node.", no_args_is_help=True)
app.add_typer(user_app, name="user")

_LISTED = ("name", "state", "address", "nodes", "persist", "secure", "started")

NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the node.")]


@app.command()
def start(
    name: NameOption = "default",
    port: Annotated[
        int | None,
        typer.Option(help="Port for clients [default: 10800]; further members take the next."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(help="Number of members, which form a cluster on this machine [default: 1]."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory for the data of each member [default: 2g]."),
    ] = None,
    persist: Annotated[bool, typer.Option("--persist", help="Store the data on disk.")] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="TLS, client certificates and login, and a profile for clients; keeps the data.",
        ),
    ] = False,
    template_partitions: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            help="Additional partition count for caches, besides 1, 2, 4 ... 1024; repeatable.",
        ),
    ] = None,
    data_center: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Data center of the members: one name, or one per member; repeatable.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Limit for the start.")] = 120,
    jars: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with the jars, instead of a download."),
    ] = None,
    output: OutputOption = "table",
) -> None:
    """Start a node; returns once it answers a query.

    Example: ignitetf node start --memory 4g
    """
    from ignitetf.node import Node

    with _log_of_failure(), _download() as progress:
        node = Node.start(
            name,
            port=port,
            nodes=nodes,
            memory=memory,
            persist=persist or None,
            secure=secure or None,
            template_partitions=template_partitions or (),
            timeout_s=timeout,
            data_center=data_center,
            jars=jars,
            note=note,
            progress=progress,
        )
    if node.already_running:
        note(f"node {name!r} already runs")
    if name != "default":
        note(f"connect with --node {name}")
    show(node.status().as_dict(), output)


@app.command()
def stop(
    name: NameOption = "default",
    all_nodes: Annotated[bool, typer.Option("--all", help="Stop every node.")] = False,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for a clean end before it is killed.")
    ] = 60,
    output: OutputOption = "table",
) -> None:
    """Stop a node; data that are not kept on disk are lost.

    Example: ignitetf node stop
    """
    from ignitetf.node.embedded import stop_node
    from ignitetf.node.status import node_names

    names = node_names() if all_nodes else [name]
    if not names:
        note("no node runs")
    stopped = [
        {"name": each, "stopped": stop_node(each, timeout_s=timeout, note=note)} for each in names
    ]
    if output != "table":
        show(stopped, output, columns=("name", "stopped"))


@app.command()
def status(
    name: NameOption = "default",
    all_nodes: Annotated[bool, typer.Option("--all", help="Show every node.")] = False,
    output: OutputOption = "table",
) -> None:
    """Show whether a node runs, its address, and its processes.

    Example: ignitetf node status --output json
    """
    from ignitetf.node.status import node_names, node_status

    if all_nodes:
        show([node_status(each).as_dict() for each in node_names()], output)
    else:
        show(node_status(name).as_dict(), output)


@app.command("ls")
def list_(output: OutputOption = "table") -> None:
    """List this machine's nodes; --node NAME connects to one.

    A stopped node is listed if it keeps data on disk.

    Example: ignitetf node ls
    """
    from ignitetf.local.state import kept_nodes
    from ignitetf.node.status import node_status

    show([node_status(name).as_dict() for name in kept_nodes()], output, columns=_LISTED)


@app.command()
def logs(
    name: NameOption = "default",
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Lines of each log.")] = 50,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Print new lines as they are written, until Ctrl-C."),
    ] = False,
    member: Annotated[int, typer.Option(min=1, help="Which member to follow, counted from 1.")] = 1,
    output: OutputOption = "table",
) -> None:
    """Print the last lines of a node's logs.

    They are kept after the node has ended. As JSON, each line is an object.

    Example: ignitetf node logs -n 100 --follow
    """
    from ignitetf.local.logs import follow as follow_file
    from ignitetf.local.logs import last_lines, main_log, member_directories
    from ignitetf.local.state import node_directory

    directories = member_directories(node_directory(name))
    if follow:
        chosen = directories[min(member, len(directories)) - 1]
        for line in follow_file(main_log(chosen), lines):
            _print_line(chosen.name, line, output)
    for directory in directories:
        if len(directories) > 1 and output == "table":
            note(f"== {directory.name}")
        for line in last_lines(main_log(directory), lines):
            _print_line(directory.name, line, output)


def _print_line(member: str, line: str, output: Output) -> None:
    """Print a line of a log as it is read: unchanged, or as a record with its member."""
    if output == "json":
        line = json.dumps({"member": member, "line": line}, ensure_ascii=False)
    elif output == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerow((member, line))
        return
    print(line, flush=True)


@app.command()
def config(
    name: NameOption = "default",
    member: Annotated[int, typer.Option(min=1, help="Which member, counted from 1.")] = 1,
    output: OutputOption = "table",
) -> None:
    """Print a node's Spring XML, with *** for passwords.

    Example: ignitetf node config > node.xml
    """
    from ignitetf.errors import ConfigError
    from ignitetf.node import Node
    from ignitetf.node.config import masked

    files = Node.attach(name).xml_files
    if member > len(files):
        raise ConfigError(f"--member {member}: node {name!r} has {len(files)}")
    path = files[member - 1]
    text = path.read_text(encoding="utf-8")
    shown = masked(text)
    if shown != text:
        note(f"passwords are shown as ***; the node reads {path}")
    if output == "table":
        sys.stdout.write(shown)
    else:
        show({"member": member, "path": str(path), "xml": shown}, output)


UserArgument = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
PasswordFileOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="File with the password [default: a prompt].")
]


@user_app.command("add")
def user_add(
    user: UserArgument,
    name: NameOption = "default",
    password_file: PasswordFileOption = None,
    output: OutputOption = "table",
) -> None:
    """Add a user who may log in to a running secured node.

    Example: ignitetf node user add reader --password-file reader.txt
    """
    security, addresses = _security(name)
    security.add_user(addresses, user, _new_password(user, password_file))
    say(f"user {user!r} was added to node {name!r}", {"user": user, "node": name}, output)


@user_app.command("password")
def user_password(
    user: UserArgument,
    name: NameOption = "default",
    password_file: PasswordFileOption = None,
    output: OutputOption = "table",
) -> None:
    """Change the password of a user of a running secured node.

    Example: ignitetf node user password reader --password-file reader.txt
    """
    security, addresses = _security(name)
    security.change_password(addresses, user, _new_password(user, password_file))
    say(f"user {user!r} of node {name!r} has a new password", {"user": user, "node": name}, output)


@user_app.command("drop")
def user_drop(
    user: UserArgument, name: NameOption = "default", output: OutputOption = "table"
) -> None:
    """Remove a user of a running secured node.

    Example: ignitetf node user drop reader
    """
    security, addresses = _security(name)
    security.drop_user(addresses, user)
    say(f"user {user!r} was removed from node {name!r}", {"user": user, "node": name}, output)


def _security(name: str) -> tuple[Security, tuple[str, ...]]:
    from ignitetf.node import Node

    node = Node.attach(name)
    return node.security, node.addresses


def _new_password(user: str, file: Path | None) -> str:
    """Return the password from a file, or from two equal inputs."""
    from ignitetf.errors import ConfigError

    if file is not None:
        try:
            return file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--password-file {file}: cannot be read") from error
    if not sys.stdin.isatty():
        raise ConfigError(
            "cannot ask for the password without a terminal", hint="give --password-file FILE"
        )
    return str(
        typer.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True)
    )


@contextmanager
def _log_of_failure() -> Iterator[None]:
    """Print the end of the node's log before its error."""
    from ignitetf.errors import NodeError

    try:
        yield
    except NodeError as error:
        if tail := error.fields.get("log_tail"):
            note(str(tail))
        raise


@contextmanager
def _download() -> Iterator[Progress | None]:
    """Show the progress of a download on stderr: a bar on a terminal, otherwise one line."""
    if not sys.stderr.isatty():
        yield _report_once()
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


def _report_once() -> Progress:
    said: set[str] = set()

    def advance(label: str, done: int, total: int) -> None:
        if label not in said:
            said.add(label)
            note(f"{label} ({total / 1e6:.0f} MB)")

    return advance
