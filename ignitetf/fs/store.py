"""`Store`: a file system of files and directories in two Ignite caches.

path -> **store** -> tree (metadata cache), chunks (chunk cache) -> client

Guarantees:

- A rename, a removal and a publication of content are one transaction each: all or nothing, and
  readers see the state before or after it. Renames copy no data.
- A file's new content is written separately and replaces the old one when complete (`FileWriter`).
- Content is stored in all copies before an entry refers to it.
- Several clients may do anything at the same time; see `tree` for how.
- Only OSErrors are raised, each with its errno (`path`).

The caches NAME_META and NAME_DATA are created on first use, with `backups` copies and in
`data_region` if one is given. If partitions are lost, these caches raise errors rather than appear
empty. A node that keeps them only in memory may be restarted while a process uses them. An
operation that finds no caches creates them again, and is then retried (`_create_and_retry`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace as replace_fields
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from ignitetf.errors import (
    CacheNotFound,
    ClusterInactive,
    ClusterReadOnly,
    ConfigError,
    ConnectError,
    IgniteTFError,
    ServerError,
    ServerOverloaded,
)
from ignitetf.fs.chunks import CHUNK_BYTES, ChunkCache, ContentReader
from ignitetf.fs.files import FileWriter, lookup_with_lease
from ignitetf.fs.leases import Leases
from ignitetf.fs.meta import MetaCache, Transaction, metadata_spec
from ignitetf.fs.path import os_error, os_errors, parts
from ignitetf.fs.reclaim import Reclaimer
from ignitetf.fs.records import FORMAT_KEY, ROOT_ID, Entry, decode, directory_key, encode
from ignitetf.fs.tree import Found, Names, Removal, Stale, Tree, rename
from ignitetf.net.client import Client
from ignitetf.settings import Settings
from ignitetf.tables.spec import CacheSpec, ensure_caches

__all__ = ["DEFAULT_NAME", "FileReader", "Store", "open_store"]

F = TypeVar("F", bound=Callable[..., Any])


def _create_and_retry(operation: F) -> F:
    """Retry a method after the object's method `make` if a cache was missing."""

    @functools.wraps(operation)
    def repeated(store: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return operation(store, *args, **kwargs)
        except OSError as error:
            if not isinstance(error.__cause__, CacheNotFound):
                raise
        store.make()
        return operation(store, *args, **kwargs)

    return cast(F, repeated)


DEFAULT_NAME: Final = "IGFS"
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,50}")
_VERSION: Final = 1
_MISSING_ERRNOS: Final = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ)
_SMALLEST_CHUNK: Final = 4096
_LARGEST_CHUNK: Final = 64 << 20


