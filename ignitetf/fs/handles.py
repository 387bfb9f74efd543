"""TensorFlow's file operations on top of the store: handles, URIs, error codes.

TensorFlow -> igfs.c -> **handles** -> store

This module does not import TensorFlow. Any thread may call it, several at once. It keeps nothing
per thread, because TensorFlow's threads lose their Python state between calls.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import platform
import re
import sys
import threading
from typing import Final

from ignitetf.errors import IgniteTFError
from ignitetf.fs.files import FileWriter
from ignitetf.fs.path import NativeIOUnavailable, as_os_error, os_error, os_errors
from ignitetf.fs.records import Entry
from ignitetf.fs.store import DEFAULT_NAME, FileReader, Store, open_store
from ignitetf.settings import Settings

__all__ = ["Code", "Handles", "code_of", "require_linux", "status_of"]

_HINT: Final = "use fsspec (igfs:// URLs), or 'ignitetf checkpoint push' and 'pull'"


def require_linux() -> None:
    """Raise NativeIOUnavailable if TensorFlow cannot use the plugin."""
    if sys.platform != "linux":
        raise NativeIOUnavailable(
            f"igfs:// inside TensorFlow needs Linux, this is {platform.system()}", hint=_HINT
        )


class Code:
    """TensorFlow's status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15


_BY_ERRNO = {
    errno.ENOENT: Code.NOT_FOUND,
    errno.EEXIST: Code.ALREADY_EXISTS,
    errno.EACCES: Code.PERMISSION_DENIED,
    errno.EPERM: Code.PERMISSION_DENIED,
    errno.ENOTEMPTY: Code.FAILED_PRECONDITION,
    errno.EISDIR: Code.FAILED_PRECONDITION,
    errno.ENOTDIR: Code.FAILED_PRECONDITION,
    errno.EBUSY: Code.FAILED_PRECONDITION,
    errno.ESTALE: Code.FAILED_PRECONDITION,
    errno.ENOSPC: Code.RESOURCE_EXHAUSTED,
    errno.EINVAL: Code.INVALID_ARGUMENT,
    errno.EILSEQ: Code.INVALID_ARGUMENT,
    errno.ENAMETOOLONG: Code.INVALID_ARGUMENT,
    errno.EXDEV: Code.UNIMPLEMENTED,
    errno.EIO: Code.DATA_LOSS,
}


def code_of(error: BaseException) -> int:
    """Return TensorFlow's status code for an exception."""
    if isinstance(error, IgniteTFError):
        error = as_os_error(error)
    if isinstance(error, OSError) and error.errno in _BY_ERRNO:
        return _BY_ERRNO[error.errno]
    if isinstance(error, (ConnectionError, TimeoutError)):
        return Code.UNAVAILABLE
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return Code.CANCELLED
    if isinstance(error, MemoryError):
        return Code.RESOURCE_EXHAUSTED
    if isinstance(error, ValueError):
        return Code.INVALID_ARGUMENT
    return Code.UNKNOWN


def status_of(error: BaseException) -> tuple[int, bytes]:
    """Return TensorFlow's status code and message for an exception."""
    code = code_of(error)
    message = "igfs: interrupted" if code == Code.CANCELLED else str(error) or type(error).__name__
    return code, message.replace("\0", " ").encode("utf-8", "replace")


class _Handle:
    """An open file; its lock serializes writes."""

    def __init__(self, uri: str, reader: FileReader | None, writer: FileWriter | None) -> None:
        self.uri = uri
        self.reader = reader
        self.writer = writer
        self.lock = threading.Lock()


