"""`ignitetf checkpoint`: synchronize a local directory of checkpoints with one in the cluster."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ignitetf.cli.options import Connect, Yes, confirm, connected
from ignitetf.cli.output import OutputOption, note, show
from ignitetf.cli.remote import DEFAULT, NameOption, open_remote
from ignitetf.fs.path import path_of_url

if TYPE_CHECKING:
    from ignitetf.fs.store import Store
    from ignitetf.fs.sync import SyncReport

app = typer.Typer(help="Push, pull, list, prune and watch checkpoints.", no_args_is_help=True)

LocalArgument = Annotated[Path, typer.Argument(help="Local directory.", show_default=False)]
RemoteArgument = Annotated[
    str, typer.Argument(help="Remote directory, igfs:///path.", show_default=False)
]
Delete = Annotated[
    bool, typer.Option("--delete", help="Remove remote files that no longer exist locally.")
]
_NAMED = 5  # number of unknown files that a note lists by name
_COLUMNS = ("name", "complete", "latest", "bytes", "files", "modified")


@app.command()
@connected
def push(
    connect: Connect,
    local: LocalArgument,
    remote: RemoteArgument,
    delete: Delete = False,
    fs_name: NameOption = DEFAULT,
    output: OutputOption = "table",
) -> None:
    """Copy changed files into the cluster, the state file last.

    The files of a checkpoint appear there at the same moment. An incomplete checkpoint is not
    copied: the command prints what is missing, and exits with code 1.

    Example: ignitetf checkpoint push checkpoints igfs:///run1
    """
    from ignitetf.fs.push import push as run

    store, path = _at(connect, remote, fs_name)
    report = run(store, local, path, delete=delete, on_file=_say)
    show(report.facts(), output)
    _say_rest(report, "not pushed")


@app.command()
@connected
def pull(
    connect: Connect,
    remote: RemoteArgument,
    local: LocalArgument,
    fs_name: NameOption = DEFAULT,
    output: OutputOption = "table",
) -> None:
    """Copy changed files from the cluster, the state file last.

    A checkpoint that is incomplete there is not copied: the command prints what is missing, and
    exits with code 1.

    Example: ignitetf checkpoint pull igfs:///run1 checkpoints
    """
    from ignitetf.fs.pull import pull as run

    store, path = _at(connect, remote, fs_name)
    report = run(store, path, local, on_file=_say)
    show(report.facts(), output)
    _say_rest(report, "not pulled")


@app.command("ls")
@connected
def list_(
    connect: Connect,
    remote: RemoteArgument,
    fs_name: NameOption = DEFAULT,
    output: OutputOption = "table",
) -> None:
    """List the checkpoints of a directory, oldest first.

    Example: ignitetf checkpoint ls igfs:///run1
    """
    import datetime

    from ignitetf.fs.checkpoints import checkpoints

    store, path = _at(connect, remote, fs_name)
    rows = []
    for one in checkpoints(store, path):
        time = datetime.datetime.fromtimestamp(one.mtime_ns / 1e9, tz=datetime.UTC)
        rows.append(
            {
                "name": one.name,
                "complete": one.complete,
                "latest": one.latest,
                "bytes": one.size_bytes,
                "files": len(one.files),
                "modified": time.isoformat(timespec="seconds"),
            }
        )
    show(rows, output, _COLUMNS)


@app.command()
@connected
def prune(
    connect: Connect,
    remote: RemoteArgument,
    keep: Annotated[int, typer.Option(min=1, help="Number of newest checkpoints to keep.")],
    yes: Yes = False,
    fs_name: NameOption = DEFAULT,
    output: OutputOption = "table",
) -> None:
    """Remove all but the newest checkpoints.

    They are first removed from the state file.

    Example: ignitetf checkpoint prune igfs:///run1 --keep 3
    """
    from ignitetf.fs.checkpoints import prune as run

    confirm(f"Remove all but {keep} checkpoints of {remote}?", yes)
    store, path = _at(connect, remote, fs_name)
    gone = run(store, path, keep)
    rows = [{"removed": one.name, "bytes": one.size_bytes} for one in gone]
    show(rows, output, ("removed", "bytes"))


@app.command()
@connected
def watch(
    connect: Connect,
    local: LocalArgument,
    remote: RemoteArgument,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between checks.")] = 2.0,
    delete: Delete = False,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Keep only this many remote checkpoints.")
    ] = None,
    fs_name: NameOption = DEFAULT,
) -> None:
    """Push new checkpoints until Ctrl-C or SIGTERM.

    At the end they are pushed once more.

    A checkpoint is pushed once it is complete. Exit code 1 means that a checkpoint stayed
    incomplete.

    Example: ignitetf checkpoint watch checkpoints igfs:///run1 --keep 5
    """
    import signal
    import threading

    from ignitetf.fs.push import watch as run

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):  # signals can be set only in the main thread
            signal.signal(number, lambda *_: stop.set())
    store, path = _at(connect, remote, fs_name)
    note(f"watching {local}; Ctrl-C ends it")
    report = run(
        store,
        local,
        path,
        interval_s=interval,
        delete=delete,
        keep=keep,
        stopped=stop.is_set,
        on_push=_say_push,
    )
    _say_rest(report, "not pushed")


def _at(connect: Connect, remote: str, name: str) -> tuple[Store, str]:
    fs = open_remote(connect, name, remote)
    return fs.store, path_of_url(remote)


def _say(name: str, size: int) -> None:
    note(f"{name}  {size:,} bytes")


def _say_push(report: SyncReport) -> None:
    note(f"pushed {len(report.copied)} files, {report.size_bytes:,} bytes")
    for one in report.incomplete:
        note(f"not pushed until it is complete: {one}")


def _say_rest(report: SyncReport, what: str) -> None:
    """Print what was not copied or not checked; exit with code 1 for an incomplete checkpoint."""
    for one in report.left_out:
        note(f"{what}: {one}")
    for name in report.unsettled:
        note(f"{what}: {name}: changed while it was read")
    if report.unknown:
        some = ", ".join(sorted(report.unknown)[:_NAMED])
        more = ", ..." if len(report.unknown) > _NAMED else ""
        note(
            f"{len(report.unknown)} files have an unknown format and were copied unchecked: "
            f"{some}{more}"
        )
    if report.incomplete:
        for one in report.incomplete:
            note(f"error: {what}, incomplete: {one}")
        raise typer.Exit(1)
