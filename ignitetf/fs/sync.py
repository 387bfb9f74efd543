"""Keep a local directory of checkpoints and one in the cluster the same.

local directory <-> **sync** <-> store

Needs no TensorFlow and nothing native. A reader never sees an incomplete checkpoint: files go
first (data, then indexes), the `checkpoint` state file that names them last, and each file
appears whole. What is there already, by size and SHA-256, is not copied again; the SHA-256 is
kept as an attribute of the remote file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ignitetf.fs.checkpoints import (
    DIGEST,
    STATE_FILE,
    prune,
    read_file,
    relative_state,
    state_paths,
    state_without,
    write_file,
)
from ignitetf.fs.path import os_error
from ignitetf.fs.records import Entry
from ignitetf.fs.store import Store

__all__ = ["SyncReport", "pull", "push", "watch"]

_BLOCK_BYTES: Final = 4 << 20
_PULL_TRIES: Final = 5


@dataclass
class SyncReport:
    """What a push or pull did.

    Attributes:
        copied: Names of the files that were copied.
        unchanged: Number of files that were the same already.
        unsettled: Names of files that changed while they were read; the next push takes them.
        size_bytes: Bytes copied.
        seconds: Time it took.
    """

    copied: list[str] = field(default_factory=list)
    unchanged: int = 0
    unsettled: list[str] = field(default_factory=list)
    size_bytes: int = 0
    seconds: float = 0.0

    def facts(self) -> dict[str, Any]:
        """The report as a mapping."""
        return {**asdict(self), "copied": len(self.copied), "unsettled": len(self.unsettled)}


class _Changed(Exception):
    """A local file changed while it was read."""


def push(
    store: Store,
    local: Path,
    remote: str,
    *,
    delete: bool = False,
    keep: int | None = None,
    on_file: Callable[[str, int], None] = lambda name, size: None,
) -> SyncReport:
    """Copy what changed from a local directory into the cluster.

    Args:
        store: The file system.
        local: Directory with checkpoints (or anything else).
        remote: Path of the directory there; made where it is missing.
        delete: Remove remote files that are not in the local directory, after the rest.
        keep: Of the checkpoints that a state names, only so many of the newest.
        on_file: Told name and size of each file copied.
    """
    begin, report = time.monotonic(), SyncReport()
    if not local.is_dir():
        raise os_error(errno.ENOTDIR if local.exists() else errno.ENOENT, str(local))
    store.make_directory(remote, parents=True, exist_ok=True)
    # The state is read before the files are listed: what it names is complete by then.
    states = {p: p.read_text(encoding="utf-8") for p in local.rglob(STATE_FILE) if p.is_file()}
    old = _too_old(states, keep) if keep is not None else {}
    states = {path: state_without(text, old.get(path, set())) for path, text in states.items()}
    left_out = tuple(
        f"{(path.parent / name).relative_to(local).as_posix()}."
        for path, gone in old.items()
        for name in gone
    )
    names = [n for n in sorted(_files(local), key=_order) if not n.startswith(left_out)]
    there = _remote_files(store, remote)
    for name in names:
        if local / name not in states:
            with contextlib.suppress(FileNotFoundError):
                _push_file(
                    store,
                    local / name,
                    f"{remote.rstrip('/')}/{name}",
                    name,
                    report,
                    there.get(name),
                    on_file,
                )
    for path, text in states.items():
        name = path.relative_to(local).as_posix()
        if not _names_unsettled(text, path.parent, local, report):
            _push_state(store, text, path.parent, f"{remote.rstrip('/')}/{name}", name, report)
    if delete:
        for name in sorted(set(there) - set(names), key=_order, reverse=True):
            with contextlib.suppress(FileNotFoundError):
                store.remove(f"{remote.rstrip('/')}/{name}")
    report.seconds = round(time.monotonic() - begin, 3)
    return report


def _too_old(states: dict[Path, str], keep: int) -> dict[Path, set[str]]:
    """Names of the checkpoints that each state knows, but for the newest."""
    found = {}
    for path, text in states.items():
        names = [Path(one).name for one in state_paths(text)[1]]
        found[path] = set(names[:-keep])
    return found


def _files(local: Path) -> Iterator[str]:
    for path in local.rglob("*"):
        if path.is_file() and not _is_temporary(path):
            yield path.relative_to(local).as_posix()


def _is_temporary(path: Path) -> bool:
    """Whether TensorFlow, or a pull, is writing this file and will rename it."""
    name = path.name
    return (
        ".tempstate" in name
        or ".tmp" in name
        or name.endswith(".part")
        or path.parent.name.endswith("_temp")
    )


def _order(name: str) -> tuple[int, str]:
    """Data first, then indexes, the state last."""
    base = name.rpartition("/")[2]
    return (2 if base == STATE_FILE else 1 if base.endswith(".index") else 0), name


def _remote_files(store: Store, remote: str) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    waiting = [""]
    while waiting:
        below = waiting.pop()
        for name, entry in store.list(f"{remote.rstrip('/')}/{below}"):
            path = f"{below}{name}"
            if entry.is_directory:
                waiting.append(f"{path}/")
            else:
                found[path] = entry
    return found


def _push_file(
    store: Store,
    local: Path,
    remote: str,
    name: str,
    report: SyncReport,
    there: Entry | None,
    on_file: Callable[[str, int], None],
) -> None:
    size = local.stat().st_size
    try:
        if there is not None and there.size == size:
            known = there.attributes.get(DIGEST) or _remote_digest(store, remote)
            if known == _local_digest(local):
                report.unchanged += 1
                return
        _upload(store, local, remote)
    except _Changed:
        report.unsettled.append(name)
        return
    report.copied.append(name)
    report.size_bytes += size
    on_file(name, size)


def _upload(store: Store, local: Path, remote: str) -> None:
    with contextlib.ExitStack() as stack:
        writer = store.open_write(remote)
        stack.callback(writer.discard)  # does nothing after close
        digest = hashlib.sha256()
        for block in _blocks(local):
            digest.update(block)
            writer.write(block)
        writer.close({DIGEST: digest.hexdigest()})


def _blocks(local: Path) -> Iterator[memoryview]:
    """The file in blocks; raises _Changed when it was written to meanwhile."""
    before = local.stat()
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    with local.open("rb", buffering=0) as source:
        while count := source.readinto(buffer):
            yield buffer[:count]
    after = local.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise _Changed


def _local_digest(local: Path) -> str:
    digest = hashlib.sha256()
    for block in _blocks(local):
        digest.update(block)
    return digest.hexdigest()


def _remote_digest(store: Store, remote: str) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    with contextlib.closing(store.open_read(remote)) as reader:
        at = 0
        while count := reader.read_into(at, buffer):
            digest.update(buffer[:count])
            at += count
    return digest.hexdigest()


def _names_unsettled(text: str, folder: Path, local: Path, report: SyncReport) -> bool:
    latest, every = state_paths(text)
    prefixes = {Path(path).name for path in [*every, *([latest] if latest else [])]}
    below = folder.relative_to(local).as_posix()
    at = "" if below == "." else f"{below}/"
    return any(
        name.startswith(f"{at}{prefix}.") for name in report.unsettled for prefix in prefixes
    )


def _push_state(
    store: Store, text: str, folder: Path, remote: str, name: str, report: SyncReport
) -> None:
    data = relative_state(text, folder).encode()
    digest = hashlib.sha256(data).hexdigest()
    if store.exists(remote) and store.stat(remote).attributes.get(DIGEST) == digest:
        report.unchanged += 1
        return
    write_file(store, remote, data)
    report.copied.append(name)
    report.size_bytes += len(data)


def pull(
    store: Store,
    remote: str,
    local: Path,
    *,
    on_file: Callable[[str, int], None] = lambda name, size: None,
) -> SyncReport:
    """Copy what changed from the cluster into a local directory.

    Each file appears whole, the state files last. Starts again when the remote directory is
    pruned meanwhile.
    """
    begin, report = time.monotonic(), SyncReport()
    for attempt in range(_PULL_TRIES):
        try:
            _pull(store, remote, local, report, on_file)
            break
        except (FileNotFoundError, OSError) as error:
            gone = error.errno in (errno.ENOENT, errno.ESTALE)
            if not gone or attempt == _PULL_TRIES - 1 or not store.exists(remote):
                raise
    report.seconds = round(time.monotonic() - begin, 3)
    return report


def _pull(
    store: Store,
    remote: str,
    local: Path,
    report: SyncReport,
    on_file: Callable[[str, int], None],
) -> None:
    base = remote.rstrip("/")
    found = _remote_files(store, remote)
    states = {name: read_file(store, f"{base}/{name}") for name in found if _order(name)[0] == 2}
    # The files may be newer than the states, never older: list again after the states are read.
    found = _remote_files(store, remote)
    local.mkdir(parents=True, exist_ok=True)
    report.unchanged = 0
    for name in sorted(found, key=_order):
        if name in states:
            continue
        entry, target = found[name], local / name
        if target.is_file() and target.stat().st_size == entry.size:
            known = entry.attributes.get(DIGEST) or _remote_digest(store, f"{base}/{name}")
            if known == _local_digest(target):
                report.unchanged += 1
                continue
        _download(store, f"{base}/{name}", target, entry)
        report.copied.append(name)
        report.size_bytes += entry.size
        on_file(name, entry.size)
    for name, data in states.items():
        target = local / name
        if target.is_file() and target.read_bytes() == data:
            report.unchanged += 1
            continue
        _place(target, [memoryview(data)])
        report.copied.append(name)
        report.size_bytes += len(data)


def _download(store: Store, path: str, target: Path, entry: Entry) -> None:
    digest = hashlib.sha256()

    def blocks() -> Iterator[memoryview]:
        buffer = memoryview(bytearray(_BLOCK_BYTES))
        with contextlib.closing(store.open_read(path)) as reader:
            at = 0
            while count := reader.read_into(at, buffer):
                digest.update(buffer[:count])
                yield buffer[:count]
                at += count
            expected = reader.entry.attributes.get(DIGEST)
        if expected is not None and expected != digest.hexdigest():
            raise os_error(errno.EIO, path, "the content does not match its SHA-256")

    _place(target, blocks())


def _place(target: Path, blocks: Iterator[memoryview] | Sequence[memoryview]) -> None:
    """Write a file beside its place, then put it there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.part")
    try:
        with partial.open("wb") as out:
            out.writelines(blocks)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


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
) -> None:
    """Push whatever changes in a local directory, until `stopped`; then once more.

    A directory that does not exist yet is waited for, and a cluster that cannot be reached is
    tried again at the next turn.
    """
    seen: object = None
    while True:
        last = stopped()
        present = _signature(local)
        if present and (present != seen or last):
            try:
                report = push(store, local, remote, delete=delete, keep=keep)
            except (ConnectionError, TimeoutError):
                if last:
                    raise
            else:
                seen = None if report.unsettled else present
                if report.copied:
                    if keep is not None:
                        prune(store, remote, keep)
                    on_push(report)
        if last:
            return
        time.sleep(interval_s)


def _signature(local: Path) -> tuple[tuple[str, int, int], ...]:
    found = []
    for name in sorted(_files(local)) if local.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            facts = (local / name).stat()
            found.append((name, facts.st_size, facts.st_mtime_ns))
    return tuple(found)
