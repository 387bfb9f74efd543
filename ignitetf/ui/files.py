"""The directories of `igfs://` and the checkpoints in them.

path -> store -> **folder** -> page
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Final

from ignitetf import Client
from ignitetf.errors import CacheNotFound
from ignitetf.fs.checkpoints import Checkpoint, checkpoints
from ignitetf.fs.store import DEFAULT_NAME, Store

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
    """Return the file system, or None if it does not exist yet; viewing does not create it."""
    try:
        client.require_cache(f"{DEFAULT_NAME}_META")
        client.require_cache(f"{DEFAULT_NAME}_DATA")
    except CacheNotFound:
        return None
    return Store(client)


def folder_of(client: Client, path: str) -> Folder | None:
    """Return a directory; None if the file system does not exist.

    Raises:
        OSError: ENOENT, ENOTDIR.
    """
    names = [name for name in path.split("/") if name]
    whole = f"/{'/'.join(names)}"
    store = open_files(client)
    if store is None:
        return None
    try:
        entries = store.list(whole)
        found: list[Checkpoint] = []
        if any(name == _STATE_FILE or name.endswith(".index") for name, _ in entries):
            found = checkpoints(store, whole)[::-1]
    finally:
        store.close()
    entries.sort(key=lambda one: (not one[1].is_directory, one[0]))
    base = whole.rstrip("/")
    lines = tuple(
        Line(name, f"{base}/{name}", e.is_directory, e.size, time_of(e.mtime_ns), e.attributes)
        for name, e in entries[:_MOST_LINES]
    )
    above = tuple((name, f"/{'/'.join(names[: i + 1])}") for i, name in enumerate(names))
    return Folder(whole, above, lines, len(entries), tuple(found))


def time_of(nanoseconds: int) -> str:
    """Return a time in nanoseconds since 1970 as ISO 8601 in UTC."""
    moment = datetime.datetime.fromtimestamp(nanoseconds / 1e9, datetime.UTC)
    return moment.isoformat(timespec="seconds")
