"""The checkpoints of a directory in the cluster: which there are, and removing the older ones.

sync -> **checkpoints** -> store

A checkpoint is an index and its data; the state file `checkpoint`, TensorFlow's CheckpointState as
text, names those that count. Needs no TensorFlow.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ignitetf.fs.path import os_error
from ignitetf.fs.store import Store

__all__ = [
    "DIGEST",
    "STATE_FILE",
    "Checkpoint",
    "checkpoints",
    "prune",
    "read_file",
    "relative_state",
    "state_paths",
    "state_without",
    "write_file",
]

STATE_FILE: Final = "checkpoint"
DIGEST: Final = "sha256"
_DATA = re.compile(r"(?P<prefix>.+)\.data-\d{5}-of-(?P<shards>\d{5})")
_STATE_LINE = re.compile(
    r'^(?P<field>model_checkpoint_path|all_model_checkpoint_paths): "(?P<path>(?:[^"\\]|\\.)*)"$'
)


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


def checkpoints(store: Store, remote: str) -> list[Checkpoint]:
    """The checkpoints of a remote directory, oldest first."""
    base = remote.rstrip("/")
    entries = {name: e for name, e in store.list(remote) if not e.is_directory}
    latest, order = None, list[str]()
    if STATE_FILE in entries:
        latest, order = state_paths(read_file(store, f"{base}/{STATE_FILE}").decode())
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
        text = read_file(store, f"{base}/{STATE_FILE}").decode()
        write_file(store, f"{base}/{STATE_FILE}", state_without(text, names).encode())
    for one in gone:
        # The index first: without it the rest is no checkpoint.
        for name in sorted(one.files, key=lambda n: not n.endswith(".index")):
            with contextlib.suppress(FileNotFoundError):
                store.remove(f"{base}/{name}")
    return gone


# The state file


def state_paths(text: str) -> tuple[str | None, list[str]]:
    """The latest checkpoint and all checkpoints that a state names."""
    latest, every = None, []
    for line in text.splitlines():
        if found := _STATE_LINE.match(line):
            if found["field"] == "model_checkpoint_path":
                latest = found["path"]
            else:
                every.append(found["path"])
    return latest, every


def relative_state(text: str, folder: Path) -> str:
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


def state_without(text: str, names: set[str]) -> str:
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


# Small files, whole


def read_file(store: Store, path: str) -> bytes:
    """The content of a remote file."""
    with contextlib.closing(store.open_read(path)) as reader:
        return reader.read(0, reader.size)


def write_file(store: Store, remote: str, data: bytes) -> None:
    """Replace a remote file; its SHA-256 is kept with it, as that of every pushed file."""
    writer = store.open_write(remote)
    try:
        writer.write(memoryview(data))
        writer.close({DIGEST: hashlib.sha256(data).hexdigest()})
    finally:
        writer.discard()
