"""The file object that `igfs://` returns to fsspec.

filesystem -> **fsspec_file** -> store
"""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING, Any, Final

from fsspec.spec import AbstractBufferedFile

from ignitetf.fs.chunks import as_bytes
from ignitetf.fs.files import FileWriter
from ignitetf.fs.path import os_error
from ignitetf.fs.store import FileReader

if TYPE_CHECKING:
    from ignitetf.fs.filesystem import IgniteFileSystem

__all__ = ["IgniteFile"]

_MODES: Final = ("rb", "wb", "xb", "ab")
_LINE_BYTES: Final = 4096  # looked through for the end of a line, then twice as many


class IgniteFile(AbstractBufferedFile):  # type: ignore[misc]
    """An open file.

    Others see written bytes after `flush` or `close`, and never only a part of what was written
    between two of these. Leaving a `with` block with an exception discards what was not flushed.
    Reading does not need fsspec's caches, since the store reads ahead; `cache_type` adds one
    anyway.
    """

    _writer: FileWriter | None = None

    def __init__(
        self,
        fs: IgniteFileSystem,
        path: str,
        mode: str = "rb",
        block_size: int | str = "default",
        autocommit: bool = True,
        cache_type: str = "none",
        cache_options: dict[str, Any] | None = None,
        size: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.closed: bool
        if mode not in _MODES:
            raise NotImplementedError(
                f"{path}: mode {mode!r}: files of igfs:// are read, or written from their "
                "beginning, or appended to; open them once for each"
            )
        self._reader: FileReader | None = None
        self._direct = cache_type == "none"
        if mode == "rb":
            self._reader = fs.store.open_read(path)
            size = self._reader.size
        super().__init__(
            fs, path, mode, block_size, autocommit, cache_type, cache_options, size, **kwargs
        )
        if self._reader is None:
            self._writer = fs.store.open_write(
                path, mode[0], parents=fs.auto_mkdir, chunk_bytes=kwargs.get("chunk_bytes")
            )
            self.loc = self._writer.size

    def _fetch_range(self, start: int, end: int) -> bytes:
        assert self._reader is not None
        return self._reader.read(start, end - start)

    def readinto(self, b: Any) -> int:
        """Read into a buffer without another copy."""
        if not self._direct or self._reader is None:
            return int(super().readinto(b))
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        count = self._reader.read_into(self.loc, as_bytes(memoryview(b)))
        self.loc += count
        return count

    def readline(self, size: int | None = -1) -> bytes:
        """Return the next line, or at most `size` bytes of it; nothing at the end."""
        left = self.size - self.loc if size is None or size < 0 else size
        parts, step = list[bytes](), _LINE_BYTES
        while left > 0 and (part := bytes(self.read(min(step, left)))):
            end = part.find(b"\n") + 1
            if end:
                self.seek(end - len(part), os.SEEK_CUR)
                part = part[:end]
            parts.append(part)
            left = 0 if end else left - len(part)
            step = min(2 * step, self.blocksize)
        return b"".join(parts)

    def readlines(self, hint: int | None = -1) -> list[bytes]:
        """Return the lines that follow, about `hint` bytes of them; none at the end."""
        lines: list[bytes] = []
        left = hint if hint is not None and hint > 0 else self.size
        while left > 0 and (line := self.readline()):
            lines.append(line)
            left -= len(line)
        return lines

    def write(self, data: Any) -> int:
        """Append bytes."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        if self._writer is None:
            raise io.UnsupportedOperation("not writable")
        count = self._writer.write(memoryview(data))
        self.loc += count
        return count

    def flush(self, force: bool = False) -> None:
        """Make what was written visible to all readers, except in a transaction."""
        if self.closed:
            raise ValueError("Flush on closed file")
        if self._writer is not None and self.autocommit:
            self._writer.publish()

    def close(self) -> None:
        """Publish, or in a transaction only store, and release the file."""
        if self.closed:
            return
        self.closed = True
        if self._reader is not None:
            self._reader.close()
        elif self._writer is not None and self.autocommit:
            self._writer.close()
        elif self._writer is not None:
            self._writer.store_all()

    def commit(self) -> None:
        """Publish at the end of a transaction."""
        if self._writer is not None:
            self._writer.close()

    def discard(self) -> None:
        """Discard what was not published."""
        self.closed = True
        if self._writer is not None:
            self._writer.discard()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and self._writer is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        # A child of a fork has a copy of the object, and leaves the file to its parent.
        if self._writer is None or not self._writer.inherited:
            super().__del__()

    def fileno(self) -> int:
        """Raise: there is no file descriptor."""
        raise os_error(errno.EBADF, self.path, "no file of the operating system")
