"""The tree of directories and files: resolve, list, make, rename, remove.

store -> **tree** -> meta

Entries are keyed by the id of their directory and their name, so that a rename moves one entry,
whatever hangs below it. Whoever changes the entries of a directory holds the lock on that
directory's own record in a transaction, all such locks taken in the order of their keys; so a
removed directory can get no new entry, and no two changes deadlock.

A path is resolved in one request when the ids of its directories are known from before, else in
two: hints (path -> id) first, then all entries of the path at once. Ids from memory and hints are
guesses: the entries read prove them, or the walk goes on name by name from the first wrong one.
Before "no such file" is said, the missing key is asked for again under its lock, so that a
reader who looks for both names of a rename under way finds one of them.

A listing is not a snapshot: an entry that comes, goes or moves meanwhile may show or not.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from ignitetf.fs.meta import MetaCache, Transaction
from ignitetf.fs.path import join, os_error
from ignitetf.fs.records import (
    MOVE_LOCK_KEY,
    ROOT_ID,
    Entry,
    decode,
    directory_key,
    encode,
    entry_key,
    entry_range,
    garbage_key,
    hint_key,
    moved_key,
    new_id,
    removed_key,
)

__all__ = ["Found", "Names", "Stale", "Tree", "garbage"]

T = TypeVar("T")
Names = tuple[str, ...]

_MEMO_SIZE: Final = 20_000
_PURGE_BATCH: Final = 1000
_ATTEMPTS: Final = 100


class Stale(Exception):
    """What was looked up changed before it was locked; look again."""


@dataclass(frozen=True)
class Found:
    """Where a path leads.

    Attributes:
        names: The path.
        parent_id: Id of the directory that holds the last name; "" for the root.
        entry: What is there; None where nothing is.
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


def garbage(contents: dict[str, int]) -> dict[str, bytes]:
    """Notes that these contents (chunks by content id) are to be removed after a while."""
    now_ms = time.time_ns() // 1_000_000
    return {
        garbage_key(content): encode({"n": count, "at": now_ms})
        for content, count in contents.items()
    }


