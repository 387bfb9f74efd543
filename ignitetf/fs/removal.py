"""Remove names, and release the content behind them, even on a full node.

store -> **removal** -> tree, chunks

Content outlives its name for a while, because somebody may be reading it: a note in the metadata
schedules its removal. If a node has no memory left for the note, the content goes at once.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ignitetf.errors import IgniteTFError
from ignitetf.fs.chunks import ChunkCache
from ignitetf.fs.meta import Transaction
from ignitetf.fs.path import join, os_error
from ignitetf.fs.records import (
    Entry,
    directory_key,
    entry_range,
    garbage,
    hint_key,
    removed_key,
)
from ignitetf.fs.tree import Found, Names, Stale, Tree
from ignitetf.net.failures import is_full

__all__ = ["Removal"]

_PURGE_BATCH: Final = 1000


class Removal:
    """Removes files and directories of one file system."""

    def __init__(self, tree: Tree, chunks: ChunkCache) -> None:
        self._tree = tree
        self._meta = tree.meta
        self._chunks = chunks

    def give_up(self, contents: dict[str, int]) -> None:
        """Schedule the removal of content that nothing refers to.

        Args:
            contents: Upper bound of the number of chunks, by content id.
        """
        try:
            self._meta.put_all(garbage(contents))
        except IgniteTFError as error:
            if not is_full(error):
                raise
            self._remove_chunks(contents)
            # Puts in flight may arrive after the removal, so the note is needed anyway.
            self._meta.put_all(garbage(contents))

    def _remove_chunks(self, contents: dict[str, int]) -> None:
        self._chunks.remove_all((c, number) for c, n in contents.items() for number in range(n))

    def files(
        self, every: Sequence[Names], unchanged: Mapping[Names, Entry | None] = MappingProxyType({})
    ) -> None:
        """Remove files at the same moment; their content follows later, or at once on a full node.

        Args:
            every: The files.
            unchanged: Files that must still be as they were seen; None for one that is missing.

        Raises:
            OSError: ENOENT, EISDIR; nothing was removed.
            Outdated: One of `unchanged` is different; nothing was removed.
        """
        first = every[0]
        try:
            self._tree.settled(first, lambda: self._files(every, unchanged, noted=True))
        except IgniteTFError as error:
            if not is_full(error):
                raise
            # A client that dies between the two steps leaves chunks for `check` to find.
            self._remove_chunks(
                self._tree.settled(first, lambda: self._files(every, unchanged, noted=False))
            )

    def _files(
        self, every: Sequence[Names], unchanged: Mapping[Names, Entry | None], noted: bool
    ) -> dict[str, int]:
        """Make one lookup and one transaction; return the content that the names referred to."""
        contents: dict[str, int] = {}
        expected: dict[str, dict[str, int]] = {}
        parents = set[str]()
        for names in every:
            found = self._tree.lookup(names)
            if found.entry is None:
                raise os_error(errno.ENOENT, found.path)
            if found.entry.is_directory:
                raise os_error(errno.EISDIR, found.path)
            expected[found.key] = found.entry.contents()
            contents.update(expected[found.key])
            parents.add(directory_key(found.parent_id))
        conditions = self._tree.conditions(unchanged)
        parents |= conditions.directories
        others = sorted(conditions.extents.keys() - expected.keys())
        notes = garbage(contents) if noted else {}
        tried: list[dict[str, bytes]] = []

        def work(transaction: Transaction) -> None:
            # The first key locked is the first written: without room for a note the name stays.
            held = transaction.lock([*sorted(parents), *notes, *sorted(expected), *others])
            there = {key: held[key] for key in expected if key in held}
            if transaction.unsettled and tried and there != tried[-1]:
                return
            conditions.check(held)
            for key, kept in expected.items():
                entry = Entry.from_bytes(there[key]) if key in there else None
                if entry is None or entry.is_directory or entry.contents() != kept:
                    raise Stale
            tried.append(there)
            transaction.put(notes)
            transaction.remove(expected)

        self._meta.transact(work)
        return contents

    def directory(self, names: Names, *, recursive: bool = False) -> None:
        """Remove a directory, at once for readers; `recursive` includes everything in it.

        Raises:
            OSError: ENOENT, ENOTDIR, ENOTEMPTY, and EBUSY for the root.
        """
        if not names:
            raise os_error(errno.EBUSY, "/", "the root directory cannot be removed")
        while True:
            try:
                removed = self._tree.settled(names, lambda: self._directory(names, recursive))
                break
            except IgniteTFError as error:
                if not (recursive and is_full(error) and self._remove_one(names)):
                    raise
        self._tree.forget(names)
        if recursive:
            self.purge(removed)

    def _remove_one(self, names: Names) -> bool:
        """Free memory by removing one file below a directory; return whether there was one."""
        for name, entry in self._tree.entries(names):
            if not entry.is_directory:
                with contextlib.suppress(FileNotFoundError):
                    self.files([(*names, name)])
                return True
            if self._remove_one((*names, name)):
                return True
        return False

    def _directory(self, names: Names, recursive: bool) -> str:
        found = self._tree.lookup(names)
        if found.entry is None:
            raise os_error(errno.ENOENT, found.path)
        directory = found.entry.directory_id
        if directory is None:
            raise os_error(errno.ENOTDIR, found.path)
        self._meta.transact(lambda t: self._unlink(t, found, directory, recursive))
        return directory

    def _unlink(
        self, transaction: Transaction, found: Found, directory: str, recursive: bool
    ) -> None:
        locks = sorted([directory_key(found.parent_id), directory_key(directory)])
        held = transaction.lock([*locks, found.key])
        if found.key not in held and transaction.unsettled:
            return
        if found.key not in held or Entry.from_bytes(held[found.key]).directory_id != directory:
            raise Stale
        if recursive:
            transaction.put({removed_key(directory): b"{}"})
        elif not self._tree.is_empty(directory):
            raise os_error(errno.ENOTEMPTY, join(found.names))
        transaction.remove([found.key, directory_key(directory), hint_key(found.path)])

    def purge(self, directory_id: str) -> int:
        """Remove what is below a removed directory, and return the number of entries.

        Each directory is first closed to new entries. Notes are written before the entries they
        stand for are removed, so that any client can continue after a crash.
        """
        waiting, count = [directory_id], 0
        while waiting:
            present = waiting.pop()
            self._meta.transact(lambda t, d=present: _close_directory(t, d))  # type: ignore[misc]
            while batch := list(
                self._meta.range(*entry_range(present), limit=_PURGE_BATCH, page=_PURGE_BATCH)
            ):
                contents: dict[str, int] = {}
                notes: dict[str, bytes] = {}
                for _, value in batch:
                    entry = Entry.from_bytes(value)
                    if entry.directory_id is not None:
                        notes[removed_key(entry.directory_id)] = b"{}"
                        waiting.append(entry.directory_id)
                    contents.update(entry.contents())
                self.give_up(contents)
                self._meta.put_all(notes)
                self._meta.remove(key for key, _ in batch)
                count += len(batch)
            self._meta.remove([removed_key(present)])
        return count


def _close_directory(transaction: Transaction, directory_id: str) -> None:
    own = directory_key(directory_id)
    if own in transaction.lock([own]):
        transaction.remove([own])
