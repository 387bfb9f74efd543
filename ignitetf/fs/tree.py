"""The tree of directories and files: look up, list, create, rename, remove.

store -> **tree** -> meta, chunks

An entry's key is the id of its directory and its name, so a rename moves one entry, however much is
below it. Changing the entries of a directory requires the lock on that directory's own record, in a
transaction that takes all such locks in the order of their keys. So a removed directory cannot get
new entries, and no two changes deadlock.

Looking up a path takes one request if the ids of its directories are known. Otherwise it takes two:
first the hints (path -> id), then all entries of the path at once. Remembered ids and hints may be
wrong: the entries confirm them, or the lookup continues name by name from the first wrong one.
Before a name is reported missing, its key is read again under its lock, so that a reader who looks
for both names of a rename in progress finds one of them. A listing is not a snapshot: an entry that
appears, disappears or moves in the meantime may or may not be listed.

Content outlives its name for a while, because a client may be reading it: a note in the metadata
schedules its removal (`Removal`). If a node lacks memory for the note, the content is removed at
once.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from ignitetf.errors import IgniteTFError
from ignitetf.fs.chunks import ChunkCache
from ignitetf.fs.meta import MetaCache, Transaction
from ignitetf.fs.path import join, os_error
from ignitetf.fs.records import (
    MOVE_LOCK_KEY,
    ROOT_ID,
    Entry,
    Extent,
    decode,
    directory_key,
    encode,
    entry_key,
    entry_range,
    garbage,
    hint_key,
    moved_key,
    new_id,
    removed_key,
)
from ignitetf.net.failures import CONFLICT, Backoff, is_full

__all__ = ["Conditions", "Found", "Names", "Outdated", "Removal", "Stale", "Tree", "rename"]

T = TypeVar("T")
Names = tuple[str, ...]

_MEMO_SIZE: Final = 20_000  # directories whose ids are remembered
_ATTEMPTS: Final = 100


class Stale(Exception):
    """An entry changed between its lookup and its lock; look it up again."""


class Outdated(Exception):
    """An entry is no longer the one that the caller relied on; nothing was changed."""


@dataclass(frozen=True)
class Conditions:
    """The conditions for the commit of a transaction.

    Attributes:
        extents: Content of each entry by its key; None for one that must not exist.
        directories: Keys of their directories, whose locks keep the entries as they are.
    """

    extents: Mapping[str, tuple[Extent, ...] | None]
    directories: frozenset[str]

    def check(self, held: Mapping[str, bytes]) -> None:
        """Compare the conditions with the locked values; raises Outdated if anything differs."""
        if not self.directories <= held.keys():
            raise Outdated
        for key, seen in self.extents.items():
            if (Entry.from_bytes(held[key]).extents if key in held else None) != seen:
                raise Outdated


@dataclass(frozen=True)
class Found:
    """The result of looking up a path.

    Attributes:
        names: The path.
        parent_id: Id of the directory that holds the last name; "" for the root.
        entry: The entry; None if it does not exist.
    """

    names: Names
    parent_id: str
    entry: Entry | None

    @property
    def path(self) -> str:
        """The path as text."""
        return join(self.names)

    @property
    def key(self) -> str:
        """Key of the entry."""
        return entry_key(self.parent_id, self.names[-1])


class Tree:
    """The names of one file system."""

    def __init__(self, meta: MetaCache) -> None:
        self.meta = meta
        self._memo: dict[Names, str] = {}

    # Reading

    def lookup(self, names: Names, *, sure: bool = True) -> Found:
        """Look up a path whose last name may be missing.

        Args:
            names: The path.
            sure: Read again before the last name is reported missing; unnecessary if the caller
                locks it and looks again.

        Raises:
            OSError: ENOENT or ENOTDIR for a parent.
        """
        if not names:
            return Found(names, "", Entry(ROOT_ID, 0))
        ids = self._known_ids(names)
        known = [entry_key(ids[i], name) for i, name in enumerate(names) if i in ids]
        values = self.meta.get_all(known)
        parent, corrections = ROOT_ID, dict[Names, str]()
        for depth, name in enumerate(names):
            key = entry_key(parent, name)
            value = values.get(key) if ids.get(depth) == parent else self.meta.get(key)
            if value is None and (sure or depth < len(names) - 1):
                self.meta.wait_for_transactions(key)
                value = self.meta.get(key)
            entry = Entry.from_bytes(value) if value is not None else None
            if depth == len(names) - 1:
                break
            if entry is None:
                raise os_error(errno.ENOENT, join(names))
            if entry.directory_id is None:
                raise os_error(errno.ENOTDIR, join(names))
            parent = entry.directory_id
            if ids.get(depth + 1) != parent:
                corrections[names[: depth + 1]] = parent
        self._store_corrections(corrections)
        return Found(names, parent, entry)

    def known_key(self, names: Names) -> str | None:
        """Return the remembered key of a path's entry; it is a guess, or None."""
        parent = self._memo.get(names[:-1]) if len(names) > 1 else ROOT_ID
        return None if parent is None else entry_key(parent, names[-1])

    def entry(self, names: Names) -> Entry:
        """Return the entry at a path; raises ENOENT if it does not exist."""
        found = self.lookup(names)
        if found.entry is None:
            raise os_error(errno.ENOENT, join(names))
        return found.entry

    def entries(self, names: Names) -> list[tuple[str, Entry]]:
        """Return names and entries of a directory, sorted by name.

        Raises:
            OSError: ENOENT, or ENOTDIR for a file.
        """
        entry = self.entry(names)
        if entry.directory_id is None:
            raise os_error(errno.ENOTDIR, join(names))
        return sorted(self.children(entry.directory_id), key=lambda pair: pair[0])

    def children(self, directory_id: str) -> Iterable[tuple[str, Entry]]:
        """Yield names and entries of the directory with this id."""
        first, end = entry_range(directory_id)
        for key, value in self.meta.range(first, end):
            yield key[len(first) :], Entry.from_bytes(value)

    def is_empty(self, directory_id: str) -> bool:
        """True if the directory with this id has no entries."""
        return not list(self.meta.range(*entry_range(directory_id), limit=1))

    def conditions(self, seen: Mapping[Names, Entry | None]) -> Conditions:
        """Return the conditions that files have not changed; None for a missing file.

        Raises:
            Outdated: One of their directories is gone.
        """
        ids = {parent: self._directory_id(parent) for parent in {names[:-1] for names in seen}}
        return Conditions(
            {
                entry_key(ids[names[:-1]], names[-1]): entry.extents if entry else None
                for names, entry in seen.items()
            },
            frozenset(directory_key(one) for one in ids.values()),
        )

    def _directory_id(self, names: Names) -> str:
        try:
            entry = self.lookup(names).entry
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Outdated from error
        if entry is None or entry.directory_id is None:
            raise Outdated
        return entry.directory_id

    def _known_ids(self, names: Names) -> dict[int, str]:
        """Return the ids of the parent directories, by depth, from memory and hints."""
        ids = {0: ROOT_ID}
        unknown = []
        for depth in range(1, len(names)):
            known = self._memo.get(names[:depth])
            if known is None:
                unknown.append(depth)
            else:
                ids[depth] = known
        if unknown:
            hints = self.meta.get_all(hint_key(join(names[:depth])) for depth in unknown)
            for depth in unknown:
                if hint := hints.get(hint_key(join(names[:depth]))):
                    ids[depth] = hint.decode("utf-8", "replace")
                    self._remember(names[:depth], ids[depth])
        return ids

    def _store_corrections(self, corrections: dict[Names, str]) -> None:
        for names, directory_id in corrections.items():
            self._remember(names, directory_id)
        self.meta.put_if_possible({hint_key(join(n)): i.encode() for n, i in corrections.items()})

    def _remember(self, names: Names, directory_id: str) -> None:
        if len(self._memo) >= _MEMO_SIZE:
            self._memo.clear()
        self._memo[names] = directory_id

    def forget(self, names: Names) -> None:
        """Drop the remembered ids of a directory and everything below it."""
        for known in [n for n in list(self._memo) if n[: len(names)] == names]:
            self._memo.pop(known, None)

    # Changing

    def retry_stale(self, names: Names, work: Callable[[], T]) -> T:
        """Run work, and retry it if something changed between its lookups and its locks."""
        backoff = Backoff(CONFLICT)
        while True:
            try:
                return work()
            except Stale as stale:
                self.forget(names)
                if (wait_s := backoff.wait_s(stale)) is None:
                    reason = "too many changes at the same time"
                    raise os_error(errno.ETIMEDOUT, join(names), reason) from stale
                time.sleep(wait_s)

    def make_directory(self, names: Names, *, parents: bool = False, exist_ok: bool = False) -> str:
        """Create a directory, and return its id.

        Args:
            names: Its path.
            parents: Create missing parent directories.
            exist_ok: Accept an existing directory.

        Raises:
            OSError: EEXIST, ENOENT, ENOTDIR.
        """
        for _ in range(_ATTEMPTS if parents else 0):
            try:
                return self.retry_stale(names, lambda: self._make_directory(names, exist_ok))
            except FileNotFoundError:
                # A parent is missing, perhaps because it was removed in the meantime.
                with contextlib.suppress(FileNotFoundError):
                    for depth in range(self._depth(names) + 1, len(names)):
                        self._make_one(names[:depth])
        return self.retry_stale(names, lambda: self._make_directory(names, exist_ok))

    def _make_one(self, names: Names) -> None:
        self.retry_stale(names, lambda: self._make_directory(names, True))

    def _depth(self, names: Names) -> int:
        """Return how many of the parent directories exist, by bisection."""
        there, missing = 0, len(names)
        while there + 1 < missing:
            depth = (there + missing) // 2
            try:
                found = self.lookup(names[:depth], sure=False).entry is not None
            except FileNotFoundError:
                found = False
            there, missing = (depth, missing) if found else (there, depth)
        return there

    def _make_directory(self, names: Names, exist_ok: bool) -> str:
        found = self.lookup(names, sure=False)
        if found.entry is not None:
            if exist_ok and found.entry.directory_id is not None:
                return found.entry.directory_id
            raise os_error(errno.EEXIST, found.path)
        fresh = new_id()
        entry = Entry(fresh, time.time_ns())

        def work(transaction: Transaction) -> str:
            own = directory_key(found.parent_id)
            held = transaction.lock([own, found.key])
            if own not in held:
                raise Stale
            if found.key in held:
                there = Entry.from_bytes(held[found.key])
                if there.directory_id == fresh or (exist_ok and there.directory_id):
                    return there.directory_id
                raise os_error(errno.EEXIST, found.path)
            transaction.put(
                {
                    found.key: entry.to_bytes(),
                    directory_key(fresh): encode({"p": found.parent_id}),
                    hint_key(found.path): fresh.encode(),
                }
            )
            return fresh

        made = self.meta.transact(work)
        self._remember(names, made)
        return made


