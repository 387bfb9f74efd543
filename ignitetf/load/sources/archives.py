"""Archives (zip, tar) as folders of image files.

photos.zip, zip://, tar:// -> **files by path, read one at a time from a tar** -> Place

fsspec reads the archives. Its index has the paths as they are packed (`./photos/a.jpg`), and lists
all files for each folder. Here paths are plain, and each folder knows its entries.
"""

from __future__ import annotations

import contextlib
import io
import posixpath
import threading
from pathlib import PurePosixPath
from typing import Any, Final

from ignitetf.errors import SourceError

__all__ = ["ARCHIVES", "ArchiveFiles"]

# Protocols of fsspec.
ARCHIVES: Final = ("zip", "tar")

_UTF8: Final = 0x800  # the flag of names in UTF-8
_HINT: Final = "is it a whole zip or tar file? pack it again"


class ArchiveFiles:
    """The files of an archive, by path; what `Place` needs of a file system."""

    def __init__(self, fs: Any, stamp: str = "") -> None:
        """Read the index.

        Args:
            fs: The file system of fsspec for this archive.
            stamp: Changes with the archive.
        """
        self._fs = fs
        # A tar file has one position, which all readers of it would move.
        self._lock: Any = threading.Lock() if fs.protocol == "tar" else contextlib.nullcontext()
        self._entries: dict[str, dict[str, Any]] = {"": _folder("")}
        self._below: dict[str, dict[str, None]] = {"": {}}
        for packed, info in fs.find("", withdirs=True, detail=True).items():
            path = _plain(_named(packed, info) if fs.protocol == "zip" else packed)
            if path.startswith("../"):
                raise SourceError(f"the archive has a file outside of it: {packed}", hint=_HINT)
            if not path:
                continue
            if info.get("type") == "directory":
                # fsspec adds folders that a zip file does not list, by its own reading of names.
                if fs.protocol != "zip" or "flag_bits" in info:
                    self._add(_folder(path))
                continue
            version = f"{stamp}|{info.get('CRC', '')}|{info.get('mtime', '')}"
            size = int(info.get("size") or 0)
            self._add(
                {"name": path, "size": size, "type": "file", "packed": packed, "mtime": version}
            )

    def _add(self, entry: dict[str, Any]) -> None:
        path = entry["name"]
        if entry["type"] == "file" or path not in self._entries:
            self._entries[path] = entry
        if entry["type"] == "directory":
            self._below.setdefault(path, {})
        above = posixpath.dirname(path)
        if above not in self._entries:
            self._add(_folder(above))
        self._below[above][path] = None

    def info(self, path: str) -> dict[str, Any]:
        """Return type, size and version of a file or folder.

        Raises:
            FileNotFoundError: There is none.
        """
        if (found := self._entries.get(_plain(path))) is None:
            raise FileNotFoundError(path)
        return found

    def exists(self, path: str) -> bool:
        """Return whether a file or folder of this path exists."""
        return _plain(path) in self._entries

    def isdir(self, path: str) -> bool:
        """Return whether a folder of this path exists."""
        return self._entries.get(_plain(path), {}).get("type") == "directory"

    def ls(self, path: str, detail: bool = True) -> list[dict[str, Any]]:
        """Return the entries of a folder."""
        if not self.isdir(path):
            raise FileNotFoundError(path)
        return [self._entries[one] for one in self._below[_plain(path)]]

    def glob(self, pattern: str) -> list[str]:
        """Return the paths that a pattern matches."""
        return [
            path for path in self._entries if path and PurePosixPath(path).match(_plain(pattern))
        ]

    def open(self, path: str, mode: str = "rb") -> Any:
        """Open a file; from a tar file, it is read into memory."""
        info = self.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(path)
        with self._lock:
            file = self._fs.open(info["packed"], mode)
            if isinstance(self._lock, contextlib.nullcontext):
                return file
            with file:
                return io.BytesIO(file.read())


def _named(packed: str, info: dict[str, Any]) -> str:
    """Return the name of a file in a zip file as it was meant.

    macOS writes UTF-8 without the flag that says so, and old programs of Windows write backslashes.
    """
    if not packed.isascii() and not info.get("flag_bits", _UTF8) & _UTF8:
        with contextlib.suppress(UnicodeError):
            packed = packed.encode("cp437").decode("utf-8")
    return packed.replace("\\", "/")


def _folder(path: str) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory"}


def _plain(path: str) -> str:
    """Return a path from the root of the archive; the root is an empty text."""
    plain = posixpath.normpath(path.strip("/"))
    return "" if plain == "." else plain
