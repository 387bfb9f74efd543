"""Writing a file: chunks first, then one transaction that makes them visible.

store -> **files** -> tree, chunks, leases

A writer appends to its own content. `publish` makes the entry refer to it, so readers see no part
of what was written between two publications, and a writer that dies leaves its earlier
publications, or nothing. An appending writer adds its content to the file as a further extent. If
the last extent is shorter than a chunk, its bytes are copied to the beginning of the new content,
which replaces it. This way concurrent appenders all keep their bytes.

A writer follows its file when the file is renamed. If the file is removed or replaced, later
publications disappear with it, as with an unlinked open file. An appender that has not published
yet gets an error when its file is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from ignitetf.errors import IgniteTFError
from ignitetf.fs.chunks import ChunkCache, ContentReader, ContentWriter, as_bytes
from ignitetf.fs.leases import Leases
from ignitetf.fs.meta import EarlyTransaction, MetaCache, Transaction
from ignitetf.fs.path import os_error, os_errors, parts
from ignitetf.fs.reclaim import Reclaimer
from ignitetf.fs.records import (
    Entry,
    Extent,
    decode,
    directory_key,
    garbage,
    lease_key,
    moved_key,
    new_id,
)
from ignitetf.fs.tree import Conditions, Found, Names, Stale, Tree
from ignitetf.net.failures import is_full

__all__ = ["FileWriter", "NewContent", "close_together", "lookup_with_lease"]


class WriterStore(Protocol):
    """The part of the store that a writer uses."""

    meta: MetaCache
    chunks: ChunkCache
    tree: Tree
    leases: Leases
    reclaimer: Reclaimer


class NewContent:
    """Content that is yet to be written, and its lease.

    Args:
        store: The file system.
        key: Key of the entry that will refer to it.
        chunk_bytes: Size of the chunks.
    """

    def __init__(self, store: WriterStore, key: str, chunk_bytes: int) -> None:
        self._store = store
        self.writer = ContentWriter(store.chunks, new_id(), chunk_bytes)
        self.lease = store.leases.writer(self.writer.content_id, key)

    def remove(self) -> None:
        """Remove the lease and the stored chunks, except those that an entry refers to."""
        if not self.lease.taken:
            return
        self.lease.end()
        content = self.writer.content_id
        if not self.writer.size:
            self._store.meta.remove([lease_key(content), moved_key(content)])
            return
        # Puts in flight, and the publication, may arrive after their connection closed.
        try:
            self.lease.abandon()
        except IgniteTFError as error:
            if not is_full(error):
                raise
            self._store.reclaimer.remove_reserved(content, self.lease.reserved, self.lease.key)
            self.lease.abandon()
        self._store.leases.garbage_made()

    def discard(self) -> None:
        """Remove the content if the cluster can be reached; otherwise other clients reclaim it."""
        with contextlib.suppress(IgniteTFError, OSError):
            self.remove()
        self.end()

    def end(self) -> None:
        """Stop renewing the lease."""
        self._store.leases.writer_ended(self.lease)


def lookup_with_lease(
    store: WriterStore, names: Names, chunk_bytes: int, find: Callable[[], Found]
) -> tuple[Found, NewContent]:
    """Look up the place of new content while its lease is stored; returns both.

    Args:
        store: The file system.
        names: The path of its file.
        chunk_bytes: Size of the chunks.
        find: Function that looks up the path.
    """
    key = store.tree.known_key(names)
    if key is None:
        found = find()
        return found, NewContent(store, found.key, chunk_bytes)
    content = NewContent(store, key, chunk_bytes)
    try:
        wait = content.lease.begin()
        try:
            found = find()
        finally:
            wait()
        content.lease.refer_to(found.key)
    except BaseException:
        content.discard()
        raise
    return found, content


class FileWriter:
    """An open file that is written from the beginning, or appended to.

    Not thread-safe. After a failure every later call except `discard` fails.

    Args:
        store: The file system.
        found: Place of the file, which may be new; its directory exists.
        mode: "w" replaces, "x" fails if the file exists, "a" appends.
        new: The content to write.
    """

    def __init__(self, store: WriterStore, found: Found, mode: str, new: NewContent) -> None:
        self.path = found.path
        self.mode = mode
        self.closed = False
        self._store = store
        self._directory_id = found.parent_id
        self._key = found.key
        self._pid = os.getpid()
        self._failure: BaseException | None = None
        self._published: int | None = None  # bytes of our content that the entry refers to
        self._shown = False  # the entry may refer to our content: a publication has started
        self._dropped = False  # the file was removed or replaced after we published
        self._copied_extent: Extent | None = None  # a short last extent that we copied
        self._replaced: dict[str, int] = {}  # contents that the entry had before ours
        self._prefix = 0  # its size: our content begins with this many copied bytes
        self._appends = mode == "a" and found.entry is not None  # False if it creates the file
        self._base = 0  # added to `tell`: size of the file before our content
        self._new, self._content, self._lease = new, new.writer, new.lease
        if mode == "a" and found.entry is not None:
            self._copy_short_extent(found.entry)

    @property
    def inherited(self) -> bool:
        """True if this process is a child of the one that opened the file and still writes it."""
        return self._pid != os.getpid()

    @property
    def size(self) -> int:
        """Length of the file as this writer knows it: the offset of the next byte."""
        return self._base + self._content.size - self._prefix

    def write(self, data: memoryview) -> int:
        """Append a copy of the bytes, and return their number."""
        view = as_bytes(data)
        with self._guarded():
            begin = 0
            # The lease is extended before the chunks are written, in growing steps.
            while begin < len(view):
                room = self._lease.reserved * self._content.chunk_bytes - self._content.size
                if room <= 0 and self._content.size + len(view) - begin >= self._step():
                    self._reserve(self._content.chunks + 1)
                    continue
                end = min(len(view), begin + room) if room > 0 else len(view)
                self._content.write(view[begin:end])
                begin = end
            return len(view)

    def publish(self, *, final: bool = False, attributes: Mapping[str, str] | None = None) -> None:
        """Make the written bytes visible to all clients.

        Args:
            final: Nothing more will be written.
            attributes: Attributes of the whole file to store with it.
        """
        with self._guarded():
            if not final and self._published == self._content.size:
                return
            self._reserve(max(1, self._content.chunks))
            with _transaction_during_flush(self._store, self._content.flush) as early:
                if not self._dropped:
                    self._store.tree.retry_stale(
                        (), lambda: self._publish(early, final, dict(attributes or {}))
                    )
            if self._dropped and final:
                self._new.remove()

    def store_all(self) -> None:
        """Store the written bytes without making them visible."""
        with self._guarded():
            if self._content.size:
                self._reserve(self._content.chunks)
                self._content.flush()

    def close(self, attributes: Mapping[str, str] | None = None) -> None:
        """Publish a last time and end the writer."""
        if self.closed:
            return
        try:
            self.publish(final=True, attributes=attributes)
        except BaseException:
            self.discard()
            raise
        self.closed = True
        self._new.end()

    def discard(self) -> None:
        """Discard unpublished bytes and their chunks; a child of a fork only drops the object."""
        if self.closed:
            return
        self.closed = True
        if self.inherited:
            return
        self._content.abandon()
        # Without a connection the lease expires, and another client reclaims the chunks.
        with contextlib.suppress(IgniteTFError, OSError):
            self._discard_content()
        self._new.end()

    def _discard_content(self) -> None:
        if self._shown and not self._dropped:
            # The publication may have been committed before its answer was lost, or before Ctrl-C.
            lease = lease_key(self._content.content_id)
            self._store.meta.wait_for_transactions(lease)
            if self._store.meta.get(lease) is None:
                return  # the last publication, which removes the lease: all content is in a file
        self._new.remove()

    def _step(self) -> int:
        """Size at which the next write sends a chunk."""
        return (self._content.size // self._content.chunk_bytes + 1) * self._content.chunk_bytes

    def _reserve(self, chunks: int) -> None:
        self._lease.reserve(chunks)
        if self._lease.lost:
            raise os_error(
                errno.ESTALE, self.path, "the writer did not renew its lease in time, and lost it"
            )

    def _copy_short_extent(self, entry: Entry) -> None:
        """Copy the last extent if it is short, in order to replace it."""
        self._base = entry.size
        if not entry.extents:
            return
        last = entry.extents[-1]
        if last.size >= self._content.chunk_bytes or last.content_id in entry.writers:
            return
        data = memoryview(bytearray(last.size))
        reader = ContentReader(self._store.chunks, [last], self.path)
        with contextlib.closing(reader):
            reader.read_into(0, data)
        if last.size:
            self._reserve(1)
            self._content.write(data)
        self._copied_extent, self._prefix = last, last.size

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        if self.closed:
            raise ValueError(f"{self.path}: the file is closed")
        if self.inherited:
            raise os_error(errno.EBADF, self.path, "the file was opened before the process forked")
        if self._failure is not None:
            # The same errno, because users may see only this error: that of `close` after `write`.
            code = getattr(self._failure, "errno", None) or errno.EIO
            message = f"an earlier write failed: {self._failure}"
            raise os_error(code, self.path, message) from self._failure
        try:
            with os_errors(self.path):
                yield
        except BaseException as error:
            self._failure = error
            raise

    def _publish(self, early: EarlyTransaction, final: bool, attributes: dict[str, str]) -> None:
        key = self._store.meta.transact(lambda t: self._show(t, final, attributes), early)
        if key is not None:
            # Renamed in the meantime: the next try uses the new key.
            self._key, self._directory_id = key, key.partition("/")[0]
            raise Stale
        if not self._dropped:
            self._published = self._content.size

    def _show(
        self, transaction: Transaction, final: bool, attributes: dict[str, str]
    ) -> str | None:
        """Try once to publish; returns the key for the next try if the file was renamed."""
        self._shown = True
        content = self._content.content_id
        own, lease, pointer = (
            directory_key(self._directory_id),
            lease_key(content),
            moved_key(content),
        )
        # The first key locked is the first written: if there is no room for the entry, the
        # lease stays.
        held = transaction.lock([own, self._key, lease, pointer])
        present = Entry.from_bytes(held[self._key]) if self._key in held else None
        ours = present is not None and content in present.contents()
        if transaction.unsettled and ours and lease not in held and final:
            return None
        if lease not in held and transaction.earlier is not None:
            # Only half committed, because a node died in between or had no memory left: the
            # lease is gone, but the entry was not written.
            raise transaction.earlier
        if lease not in held or decode(held[lease]).get("dead"):
            raise os_error(
                errno.ESTALE, self.path, "the writer did not renew its lease in time, and lost it"
            )
        # Our publication is gone from this key: it was renamed, removed or replaced.
        if self._published is not None and not ours:
            moved = held.get(pointer, b"").decode("utf-8", "replace")
            if moved and moved != self._key:
                return moved
            self._dropped = True
            return None
        if own not in held:
            raise os_error(errno.ENOENT, self.path, "the directory of the file was removed")
        extents, gone = self._extents(present, ours)
        if ours and transaction.unsettled:
            gone = self._replaced  # an earlier try may have written the entry without the notes
        self._replaced = gone
        writers = present.writers if present is not None and (ours or self.mode == "a") else ()
        others = tuple(writer for writer in writers if writer != content)
        entry = Entry(
            None,
            time.time_ns(),
            tuple(extents),
            attributes,
            others if final else (*others, content),
        )
        puts = {self._key: entry.to_bytes(), **garbage(gone)}
        transaction.put(puts)
        if final:
            transaction.remove([lease, pointer] if pointer in held else [lease])
        if gone:
            self._store.leases.garbage_made()
        return None

    def _extents(self, present: Entry | None, ours: bool) -> tuple[list[Extent], dict[str, int]]:
        """Return the file's extents including ours, and the contents no longer in use."""
        content, size = self._content.content_id, self._content.size
        chunk_bytes = self._content.chunk_bytes
        whole = Extent(content, 0, size, chunk_bytes)
        if ours:
            assert present is not None
            last = present.extents[-1]
            if last.content_id == content:
                grown = Extent(content, last.start, size - last.start, chunk_bytes)
                return [*present.extents[:-1], grown], {}
            shown = max(e.end for e in present.extents if e.content_id == content)
            more = [Extent(content, shown, size - shown, chunk_bytes)] if size > shown else []
            return [*present.extents, *more], {}
        if present is not None and present.is_directory:
            raise os_error(errno.EISDIR, self.path)
        if present is not None and self.mode == "x":
            raise os_error(errno.EEXIST, self.path)
        if present is None and self._appends:
            message = "the file was removed, or renamed, while it was appended to"
            raise os_error(errno.ENOENT, self.path, message)
        if present is None or self.mode != "a":
            contents = present.contents() if present is not None else {}
            start = self._prefix if present is None else 0
            return [Extent(content, start, size - start, chunk_bytes)], contents
        if present.extents and present.extents[-1] == self._copied_extent:
            kept = list(present.extents[:-1])
            used = Entry(None, 0, tuple(kept)).contents()
            gone = {c: n for c, n in present.contents().items() if c not in used}
            return [*kept, whole], gone
        added = Extent(content, self._prefix, size - self._prefix, chunk_bytes)
        return [*present.extents, added], {}


