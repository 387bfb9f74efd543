"""Remove checkpoints of the cluster so that at no moment a state names one of them that is not whole.

push, checkpoints -> **retire** -> sync, state, units -> store

The states drop the names first. The files of a checkpoint then go in one transaction, which takes
place only if the states are still the ones that do not name it. A push publishes a state only if
what it names is still there, so whichever of the two comes first makes the other look again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from ignitetf.fs.folders import RemoteFolder
from ignitetf.fs.records import Entry
from ignitetf.fs.state import base_of, state_names, state_of
from ignitetf.fs.store import Store
from ignitetf.fs.sync import read_state, write_file
from ignitetf.fs.tree import Outdated
from ignitetf.fs.units import Unit, index_of

__all__ = ["retire"]


def retire(
    store: Store,
    folder: RemoteFolder,
    doomed: Sequence[Unit],
    states: Mapping[str, tuple[Entry | None, str]],
) -> list[Unit]:
    """Remove units, after the states have dropped their names.

    Args:
        store: The file system.
        folder: All files beside the units, as the caller saw them.
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
                # Without it the files are useless; with a new one they may be needed.
                index = index_of(unit)
                seen[f"{folder.path}/{index}"] = folder.entries.get(index)
            store.remove(*paths, unchanged=seen)
            removed.append(unit)
    return removed


def _drop(
    store: Store, path: str, base: str, seen: tuple[Entry | None, str], names: set[str]
) -> Entry | None:
    """Take names out of a state, and return its new entry; raises Outdated if it changes."""
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