class Handles:
    """All open files of this process, and the operations on paths.

    Args:
        settings: Cluster of `igfs:///`; None for the default settings, resolved on first use.
        name: Name of the file system.
    """

    def __init__(self, settings: Settings | None = None, name: str = DEFAULT_NAME) -> None:
        self._name = name
        self._default = settings
        self._settings: dict[str, Settings] = {}
        self._handles: dict[int, _Handle] = {}
        self._numbers = itertools.count(1)

    def configure(self, settings: Settings | None, name: str = DEFAULT_NAME) -> None:
        """Change which cluster `igfs:///` refers to, for files opened from now on."""
        self._default, self._name = settings, name
        self._settings.clear()

    def __len__(self) -> int:
        return len(self._handles)

    # Files

    def open(self, uri: str, mode: str) -> int:
        """Open a file with mode "rb", "wb" or "ab", and return its handle.

        Writing creates missing parent directories.
        """
        store, path = self._at(uri)
        reader = writer = None
        if mode == "rb":
            reader = store.open_read(path)
        else:
            writer = store.open_write(path, mode[0])
        number = next(self._numbers)
        self._handles[number] = _Handle(uri, reader, writer)
        return number

    def read(self, number: int, offset: int, target: memoryview) -> int:
        """Read at an offset and return the number of bytes read."""
        reader = self._handles[number].reader
        if reader is None:
            raise os_error(errno.EBADF, self._handles[number].uri)
        return reader.read_into(offset, target)

    def write(self, number: int, data: memoryview) -> None:
        """Append a copy of the bytes."""
        handle = self._handles[number]
        with handle.lock:
            self._writer(handle).write(data)

    def tell(self, number: int) -> int:
        """Return the offset of the next byte."""
        return self._writer(self._handles[number]).size

    def flush(self, number: int) -> None:
        """Publish the written bytes."""
        handle = self._handles[number]
        with handle.lock:
            self._writer(handle).publish()

    def close(self, number: int) -> None:
        """Publish the written bytes, and close the file."""
        handle = self._handles[number]
        with handle.lock:
            if handle.writer is not None:
                handle.writer.close()
            elif handle.reader is not None:
                handle.reader.close()

    def free(self, number: int) -> None:
        """Release the handle, closing the file if necessary."""
        handle = self._handles.get(number)
        if handle is None:
            return
        try:
            self.close(number)
        finally:
            self._handles.pop(number, None)

    def flush_all(self) -> None:
        """Publish the content of open writers at exit, as far as the cluster can be reached.

        Raises the first failure after trying the others.
        """
        failure: Exception | None = None
        for handle in list(self._handles.values()):
            # A thread that hangs in a write at exit holds the lock; do not wait for it for long.
            if handle.writer is None or not handle.lock.acquire(timeout=1.0):
                continue
            try:
                if not (handle.writer.closed or handle.writer.inherited):
                    handle.writer.publish()
            except (ConnectionError, TimeoutError):
                raise
            except Exception as error:
                failure = failure or error
            finally:
                handle.lock.release()
        if failure is not None:
            raise failure

    @staticmethod
    def _writer(handle: _Handle) -> FileWriter:
        if handle.writer is None:
            raise os_error(errno.EBADF, handle.uri)
        return handle.writer

    # Paths

    def exists(self, uri: str) -> None:
        """Raise ENOENT unless the path exists, also for a path that can never exist."""
        if not self._is_there(uri):
            raise os_error(errno.ENOENT, uri)

    def stat(self, uri: str) -> tuple[int, int, bool]:
        """Return size in bytes, modification time in nanoseconds, and whether it is a directory."""
        entry = self._entry(uri)
        return entry.size, entry.mtime_ns, entry.is_directory

    def mkdir(self, uri: str) -> None:
        """Create a directory; raises EEXIST, ENOENT."""
        store, path = self._at(uri)
        store.make_directory(path)

    def makedirs(self, uri: str) -> None:
        """Create a directory and its missing parents; raises ENOTDIR."""
        store, path = self._at(uri)
        try:
            store.make_directory(path, parents=True, exist_ok=True)
        except FileExistsError:
            raise os_error(errno.ENOTDIR, uri) from None

    def unlink(self, uri: str) -> None:
        """Remove a file."""
        store, path = self._at(uri)
        store.remove(path)

    def rmdir(self, uri: str) -> None:
        """Remove an empty directory."""
        store, path = self._at(uri)
        store.remove_directory(path)

    def rmtree(self, uri: str) -> None:
        """Remove a file, or a directory with everything in it; raises ENOENT."""
        self.exists(uri)
        store, path = self._at(uri)
        try:
            store.remove_directory(path, recursive=True)
        except NotADirectoryError:
            store.remove(path)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing an existing file."""
        store, path = self._at(source)
        other, goal = self._at(target)
        if other is not store:
            raise os_error(errno.EXDEV, source, "a rename cannot cross file systems; copy instead")
        store.rename(path, goal)

    def copy(self, source: str, target: str) -> None:
        """Copy a file, replacing an existing file; raises ENOENT, EISDIR."""
        store, path = self._at(source)
        other, goal = self._at(target)
        if other is not store:
            raise os_error(errno.EXDEV, source, "copy through a local file")
        store.copy(path, goal, parents=False)

    def children(self, uri: str) -> list[str]:
        """Return the names in a directory."""
        store, path = self._at(uri)
        return [name for name, _ in store.list(path)]

    def glob(self, pattern: str) -> list[str]:
        """Return the URIs that match, sorted; lists only directories that a wildcard needs."""
        head, _, rest = pattern.partition("://")
        authority, _, path = rest.partition("/")
        found = [f"{head}://{authority}"]
        for part in filter(None, path.split("/")):
            if re.search(r"[*?\[\\]", part):
                matches = re.compile(_pattern(part)).fullmatch
                found = [f"{base}/{n}" for base in found for n in self._names(base) if matches(n)]
            else:
                found = [f"{base}/{part}" for base in found]
        return sorted(uri for uri in found if self._is_there(uri))

    def _names(self, uri: str) -> list[str]:
        store, path = self._at(uri)
        entry = store.found(path)
        if entry is None or not entry.is_directory:
            return []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # replaced meanwhile
            return [name for name, _ in store.list(path)]
        return []

    def _is_there(self, uri: str) -> bool:
        store, path = self._at(uri)
        return store.found(path) is not None

    def _entry(self, uri: str) -> Entry:
        store, path = self._at(uri)
        return store.stat(path)

    def _at(self, uri: str) -> tuple[Store, str]:
        """Return the store of a URI, opened by this process, and the path in it."""
        _, _, rest = uri.partition("://")
        authority, slash, path = rest.partition("/")
        if authority not in self._settings:
            with os_errors():
                self._settings[authority] = self._resolve(authority)
        return open_store(self._settings[authority], self._name), slash + path or "/"

    def _resolve(self, authority: str) -> Settings:
        if not authority:
            return self._default or Settings.resolve()
        user, _, address = authority.rpartition("@")
        given = {"address": address, **({"username": user} if user else {})}
        if self._default is None:
            return Settings.resolve(**given)
        addresses = tuple(part for part in address.split(",") if part)
        changed = {"addresses": addresses, **({"username": user} if user else {})}
        return self._default.replace(**changed)


def _pattern(part: str) -> str:
    """Convert TensorFlow's wildcards (* ? [..] [^..], backslash quotes) to a regex."""
    out, at = ["(?s:"], 0
    while at < len(part):
        char = part[at]
        at += 1
        if char == "*":
            out.append(".*")
        elif char == "?":
            out.append(".")
        elif char == "\\" and at < len(part):
            out.append(re.escape(part[at]))
            at += 1
        elif char == "[" and (end := part.find("]", at + 1)) > 0:
            body = part[at:end]
            at = end + 1
            negated = body[0] in "^!"
            inner = body[negated:].replace("\\", r"\\").replace("[", r"\[").replace("^", r"\^")
            out.append(f"[{'^' if negated else ''}{inner}]")
        else:
            out.append(re.escape(char))
    return "".join([*out, ")"])