class Tree:
    """The names of one file system."""

    def __init__(self, meta: MetaCache) -> None:
        self.meta = meta
        self._memo: dict[Names, str] = {}

    # Reading

    def lookup(self, names: Names, *, sure: bool = True) -> Found:
        """Where a path leads; the last name may be missing.

        Args:
            names: The path.
            sure: Ask once more before the last name is called missing; not needed where the
                caller locks and looks again.

        Raises:
            OSError: ENOENT or ENOTDIR for a name on the way.
        """
        if not names:
            return Found(names, "", Entry(ROOT_ID, 0))
        ids = self._guess(names)
        known = [entry_key(ids[i], name) for i, name in enumerate(names) if i in ids]
        values = self.meta.get_all(known)
        parent, corrections = ROOT_ID, dict[Names, str]()
        for depth, name in enumerate(names):
            key = entry_key(parent, name)
            value = values.get(key) if ids.get(depth) == parent else self.meta.get(key)
            if value is None and (sure or depth < len(names) - 1):
                self.meta.settle(key)
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
        self._learn(corrections)
        return Found(names, parent, entry)

    def entry(self, names: Names) -> Entry:
        """What is at a path; raises ENOENT where nothing is."""
        found = self.lookup(names)
        if found.entry is None:
            raise os_error(errno.ENOENT, join(names))
        return found.entry

    def entries(self, names: Names) -> list[tuple[str, Entry]]:
        """Names and entries of a directory, sorted by name.

        Raises:
            OSError: ENOENT, or ENOTDIR for a file.
        """
        entry = self.entry(names)
        if entry.directory_id is None:
            raise os_error(errno.ENOTDIR, join(names))
        return sorted(self.children(entry.directory_id), key=lambda pair: pair[0])

    def children(self, directory_id: str) -> Iterable[tuple[str, Entry]]:
        """Names and entries of the directory of this id."""
        first, end = entry_range(directory_id)
        for key, value in self.meta.range(first, end):
            yield key[len(first) :], Entry.from_bytes(value)

    def _guess(self, names: Names) -> dict[int, str]:
        """Ids of the directories on the way, by depth, from memory and hints."""
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

    def _learn(self, corrections: dict[Names, str]) -> None:
        for names, directory_id in corrections.items():
            self._remember(names, directory_id)
        self.meta.put_all({hint_key(join(n)): i.encode() for n, i in corrections.items()})

    def _remember(self, names: Names, directory_id: str) -> None:
        if len(self._memo) >= _MEMO_SIZE:
            self._memo.clear()
        self._memo[names] = directory_id

    def _forget(self, names: Names) -> None:
        for known in [n for n in list(self._memo) if n[: len(names)] == names]:
            self._memo.pop(known, None)

    # Changing

    def settled(self, names: Names, work: Callable[[], T]) -> T:
        """Run work again while what it looked up is stale when it is locked."""
        for attempt in range(_ATTEMPTS):
            try:
                return work()
            except Stale:
                self._forget(names)
                time.sleep(min(0.1, 0.002 * attempt))
        raise os_error(errno.ETIMEDOUT, join(names), "too many changes at the same time")

    def make_directory(self, names: Names, *, parents: bool = False, exist_ok: bool = False) -> str:
        """Make a directory; gives its id.

        Args:
            names: Its path.
            parents: Make the directories on the way where they are missing.
            exist_ok: Be content with a directory that is there.

        Raises:
            OSError: EEXIST, ENOENT, ENOTDIR.
        """
        return self.settled(names, lambda: self._make_directory(names, parents, exist_ok))

    def _make_directory(self, names: Names, parents: bool, exist_ok: bool) -> str:
        try:
            found = self.lookup(names, sure=False)
        except FileNotFoundError:
            if not parents:
                raise
            self.make_directory(names[:-1], parents=True, exist_ok=True)
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

    def remove_file(self, names: Names) -> None:
        """Remove a file; its content goes a while later. Raises ENOENT, EISDIR."""

        def attempt() -> None:
            found = self.lookup(names)
            if found.entry is None:
                raise os_error(errno.ENOENT, found.path)
            if found.entry.is_directory:
                raise os_error(errno.EISDIR, found.path)

            tried: list[Entry] = []

            def work(transaction: Transaction) -> None:
                own = directory_key(found.parent_id)
                held = transaction.lock([own, found.key])
                there = Entry.from_bytes(held[found.key]) if found.key in held else None
                if transaction.unsettled and tried and there != tried[-1]:
                    return
                if there is None or there.is_directory:
                    raise Stale
                tried.append(there)
                transaction.put(garbage(there.contents()))
                transaction.remove([found.key])

            self.meta.transact(work)

        self.settled(names, attempt)

    def remove_directory(self, names: Names, *, recursive: bool = False) -> None:
        """Remove a directory, at once for readers; `recursive` with all that is in it.

        Raises:
            OSError: ENOENT, ENOTDIR, ENOTEMPTY, and EBUSY for the root.
        """
        if not names:
            raise os_error(errno.EBUSY, "/", "the root directory cannot be removed")

        def attempt() -> str | None:
            found = self.lookup(names)
            if found.entry is None:
                raise os_error(errno.ENOENT, found.path)
            if found.entry.directory_id is None:
                raise os_error(errno.ENOTDIR, found.path)
            return self.meta.transact(
                lambda transaction: self._remove(transaction, found, recursive)
            )

        removed = self.settled(names, attempt)
        self._forget(names)
        if recursive and removed is not None:
            self.purge(removed)

    def _remove(self, transaction: Transaction, found: Found, recursive: bool) -> str | None:
        assert found.entry is not None
        directory = found.entry.directory_id
        assert directory is not None
        locks = sorted([directory_key(found.parent_id), directory_key(directory)])
        held = transaction.lock([*locks, found.key])
        if found.key not in held and transaction.unsettled:
            return directory
        if found.key not in held or Entry.from_bytes(held[found.key]).directory_id != directory:
            raise Stale
        gone = [found.key, directory_key(directory), hint_key(found.path)]
        if recursive:
            transaction.put({removed_key(directory): b"{}"})
        elif not self.is_empty(directory):
            raise os_error(errno.ENOTEMPTY, found.path)
        transaction.remove(gone)
        return directory

    def is_empty(self, directory_id: str) -> bool:
        """Whether the directory of this id has no entry."""
        return not list(self.meta.range(*entry_range(directory_id), limit=1))

    def purge(self, directory_id: str) -> int:
        """Remove what is below a removed directory; gives the number of entries.

        Each directory is first made unable to get new entries; notes are written before what
        they stand for is removed, so that anyone can go on after a crash.
        """
        waiting, count = [directory_id], 0
        while waiting:
            present = waiting.pop()
            self.meta.transact(lambda t, d=present: self._close_directory(t, d))  # type: ignore[misc]
            while batch := list(
                self.meta.range(*entry_range(present), limit=_PURGE_BATCH, page=_PURGE_BATCH)
            ):
                notes: dict[str, bytes] = {}
                for _, value in batch:
                    entry = Entry.from_bytes(value)
                    if entry.directory_id is not None:
                        notes[removed_key(entry.directory_id)] = b"{}"
                        waiting.append(entry.directory_id)
                    notes.update(garbage(entry.contents()))
                self.meta.put_all(notes)
                self.meta.remove(key for key, _ in batch)
                count += len(batch)
            self.meta.remove([removed_key(present)])
        return count

    @staticmethod
    def _close_directory(transaction: Transaction, directory_id: str) -> None:
        own = directory_key(directory_id)
        if own in transaction.lock([own]):
            transaction.remove([own])

    def rename(self, source: Names, target: Names) -> None:
        """Move a file or directory; a file, or an empty directory, at the target is replaced.

        Raises:
            OSError: ENOENT; EISDIR, ENOTDIR, ENOTEMPTY for what is at the target; EINVAL for a
                move into itself; EBUSY for the root.
        """
        if not source or not target:
            raise os_error(errno.EBUSY, "/", "the root directory cannot be renamed or replaced")
        if len(target) > len(source) and target[: len(source)] == source:
            self.entry(source)
            raise os_error(errno.EINVAL, join(source), "a directory cannot be moved into itself")

        def attempt() -> None:
            origin, goal = self.lookup(source), self.lookup(target, sure=False)
            if origin.entry is None:
                raise os_error(errno.ENOENT, origin.path)
            if source != target:
                move = _Move(self, origin, origin.entry, goal)
                self.meta.transact(move.run)

        self.settled(source, attempt)
        self._forget(source)
        self._forget(target)


