"""Keys and values of the metadata cache.

The cache maps text to JSON in UTF-8, so that any client can read it, and SQL too
(`UTF8TOSTRING(V)`). The last member `c` of each object is a checksum, which reveals a byte changed
on the way. The first character of a key is its kind:

    0-9 a-f  `<directory id>/<name>`   a directory entry: `Entry`
    #        `#<directory id>`         the directory itself: {"p": id of its parent}
    @        `@<path>`                 a hint: the last known id of the directory at this path
    +        `+<content id>`           a writer's lease on chunks it has not published yet
    -        `-<content id>/<reader>`  a reader's lease on content that may be replaced meanwhile
    !        `!<content id>`           content without references: {"n": chunks, "at": ms}
    ~        `~<directory id>`         a removed directory whose entries are still to be removed
    %        `%<content id>`           new key of a file that was renamed while being written
    =        `=lock`, `=format`        the lock for moving directories; version and chunk size

Ids are 16 random hexadecimal digits; the root directory is 0.
"""

from __future__ import annotations

import json
import secrets
import time
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from ignitetf.errors import WireError

__all__ = [
    "FORMAT_KEY",
    "MOVE_LOCK_KEY",
    "ROOT_ID",
    "Entry",
    "Extent",
    "chunk_count",
    "decode",
    "directory_key",
    "encode",
    "entry_key",
    "entry_range",
    "garbage",
    "garbage_key",
    "hint_key",
    "lease_key",
    "moved_key",
    "new_id",
    "reader_key",
    "removed_key",
]

ROOT_ID: Final = "0" * 16
FORMAT_KEY: Final = "=format"
MOVE_LOCK_KEY: Final = "=lock"
_CHECKSUM: Final = b',"c":'


def new_id() -> str:
    """Return a new id for a directory or for content."""
    return secrets.token_hex(8)


def entry_key(parent_id: str, name: str) -> str:
    """Key of the entry `name` in a directory."""
    return f"{parent_id}/{name}"


def entry_range(parent_id: str) -> tuple[str, str]:
    """First key of a directory's entries, and the first key after them ("0" follows "/")."""
    return f"{parent_id}/", f"{parent_id}0"


def directory_key(directory_id: str) -> str:
    """Key of the directory itself; changing its entries requires the lock on this key."""
    return f"#{directory_id}"


def hint_key(path: str) -> str:
    """Key of the hint for the directory at this path."""
    return f"@{path}"


def garbage(contents: dict[str, int]) -> dict[str, bytes]:
    """Return notes that these contents (chunk counts by content id) are to be removed later."""
    now_ms = time.time_ns() // 1_000_000
    return {
        garbage_key(content): encode({"n": count, "at": now_ms})
        for content, count in contents.items()
    }


def lease_key(content_id: str) -> str:
    """Key of the lease of this content's writer."""
    return f"+{content_id}"


def reader_key(content_id: str, reader: str) -> str:
    """Key of a reader's lease on this content."""
    return f"-{content_id}/{reader}"


def garbage_key(content_id: str) -> str:
    """Key of the note that this content has no references any more."""
    return f"!{content_id}"


def removed_key(directory_id: str) -> str:
    """Key of the note that this directory's entries are to be removed."""
    return f"~{directory_id}"


def moved_key(content_id: str) -> str:
    """Key of the note with the new key of the file that has this content."""
    return f"%{content_id}"


def encode(value: dict[str, Any]) -> bytes:
    """Return the stored form: a JSON object whose last member is the CRC-32 of all before it."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()[:-1]
    return body + (_CHECKSUM if value else _CHECKSUM[1:]) + b"%d}" % zlib.crc32(body)


def decode(value: bytes | memoryview) -> dict[str, Any]:
    """Decode a stored value.

    Raises:
        WireError: The bytes are not a record, or were changed.
    """
    data = bytes(value)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError("a record of the file system is not JSON") from error
    if not isinstance(found, dict):
        raise WireError("a record of the file system is not a JSON object")
    body = data.rpartition(b'"c":')[0].removesuffix(b",")
    if found.pop("c", None) != zlib.crc32(body):
        raise WireError("a record of the file system does not match its checksum")
    return found


def chunk_count(size: int, chunk_bytes: int) -> int:
    """Return the number of chunks needed for `size` bytes."""
    return -(-size // chunk_bytes)


@dataclass(frozen=True)
class Extent:
    """A run of bytes of some content: a file is the concatenation of its extents.

    Attributes:
        content_id: Id of the content.
        start: Offset of the run within the content.
        size: Length of the run in bytes.
        chunk_bytes: Size of each of the content's chunks except the last.
    """

    content_id: str
    start: int
    size: int
    chunk_bytes: int

    @property
    def end(self) -> int:
        """Offset within the content after the last byte of the run."""
        return self.start + self.size


@dataclass(frozen=True)
class Entry:
    """A directory entry: a file with its content, or a directory.

    Attributes:
        directory_id: Id of the directory; None for a file.
        mtime_ns: Time of the last change, nanoseconds since 1970.
        extents: Content of a file.
        attributes: Attributes of the content, such as its SHA-256; a change drops them.
        writers: Content ids of writers that have published and still have the file open.
    """

    directory_id: str | None
    mtime_ns: int
    extents: tuple[Extent, ...] = ()
    attributes: dict[str, str] = field(default_factory=dict)
    writers: tuple[str, ...] = ()

    @property
    def is_directory(self) -> bool:
        """True if this is a directory."""
        return self.directory_id is not None

    @property
    def size(self) -> int:
        """Bytes of a file; 0 for a directory."""
        return sum(extent.size for extent in self.extents)

    def contents(self) -> dict[str, int]:
        """Return the number of chunks to keep, by content id."""
        kept: dict[str, int] = {}
        for extent in self.extents:
            count = chunk_count(extent.end, extent.chunk_bytes)
            kept[extent.content_id] = max(count, kept.get(extent.content_id, 0))
        return kept

    def to_bytes(self) -> bytes:
        """Return the stored form of the entry."""
        if self.directory_id is not None:
            return encode({"t": "d", "i": self.directory_id, "m": self.mtime_ns})
        value: dict[str, Any] = {
            "t": "f",
            "n": self.size,
            "m": self.mtime_ns,
            "x": [[e.content_id, e.start, e.size, e.chunk_bytes] for e in self.extents],
        }
        if self.attributes:
            value["a"] = self.attributes
        if self.writers:
            value["w"] = self.writers
        return encode(value)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Entry:
        """Decode a stored entry."""
        value = decode(data)
        try:
            if value["t"] == "d":
                return cls(value["i"], value["m"])
            extents = tuple(Extent(*extent) for extent in value["x"])
            found = cls(None, value["m"], extents, value.get("a", {}), tuple(value.get("w", ())))
            whole = found.size == value["n"]
        except (KeyError, TypeError) as error:
            raise WireError("a record of the file system is not a directory entry") from error
        if not whole:
            raise WireError("the extents of a file do not add up to its size")
        return found
