"""Common parts of push and pull: their report, SHA-256, small files, remote states.

push, pull, checkpoints -> **sync** -> folders, store
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Final

from ignitetf.fs.files import close_together
from ignitetf.fs.folders import Folder, blocks
from ignitetf.fs.records import Entry
from ignitetf.fs.store import Store

__all__ = ["DIGEST", "SyncReport", "digest_of", "read_file", "read_state", "write_file"]

DIGEST: Final = "sha256"


@dataclass
class SyncReport:
    """The result of a push or pull.

    Attributes:
        copied: Names of the copied files.
        unchanged: Number of files that were already the same.
        incomplete: Incomplete checkpoints, which were not copied, each with the reason.
        unsettled: Names of files that were not copied or removed because they, or what belongs to
            them, changed meanwhile.
        unknown: Names of files other than checkpoints: copied, but it is unknown whether they are
            complete.
        left_out: Other entries that were not copied, each with the reason.
        size_bytes: Bytes copied.
        seconds: Duration.
    """

    copied: list[str] = field(default_factory=list)
    unchanged: int = 0
    incomplete: list[str] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    size_bytes: int = 0
    seconds: float = 0.0

    def begin(self) -> None:
        """Clear the fields that the next pass determines anew."""
        self.unchanged = 0
        for names in (self.incomplete, self.unsettled, self.unknown, self.left_out):
            names.clear()

    def add(self, name: str, size: int) -> None:
        """Record a copied file."""
        self.copied.append(name)
        self.size_bytes += size

    def facts(self) -> dict[str, Any]:
        """Return the report as a mapping, with counts instead of names."""
        facts = asdict(self)
        return {name: len(v) if isinstance(v, list) else v for name, v in facts.items()}


def digest_of(folder: Folder, name: str) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with folder.open(name) as file:
        for block in blocks(file):
            digest.update(block)
    return digest.hexdigest()


def read_file(store: Store, path: str) -> bytes:
    """Return the content of a remote file."""
    with contextlib.closing(store.open_read(path)) as reader:
        return reader.read(0, reader.size)


def read_state(store: Store, path: str) -> tuple[Entry | None, str]:
    """Return the entry and the text of a remote state; None and "" if there is none."""
    try:
        reader = store.open_read(path)
    except FileNotFoundError:
        return None, ""
    except IsADirectoryError:
        return store.found(path), ""
    with contextlib.closing(reader):
        return reader.entry, reader.read(0, reader.size).decode("utf-8", "surrogateescape")


def write_file(
    store: Store,
    remote: str,
    data: bytes,
    unchanged: Mapping[str, Entry | None] = MappingProxyType({}),
) -> None:
    """Replace a remote file, and store its SHA-256 with it, as for every pushed file.

    Args:
        store: The file system.
        remote: Path of the file.
        data: Its new content.
        unchanged: Files that must not have changed since they were read; None for a missing file.

    Raises:
        Outdated: One of `unchanged` is different; nothing was written.
    """
    writer = store.open_write(remote)
    try:
        writer.write(memoryview(data))
        digest = {DIGEST: hashlib.sha256(data).hexdigest()}
        close_together(store, [(writer, digest)], unchanged)
    finally:
        writer.discard()
