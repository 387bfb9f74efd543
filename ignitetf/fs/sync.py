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
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ignitetf.fs.path import os_error
from ignitetf.fs.records import Entry
from ignitetf.fs.store import Store

__all__ = ["Checkpoint", "SyncReport", "checkpoints", "prune", "pull", "push", "watch"]

STATE_FILE: Final = "checkpoint"
DIGEST: Final = "sha256"
_BLOCK_BYTES: Final = 4 << 20
_DATA = re.compile(r"(?P<prefix>.+)\.data-\d{5}-of-(?P<shards>\d{5})")
_STATE_LINE = re.compile(
    r'^(?P<field>model_checkpoint_path|all_model_checkpoint_paths): "(?P<path>(?:[^"\\]|\\.)*)"$'
)
_TIMES = re.compile(r"^(all_model_checkpoint_timestamps|last_preserved_timestamp): ")
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


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a directory.

    Attributes:
        name: Its prefix, as TensorFlow takes it.
        files: Names of its files.
        size_bytes: Bytes of all its files.
        mtime_ns: Time of its newest file.
        complete: Whether the index and all parts of the data are there.
        latest: Whether the state file names it as the latest.
    """

    name: str
    files: tuple[str, ...]
    size_bytes: int
    mtime_ns: int
    complete: bool
    latest: bool


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
    states = {path: _without(text, old.get(path, set())) for path, text in states.items()}
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
        names = [Path(one).name for one in _state_paths(text)[1]]
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


# The state file: TensorFlow's CheckpointState as text


def _state_paths(text: str) -> tuple[str | None, list[str]]:
    """The latest checkpoint and all checkpoints that a state names."""
    latest, every = None, []
    for line in text.splitlines():
        if found := _STATE_LINE.match(line):
            if found["field"] == "model_checkpoint_path":
                latest = found["path"]
            else:
                every.append(found["path"])
    return latest, every


def _names_unsettled(text: str, folder: Path, local: Path, report: SyncReport) -> bool:
    latest, every = _state_paths(text)
    prefixes = {Path(path).name for path in [*every, *([latest] if latest else [])]}
    below = folder.relative_to(local).as_posix()
    at = "" if below == "." else f"{below}/"
    return any(
        name.startswith(f"{at}{prefix}.") for name in report.unsettled for prefix in prefixes
    )


def _push_state(
    store: Store, text: str, folder: Path, remote: str, name: str, report: SyncReport
) -> None:
    data = _relative_state(text, folder).encode()
    digest = hashlib.sha256(data).hexdigest()
    if store.exists(remote) and store.stat(remote).attributes.get(DIGEST) == digest:
        report.unchanged += 1
        return
    _write(store, remote, data)
    report.copied.append(name)
    report.size_bytes += len(data)


def _write(store: Store, remote: str, data: bytes) -> None:
    writer = store.open_write(remote)
    try:
        writer.write(memoryview(data))
        writer.close({DIGEST: hashlib.sha256(data).hexdigest()})
    finally:
        writer.discard()


def _relative_state(text: str, folder: Path) -> str:
    """The state with paths below its own folder made relative, so that it means the same there."""
    lines = []
    for line in text.splitlines():
        found = _STATE_LINE.match(line)
        if found and Path(found["path"]).is_absolute():
            path = Path(found["path"])
            if path.parent in (folder, folder.absolute(), folder.resolve()):
                line = f'{found["field"]}: "{path.name}"'
        lines.append(line)
    return "\n".join(lines) + "\n"


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
    states = {name: _read(store, f"{base}/{name}") for name in found if _order(name)[0] == 2}
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


def _read(store: Store, path: str) -> bytes:
    with contextlib.closing(store.open_read(path)) as reader:
        return reader.read(0, reader.size)


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


# Checkpoints of a remote directory


def checkpoints(store: Store, remote: str) -> list[Checkpoint]:
    """The checkpoints of a remote directory, oldest first."""
    base = remote.rstrip("/")
    entries = {name: e for name, e in store.list(remote) if not e.is_directory}
    latest, order = None, list[str]()
    if STATE_FILE in entries:
        latest, order = _state_paths(_read(store, f"{base}/{STATE_FILE}").decode())
    groups: dict[str, list[str]] = {}
    shards: dict[str, int] = {}
    for name in entries:
        if data := _DATA.fullmatch(name):
            groups.setdefault(data["prefix"], []).append(name)
            shards[data["prefix"]] = int(data["shards"])
        elif name.endswith(".index"):
            groups.setdefault(name[: -len(".index")], []).append(name)
    found = [
        Checkpoint(
            name=prefix,
            files=tuple(sorted(names)),
            size_bytes=sum(entries[name].size for name in names),
            mtime_ns=max(entries[name].mtime_ns for name in names),
            complete=f"{prefix}.index" in names and len(names) == shards.get(prefix, 0) + 1 > 1,
            latest=latest is not None and Path(latest).name == prefix,
        )
        for prefix, names in groups.items()
    ]
    # The state knows the order; what it does not name is older, or nobody knows.
    place = {Path(path).name: number for number, path in enumerate(order)}
    return sorted(found, key=lambda one: (place.get(one.name, -1), _natural(one.name)))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def prune(store: Store, remote: str, keep: int) -> list[Checkpoint]:
    """Remove all but the newest complete checkpoints; the latest always stays.

    The state file forgets them first, so that no reader is led to one that goes.

    Returns:
        The checkpoints that were removed.
    """
    if keep < 1:
        raise os_error(errno.EINVAL, remote, "at least one checkpoint must be kept")
    base = remote.rstrip("/")
    complete = [one for one in checkpoints(store, remote) if one.complete]
    gone = [one for one in complete[:-keep] if not one.latest]
    if not gone:
        return []
    names = {one.name for one in gone}
    if store.exists(f"{base}/{STATE_FILE}"):
        text = _read(store, f"{base}/{STATE_FILE}").decode()
        _write(store, f"{base}/{STATE_FILE}", _without(text, names).encode())
    for one in gone:
        # The index first: without it the rest is no checkpoint.
        for name in sorted(one.files, key=lambda n: not n.endswith(".index")):
            with contextlib.suppress(FileNotFoundError):
                store.remove(f"{base}/{name}")
    return gone


def _without(text: str, names: set[str]) -> str:
    """The state without some checkpoints and their time stamps."""
    if not names:
        return text
    lines = text.splitlines()
    paths = [m["path"] for m in map(_STATE_LINE.match, lines) if m and m["field"][0] == "a"]
    kept = [Path(path).name not in names for path in paths]
    counts: dict[str, int] = {}
    out = []
    for line in lines:
        kind = line.partition(":")[0]
        if kind in ("all_model_checkpoint_paths", "all_model_checkpoint_timestamps"):
            number = counts.get(kind, 0)
            counts[kind] = number + 1
            if number < len(kept) and not kept[number]:
                continue
        out.append(line)
    return "\n".join(out) + "\n"


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