class FileReader:
    """A file open for reading, from any number of threads."""

    def __init__(self, store: Store, path: str, entry: Entry) -> None:
        self.path = path
        self.entry = entry
        self.size = entry.size
        self.closed = False
        self._open(store)

    def _open(self, store: Store) -> None:
        self._pid = os.getpid()
        self._store = store
        self._content = ContentReader(store.chunks, self.entry.extents, self.path)
        self._lease = store.leases.reader(self.entry.contents()) if self.size else None

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill the target from an offset on, and return the number of bytes read."""
        if self.closed:
            raise ValueError(f"{self.path}: the file is closed")
        if self._pid != os.getpid():
            # Opened before a fork: the sockets belong to the parent.
            self._open(open_store(self._store.client.settings, self._store.name))
        with os_errors(self.path):
            return self._content.read_into(offset, target)

    def read(self, offset: int, count: int) -> bytes:
        """Return at most `count` bytes from an offset on."""
        buffer = bytearray(max(0, min(count, self.size - offset)))
        done = self.read_into(offset, memoryview(buffer))
        return bytes(memoryview(buffer)[:done])

    def close(self) -> None:
        """Release the content."""
        if not self.closed:
            self.closed = True
            if self._pid != os.getpid():
                return
            self._content.close()
            if self._lease is not None:
                self._store.leases.reader_ended(self._lease)


class Store:
    """A file system; open it with `open_store`, or here with a client of your own.

    Args:
        client: A connected client; the caller closes it.
        name: Name of the file system: capitals, digits, underscores.
        backups: Copies besides the primary one, used when the caches are created.
        data_region: Data region of the node for the caches, used when they are created.
        chunk_bytes: Size of chunks, used when the caches are created.

    Raises:
        OSError: No node, no permission, or an invalid name.
    """

    def __init__(
        self,
        client: Client,
        name: str = DEFAULT_NAME,
        *,
        backups: int = 1,
        data_region: str | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        with os_errors():
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"file system name {name!r}", hint="capitals, digits and underscores"
                )
            if not _SMALLEST_CHUNK <= chunk_bytes <= _LARGEST_CHUNK:
                raise ConfigError(f"chunks of {chunk_bytes} bytes", hint="4 KiB to 64 MiB")
            self.client = client
            self.name = name
            self.meta = MetaCache(client, f"{name}_META")
            self.chunks = ChunkCache(client, f"{name}_DATA")
            self.tree = Tree(self.meta)
            self.removal = Removal(self.tree, self.chunks)
            self.reclaimer = Reclaimer(self.removal, self.meta, self.chunks)
            self.chunks.make_room = lambda: self.reclaimer.run(grace_s=0.0)
            self.leases = Leases(self.meta, self._reclaim)
            self.chunk_bytes = chunk_bytes
            self._new = (backups, data_region, chunk_bytes)
        self.make()

    def make(self) -> None:
        """Create the caches with the original options, unless they exist."""
        with os_errors():
            self.chunk_bytes = self._open(*self._new)

    def _open(self, backups: int, data_region: str | None, chunk_bytes: int) -> int:
        try:
            found = self.meta.get(FORMAT_KEY)
        except CacheNotFound:
            found = None
        if found is None:
            self._create(backups, data_region)
            self.meta.put_if_absent(directory_key(ROOT_ID), encode({"p": ROOT_ID}))
            self.meta.put_if_absent(FORMAT_KEY, encode({"v": _VERSION, "chunk": chunk_bytes}))
            found = self.meta.get(FORMAT_KEY) or b"{}"
        facts = decode(found)
        if facts.get("v") != _VERSION:
            raise ConfigError(
                f"file system {self.name}: unknown format {facts.get('v')}",
                hint="a newer version of ignitetf made it",
            )
        return int(facts["chunk"])

    def _create(self, backups: int, data_region: str | None) -> None:
        self.client.require_sql()  # SQL lists the names in a directory
        chunks = CacheSpec(self.chunks.name, backups=backups, data_region=data_region)
        try:
            # The chunks first: a client that sees the metadata cache can rely on both.
            ensure_caches(self.client, chunks, metadata_spec(self.meta.name, backups, data_region))
        except (ServerOverloaded, ClusterInactive, ClusterReadOnly):
            raise
        except ServerError as error:
            raise ConfigError(f"file system {self.name} cannot be made: {error}") from error

    def _reclaim(self) -> None:
        if self.reclaimer.run():
            self.leases.garbage_made()

    @property
    def round_trips(self) -> int:
        """Requests for metadata so far, each of which waits for its answer."""
        return self.meta.round_trips

    def close(self) -> None:
        """Stop the thread that renews leases; the client stays open."""
        self.leases.close()

    # Paths

    def _names(self, path: str) -> Names:
        return parts(path)

    @_create_and_retry
    def stat(self, path: str) -> Entry:
        """Return the entry at a path, in at most two round trips. Raises ENOENT, ENOTDIR."""
        with os_errors(path):
            return self.tree.entry(self._names(path))

    def exists(self, path: str) -> bool:
        """True if a path exists; False for a path that cannot exist."""
        return self.found(path) is not None

    def found(self, path: str) -> Entry | None:
        """Return the entry at a path, or None if it does not or cannot exist."""
        if "\0" in path:
            return None
        try:
            return self.stat(path)
        except OSError as error:
            if error.errno in _MISSING_ERRNOS:
                return None
            raise

    @_create_and_retry
    def list(self, path: str) -> list[tuple[str, Entry]]:
        """Return names and entries of a directory, sorted. Raises ENOENT, ENOTDIR."""
        with os_errors(path):
            return self.tree.entries(self._names(path))

    @_create_and_retry
    def make_directory(self, path: str, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Create a directory. Raises EEXIST, ENOENT, ENOTDIR."""
        with os_errors(path):
            names = self._names(path)
            if names:
                self.tree.make_directory(names, parents=parents, exist_ok=exist_ok)
            elif not exist_ok:
                raise os_error(errno.EEXIST, "/")

    @_create_and_retry
    def remove(
        self, path: str, *more: str, unchanged: Mapping[str, Entry | None] = MappingProxyType({})
    ) -> None:
        """Remove one file, or several at the same moment.

        Args:
            path: A file.
            *more: Further files.
            unchanged: Files that must not have changed since they were read; None for a missing
                file.

        Raises:
            OSError: ENOENT, EISDIR.
            Outdated: One of `unchanged` is different; nothing was removed.
        """
        with os_errors(path):
            every = [self._names(one) for one in (path, *more)]
            if not all(every):
                raise os_error(errno.EISDIR, "/")
            seen = {self._names(one): entry for one, entry in unchanged.items()}
            self.removal.files(every, seen)
            self.leases.garbage_made()

    @_create_and_retry
    def remove_directory(self, path: str, *, recursive: bool = False) -> None:
        """Remove a directory. Raises ENOENT, ENOTDIR, ENOTEMPTY, EBUSY (the root)."""
        with os_errors(path):
            self.removal.directory(self._names(path), recursive=recursive)
            if recursive:
                self.leases.garbage_made()

    @_create_and_retry
    def rename(self, source: str, target: str) -> None:
        """Move a file or directory, replacing a file or an empty directory."""
        with os_errors(source):
            rename(self.tree, self._names(source), self._names(target))
            self.leases.garbage_made()

    @_create_and_retry
    def set_attributes(self, path: str, attributes: Mapping[str, str]) -> None:
        """Add attributes of a file's content to its entry. Raises ENOENT, EISDIR."""
        with os_errors(path):
            names = self._names(path)
            self.tree.retry_stale(names, lambda: self._set_attributes(names, attributes))

    def _set_attributes(self, names: Names, attributes: Mapping[str, str]) -> None:
        found = self._file(names)

        def work(transaction: Transaction) -> None:
            held = transaction.lock([directory_key(found.parent_id), found.key])
            if found.key not in held:
                raise Stale
            entry = Entry.from_bytes(held[found.key])
            changed = replace_fields(entry, attributes={**entry.attributes, **attributes})
            transaction.put({found.key: changed.to_bytes()})

        self.meta.transact(work)

    def _file(self, names: Names) -> Found:
        found = self.tree.lookup(names)
        if found.entry is None:
            raise os_error(errno.ENOENT, found.path)
        if found.entry.is_directory:
            raise os_error(errno.EISDIR, found.path)
        return found

    # Files

    @_create_and_retry
    def open_read(self, path: str) -> FileReader:
        """Open a file to read its present content. Raises ENOENT, EISDIR."""
        with os_errors(path):
            found = self._file(self._names(path))
            assert found.entry is not None
            return FileReader(self, path, found.entry)

    @_create_and_retry
    def open_write(
        self, path: str, mode: str = "w", *, parents: bool = True, chunk_bytes: int | None = None
    ) -> FileWriter:
        """Open a file for writing.

        Args:
            path: Its path; a new file does not exist before the first publication.
            mode: "w" to replace, "x" to fail if the file exists, "a" to append.
            parents: Create missing parent directories.
            chunk_bytes: Size of chunks, if different from the file system's.

        Raises:
            OSError: EISDIR, ENOTDIR, ENOENT, EEXIST.
        """
        with os_errors(path):
            names = self._names(path)
            if not names:
                raise os_error(errno.EISDIR, "/")
            found, new = lookup_with_lease(
                self,
                names,
                chunk_bytes or self.chunk_bytes,
                lambda: self._place_for(path, names, mode, parents=parents),
            )
            try:
                return FileWriter(self, found, mode, new)
            except BaseException:
                new.discard()
                raise

    def _place_for(self, path: str, names: Names, mode: str, *, parents: bool) -> Found:
        """Return the place where a file is or will be; raises an error if it cannot be written."""
        try:
            found = self.tree.lookup(names, sure=False)
        except FileNotFoundError:
            if not parents:
                raise
            self.tree.make_directory(names[:-1], parents=True, exist_ok=True)
            found = self.tree.lookup(names, sure=False)
        if found.entry is not None:
            if found.entry.is_directory or path.endswith("/"):
                raise os_error(errno.EISDIR, found.path)
            if mode == "x":
                raise os_error(errno.EEXIST, found.path)
        elif path.endswith("/"):
            raise os_error(errno.EISDIR, path, "the path does not name a file")
        return found

    def copy(self, source: str, target: str, *, parents: bool = True) -> None:
        """Copy one file; the copy appears once it is complete."""
        with (
            contextlib.closing(self.open_read(source)) as reader,
            self.writing(target, parents=parents) as writer,
        ):
            at, buffer = 0, memoryview(bytearray(4 * CHUNK_BYTES))
            while count := reader.read_into(at, buffer):
                writer.write(buffer[:count])
                at += count

    @contextlib.contextmanager
    def writing(self, path: str, mode: str = "w", **options: Any) -> Iterator[FileWriter]:
        """Yield an open writer, closed at the end, or discarded after an exception."""
        writer = self.open_write(path, mode, **options)
        try:
            yield writer
        except BaseException:
            writer.discard()
            raise
        writer.close()


def _connected(settings: Settings) -> Client:
    try:
        return Client(settings)
    except ConnectError as error:
        if not isinstance(error.__cause__, socket.gaierror):
            raise
        # Users often write a folder in the place of the URL's host.
        raise error.hinted(
            f"{error.hint}; in igfs:// it is the part before the third slash, so a path alone has"
            " three: igfs:///folder/file"
        ) from error.__cause__


_shared: dict[tuple[Any, ...], Store] = {}
_shared_lock = threading.Lock()


def _after_fork() -> None:
    """Let the child of a fork open its own stores; the parent's stay alive in it, but unused."""
    global _shared_lock
    _shared_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def open_store(settings: Settings, name: str = DEFAULT_NAME, **options: Any) -> Store:
    """Return this process's store for these settings, opened on first use.

    After a fork the child opens its own: sockets cannot be shared with the parent.
    """
    key = (os.getpid(), settings, name)
    with _shared_lock:
        store = _shared.get(key)
        if store is None:
            with os_errors():
                client = _connected(settings)
            try:
                store = Store(client, name, **options)
            except BaseException:
                with contextlib.suppress(IgniteTFError):
                    client.close()
                raise
            _shared[key] = store
        return store
