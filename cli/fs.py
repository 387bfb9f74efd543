"""`ignitetf fs`: shell-like commands for files in the cluster.

Remote paths are `igfs://[user@]host:port/path`, `igfs:///path`, or simply `/path`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ignitetf.cli.options import Connect, Yes, confirm, connected
from ignitetf.cli.output import OutputOption, note, show
from ignitetf.cli.remote import (
    DEFAULT,
    NameOption,
    Recursive,
    RemoteArgument,
    RemotesArgument,
    cat_files,
    expand,
    get_file,
    local_pairs,
    open_remote,
    put_file,
    put_input,
    require_recursive,
)
from ignitetf.fs.path import path_of_url

if TYPE_CHECKING:
    from ignitetf.fs.records import Entry
    from ignitetf.fs.store import Store

app = typer.Typer(help="Manage files in the cluster (igfs:// paths).", no_args_is_help=True)


@app.command("ls")
@connected
def list_(
    connect: Connect,
    path: Annotated[str, typer.Argument(help="Remote path or glob.")] = "/",
    recursive: Recursive = False,
    long: Annotated[bool, typer.Option("--long", "-l", help="Show size and time too.")] = False,
    fs_name: NameOption = DEFAULT,
    output: OutputOption = "table",
) -> None:
    """List a directory, a file, or the matches of a glob.

    Example: ignitetf fs ls -l igfs:///checkpoints
    """
    fs = open_remote(connect, fs_name, path)
    found: list[dict[str, Any]] = []
    for one in expand(fs, [path]):
        if recursive:
            below = fs.find(one, withdirs=True, detail=True)
            found += [info for name, info in below.items() if name != one or fs.isfile(one)]
        else:
            found += fs.ls(one, detail=True)
    rows = [_row(info) for info in sorted(found, key=lambda info: str(info["name"]))]
    if output == "table" and not long:
        for row in rows:
            typer.echo(row["name"] + ("/" if row["type"] == "directory" else ""))
    else:
        show(rows, output, ["type", "size", "modified", "name"])


@app.command()
@connected
def cat(connect: Connect, paths: RemotesArgument, fs_name: NameOption = DEFAULT) -> None:
    """Write files to standard output.

    Example: ignitetf fs cat igfs:///notes/*.txt
    """
    fs = open_remote(connect, fs_name, *paths)
    cat_files(fs, expand(fs, paths))


@app.command()
@connected
def put(
    connect: Connect,
    sources: Annotated[
        list[str], typer.Argument(help="Local files; - is standard input.", show_default=False)
    ],
    target: Annotated[str, typer.Argument(help="Remote path.", show_default=False)],
    recursive: Recursive = False,
    fs_name: NameOption = DEFAULT,
) -> None:
    """Copy local files into the cluster.

    Several files can be copied if the target is a directory.

    Example: ignitetf fs put -r runs/1 igfs:///runs/1
    """
    fs = open_remote(connect, fs_name, target)
    into = target.endswith("/") or fs.isdir(target)
    if len(sources) > 1 and not into:
        raise typer.BadParameter(f"{target} is not a directory", param_hint="TARGET")
    for source in sources:
        if source == "-":
            put_input(fs, target)
            continue
        for local, remote in local_pairs(Path(source), target, into, recursive):
            put_file(fs, local, remote)


@app.command()
@connected
def get(
    connect: Connect,
    sources: RemotesArgument,
    target: Annotated[
        str, typer.Argument(help="Local path; - is standard output.", show_default=False)
    ],
    recursive: Recursive = False,
    fs_name: NameOption = DEFAULT,
) -> None:
    """Copy files from the cluster.

    Several files can be copied if the target is a directory.

    Example: ignitetf fs get 'igfs:///runs/1/*.csv' tables/
    """
    fs = open_remote(connect, fs_name, *sources)
    found = expand(fs, sources)
    if target == "-":
        cat_files(fs, found)
        return
    into = target.endswith("/") or Path(target).is_dir()
    if len(found) > 1 and not into:
        raise typer.BadParameter(f"{target} is not a directory", param_hint="TARGET")
    for source in found:
        base = Path(target) / source.rstrip("/").rpartition("/")[2] if into else Path(target)
        if not fs.isdir(source):
            get_file(fs, source, base)
            continue
        require_recursive(recursive, source)
        base.mkdir(parents=True, exist_ok=True)
        for name, info in fs.find(source, withdirs=True, detail=True).items():
            local = base / name[len(source) :].lstrip("/")
            if info["type"] == "directory":
                local.mkdir(parents=True, exist_ok=True)
            else:
                get_file(fs, name, local)


@app.command()
@connected
def cp(
    connect: Connect,
    sources: RemotesArgument,
    target: RemoteArgument,
    recursive: Recursive = False,
    fs_name: NameOption = DEFAULT,
) -> None:
    """Copy files within the cluster.

    Example: ignitetf fs cp -r igfs:///runs/1 igfs:///runs/best
    """
    fs = open_remote(connect, fs_name, *sources, target)
    found = expand(fs, sources)
    for source in found:
        if fs.isdir(source):
            require_recursive(recursive, source)
    fs.copy(found if len(found) > 1 else found[0], target, recursive=recursive, on_error="raise")


@app.command()
@connected
def mv(
    connect: Connect,
    sources: RemotesArgument,
    target: RemoteArgument,
    fs_name: NameOption = DEFAULT,
) -> None:
    """Rename or move files and directories without copying data.

    Example: ignitetf fs mv igfs:///runs/new igfs:///runs/1
    """
    fs = open_remote(connect, fs_name, *sources, target)
    found = expand(fs, sources)
    if len(found) > 1 and not fs.isdir(target):
        raise typer.BadParameter(f"{target} is not a directory", param_hint="TARGET")
    for source in found:
        fs.mv_exactly(source, target)


@app.command()
@connected
def rm(
    connect: Connect,
    paths: RemotesArgument,
    recursive: Recursive = False,
    yes: Yes = False,
    fs_name: NameOption = DEFAULT,
) -> None:
    """Remove files, or with -r directories.

    Example: ignitetf fs rm -r igfs:///runs/old
    """
    fs = open_remote(connect, fs_name, *paths)
    found = expand(fs, paths)
    for path in found:
        if fs.isdir(path):
            require_recursive(recursive, path)
    if recursive:
        confirm(f"Remove {', '.join(found)}?", yes)
    for path in found:
        fs.rm_exactly(path, recursive=recursive)


@app.command()
@connected
def mkdir(
    connect: Connect,
    path: RemoteArgument,
    parents: Annotated[
        bool,
        typer.Option("--parents", "-p", help="Create parent directories; no error if it exists."),
    ] = False,
    fs_name: NameOption = DEFAULT,
) -> None:
    """Create a directory.

    Example: ignitetf fs mkdir -p igfs:///runs/2
    """
    fs = open_remote(connect, fs_name, path)
    fs.store.make_directory(path_of_url(path), parents=parents, exist_ok=parents)


@app.command()
@connected
def du(
    connect: Connect,
    path: Annotated[str, typer.Argument(help="Remote path.")] = "/",
    fs_name: NameOption = DEFAULT,
    output: OutputOption = "table",
) -> None:
    """Show bytes and number of files below each entry.

    Example: ignitetf fs du igfs:///runs
    """
    fs = open_remote(connect, fs_name, path)
    rows = []
    for info in fs.ls(path, detail=True):
        sizes = (
            [f["size"] for f in fs.find(info["name"], detail=True).values()]
            if info["type"] == "directory"
            else [info["size"]]
        )
        rows.append({"bytes": sum(sizes), "files": len(sizes), "name": info["name"]})
    total = {
        "bytes": sum(row["bytes"] for row in rows),
        "files": sum(row["files"] for row in rows),
        "name": path_of_url(path),
    }
    show([*rows, total], output)


@app.command()
@connected
def stat(
    connect: Connect,
    path: RemoteArgument,
    fs_name: NameOption = DEFAULT,
    output: OutputOption = "table",
) -> None:
    """Show size, time and other facts of a file or directory.

    Example: ignitetf fs stat igfs:///checkpoints/ckpt-1.index
    """
    fs = open_remote(connect, fs_name, path)
    name = path_of_url(path)
    entry: Entry = fs.store.stat(name)
    row = _row(fs.info(name))
    if not entry.is_directory:
        contents = entry.contents()
        row |= {"chunks": sum(contents.values()), "content": " ".join(contents)}
        row |= entry.attributes
    show(row, output)


@app.command()
@connected
def check(
    connect: Connect,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair inconsistent entries; remove unused data.")
    ] = False,
    read: Annotated[
        bool, typer.Option("--read", help="Read every file and compare checksums.")
    ] = False,
    wait: Annotated[
        bool, typer.Option(help="With --repair: wait until leases of dead writers expire.")
    ] = True,
    fs_name: NameOption = DEFAULT,
    output: OutputOption = "table",
) -> None:
    """Check the file system; exit code 1 if it is inconsistent.

    Example: ignitetf fs check --repair
    """
    from ignitetf.fs.check import check as run

    with _store(connect, fs_name) as store:
        report = run(store, repair=repair, read=read, wait=wait, on_progress=note)
    show(report.facts(), output)
    if not report.ok:
        raise typer.Exit(1)


@contextlib.contextmanager
def _store(connect: Connect, name: str) -> Iterator[Store]:
    from ignitetf.fs.store import open_store

    yield open_store(connect.settings(), name)


def _row(info: dict[str, Any]) -> dict[str, Any]:
    import datetime

    time = datetime.datetime.fromtimestamp(info["mtime"], tz=datetime.UTC)
    known = info["mtime"] > 0
    return {
        "name": info["name"],
        "type": info["type"],
        "size": info["size"],
        "modified": time.isoformat(timespec="seconds") if known else None,
    }
