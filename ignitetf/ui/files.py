"""The directories of `igfs://` and the checkpoints in them.

path -> store -> **folder** -> page
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Final

from ignitetf.errors import CacheNotFound
from ignitetf.fs.checkpoints import Checkpoint, checkpoints
from ignitetf.fs.path import join, parts
from ignitetf.fs.records import Entry
from ignitetf.fs.store import DEFAULT_NAME, Store
from ignitetf.net.client import Client

__all__ = ["Folder", "Line", "folder_of", "open_files"]

_MOST_LINES: Final = 500
_STATE_FILE: Final = "checkpoint"


@dataclass(frozen=True)
class Line:
    """A file or directory."""

    name: str
    path: str
    is_directory: bool
    size: int
    changed: str
    attributes: dict[str, str]


@dataclass(frozen=True)
class Folder:
    """A directory.

    Attributes:
        path: Its path.
        above: Name and path of each directory from the root to this one.
        lines: Its first entries, directories first.
        count: Number of its entries.
        found: The checkpoints in it, the newest first.
    """

    path: str
    above: tuple[tuple[str, str], ...]
    lines: tuple[Line, ...]
    count: int
    found: tuple[Checkpoint, ...] = field(default=())


def open_files(client: Client) -> Store | None:
    """Return the file system, or None if nobody has made one yet: looking at it makes none."""
    try:
        client.require_cache(f"{DEFAULT_NAME}_META")
        client.require_cache(f"{DEFAULT_NAME}_DATA")
    except CacheNotFound:
        return None
    return Store(client)


def folder_of(client: Client, path: str) -> Folder | None:
    """Return a directory; None if there is no file system.

    Raises:
        OSError: ENOENT, ENOTDIR.
    """
    names = parts(path)
    store = open_files(client)
    if store is None:
        return None
    try:
        entries = store.list(join(names))
        found: list[Checkpoint] = []
        if any(name == _STATE_FILE or name.endswith(".index") for name, _ in entries):
            found = checkpoints(store, join(names))[::-1]
    finally:
        store.close()
    entries.sort(key=lambda one: (not one[1].is_directory, one[0]))
    base = join(names).rstrip("/")
    lines = tuple(_line(base, name, entry) for name, entry in entries[:_MOST_LINES])
    above = tuple((name, join(names[: i + 1])) for i, name in enumerate(names))
    return Folder(join(names), above, lines, len(entries), tuple(found))


def _line(base: str, name: str, entry: Entry) -> Line:
    return Line(
        name, f"{base}/{name}", entry.is_directory, entry.size, time_of(entry.mtime_ns),
        entry.attributes,
    )  # fmt: skip


def time_of(nanoseconds: int) -> str:
    """Return a time in nanoseconds since 1970 as ISO 8601 in UTC."""
    moment = datetime.datetime.fromtimestamp(nanoseconds / 1e9, datetime.UTC)
    return moment.isoformat(timespec="seconds")
