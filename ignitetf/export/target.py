"""The file or folder that an export writes; it appears complete, or not at all.

formats -> **files under a temporary name** -> rename -> target

All files are written through fsspec, so `igfs://` and other URLs work as local paths do.
"""

from __future__ import annotations

import contextlib
import posixpath
import secrets
from pathlib import Path
from typing import IO, Final, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ignitetf.errors import ConfigError
from ignitetf.load.sources.location import reading

__all__ = ["MARKER", "Target"]

# Marks a folder as made by an export; only such a folder may be replaced.
MARKER: Final = ".ignitetf-export"
_LONGEST_NAME: Final = 200  # bytes; most file systems take 255


class Target:
    """A file or folder to write, as a context manager.

    An exception, Ctrl-C included, removes what was written. A killed process leaves its files under
    a hidden name, `.NAME.exporting-...`, next to the target, and leaves an existing target
    unchanged. Only a process killed while it replaces a folder can leave both the old and the new
    folder under hidden names.

    Args:
        location: Local path or fsspec URL.
        folder: True if the target is a folder of files.
        overwrite: True if a file, or a folder that an export made, may be replaced.

    Raises:
        ConfigError: The target exists and must not be replaced, or its parent folder is missing.
    """

    def __init__(self, location: str, *, folder: bool, overwrite: bool) -> None:
        self.location = location
        self.folder = folder
        self._overwrite = overwrite
        hint = "a local path, or a URL with a protocol of fsspec, such as s3:// or igfs://"
        if not location.strip() or any(ord(letter) < 32 for letter in location):
            raise ConfigError(f"{location!r} is not the name of a file or folder", hint=hint)
        with reading(location, hint):
            self._fs, path = fsspec.core.url_to_fs(location)
        self._path = str(path).rstrip("/")
        above, name = posixpath.split(self._path)
        if name in ("", ".", "..") or self._has_this_folder():
            raise ConfigError(
                f"{location!r} is not the name of a new file or folder", hint="name one that is new"
            )
        with reading(location, hint):
            if isinstance(self._fs, LocalFileSystem):
                with contextlib.suppress(FileNotFoundError):
                    Path(self._path).lstat()  # raises for a name that is too long
            if self._fs.exists(self._path):
                self._require_replaceable()
            if above and not self._fs.isdir(above):
                raise ConfigError(
                    f"{location}: there is no folder {above}", hint="create the folder first"
                )
        short = name.encode(errors="surrogateescape")[:_LONGEST_NAME].decode(errors="ignore")
        self._temporary = posixpath.join(above, f".{short}.exporting-{secrets.token_hex(4)}")
        self.files = 0
        self._open: list[IO[bytes]] = []

    def _has_this_folder(self) -> bool:
        """Return True if the target is the current folder of this process, or a folder above it."""
        return isinstance(self._fs, LocalFileSystem) and Path.cwd().is_relative_to(self._path)

    def _require_replaceable(self) -> None:
        is_folder = bool(self._fs.isdir(self._path))
        if is_folder and not self._fs.ls(self._path, detail=False):
            return
        if not self._overwrite:
            raise ConfigError(
                f"{self.location} exists", hint="name another target, or replace it: --overwrite"
            )
        if not is_folder and not self._fs.isfile(self._path):
            raise ConfigError(
                f"{self.location} is a pipe or a device, which an export does not replace",
                hint="name a file",
            )
        if is_folder and not self._fs.exists(f"{self._path}/{MARKER}"):
            raise ConfigError(
                f"{self.location} is a folder that was not made by an export, so it is not replaced",
                hint="remove it yourself, or name another target",
            )

    def __enter__(self) -> Target:
        if self.folder:
            self._fs.makedirs(self._temporary, exist_ok=True)
        return self

    def __exit__(self, kind: object, error: object, *_: object) -> None:
        if kind is None:
            try:
                self._publish()
            except BaseException:
                self._discard()
                raise
            return
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = self.location  # the system names no file when a disk is full
        self._discard()

    def open(self, name: str) -> IO[bytes]:
        """Open a new file: the target itself, or a file of this name in the target folder."""
        path = self._temporary
        if self.folder:
            path = f"{self._temporary}/{name}"
            if "/" in name:
                self._fs.makedirs(posixpath.dirname(path), exist_ok=True)
        self.files += 1
        file = cast(IO[bytes], self._fs.open(path, "wb"))
        self._open = [each for each in self._open if not each.closed] + [file]
        return file

    def _publish(self) -> None:
        if self.folder:
            with self._fs.open(f"{self._temporary}/{MARKER}", "wb") as file:
                file.write(b"Made by 'ignitetf export', which may replace this folder.\n")
        if there := bool(self._fs.exists(self._path)):
            self._require_replaceable()  # another export may have been faster
        old = f"{self._temporary}.old"
        # Renaming replaces a file atomically, but a folder only if it is empty.
        aside = there and (self.folder or bool(self._fs.isdir(self._path)))
        if aside:
            self._move(self._path, old)
        try:
            self._move(self._temporary, self._path)
        except BaseException:
            if aside:
                self._move(old, self._path)
            raise
        if aside:
            self._fs.rm(old, recursive=bool(self._fs.isdir(old)))

    def _move(self, source: str, target: str) -> None:
        """Rename; unlike `mv`, never move into a folder that has the new name."""
        if isinstance(self._fs, LocalFileSystem):
            Path(source).rename(target)
        elif rename := getattr(self._fs, "rename_exactly", None):  # igfs
            rename(source, target)
        else:
            self._fs.mv(source, target, recursive=bool(self._fs.isdir(source)))

    def _discard(self) -> None:
        for file in self._open:
            with contextlib.suppress(Exception):  # the file is removed anyway
                file.close()
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._temporary, recursive=self.folder)