class _Move:
    """One rename; see `Tree.rename`."""

    def __init__(self, tree: Tree, origin: Found, entry: Entry, goal: Found) -> None:
        self._tree = tree
        self._origin = origin
        self._entry = entry
        self._goal = goal
        self._crosses = entry.is_directory and origin.parent_id != goal.parent_id

    def run(self, transaction: Transaction) -> None:
        origin, goal = self._origin, self._goal
        parents = [directory_key(origin.parent_id), directory_key(goal.parent_id)]
        locks = set(parents)
        replaced = goal.entry.directory_id if goal.entry else None
        for directory in (self._entry.directory_id, replaced):
            if directory is not None:
                locks.add(directory_key(directory))
        if self._crosses:
            locks.add(MOVE_LOCK_KEY)
        # The goal's key comes first: what is locked first is written first at the commit.
        held = transaction.lock([*sorted(locks), goal.key, origin.key])
        if self._happened(transaction, held):
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
            puts.update({moved_key(writer): goal.key.encode() for writer in entry.writers})
        else:
            puts[hint_key(goal.path)] = entry.directory_id.encode()
            gone.append(hint_key(origin.path))
            if self._crosses:
                puts[directory_key(entry.directory_id)] = encode({"p": goal.parent_id})
            if replaced is not None:
                gone.append(directory_key(replaced))
        transaction.put(puts)
        transaction.remove(gone)

    def _happened(self, transaction: Transaction, held: dict[str, bytes]) -> bool:
        """Whether an earlier try, whose answer was lost, was committed."""
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
        if self._crosses:
            self._check_no_cycle(entry)

    def _check_no_cycle(self, entry: Entry) -> None:
        """The goal's directory must not lie below the moved one; moves are serial here."""
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
