"""Remote paths of commands: open, expand, copy from and to local files."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ignitetf.cli.files import whole
from ignitetf.cli.options import Connect
from ignitetf.cli.output import progress
from ignitetf.fs.path import join, parts, path_of_url
from ignitetf.spelling import nearest

if TYPE_CHECKING:
    from ignitetf.fs.filesystem import IgniteFileSystem

__all__ = [
    "DEFAULT",
    "NameOption",
    "Recursive",
    "RemoteArgument",
    "RemotesArgument",
    "cat_files",
    "expand",
    "get_file",
    "local_pairs",
    "open_remote",
    "put_file",
    "put_input",
    "require_recursive",
]

RemoteArgument = Annotated[str, typer.Argument(help="Remote path.", show_default=False)]
RemotesArgument = Annotated[
    list[str], typer.Argument(help="Remote paths; globs match there.", show_default=False)
]
Recursive = Annotated[
    bool, typer.Option("--recursive", "-r", help="Remove or copy directories with their contents.")
]
NameOption = Annotated[str, typer.Option("--fs-name", help="Name of the file system.")]
DEFAULT = "IGFS"
_COPY_BYTES = 4 << 20


def open_remote(connect: Connect, name: str, *paths: str) -> IgniteFileSystem:
    """Return the file system of these paths; an address in a URL overrides the options."""
    from ignitetf.fs.filesystem import IgniteFileSystem, connection_of_url

    settings = connect.settings()
    places = {tuple(sorted(connection_of_url(p).items())) for p in paths}
    places.discard(())
    if len(places) > 1:
        raise typer.BadParameter("the paths are in several clusters; copy through local files")
    for place in places:
        given = dict(place)
        addresses = tuple(given.pop("address").split(","))
        settings = settings.replace(addresses=addresses, **given)
    fs = IgniteFileSystem(settings=settings, name=name, skip_instance_cache=True)
    remote = {path_of_url(path) for path in paths}

    def suggest(error: FileNotFoundError) -> None:
        # Missing local files raise the same class.
        if error.filename not in remote:
            return
        with contextlib.suppress(OSError):
            if near := _nearest(fs, error.filename):
                error.hint = f"did you mean {' or '.join(near)}?"  # type: ignore[attr-defined]

    connect.on_missing = suggest
    return fs


def _nearest(fs: IgniteFileSystem, path: str) -> list[str]:
    """Return existing paths that are similar to a missing one."""
    names = parts(path)
    for at, name in enumerate(names):
        there = [one.rpartition("/")[2] for one in fs.ls(join(names[:at]), detail=False)]
        if name in there:
            continue
        near = nearest(name, there)
        whole = [join((*names[:at], other, *names[at + 1 :])) for other in near]
        return [one for one in whole if fs.exists(one)] or [
            join((*names[:at], other)) for other in near
        ]
    return []


def expand(fs: IgniteFileSystem, paths: list[str]) -> list[str]:
    """Replace globs by their matches, except where a file has exactly that name."""
    found: list[str] = []
    for path in map(path_of_url, paths):
        if any(c in path for c in "*?[") and not fs.exists(path):
            matches = sorted(fs.glob(path))
            if not matches:
                raise FileNotFoundError(2, "nothing matches", path)
            found += matches
        else:
            fs.info(path)
            found.append(path)
    return found


def require_recursive(recursive: bool, path: str) -> None:
    """Raise IsADirectoryError for a directory without -r."""
    if not recursive:
        raise IsADirectoryError(21, "is a directory; use -r", path)


def local_pairs(
    source: Path, target: str, into: bool, recursive: bool
) -> Iterator[tuple[Path, str]]:
    """Yield the files and directories to upload for a source, with their remote paths."""
    base = f"{target.rstrip('/')}/{source.name}" if into else target
    if not source.is_dir():
        yield source, base
        return
    require_recursive(recursive, str(source))
    yield source, base
    for local in _below(source, ()):
        yield local, f"{base.rstrip('/')}/{local.relative_to(source).as_posix()}"


def _below(folder: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """Yield all paths below a local folder, also through links; raise errors of listing."""
    facts = folder.stat()
    own = (facts.st_dev, facts.st_ino)
    if own in above:
        raise OSError(errno.ELOOP, "is a link to a parent folder", str(folder))
    for path in sorted(folder.iterdir()):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError(errno.EINVAL, "is neither a file nor a folder", str(path))
        yield path
        if path.is_dir():
            yield from _below(path, (*above, own))


def put_file(fs: IgniteFileSystem, local: Path, remote: str) -> None:
    """Copy a local file into the cluster; for a directory, create it."""
    path = path_of_url(remote)
    if local.is_dir():
        fs.makedirs(path, exist_ok=True)
        return
    with (
        local.open("rb") as source,
        progress(f"put {local.name}", local.stat().st_size, unit="bytes") as advance,
        fs.store.writing(path) as writer,
    ):
        while data := source.read(_COPY_BYTES):
            writer.write(memoryview(data))
            advance(len(data))


def put_input(fs: IgniteFileSystem, remote: str) -> None:
    """Copy standard input into a file in the cluster."""
    path = path_of_url(remote)
    with progress("put", unit="bytes") as advance, fs.store.writing(path) as writer:
        while data := sys.stdin.buffer.read(_COPY_BYTES):
            writer.write(memoryview(data))
            advance(len(data))


def get_file(fs: IgniteFileSystem, remote: str, local: Path) -> None:
    """Copy a file from the cluster."""
    buffer = memoryview(bytearray(_COPY_BYTES))
    with (
        contextlib.closing(fs.store.open_read(remote)) as reader,
        whole(local) as place,
        place.open("wb") as target,
        progress(f"get {local.name}", reader.size, unit="bytes") as advance,
    ):
        at = 0
        while count := reader.read_into(at, buffer):
            target.write(buffer[:count])
            advance(count)
            at += count


def cat_files(fs: IgniteFileSystem, paths: list[str]) -> None:
    """Write files to standard output."""
    for path in paths:
        with fs.open(path, "rb") as source:
            while data := source.read(_COPY_BYTES):
                sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
