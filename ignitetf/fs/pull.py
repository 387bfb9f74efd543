"""Copy changed files of a remote directory of checkpoints to a local one.

store -> units, state -> **pull** -> local directory

Only complete checkpoints are copied, and the state files name only these. Each file appears
complete. In a checkpoint, the file that refers to the others is written last. The state files are
written last of all.
"""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from ignitetf.fs.folders import (
    PART,
    LocalFolder,
    RemoteFolder,
    base_of,
    blocks,
    state_names,
    state_of,
)
from ignitetf.fs.path import os_error
from ignitetf.fs.store import Store
from ignitetf.fs.sync import DIGEST, SyncReport, digest_of, read_file
from ignitetf.fs.units import STATE_FILE, Unit, find_fault, is_known, units

__all__ = ["pull"]

_MAX_PASSES: Final = 20
_STILL_WRONG: Final = 3  # passes until a checkpoint counts as incomplete
_PAUSE_S: Final = 0.3
OnFile = Callable[[str, int], None]


class _Changed(Exception):
    """The remote directory changed while it was copied."""


def pull(
    store: Store,
    remote: str,
    local: Path,
    *,
    on_file: OnFile = lambda name, size: None,
) -> SyncReport:
    """Copy changed files from the cluster into a local directory.

    Starts again if the remote directory changes in the meantime, for example by a push or `prune`.

    Args:
        store: The file system.
        remote: Path of the remote directory.
        local: The local directory; created if missing.
        on_file: Called with name and size of each copied file.

    Returns:
        A report of the copy; `incomplete` lists skipped checkpoints with the reason.

    Raises:
        OSError: ENOENT, ENOTDIR for the remote directory; EIO for content that does not match its
            SHA-256; EBUSY if it keeps changing.
    """
    begin, report, wrong = time.monotonic(), SyncReport(), 0
    for look in range(_MAX_PASSES):
        last = look == _MAX_PASSES - 1
        try:
            _pull_once(store, remote, local, report, on_file)
            wrong += 1
        except _Changed as error:
            if last:
                raise os_error(errno.EBUSY, remote, f"{error} keeps being replaced") from error
        except OSError as error:
            gone = error.errno in (errno.ENOENT, errno.ESTALE)
            if not gone or last or not store.exists(remote):
                raise
        else:
            # TensorFlow itself may be in the middle of writing a checkpoint there.
            if not report.incomplete or wrong == _STILL_WRONG:
                break
        time.sleep(_PAUSE_S * bool(look))
    report.seconds = round(time.monotonic() - begin, 3)
    return report


def _pull_once(store: Store, remote: str, local: Path, report: SyncReport, on_file: OnFile) -> None:
    report.begin()
    folder = RemoteFolder(store, remote)
    states = {
        name: read_file(store, f"{folder.path}/{name}").decode("utf-8", "surrogateescape")
        for name in folder.entries
        if name.rpartition("/")[2] == STATE_FILE
    }
    # The files may be newer than the states but never older, so they are listed after the states.
    folder = RemoteFolder(store, remote)
    named = [state_names(text, base_of(name)) for name, text in states.items()]
    latest = {name for name, _ in named}
    local.mkdir(parents=True, exist_ok=True)
    whole = set[str]()
    for unit in units(folder, {name for _, every in named for name in every}):
        if unit.kind == "checkpoint" and not unit.files and unit.name not in latest:
            continue  # pruned by a client that could not update the state
        fault = find_fault(folder, unit) or _copy(store, folder, unit, local, report, on_file)
        if fault is not None:
            report.incomplete.append(f"{unit.name or '.'}: {fault}")
        elif unit.kind == "checkpoint":
            whole.add(unit.name)
    for name, text in states.items():
        data = state_of(text, base_of(name), whole)
        if data is not None:
            _put_state(local / name, name, data.encode("utf-8", "surrogateescape"), report)


def _copy(
    store: Store, folder: RemoteFolder, unit: Unit, local: Path, report: SyncReport, on_file: OnFile
) -> str | None:
    """Copy the changed files of a unit; if they are broken, keep the old and return the fault."""
    fresh = [name for name in unit.files if not _is_here(folder, name, local)]
    parts = {name: _part(local / name) for name in fresh}
    try:
        for name, part in parts.items():
            _download(store, folder, name, part)
        # Not replaced since the folder was listed, so all files belong together.
        for name in unit.files:
            _raise_if_replaced(store, folder, name)
        if is_known(unit):
            fault = find_fault(_Arrived(local, unit, parts), unit, read=bool(fresh))
            if fault is not None:
                return fault
        else:
            report.unknown += unit.files
        _place(local, unit, parts)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    report.unchanged += len(unit.files) - len(fresh)
    for name in fresh:
        report.add(name, folder.sizes[name])
        on_file(name, folder.sizes[name])
    return None


def _is_here(folder: RemoteFolder, name: str, local: Path) -> bool:
    target = local / name
    if not target.is_file() or target.stat().st_size != folder.sizes[name]:
        return False
    known = folder.entries[name].attributes.get(DIGEST) or digest_of(folder, name)
    with target.open("rb") as file:
        digest = hashlib.sha256()
        for block in blocks(file):
            digest.update(block)
    return known == digest.hexdigest()


def _part(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f"{target.name}{PART}")


def _download(store: Store, folder: RemoteFolder, name: str, part: Path) -> None:
    digest = hashlib.sha256()
    with folder.open(name) as source, part.open("wb") as target:
        for block in blocks(source):
            digest.update(block)
            target.write(block)
    entry = folder.entries[name]
    expected = entry.attributes.get(DIGEST)
    if part.stat().st_size != entry.size:
        raise _Changed(name)
    if expected is not None and expected != digest.hexdigest():
        _raise_if_replaced(store, folder, name)
        path = f"{folder.path}/{name}"
        raise os_error(errno.EIO, path, "the content does not match its SHA-256")


def _raise_if_replaced(store: Store, folder: RemoteFolder, name: str) -> None:
    if store.stat(f"{folder.path}/{name}").extents != folder.entries[name].extents:
        raise _Changed(name)


class _Arrived(LocalFolder):
    """The files of a unit at their current places, some still under their temporary names."""

    def __init__(self, local: Path, unit: Unit, parts: dict[str, Path]) -> None:
        self.path = local
        self._parts = parts
        self.left_out = {}
        self.sizes = {name: self._where(name).stat().st_size for name in unit.files}

    def _where(self, name: str) -> Path:
        return self._parts.get(name, self.path / name)

    def open(self, name: str) -> BinaryIO:
        return self._where(name).open("rb")


def _place(local: Path, unit: Unit, parts: dict[str, Path]) -> None:
    """Give the parts their final names; meanwhile no file refers to the old files."""
    lead = unit.files[-1]
    target = local / lead
    if set(parts) - {lead} and lead not in parts and target.exists():
        parts[lead] = target.replace(_part(target))
    elif set(parts) - {lead}:
        target.unlink(missing_ok=True)
    for name in unit.files:
        if name in parts:
            parts[name].replace(local / name)


def _put_state(target: Path, name: str, data: bytes, report: SyncReport) -> None:
    if target.is_file() and target.read_bytes() == data:
        report.unchanged += 1
        return
    part = _part(target)
    try:
        part.write_bytes(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    report.add(name, len(data))
