"""List the checkpoints of a remote directory, and prune the older ones.

push, watch -> **checkpoints** -> units, state -> store
"""

from __future__ import annotations

import contextlib
import errno
import re
from dataclasses import dataclass
from typing import Final

from ignitetf.fs.folders import RemoteFolder
from ignitetf.fs.path import os_error
from ignitetf.fs.push import remove_unit
from ignitetf.fs.state import state_names, state_of
from ignitetf.fs.store import Store
from ignitetf.fs.sync import read_file, write_file
from ignitetf.fs.units import STATE_FILE, Unit, units, what_is_wrong

__all__ = ["Checkpoint", "checkpoints", "prune"]

_TRIES: Final = 5


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a directory.

    Attributes:
        name: Its prefix, as TensorFlow expects it.
        files: Names of its files.
        size_bytes: Total bytes of its files.
        mtime_ns: Modification time of its newest file.
        complete: Whether the index and all the data it refers to exist.
        latest: Whether the state file names it as the latest.
    """

    name: str
    files: tuple[str, ...]
    size_bytes: int
    mtime_ns: int
    complete: bool
    latest: bool


def checkpoints(store: Store, remote: str) -> list[Checkpoint]:
    """Return TensorFlow's checkpoints in a remote directory, oldest first."""
    return [one for one, _ in _find(store, remote)[0]]


def _find(store: Store, remote: str) -> tuple[list[tuple[Checkpoint, Unit]], str | None]:
    """Return the checkpoints with their units, and the text of the state file."""
    for _ in range(_TRIES):
        # A concurrent prune may remove files while they are read.
        with contextlib.suppress(FileNotFoundError):
            return _look(store, remote)
    return _look(store, remote)


def _look(store: Store, remote: str) -> tuple[list[tuple[Checkpoint, Unit]], str | None]:
    folder = RemoteFolder(store, remote)
    text = None
    if STATE_FILE in folder.sizes:
        text = read_file(store, f"{folder.path}/{STATE_FILE}").decode("utf-8", "surrogateescape")
    latest, order = state_names(text or "")
    folder = folder.only([name for name in folder.sizes if "/" not in name])
    found = []
    for unit in units(folder, order):
        if unit.kind == "checkpoint" and unit.files:
            entries = [folder.entries[name] for name in unit.files]
            one = Checkpoint(
                name=unit.name,
                files=unit.files,
                size_bytes=sum(entry.size for entry in entries),
                mtime_ns=max(entry.mtime_ns for entry in entries),
                complete=what_is_wrong(folder, unit) is None,
                latest=latest == unit.name,
            )
            found.append((one, unit))
    # The state file knows the order. What it does not name counts as older, sorted by name.
    place = {name: number for number, name in enumerate(order)}
    found.sort(key=lambda pair: (place.get(pair[0].name, -1), _natural(pair[0].name)))
    return found, text


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def prune(store: Store, remote: str, keep: int) -> list[Checkpoint]:
    """Remove all but the newest complete checkpoints; the latest always stays.

    The state file drops them first, so that no reader is sent to a checkpoint that is about to
    go. All files of one checkpoint are removed at the same moment.

    Returns:
        The removed checkpoints.
    """
    if keep < 1:
        raise os_error(errno.EINVAL, remote, "at least one checkpoint must be kept")
    found, text = _find(store, remote)
    complete = [pair for pair in found if pair[0].complete]
    gone = [pair for pair in complete[:-keep] if not pair[0].latest]
    base, removed = remote.rstrip("/"), {one.name for one, _ in gone}
    if gone:
        _forget(store, f"{base}/{STATE_FILE}", text, removed)
    for _, unit in gone:
        remove_unit(store, base, unit)
    if gone and text is not None:
        # A concurrent push may have named them again before they were removed.
        path = f"{base}/{STATE_FILE}"
        _forget(store, path, read_file(store, path).decode("utf-8", "surrogateescape"), removed)
    return [one for one, _ in gone]


def _forget(store: Store, path: str, text: str | None, removed: set[str]) -> None:
    names = set(state_names(text or "")[1])
    if text is not None and names & removed:
        kept = state_of(text, "", names - removed)
        if kept is not None:
            write_file(store, path, kept.encode("utf-8", "surrogateescape"))
