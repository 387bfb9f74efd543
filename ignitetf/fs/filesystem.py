"""`igfs://[user@]host:port/path` for fsspec, and thus for pandas, pyarrow, Dask and others.

fsspec -> **filesystem** -> store

This is translation only: URLs and options become settings, fsspec's calls become the store's.
`igfs:///path` uses the same default address as the rest of ignitetf (environment, profile, running
embedded node, default).
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterable
from glob import has_magic
from pathlib import Path
from typing import Any, ClassVar

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.utils import infer_storage_options, tokenize

from ignitetf.fs.fsspec_file import IgniteFile
from ignitetf.fs.oserrors import os_errors
from ignitetf.fs.path import path_of_url, split_url
from ignitetf.fs.records import Entry
from ignitetf.fs.store import DEFAULT_NAME, Store, open_store
from ignitetf.fs.walking import Walking
from ignitetf.settings import Settings

__all__ = ["IgniteFileSystem", "connection_of_url"]

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
        """Whether the path exists; failing to ask is an error, not False."""
        return self.store.exists(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        """Whether the path is a directory."""
        return self._is(path, directory=True)

    def isfile(self, path: str) -> bool:
        """Whether the path is a file."""
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
        """Drop the listings fsspec has cached; the store caches none."""
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
