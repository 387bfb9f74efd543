"""Copy changed files of a local directory of checkpoints to the cluster, once or repeatedly.

local directory -> **push** -> checkpoints, units, folders -> store

This needs neither TensorFlow nor native code. The files of a checkpoint appear remotely at the same
moment, once all of them are known to be complete. The state file follows, in a transaction that is
committed only if its checkpoints still exist. Files that are already there, by size and SHA-256,
are not copied again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from ignitetf.fs.checkpoints import prune, retire
from ignitetf.fs.files import FileWriter, close_together
from ignitetf.fs.folders import LocalFolder, RemoteFolder, base_of, blocks, state_names, state_of
from ignitetf.fs.path import os_error
from ignitetf.fs.records import Entry
from ignitetf.fs.store import Store
from ignitetf.fs.sync import DIGEST, SyncReport, digest_of, read_state, write_file
from ignitetf.fs.tree import Outdated
from ignitetf.fs.units import STATE_FILE, Unit, find_fault, index_of, is_known, units

__all__ = ["push", "watch"]

_LOOKS: Final = 5
_PAUSE_S: Final = 0.5
OnFile = Callable[[str, int], None]


def push(
    store: Store,
    local: Path,
    remote: str,
    *,
    delete: bool = False,
    keep: int | None = None,
    on_file: OnFile = lambda name, size: None,
) -> SyncReport:
    """Copy changed files from a local directory into the cluster.

    A checkpoint that is being written is checked again for a short while.

    Args:
        store: The file system.
        local: Directory with checkpoints and any other files.
        remote: Path of the remote directory; created if missing.
        delete: Finally remove remote files that are not in the local directory. Files in a part
            that was skipped, such as a directory that cannot be listed, are kept.
        keep: Copy only this many of the newest checkpoints that a state names.
        on_file: Called with name and size of each copied file.

    Returns:
        A report of the copy; `incomplete` lists skipped checkpoints with the reason.
    """
    begin, report = time.monotonic(), SyncReport()
    for _ in range(_LOOKS):
        before = _push_once(store, local, remote, report, delete=delete, keep=keep, on_file=on_file)
        if not (report.incomplete or report.unsettled):
            break
        time.sleep(_PAUSE_S)
        if not report.unsettled and LocalFolder(local).signature() == before:
            break
    report.seconds = round(time.monotonic() - begin, 3)
    return report


def _push_once(
    store: Store,
    local: Path,
    remote: str,
    report: SyncReport,
    *,
    delete: bool = False,
    keep: int | None = None,
    on_file: OnFile = lambda name, size: None,
) -> object:
    """Make one pass of `push`, and return the signature of the directory."""
    if not local.is_dir():
        raise os_error(errno.ENOTDIR if local.exists() else errno.ENOENT, str(local))
    store.make_directory(remote, parents=True, exist_ok=True)
    report.begin()
    # The states are read before the files are listed, so that their checkpoints are already
    # written.
    states = _states(local)
    folder = LocalFolder(local)
    signature = folder.signature()
    work = _Push(store, folder, remote, report, on_file)
    try:
        work.units(states, keep)
        doomed = set(work.there.sizes) - set(folder.sizes) - set(states) if delete else set()
        doomed = {name for name in doomed if not folder.may_be_left_out(name)}
        doomed |= {name for unit in work.old if delete for name in unit.files} & set(
            work.there.sizes
        )
        for name, text in states.items():
            work.state(name, text, doomed)
    except FileNotFoundError as error:
        # Removed since the folder was listed. A failure on the remote side is a real error.
        if error.filename is None or not Path(error.filename).is_relative_to(local):
            raise
        report.unsettled.append(Path(error.filename).relative_to(local).as_posix())
        return signature
    if doomed:
        work.remove(doomed, states)
    return signature


def _states(local: Path) -> dict[str, str]:
    found = {}
    for path in local.rglob(STATE_FILE):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            name = path.relative_to(local).as_posix()
            found[name] = path.read_text(encoding="utf-8", errors="surrogateescape")
    return found


class _Push:
    """One pass over a local directory, with its results."""

    def __init__(
        self, store: Store, folder: LocalFolder, remote: str, report: SyncReport, on_file: OnFile
    ) -> None:
        self.there = RemoteFolder(store, remote)
        self.old: list[Unit] = []
        self._store = store
        self._folder = folder
        self._report = report
        self._on_file = on_file
        self._whole: set[str] = set()  # checkpoints whose remote copy equals the local one
        report.left_out += [f"{name}: {why}" for name, why in sorted(folder.left_out.items())]

    def units(self, states: dict[str, str], keep: int | None) -> None:
        """Copy all complete units."""
        named = [state_names(text, base_of(name)) for name, text in states.items()]
        found = units(self._folder, {name for _, every in named for name in every})
        faults = {unit: find_fault(self._folder, unit) for unit in found}
        usable = {unit.name for unit, fault in faults.items() if fault is None}
        latest = {name for name, _ in named}
        for _, every in named if keep is not None else ():
            gone = {name for name in every if name in usable}
            gone -= set([name for name in every if name in usable][-keep:])  # type: ignore[operator]
            self.old += [u for u in found if u.kind == "checkpoint" and u.name in gone]
        for unit, fault in faults.items():
            if unit in self.old:
                continue
            if unit.kind == "checkpoint" and not unit.files and unit.name not in latest:
                continue  # removed by its trainer, which updates the state only afterwards
            if fault is not None:
                self._report.incomplete.append(f"{unit.name or '.'}: {fault}")
            elif self._copy(unit) and unit.kind == "checkpoint":
                self._whole.add(unit.name)

    def _copy(self, unit: Unit) -> bool:
        """Copy the changed files of a unit; returns whether both copies are equal now."""
        folder, report = self._folder, self._report
        facts = [folder.facts(name) for name in unit.files]
        fresh = [name for name in unit.files if not self._is_there(name)]
        known = is_known(unit)
        if not known:
            report.unknown += unit.files
        if fresh and known and (fault := find_fault(folder, unit, read=True)):
            report.incomplete.append(f"{unit.name}: {fault}")
            return False
        with contextlib.ExitStack() as stack:
            writers: list[tuple[FileWriter, dict[str, str]]] = []
            for name in fresh:
                writer = self._store.open_write(f"{self.there.path}/{name}")
                stack.callback(writer.discard)  # has no effect after close
                writers.append((writer, {DIGEST: _upload(folder, name, writer)}))
            if facts != [folder.facts(name) for name in unit.files]:
                report.unsettled += unit.files
                if known:
                    report.incomplete.append(f"{unit.name}: changed while it was read")
                return False
            if writers and not self._publish(unit, fresh, writers):
                return False
        report.unchanged += len(unit.files) - len(fresh)
        for name in fresh:
            report.add(name, folder.sizes[name])
            self._on_file(name, folder.sizes[name])
        return True

    def _publish(
        self, unit: Unit, fresh: list[str], writers: list[tuple[FileWriter, dict[str, str]]]
    ) -> bool:
        """Publish the changed files, unless one of the others changes remotely."""
        there = self.there
        others = {f"{there.path}/{n}": there.entries[n] for n in unit.files if n not in fresh}
        try:
            close_together(self._store, writers, others)
        except Outdated:
            self._report.unsettled += unit.files
            return False
        return True

    def _is_there(self, name: str) -> bool:
        entry = self.there.entries.get(name)
        if entry is None or entry.size != self._folder.sizes[name]:
            return False
        known = entry.attributes.get(DIGEST)
        with contextlib.suppress(FileNotFoundError):  # pruned in the meantime
            known = known or digest_of(self.there, name)
        return known == digest_of(self._folder, name)

    def state(self, name: str, text: str, doomed: Collection[str]) -> None:
        """Publish a state, restricted to the checkpoints that exist remotely."""
        every = state_names(text, base_of(name))[1]
        for _ in range(_LOOKS):
            now = self._files_of(every)
            over = {unit.name: unit for unit in units(now, every) if unit.name in every}
            good = {one for one, unit in over.items() if self._is_good(now, unit, doomed)}
            data = state_of(text, base_of(name), good)
            if data is None:
                return
            indices = [index_of(over[one]) for one in state_names(data, base_of(name))[1]]
            needed = {f"{now.path}/{index}": now.entries[index] for index in indices}
            with contextlib.suppress(Outdated):
                self._write(name, data.encode("utf-8", "surrogateescape"), needed)
                return
        self._report.unsettled.append(name)

    def _files_of(self, names: Collection[str]) -> RemoteFolder:
        """List the remote folder again; returns only the files of these checkpoints."""
        now, starts = RemoteFolder(self._store, self.there.path), tuple(f"{n}." for n in names)
        return now.only([name for name in now.sizes if name.startswith(starts)])

    def _is_good(self, now: RemoteFolder, unit: Unit, doomed: Collection[str]) -> bool:
        """True if a state may name a checkpoint."""
        if unit.name in self._whole:
            # While the index exists, the files exist: other pushes replace them by complete ones only.
            return index_of(unit) in now.entries
        # A checkpoint that is missing or incomplete here may still exist remotely.
        old = unit.name in {one.name for one in self.old}
        return not old and not set(unit.files) & set(doomed) and _is_whole(now, unit)

    def _write(self, name: str, data: bytes, needed: dict[str, Entry]) -> None:
        path = f"{self.there.path}/{name}"
        entry = self._store.found(path)
        if entry and entry.attributes.get(DIGEST) == hashlib.sha256(data).hexdigest():
            self._report.unchanged += 1
            return
        write_file(self._store, path, data, needed)
        self._report.add(name, len(data))

    def remove(self, doomed: Collection[str], states: Collection[str]) -> None:
        """Remove remote files, and the names of checkpoints that become incomplete without them.

        Args:
            doomed: Names of the files.
            states: Names of states that may not exist remotely yet.
        """
        every = {name for name in self.there.sizes if name.rpartition("/")[2] == STATE_FILE}
        seen = {
            name: read_state(self._store, f"{self.there.path}/{name}")
            for name in sorted(every | set(states))
        }
        now = RemoteFolder(self._store, self.there.path)
        gone = units(now.only(set(doomed) & set(now.sizes)))
        spare = [unit for unit in gone if _is_spare(now, unit)]
        rest = [unit for unit in gone if unit not in spare]
        done = [*retire(self._store, now, spare, {}), *retire(self._store, now, rest, seen)]
        self._report.unsettled += [name for u in gone if u not in done for name in u.files]


def _is_spare(now: RemoteFolder, unit: Unit) -> bool:
    """True if no state can name the files, or the checkpoint is complete without them."""
    if unit.kind != "checkpoint":
        return True
    left = [n for n in now.sizes if n.startswith(f"{unit.name}.") and n not in unit.files]
    rest = now.only(left)
    return any(one.name == unit.name and _is_whole(rest, one) for one in units(rest, [unit.name]))


def _is_whole(folder: RemoteFolder, unit: Unit) -> bool:
    try:
        return find_fault(folder, unit) is None
    except FileNotFoundError:
        return False  # pruned in the meantime


def _upload(folder: LocalFolder, name: str, writer: FileWriter) -> str:
    """Store the content without publishing it, and return its SHA-256."""
    digest = hashlib.sha256()
    with folder.open(name) as file:
        for block in blocks(file):
            digest.update(block)
            writer.write(block)
    writer.store_all()
    return digest.hexdigest()


def watch(
    store: Store,
    local: Path,
    remote: str,
    *,
    interval_s: float = 2.0,
    delete: bool = False,
    keep: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    on_push: Callable[[SyncReport], None] = lambda report: None,
) -> SyncReport:
    """Push changes of a local directory until `stopped`, then once more.

    Waits for a directory that does not exist yet, and for a checkpoint that is still incomplete. If
    the cluster cannot be reached, the next round tries again.

    Returns:
        The report of the last push.
    """
    seen: object = None
    while True:
        last, report = stopped(), SyncReport()
        present = LocalFolder(local).signature()
        if present and (present != seen or last):
            with contextlib.ExitStack() as stack:
                if not last:
                    stack.enter_context(contextlib.suppress(ConnectionError, TimeoutError))
                begin = time.monotonic()
                _push_once(store, local, remote, report, delete=delete, keep=keep)
                report.seconds = round(time.monotonic() - begin, 3)
                seen = None if report.unsettled else present
                if report.copied:
                    if keep is not None:
                        prune(store, remote, keep)
                    on_push(report)
        if last:
            return report
        time.sleep(interval_s)