@contextlib.contextmanager
def _transaction_during_flush(
    store: WriterStore, flush: Callable[[], None]
) -> Iterator[EarlyTransaction]:
    """Begin a transaction while content is stored; the block runs after all content is stored."""
    with contextlib.closing(EarlyTransaction(store.meta)) as early:
        early.begin()
        flush()
        yield early


def close_together(
    store: WriterStore,
    writers: Sequence[tuple[FileWriter, Mapping[str, str]]],
    unchanged: Mapping[str, Entry | None] = MappingProxyType({}),
) -> None:
    """Close files, with attributes for each, so that all of them appear at the same moment.

    Args:
        store: Their file system.
        writers: Writers opened with "w" that have published nothing yet.
        unchanged: Files that must not have changed since they were read; None for a missing file.

    Raises:
        OSError: None was published; the caller must still discard them.
        Outdated: One of `unchanged` is different; as for an OSError.
    """
    # Directories are locked in the order of their keys everywhere, to avoid deadlocks.
    ordered = sorted(writers, key=lambda pair: (pair[0]._directory_id, pair[0]._key))
    seen = {parts(path): entry for path, entry in unchanged.items()}

    def attempt() -> None:
        conditions = store.tree.conditions(seen)

        def show(transaction: Transaction) -> None:
            _lock_all(transaction, [writer for writer, _ in ordered], conditions)
            for writer, attributes in ordered:
                writer._show(transaction, True, dict(attributes))

        store.meta.transact(show, early)

    def flush() -> None:
        for writer, _ in ordered:
            writer._reserve(max(1, writer._content.chunks))
            writer._content.flush()

    with contextlib.ExitStack() as guards:
        for writer, _ in ordered:
            guards.enter_context(writer._guarded())
        early = guards.enter_context(_transaction_during_flush(store, flush))
        store.tree.retry_stale((), attempt)
    for writer, _ in ordered:
        writer._published = writer._content.size
        writer.closed = True
        writer._new.end()


def _lock_all(
    transaction: Transaction, writers: Sequence[FileWriter], conditions: Conditions
) -> None:
    """Lock all keys that the writers need; raises Outdated if the conditions do not hold."""
    own = [writer._key for writer in writers]
    contents = [writer._content.content_id for writer in writers]
    directories = conditions.directories | {directory_key(w._directory_id) for w in writers}
    others = sorted(conditions.extents.keys() - set(own))
    # Lock entries before leases, as in `FileWriter._show`.
    notes = [key(content) for content in contents for key in (lease_key, moved_key)]
    held = transaction.lock([*sorted(directories), *own, *others, *notes])
    shown = [Entry.from_bytes(held[key]).contents() if key in held else {} for key in own]
    ours = [content in there for content, there in zip(contents, shown, strict=True)]
    # If an earlier try was committed, perhaps only in part, this one completes it.
    if not (transaction.unsettled and any(ours)):
        conditions.check(held)
