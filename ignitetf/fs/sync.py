"""What push and pull share: their report, SHA-256, small files.

push, pull, watch, checkpoints -> **sync** -> folders, store
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ignitetf.fs.folders import Folder, blocks
from ignitetf.fs.store import Store

__all__ = ["DIGEST", "SyncReport", "digest_of", "read_file", "write_file"]

DIGEST: Final = "sha256"


@dataclass
class SyncReport:
    """The result of a push or pull.

    Attributes:
        copied: Names of the copied files.
        unchanged: Number of files that were already the same.
        incomplete: What is wrong with each checkpoint that was not copied because it is incomplete.
        unsettled: Names of files that were not copied because they changed while being read.
        unknown: Names of files other than checkpoints: copied, but nobody knows whether they are
            complete.
        left_out: What was not copied for other reasons, each with its reason.
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


def write_file(store: Store, remote: str, data: bytes) -> None:
    """Replace a remote file, and store its SHA-256 with it, as for every pushed file."""
    writer = store.open_write(remote)
    try:
        writer.write(memoryview(data))
        writer.close({DIGEST: hashlib.sha256(data).hexdigest()})
    finally:
        writer.discard()
