"""`igfs://[user@]host:port/path` for fsspec, and thus for pandas, pyarrow, Dask and others.

fsspec -> **filesystem** -> store

This module only translates: URLs and options to settings, calls of fsspec to calls of the store.
`igfs:///path` uses the same default address as the rest of ignitetf (environment, profile, running
embedded node, default).

fsspec's own functions for trees treat a directory that cannot be listed as empty, whatever the
reason, and call themselves for each level. The functions here (`Walking`) skip only entries that
were removed meanwhile, and a tree may have any depth.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
from collections.abc import Callable, Iterable, Iterator
from glob import has_magic
from pathlib import Path
from typing import Any, ClassVar, Final

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.utils import infer_storage_options, tokenize

from ignitetf.fs.chunks import as_bytes
from ignitetf.fs.files import FileWriter
from ignitetf.fs.path import os_errors, path_of_url, split_url
from ignitetf.fs.records import Entry
from ignitetf.fs.store import DEFAULT_NAME, FileReader, Store, open_store
from ignitetf.settings import Settings

__all__ = ["IgniteFile", "IgniteFileSystem", "Walking", "connection_of_url"]

_STORE_OPTIONS = ("backups", "data_region", "chunk_bytes")


def connection_of_url(url: str) -> dict[str, Any]:
    """Return the connection settings in a URL: `address`, `username`, `password`."""
    authority, _ = split_url(url)
    if not authority:
        return {}
    user, _, address = authority.rpartition("@")
    options: dict[str, Any] = {"address": address}
    if user:
        parts = infer_storage_options(f"igfs://{user}@host/")
        options["username"] = parts.get("username", user)
        if "password" in parts:
            options["password"] = parts["password"]
    return options


class Walking(AbstractFileSystem):  # type: ignore[misc]
    """The functions of a file system that work on trees."""

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: str | Callable[[OSError], object] = "omit",
        **kwargs: Any,
    ) -> Iterator[_Level]:
        """Yield path, directories and files of each level, as `os.walk` does.

        Args:
            path: Where to begin.
            maxdepth: Number of levels; None for all.
            topdown: True to yield a directory before its contents; the caller may then change
                its list of directories.
            on_error: "raise", a function that is called with the error, or "omit". "omit" skips
                directories that were removed meanwhile; a cluster that cannot be reached is still
                an error.
            **kwargs: `detail`: dicts from name to info instead of lists of names.

        Raises:
            OSError: A directory could not be listed.
        """
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        detail = bool(kwargs.get("detail"))
        above: list[tuple[_Level | None, Iterator[str]]] = [
            (None, iter([self._strip_protocol(path)]))
        ]
        while above:
            level, below = above[-1]
            if (place := next(below, None)) is None:
                above.pop()
                if level is not None and not topdown:
                    yield level
            elif (found := self._level(place, on_error, detail)) is not None:
                if topdown:
                    yield found
                deeper = maxdepth is None or len(above) < maxdepth
                base = place.rstrip("/")
                above.append((found, iter([f"{base}/{n}" for n in found[1] if deeper])))

    def _level(
        self, path: str, on_error: str | Callable[[OSError], object], detail: bool
    ) -> _Level | None:
        try:
            infos = self.ls(path, detail=True)
        except OSError as error:
            gone = isinstance(error, (FileNotFoundError, NotADirectoryError))
            if on_error == "raise" or not (gone or callable(on_error)):
                raise
            if callable(on_error):
                on_error(error)
            return None
        found: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        for info in infos:
            name = "" if info["name"] == path else info["name"].rpartition("/")[2]
            found[info["type"] != "directory"][name] = info
        directories, files = found
        return (path, directories, files) if detail else (path, list(directories), list(files))

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the paths of all files below a path, sorted; with `detail` a dict of path to info.

        A file counts as below itself; with `withdirs` a directory does too.
        """
        path = self._strip_protocol(path)
        found: dict[str, Any] = {}
        for _, directories, files in self.walk(path, maxdepth, detail=True):
            for info in (*files.values(), *(directories.values() if withdirs else ())):
                found[info["name"]] = info
        if withdirs and path not in found and self.isdir(path):
            found[path] = self.info(path)
        return {name: found[name] for name in sorted(found)} if detail else sorted(found)

    def du(
        self,
        path: str,
        total: bool = True,
        maxdepth: int | None = None,
        withdirs: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the bytes of all files below a path; without `total` a dict by path."""
        found = self.find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True)
        sizes = {name: info["size"] for name, info in found.items()}
        return sum(sizes.values()) if total else sizes

    def expand_path(
        self,
        path: str | Iterable[str],
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Expand globs, and with `recursive` directories; an existing path is taken literally."""
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        names = [self._strip_protocol(one) for one in paths]
        plain = [name for name in names if self.is_there_as_written(name)]
        others = [name for name in names if name not in plain]
        found = set(plain)
        for name in plain if recursive else ():
            found |= set(self.find(name, maxdepth=maxdepth, withdirs=True))
        if others or not plain:
            found |= set(super().expand_path(others, recursive, maxdepth, **kwargs))
        return sorted(found)

    def is_there_as_written(self, path: str) -> bool:
        """True if a path that looks like a glob is the name of an existing file or directory."""
        return has_magic(path) and bool(self.exists(path))

    def below(
        self, path: str, target: str, into: bool, recursive: bool, maxdepth: int | None
    ) -> tuple[list[str], list[str]]:
        """Return the paths at and below a path, with the target of each for a copy.

        Args:
            path: A file or directory, never a glob.
            target: Target of the copy.
            into: True if the target is a directory to copy into.
            recursive: True if directories are included.
            maxdepth: Number of levels; None for all.
        """
        source = self._strip_protocol(path)
        if into and not path.endswith("/"):
            target = f"{target.rstrip('/')}/{source.rpartition('/')[2]}"
        found = self.expand_path(source, recursive=recursive, maxdepth=maxdepth)
        if not recursive:
            found = [one for one in found if not self.isdir(one)]
        return found, [target.rstrip("/") + one[len(source) :] for one in found]


class IgniteFileSystem(Walking):
    """Files in an Ignite cluster.

    Args:
        host: Host of a node; None for the default address.
        port: Its thin client port.
        name: Name of the file system in the cluster.
        auto_mkdir: Create missing directories when a file is written.
        settings: Complete settings, used instead of all others.
        **options: Settings (`address`, `username`, `password`, `tls`, `ca`, `cert`, `key`, ...;
            see `ignitetf.connect`), store options for a file system that does not exist yet
            (`backups`, `data_region`, `chunk_bytes`), and fsspec's own options.
    """

    protocol: ClassVar[str] = "igfs"
    root_marker: ClassVar[str] = "/"

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        name: str = DEFAULT_NAME,
        auto_mkdir: bool = True,
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        self._settings = settings
        self.auto_mkdir = auto_mkdir
        self._store_name = name
        self._store_options = {k: options.pop(k) for k in _STORE_OPTIONS if k in options}
        known = {f for f in Settings.__dataclass_fields__ if f != "origin"}
        known |= {"address", "password_file", "key_password_file"}
        self._connection = {k: options.pop(k) for k in list(options) if k in known}
        if host is not None:
            self._connection["address"] = f"{host}:{port}" if port else host
        self._opened: tuple[int, Store] | None = None
        super().__init__(**options)

    @property
    def store(self) -> Store:
        """The store, opened on first use in each process: connections do not survive a fork."""
        if self._opened is None or self._opened[0] != os.getpid():
            with os_errors():
                settings = self._settings or Settings.resolve(**self._connection)
            store = open_store(settings, self._store_name, **self._store_options)
            self._opened = (os.getpid(), store)
        return self._opened[1]

    @property
    def fsid(self) -> str:
        """Identifier of the file system."""
        return f"igfs_{','.join(self.store.client.settings.addresses)}_{self._store_name}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return path_of_url(os.fspath(path))

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL of a path in this file system."""
        return f"igfs://{self._authority()}{self._strip_protocol(name)}"

    def _authority(self) -> str:
        address = self._connection.get("address")
        if not isinstance(address, str):
            return ""
        user = self._connection.get("username")
        return f"{user}@{address}" if user else address

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return connection_of_url(path)

    # Reading names

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return name, size, type and mtime (seconds) of a file or directory."""
        path = self._strip_protocol(path)
        return _info(path, self.store.stat(path))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """List a directory; a file is listed as itself."""
        path = self._strip_protocol(path)
        try:
            found = self.store.list(path)
        except NotADirectoryError:
            infos = [self.info(path)]
        else:
            base = path.rstrip("/")
            infos = [_info(f"{base}/{name}", entry) for name, entry in found]
        return infos if detail else [info["name"] for info in infos]

    def exists(self, path: str, **kwargs: Any) -> bool:
        """True if the path exists; a failed request is an error, not False."""
        return self.store.exists(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        """True if the path is a directory."""
        return self._is(path, directory=True)

    def isfile(self, path: str) -> bool:
        """True if the path is a file."""
        return self._is(path, directory=False)

    def _is(self, path: str, *, directory: bool) -> bool:
        entry = self.store.found(self._strip_protocol(path))
        return entry is not None and entry.is_directory is directory

    def modified(self, path: str) -> datetime.datetime:
        """Return the time of the last change, in UTC."""
        mtime = self.info(path)["mtime"]
        return datetime.datetime.fromtimestamp(mtime, tz=datetime.UTC)

    def checksum(self, path: str) -> int:
        """Return a number that changes when the content does."""
        return int(self.ukey(path)[:15], 16)

    def ukey(self, path: str) -> str:
        """Return a string that changes when the content does."""
        entry = self.store.stat(self._strip_protocol(path))
        return str(tokenize(entry.extents, entry.directory_id))

    def invalidate_cache(self, path: str | None = None) -> None:
        """Drop the listings that fsspec has cached; the store caches none."""
        super().invalidate_cache(path)

    # Changing names

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Create a directory; raise FileExistsError if the path exists."""
        self.store.make_directory(self._strip_protocol(path), parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create a directory and its missing parents."""
        self.store.make_directory(self._strip_protocol(path), parents=True, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        self.store.remove_directory(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        self.store.remove(self._strip_protocol(path))

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(
        self, path: str | Iterable[str], recursive: bool = False, maxdepth: int | None = None
    ) -> None:
        """Remove files and globs, with `recursive` also directories, each atomically."""
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        if not recursive or maxdepth is not None:
            for found in reversed(self.expand_path(paths, recursive=recursive, maxdepth=maxdepth)):
                self.rm_exactly(found)
            return
        for one in paths:
            for found in self.expand_path(one, recursive=False):
                self.rm_exactly(found, recursive=True)

    def rm_exactly(self, path: str, recursive: bool = False) -> None:
        """Remove the file or directory of this name, which is never a glob."""
        path = self._strip_protocol(path)
        if self.isdir(path):
            self.store.remove_directory(path, recursive=recursive)
        else:
            self.rm_file(path)

    def mv(
        self,
        path1: str,
        path2: str,
        recursive: bool = False,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Rename a file or directory, into `path2` if that is a directory; no data is copied.

        Lists and globs are moved one by one.
        """
        several = not isinstance(path1, str) or has_magic(path1)
        if several and not (isinstance(path1, str) and self.exists(path1)):
            for one in self.expand_path(path1, recursive=False):
                self.mv_exactly(one, path2.rstrip("/") + "/")
            return
        self.mv_exactly(path1, path2)

    def mv_exactly(self, path1: str, path2: str) -> None:
        """Rename the file or directory of this name, into `path2` if that is a directory."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if source == target:
            return
        if str(path2).endswith("/") or self.isdir(target):
            target = f"{target.rstrip('/')}/{source.rsplit('/', 1)[-1]}"
        self.rename_exactly(source, target)

    def rename_exactly(self, source: str, target: str) -> None:
        """Rename like `os.replace`: the target is the new name, never a directory to move into."""
        target = self._strip_protocol(target)
        if self.auto_mkdir and (parent := self._parent(target)) != "/":
            with contextlib.suppress(FileExistsError):
                self.makedirs(parent, exist_ok=True)
        self.store.rename(self._strip_protocol(source), target)

    def copy(
        self,
        path1: str | list[str],
        path2: str | list[str],
        recursive: bool = False,
        maxdepth: int | None = None,
        on_error: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy files, globs, and with `recursive` directories within the cluster."""
        if isinstance(path1, str) and isinstance(path2, str) and self.is_there_as_written(path1):
            into = path2.endswith("/") or self.isdir(path2)
            target = self._strip_protocol(path2)
            path1, path2 = self.below(path1, target, into, recursive, maxdepth)
        super().copy(path1, path2, recursive, maxdepth, on_error, **kwargs)

    def get(
        self,
        rpath: str | list[str],
        lpath: str | list[str],
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy files, globs, and with `recursive` directories to this machine."""
        if isinstance(rpath, str) and isinstance(lpath, str) and self.is_there_as_written(rpath):
            into = lpath.endswith("/") or Path(lpath).is_dir()
            rpath, lpath = self.below(rpath, lpath, into, recursive, maxdepth)
        super().get(rpath, lpath, recursive, callback, maxdepth, **kwargs)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy a file; for a directory, create only the directory itself."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(source):
            self.makedirs(target, exist_ok=True)
        else:
            self.store.copy(source, target, parents=self.auto_mkdir)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Create an empty file; without `truncate` only update the time of an existing one."""
        mode = "w" if truncate or not self.exists(path) else "a"
        with self.store.writing(self._strip_protocol(path), mode, parents=self.auto_mkdir):
            pass

    # Content

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        """Open a file; leaving its `with` block by an exception publishes nothing."""
        if "b" in mode:
            return super().open(path, mode, **kwargs)
        text = {k: kwargs.pop(k) for k in ("encoding", "errors", "newline") if k in kwargs}
        return _TextFile(super().open(path, mode.replace("t", "") + "b", **kwargs), **text)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> IgniteFile:
        return IgniteFile(
            self,
            path,
            mode,
            block_size or self.blocksize,
            autocommit=autocommit,
            cache_options=cache_options,
            **kwargs,
        )

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        """Return the bytes in [start, end) of a file; negative offsets count from the end."""
        with contextlib.closing(self.store.open_read(self._strip_protocol(path))) as reader:
            first, last, _ = slice(start, end).indices(reader.size)
            return reader.read(first, last - first)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a whole file; mode "create" refuses to replace one."""
        path = self._strip_protocol(path)
        own_mode = "x" if mode == "create" else "w"
        with self.open(path, f"{own_mode}b") as file:
            file.write(value)


def _info(path: str, entry: Entry) -> dict[str, Any]:
    return {
        "name": path,
        "size": entry.size,
        "type": "directory" if entry.is_directory else "file",
        "mtime": entry.mtime_ns / 1e9,
        "mtime_ns": entry.mtime_ns,
        **({"attributes": dict(entry.attributes)} if entry.attributes else {}),
    }


_MODES: Final = ("rb", "wb", "xb", "ab")
_LINE_BYTES: Final = 4096  # first search for the end of a line; doubled each time


class IgniteFile(AbstractBufferedFile):  # type: ignore[misc]
    """An open file.

    Others see written bytes after `flush` or `close`. They never see only a part of the bytes
    written between two such calls. Leaving a `with` block with an exception discards what was not
    flushed. Reading does not need fsspec's caches, since the store reads ahead; `cache_type` adds
    one anyway.
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
        """Make the written bytes visible to all readers, except in a transaction."""
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
        """Discard unpublished bytes."""
        self.closed = True
        if self._writer is not None:
            self._writer.discard()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and self._writer is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        # A child of a fork has a copy of the object, and leaves the file to its parent.
        if not self.closed and (self._writer is None or not self._writer.inherited):
            super().__del__()

    def fileno(self) -> int:
        """Raise UnsupportedOperation, as every stream without a file descriptor does.

        Libraries catch exactly this and do without `os.fsync`; closing the file stores it.
        """
        raise io.UnsupportedOperation(f"{self.path}: igfs:// files have no file descriptor")


class _TextFile(io.TextIOWrapper):
    """A text file that is discarded like an `IgniteFile`."""

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and isinstance(self.buffer, IgniteFile):
            self.buffer.discard()
        self.close()


_Names = Any  # a list, or with `detail` a dict from name to info
_Level = tuple[str, _Names, _Names]
