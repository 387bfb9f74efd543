"""Many small files, one per record: lists them compactly, and reads them on all cores.

folder -> **list of files** -> groups, read in parallel -> records in order

The list keeps all names in one byte string, about 60 bytes per file, so that millions of files fit
into memory. Files are read in groups of about a megabyte; each thread reads one group, results are
returned in order, and only a few groups are in memory at a time.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

from ignitetf.errors import SourceError
from ignitetf.load.sources.base import MAX_RECORD_BYTES, ordered_map
from ignitetf.load.sources.location import Place

__all__ = ["FileList", "is_hidden", "read_groups", "readable_name", "walk"]

R = TypeVar("R")

_GROUP_BYTES = 1 << 20
_GROUP_FILES = 128
# Names that macOS, Windows and file servers add to folders and archives.
_ADDED = frozenset({"__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini"})
# Deeper folders probably contain a link to a folder above.
_MAX_DEPTH = 32


def readable_name(name: str) -> str:
    r"""Return the name of a file as text; different names give different texts.

    Bytes that are not UTF-8 are written as `\xff`. Some rare names contain such text already. Their
    backslashes are doubled, so that no two names become equal.
    """
    if name.isascii() and "\\x" not in name:
        return name
    raw = name.encode("utf-8", "surrogateescape")
    text = raw.decode("utf-8", "backslashreplace")
    if text == name and "\\x" not in name:
        return name
    return raw.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def is_hidden(name: str) -> bool:
    """Return whether a name is hidden or of an operating system, and so not part of the data."""
    return name.startswith(".") or name in _ADDED


class FileList:
    """Names relative to a folder, sizes, and optional labels and splits.

    Attributes:
        folder: The folder that names are relative to.
        total_bytes: Sum of all known sizes.
    """

    def __init__(self, folder: Place) -> None:
        self.folder = folder
        self.total_bytes = 0
        self._names = bytearray()
        self._ends = array("q")
        self._sizes = array("q")
        self._labels = array("i")
        self._splits = array("i")
        self._stamp = hashlib.sha256()

    def __len__(self) -> int:
        """Number of files."""
        return len(self._ends)

    def add(self, name: str, size: int, version: str, label: int = -1, split: int = -1) -> None:
        """Append a file.

        Raises:
            SourceError: Its name is not text, which some remote file systems allow.
        """
        try:
            raw = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise SourceError(f"{name!a}: not a file name", hint="rename it") from error
        self._names += raw
        self._ends.append(len(self._names))
        self._sizes.append(size)
        self.total_bytes += size
        self._labels.append(label)
        self._splits.append(split)
        self._stamp.update(f"{len(raw)}|{size}|{version}|{label}|{split}|".encode() + raw)

    def sort_into(self, parts: Sequence[tuple[int, int]]) -> None:
        """Give each file the label and the split that its present label is the number of."""
        for number, group in enumerate(self._labels):
            self._labels[number], self._splits[number] = parts[group]
        self._stamp.update(repr(list(parts)).encode())

    def name(self, number: int) -> str:
        """Return the name of a file, relative to the folder, with forward slashes."""
        start = self._ends[number - 1] if number else 0
        return self._names[start : self._ends[number]].decode("utf-8", "surrogateescape")

    def size(self, number: int) -> int:
        """Return the bytes of a file; 0 if unknown."""
        return self._sizes[number]

    def label(self, number: int) -> int:
        """Return the label of a file, -1 if it has none."""
        return self._labels[number]

    def split(self, number: int) -> int:
        """Return the number of a file's split, -1 if it has none."""
        return self._splits[number]

    def place(self, number: int) -> Place:
        """Return the location of a file."""
        return self.folder.child(self.name(number))

    def read(self, number: int) -> bytes:
        """Read a file."""
        return self.place(number).read(MAX_RECORD_BYTES)

    def stamp(self) -> str:
        """Return a text that changes with any name, size, version or label."""
        return self._stamp.hexdigest()


def walk(folder: Place, below: str = "", depth: int = 0) -> Iterator[tuple[str, int, str]]:
    """Yield name (relative, with forward slashes), size and version of all files, by folder.

    Hidden files and folders are left out.
    """
    if depth > _MAX_DEPTH:
        raise SourceError(
            f"{folder.name}: more than {_MAX_DEPTH} nested folders",
            hint="does a link lead back to a folder above it?",
        )
    for name, is_dir, size, version in folder.children():
        if is_hidden(name):
            continue
        if is_dir:
            yield from walk(folder.child(name), f"{below}{name}/", depth + 1)
        else:
            yield f"{below}{name}", size, version


def read_groups(
    start: int,
    count: int,
    size_of: Callable[[int], int],
    load: Callable[[range], Sequence[R]],
    max_bytes: int,
) -> Generator[tuple[int, R], None, None]:
    """Call `load` for groups of the records from `start` up to `count` on all cores.

    Args:
        start: Number of the first record.
        count: Number of records in all.
        size_of: Returns the approximate bytes of a record's result.
        load: Reads the records of a group; called in threads.
        max_bytes: Bytes of a batch, the upper limit of a group.

    Yields:
        Number and result of each record, in order.
    """

    def load_group(group: range) -> list[tuple[int, R]]:
        return list(zip(group, load(group), strict=True))

    limit = min(_GROUP_BYTES, max_bytes)
    for group in ordered_map(load_group, _groups(start, count, size_of, limit)):
        yield from group


def _groups(start: int, count: int, size_of: Callable[[int], int], limit: int) -> Iterator[range]:
    first, total = start, 0
    for number in range(start, count):
        size = size_of(number)
        if number > first and (total + size > limit or number - first >= _GROUP_FILES):
            yield range(first, number)
            first, total = number, 0
        total += size
    if first < count:
        yield range(first, count)
