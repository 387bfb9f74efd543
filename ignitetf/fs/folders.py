"""A directory of checkpoints, local or remote: file names, sizes, bytes, and its state file.

push, pull, checkpoints -> units -> **folders** -> store

The state file `checkpoint` is TensorFlow's CheckpointState as text. It lists the checkpoints. Its
prefixes are relative to the copied folder; `base` is the directory of the state file in it.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import posixpath
import re
from collections.abc import Collection, Container, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from ignitetf.fs.chunks import as_bytes
from ignitetf.fs.records import Entry
from ignitetf.fs.store import FileReader, Store

__all__ = [
    "PART",
    "Folder",
    "LocalFolder",
    "RemoteFolder",
    "base_of",
    "blocks",
    "state_names",
    "state_of",
]

PART: Final = ".igfs-part"  # suffix of an unfinished pull; removed by renaming at the end
_BLOCK_BYTES: Final = 4 << 20
# Temporary files of TensorFlow, Orbax and `pull`, which they rename when complete.
_TEMPORARY: Final = re.compile(
    r"(?:.*/)?(?:[^/]*\.tempstate\d+|checkpoint\.tmp[0-9a-f]+|[^/]*_temp/part-[^/]*"
    rf"|[^/]*\.orbax-checkpoint-tmp(?:-\d+)?/.*|[^/]*{re.escape(PART)})"
)


class Folder(Protocol):
    """The interface of a directory that recognizing checkpoints needs.

    Attributes:
        sizes: Size in bytes of each file below it, by relative name.
    """

    sizes: dict[str, int]

    def open(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open a file for reading."""
        ...


