"""The checkpoints of a remote directory: listed, and the older ones removed.

push -> **checkpoints** -> sync, units, folders -> store

A state never names an incomplete checkpoint. A removal first drops the names from the states. It
then removes the files of a checkpoint in one transaction, which is committed only if the states
have not changed since. A push publishes a state only if its checkpoints still exist. So if both run
at once, the later one checks again.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ignitetf.fs.folders import RemoteFolder, base_of, state_names, state_of
from ignitetf.fs.path import os_error
from ignitetf.fs.records import Entry
from ignitetf.fs.store import Store
from ignitetf.fs.sync import read_state, write_file
from ignitetf.fs.tree import Outdated
from ignitetf.fs.units import STATE_FILE, Unit, find_fault, index_of, units

__all__ = ["Checkpoint", "checkpoints", "prune", "retire"]

_TRIES: Final = 5
_PRUNE_TRIES: Final = 50


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a directory.

    Attributes:
        name: Its prefix, as TensorFlow expects it.
        files: Names of its files.
        size_bytes: Total bytes of its files.
        mtime_ns: Modification time of its newest file.
        complete: True if the index and all the data it refers to exist.
        latest: True if the state file names it as the latest.
    """

    name: str
    files: tuple[str, ...]
    size_bytes: int
    mtime_ns: int
    complete: bool
    latest: bool


def checkpoints(store: Store, remote: str) -> list[Checkpoint]:
    """Return TensorFlow's checkpoints in a remote directory, oldest first."""
    return [one for one, _ in _find(store, remote).pairs]


@dataclass(frozen=True)
class _Found:
    """The checkpoints with their units, the files, and the entry and the text of the state."""

    pairs: list[tuple[Checkpoint, Unit]]
    folder: RemoteFolder
    state: tuple[Entry | None, str]


def _find(store: Store, remote: str) -> _Found:
    for _ in range(_TRIES):
        # A concurrent prune may remove files while they are read.
        with contextlib.suppress(FileNotFoundError):
            return _find_checkpoints(store, remote)
    return _find_checkpoints(store, remote)


def _find_checkpoints(store: Store, remote: str) -> _Found:
    folder = RemoteFolder(store, remote)
    state = read_state(store, f"{folder.path}/{STATE_FILE}")
    latest, order = state_names(state[1])
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
                complete=find_fault(folder, unit) is None,
                latest=latest == unit.name,
            )
            found.append((one, unit))
    # The state file has the order. Checkpoints that it does not name count as older, sorted by
    # name.
    place = {name: number for number, name in enumerate(order)}
    found.sort(key=lambda pair: (place.get(pair[0].name, -1), _natural(pair[0].name)))
    return _Found(found, folder, state)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def prune(store: Store, remote: str, keep: int) -> list[Checkpoint]:
    """Remove all but the newest complete checkpoints; the latest always stays.

    The state file drops them first, so that no reader follows it to a checkpoint that is about to
    be removed. All files of one checkpoint are removed at the same moment.

    Returns:
        The removed checkpoints.

    Raises:
        OSError: EINVAL for `keep`; EBUSY if the directory keeps changing.
    """
    if keep < 1:
        raise os_error(errno.EINVAL, remote, "at least one checkpoint must be kept")
    removed: list[Checkpoint] = []
    for _ in range(_PRUNE_TRIES):
        found = _find(store, remote)
        complete = [pair for pair in found.pairs if pair[0].complete]
        gone = {unit: one for one, unit in complete[:-keep] if not one.latest}
        done = retire(store, found.folder, list(gone), {STATE_FILE: found.state})
        removed += [gone[unit] for unit in done]
        if len(done) == len(gone):
            return removed
    raise os_error(errno.EBUSY, remote, "the checkpoints keep changing")


def retire(
    store: Store,
    folder: RemoteFolder,
    doomed: Sequence[Unit],
    states: Mapping[str, tuple[Entry | None, str]],
) -> list[Unit]:
    """Remove units, after the states have dropped their names.

    Args:
        store: The file system.
        folder: The directory with all its files, as the caller saw it.
        doomed: The units.
        states: Entry and text of each state that may name them, as the caller saw them.

    Returns:
        The units that were removed. The others, or a state, changed meanwhile.
    """
    removed: list[Unit] = []
    names, needed = {unit.name for unit in doomed}, dict[str, Entry | None]()
    with contextlib.suppress(Outdated, FileNotFoundError):
        for state, (entry, text) in states.items():
            path = f"{folder.path}/{state}"
            if names & set(state_names(text, base_of(state))[1]):
                entry = _drop(store, path, base_of(state), (entry, text), names)
            needed[path] = entry
        for unit in doomed:
            paths = {f"{folder.path}/{name}": folder.entries[name] for name in unit.files}
            seen = {**needed, **paths}
            if unit.kind == "checkpoint":
                # Without its index a checkpoint is useless; with a new index its files may be
                # needed.
                index = index_of(unit)
                seen[f"{folder.path}/{index}"] = folder.entries.get(index)
            store.remove(*paths, unchanged=seen)
            removed.append(unit)
    return removed


def _drop(
    store: Store, path: str, base: str, seen: tuple[Entry | None, str], names: set[str]
) -> Entry | None:
    """Remove names from a state, and return its new entry; raises Outdated if it changes."""
    entry, text = seen
    kept = state_of(text, base, set(state_names(text, base)[1]) - names)
    if kept is None:
        store.remove(path, unchanged={path: entry})
    else:
        write_file(store, path, kept.encode("utf-8", "surrogateescape"), {path: entry})
    entry, text = read_state(store, path)
    if names & set(state_names(text, base)[1]):
        raise Outdated
    return entry