def rename(tree: Tree, source: Names, target: Names) -> None:
    """Move a file or directory, replacing a file or an empty directory at the target.

    Raises:
        OSError: ENOENT; EISDIR, ENOTDIR, ENOTEMPTY for the present target; EINVAL for a move
            into itself; EBUSY for the root.
    """
    if not source or not target:
        raise os_error(errno.EBUSY, "/", "the root directory cannot be renamed or replaced")
    if len(target) > len(source) and target[: len(source)] == source:
        if not tree.entry(source).is_directory:
            raise os_error(errno.ENOTDIR, join(target))
        raise os_error(errno.EINVAL, join(source), "a directory cannot be moved into itself")

    def attempt() -> None:
        origin, goal = tree.lookup(source), tree.lookup(target, sure=False)
        if origin.entry is None:
            raise os_error(errno.ENOENT, origin.path)
        if source != target:
            move = _Move(tree, origin, origin.entry, goal)
            tree.meta.transact(move.run)

    tree.retry_stale(source, attempt)
    tree.forget(source)
    tree.forget(target)


class _Move:
    """One rename; see `rename`."""

    def __init__(self, tree: Tree, origin: Found, entry: Entry, goal: Found) -> None:
        self._tree = tree
        self._origin = origin
        self._entry = entry
        self._goal = goal
        self._changes_parent = entry.is_directory and origin.parent_id != goal.parent_id

    def run(self, transaction: Transaction) -> None:
        origin, goal = self._origin, self._goal
        parents = [directory_key(origin.parent_id), directory_key(goal.parent_id)]
        locks = set(parents)
        replaced = goal.entry.directory_id if goal.entry else None
        for directory in (self._entry.directory_id, replaced):
            if directory is not None:
                locks.add(directory_key(directory))
        # Two such moves at once could each put its directory below the other's.
        if self._changes_parent:
            locks.add(MOVE_LOCK_KEY)
        # Lock the goal's key first: the first key locked is the first written at the commit.
        held = transaction.lock([*sorted(locks), goal.key, origin.key])
        if self._was_committed(transaction, held):
            return
        if any(parent not in held for parent in parents) or origin.key not in held:
            raise Stale
        entry = Entry.from_bytes(held[origin.key])
        there = Entry.from_bytes(held[goal.key]) if goal.key in held else None
        if entry.directory_id != self._entry.directory_id:
            raise Stale
        if (there.directory_id if there else None) != replaced:
            raise Stale
        self._check_target(entry, there)
        puts = {goal.key: held[origin.key]}
        gone = [origin.key]
        if there is not None:
            puts.update(garbage(there.contents()))
        if entry.directory_id is None:
            # Writers that have the file open find its new key here.
            puts.update({moved_key(writer): goal.key.encode() for writer in entry.writers})
        else:
            puts[hint_key(goal.path)] = entry.directory_id.encode()
            gone.append(hint_key(origin.path))
            if self._changes_parent:
                puts[directory_key(entry.directory_id)] = encode({"p": goal.parent_id})
            if replaced is not None:
                gone.append(directory_key(replaced))
        transaction.put(puts)
        transaction.remove(gone)

    def _was_committed(self, transaction: Transaction, held: dict[str, bytes]) -> bool:
        """True if an earlier try was committed although its answer was lost."""
        if not transaction.unsettled or self._origin.key in held or self._goal.key not in held:
            return False
        there = Entry.from_bytes(held[self._goal.key])
        return (there.directory_id, there.extents) == (
            self._entry.directory_id,
            self._entry.extents,
        )

    def _check_target(self, entry: Entry, there: Entry | None) -> None:
        path = self._goal.path
        if there is not None and entry.is_directory and not there.is_directory:
            raise os_error(errno.ENOTDIR, path)
        if there is not None and there.directory_id is not None:
            if not entry.is_directory:
                raise os_error(errno.EISDIR, path)
            if not self._tree.is_empty(there.directory_id):
                raise os_error(errno.ENOTEMPTY, path)
        if self._changes_parent:
            self._check_no_cycle(entry)

    def _check_no_cycle(self, entry: Entry) -> None:
        """Check that the goal is not below the moved directory; a lock serializes such moves."""
        ancestor = self._goal.parent_id
        while ancestor != ROOT_ID:
            if ancestor == entry.directory_id:
                raise os_error(
                    errno.EINVAL, self._origin.path, "a directory cannot be moved into itself"
                )
            value = self._tree.meta.get(directory_key(ancestor))
            if value is None:
                raise Stale
            ancestor = decode(value)["p"]


