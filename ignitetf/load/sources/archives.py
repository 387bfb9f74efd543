r"""Archives (zip, tar) as folders of image files.

photos.zip, zip://, tar:// -> **files by path, read one at a time from a tar** -> Place

An archive may name a file as `./photos/a.jpg` or `photos\a.jpg`, and need not list its folders. Here
paths are plain, and each folder knows its entries. Two files of one name are an error, as only one
of them would be loaded.
"""

from __future__ import annotations

import contextlib
import io
import posixpath
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

from ignitetf.errors import SourceError
from ignitetf.load.sources.base import MAX_RECORD_BYTES
from ignitetf.load.sources.tarfiles import members

__all__ = ["ARCHIVES", "ArchiveFiles"]

# Protocols of fsspec.
ARCHIVES: Final = ("zip", "tar")

_UTF8: Final = 0x800  # the flag of names in UTF-8
_HINT: Final = "unpack the archive, and load the folder, or pack it again"

# Path, member, whether it is a folder, size, and a text that changes with the content.
_Packed = tuple[str, Any, bool, int, str]


class ArchiveFiles:
    """The files of an archive, by path; what `Place` needs of a file system."""

    def __init__(
        self,
        archive: zipfile.ZipFile | tarfile.TarFile,
        name: str,
        stamp: str = "",
        owner: object = None,
    ) -> None:
        """Read the index.

        Args:
            archive: The archive.
            name: Its name, for messages.
            stamp: Changes with the archive.
            owner: Closes the archive when nobody uses it.

        Raises:
            SourceError: Two files have one name, or one is outside.
        """
        self._archive = archive
        self._name = name
        self._owner = owner
        # A tar file has one position, which all readers of it would move.
        self._lock = threading.Lock()
        self._entries: dict[str, dict[str, Any]] = {"": _folder("")}
        self._below: dict[str, dict[str, None]] = {"": {}}
        for packed, member, is_folder, size, version in _packed(archive):
            path = _plain(packed)
            if path == ".." or path.startswith("../"):
                raise SourceError(
                    f"{name}: the archive has a file outside of it: {packed}", hint=_HINT
                )
            if is_folder:
                self._add(_folder(path))
            elif path:
                entry = {"name": path, "size": size, "type": "file", "member": member}
                self._add({**entry, "mtime": f"{stamp}|{version}"})

    def _add(self, entry: dict[str, Any]) -> None:
        path, is_folder = entry["name"], entry["type"] == "directory"
        if (known := self._entries.get(path)) is not None:
            if is_folder and known["type"] == "directory":
                return
            what = "a file and a folder" if known["type"] != entry["type"] else "two files"
            raise SourceError(f"{self._name}: {what} in it are called {path!r}", hint=_HINT)
        self._entries[path] = entry
        if is_folder:
            self._below[path] = {}
        above = posixpath.dirname(path)
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
        if isinstance(self._archive, zipfile.ZipFile):
            return self._archive.open(info["member"])
        with self._lock:
            file = self._archive.extractfile(info["member"])
            if file is None:
                raise SourceError(f"{self._name}: {path} is a link to a folder", hint=_HINT)
            with file:
                data = file.read(MAX_RECORD_BYTES + 1)
        if len(data) > MAX_RECORD_BYTES:
            raise SourceError(
                f"{self._name}: {path} has more than {MAX_RECORD_BYTES >> 20} MiB", hint=_HINT
            )
        return io.BytesIO(data)


def _packed(archive: zipfile.ZipFile | tarfile.TarFile) -> Iterator[_Packed]:
    """Yield the files and folders of an archive; pipes and devices are left out."""
    if isinstance(archive, zipfile.ZipFile):
        for info in archive.infolist():
            name = _named(info.filename, info.flag_bits)
            yield name, info, name.endswith("/"), info.file_size, f"{info.CRC}|{info.date_time}"
        return
    for member in members(archive):
        if member.isdir() or member.isfile() or member.issym() or member.islnk():
            yield member.name, member, member.isdir(), member.size, f"{member.mtime}"


def _named(packed: str, flags: int) -> str:
    """Return the name of a file in a zip file as it was meant.

    macOS writes UTF-8 without the flag that says so, and old programs of Windows write backslashes.
    """
    if not packed.isascii() and not flags & _UTF8:
        with contextlib.suppress(UnicodeError):
            packed = packed.encode("cp437").decode("utf-8")
    return packed.replace("\\", "/")


def _folder(path: str) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory"}


def _plain(path: str) -> str:
    """Return a path from the root of the archive; the root is an empty text."""
    plain = posixpath.normpath(path.strip("/"))
    return "" if plain == "." else plain