class LocalFolder:
    """A snapshot of a local directory; files that appear later are not seen.

    Attributes:
        path: Path of the directory.
        sizes: Size in bytes of each file, by relative name.
        left_out: Entries that cannot be copied, with the reason.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sizes: dict[str, int] = {}
        self.left_out: dict[str, str] = {}
        self._list_files()

    def _list_files(self) -> None:
        for where, folders, names in os.walk(self.path, onerror=self._unlisted):
            base = Path(where).relative_to(self.path)
            links = [name for name in folders if Path(where, name).is_symlink()]
            for name in (*names, *links):
                relative = (base / name).as_posix()
                path = self.path / relative
                with contextlib.suppress(FileNotFoundError):
                    if (shown := relative.encode(errors="backslashreplace").decode()) != relative:
                        self.left_out[shown] = "its name is not valid Unicode"
                    elif _TEMPORARY.fullmatch(relative):
                        self.left_out[relative] = "is being written under this name"
                    elif path.is_file():
                        self.sizes[relative] = path.stat().st_size
                    elif name in links:
                        self.left_out[relative] = "is a link to a directory"
                    else:
                        self.left_out[relative] = "is not a file"

    def _unlisted(self, error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):  # not removed meanwhile
            name = Path(error.filename).relative_to(self.path).as_posix()
            self.left_out[name] = f"cannot be listed: {error.strerror}"

    def may_be_left_out(self, name: str) -> bool:
        """True if a file of this name may exist in a skipped part of the directory."""
        above = Path(name).parents
        return name in self.left_out or any(one.as_posix() in self.left_out for one in above)

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return (self.path / name).open("rb")

    def signature(self) -> tuple[object, ...]:
        """Return a value that changes when any of the files does."""
        found: list[object] = []
        for name in sorted(self.sizes):
            with contextlib.suppress(FileNotFoundError):
                found.append((name, self.facts(name)))
        return tuple(found)

    def facts(self, name: str) -> tuple[int, ...]:
        """Return a value that changes with the size, time or inode of the file."""
        found = (self.path / name).stat()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class RemoteFolder:
    """A snapshot of a directory in the cluster.

    Attributes:
        path: Path of the directory, without a trailing slash.
        entries: The files, by relative name.
        sizes: Size in bytes of each file, by relative name.
    """

    def __init__(self, store: Store, path: str) -> None:
        self.path = path.rstrip("/")
        self.entries: dict[str, Entry] = {}
        self._store = store
        waiting = [""]
        while waiting:
            below = waiting.pop()
            for name, entry in store.list(f"{self.path}/{below}"):
                if entry.is_directory:
                    waiting.append(f"{below}{name}/")
                else:
                    self.entries[f"{below}{name}"] = entry
        self.sizes = {name: entry.size for name, entry in self.entries.items()}

    def only(self, names: Collection[str]) -> RemoteFolder:
        """Return the same directory, restricted to some of its files."""
        found = copy.copy(self)
        found.entries = {name: self.entries[name] for name in names}
        found.sizes = {name: self.sizes[name] for name in names}
        return found

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return io.BufferedReader(_Raw(self._store.open_read(f"{self.path}/{name}")))


class _Raw(io.RawIOBase):
    def __init__(self, reader: FileReader) -> None:
        self._reader = reader
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._reader.size}[whence]
        if base + offset < 0:
            raise ValueError(f"offset {base + offset} is before the beginning of the file")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        count = self._reader.read_into(self._at, as_bytes(memoryview(buffer)))
        self._at += count
        return count

    def close(self) -> None:
        self._reader.close()
        super().close()


def blocks(file: BinaryIO) -> Iterator[memoryview]:
    """Yield the rest of a file in blocks; each block is valid until the next one."""
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        yield buffer[:count]


_LINE: Final = re.compile(
    r'(?P<field>model_checkpoint_path|all_model_checkpoint_paths): "(?P<path>(?:[^"\\]|\\.)*)"'
)
_ESCAPE: Final = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})|(.))", re.DOTALL
)
_LETTERS: Final = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"\\": b"\\", b"'": b"'", b'"': b'"', b"?": b"?",
}  # fmt: skip
_LATEST: Final = "model_checkpoint_path"
_TIMES: Final = "all_model_checkpoint_timestamps"


def base_of(state: str) -> str:
    """Return the directory of a state file, relative like its name."""
    return state.rpartition("/")[0]


def state_names(text: str, base: str = "") -> tuple[str | None, list[str]]:
    """Return the prefixes of the latest and of all checkpoints in a state, oldest first."""
    latest, every = None, list[str]()
    for line in text.splitlines():
        if found := _LINE.fullmatch(line):
            if found["field"] == _LATEST:
                latest = _prefix(found["path"], base)
            else:
                every.append(_prefix(found["path"], base))
    if latest is not None and latest not in every:
        every.append(latest)
    return latest, every


def state_of(text: str, base: str, there: Container[str]) -> str | None:
    """Return the state restricted to the checkpoints in `there`, with paths relative to it.

    If the latest checkpoint is not among them, the newest of them takes its place.

    Returns:
        The text; None if no checkpoint is left.
    """
    lines = text.splitlines()
    latest, every = state_names(text, base)
    kept = [name for name in every if name in there]
    if not kept:
        return None
    if latest not in there:
        latest = kept[-1]
    out, numbers = [], {"": -1, _TIMES: -1}
    for line in lines:
        found = _LINE.fullmatch(line)
        if found and found["field"] == _LATEST:
            line = f'{_LATEST}: "{_relative(latest or "", base)}"'
        elif found:
            numbers[""] += 1
            if _prefix(found["path"], base) not in there:
                continue
            line = f'{found["field"]}: "{_relative(_prefix(found["path"], base), base)}"'
        elif line.startswith(f"{_TIMES}:"):
            # There is one timestamp per path, in the same order.
            numbers[_TIMES] += 1
            number = numbers[_TIMES]
            if number < len(every) and every[number] not in there:
                continue
        out.append(line)
    return "\n".join(out) + "\n"


def _prefix(path: str, base: str) -> str:
    """Resolve a path; an absolute one is a checkpoint next to the state, as folders get moved."""
    plain = _ESCAPE.sub(_unescaped, path.encode("utf-8", "surrogateescape")).decode(
        "utf-8", "surrogateescape"
    )
    own = plain.rpartition("/")[2] if plain.startswith("/") or "://" in plain else plain
    return posixpath.normpath(posixpath.join(base, own))


def _relative(prefix: str, base: str) -> str:
    plain = posixpath.relpath(prefix, base or ".")
    return "".join(_quoted(byte) for byte in plain.encode("utf-8", "surrogateescape"))


def _unescaped(escape: re.Match[bytes]) -> bytes:
    """Return the bytes of an escape; an escape unknown to protobuf stays unchanged."""
    octal, hexadecimal, code, letter = escape.groups()
    if octal or hexadecimal:
        return bytes([int(octal or hexadecimal, 8 if octal else 16) & 255])
    if code:
        with contextlib.suppress(ValueError, OverflowError):
            return chr(int(code[1:], 16)).encode()
        return escape[0]
    return _LETTERS.get(letter, escape[0])


def _quoted(byte: int) -> str:
    """Return a byte in protobuf's text format."""
    if byte in b'"\\':
        return f"\\{chr(byte)}"
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