_PURGE_BATCH: Final = 1000


class Removal:
    """Removes files and directories of one file system."""

    def __init__(self, tree: Tree, chunks: ChunkCache) -> None:
        self._tree = tree
        self._meta = tree.meta
        self._chunks = chunks

    def schedule_removal(self, contents: dict[str, int]) -> None:
        """Schedule the removal of content without references.

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
            unchanged: Files that must not have changed since they were read; None for a missing
                file.

        Raises:
            OSError: ENOENT, EISDIR; nothing was removed.
            Outdated: One of `unchanged` is different; nothing was removed.
        """
        first = every[0]
        try:
            self._tree.retry_stale(first, lambda: self._files(every, unchanged, noted=True))
        except IgniteTFError as error:
            if not is_full(error):
                raise
            # A client that dies between the two steps leaves chunks for `check` to find.
            self._remove_chunks(
                self._tree.retry_stale(first, lambda: self._files(every, unchanged, noted=False))
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
                removed = self._tree.retry_stale(names, lambda: self._directory(names, recursive))
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

        Each directory is first closed to new entries. Each note is written before its entry is
        removed, so that any client can continue after a crash.
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
                self.schedule_removal(contents)
                self._meta.put_all(notes)
                self._meta.remove(key for key, _ in batch)
                count += len(batch)
            self._meta.remove([removed_key(present)])
        return count


def _close_directory(transaction: Transaction, directory_id: str) -> None:
    own = directory_key(directory_id)
    if own in transaction.lock([own]):
        transaction.remove([own])
