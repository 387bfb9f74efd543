"""The tree of directories and files: look up, list, create; see `rename` and `removal` as well.

store -> **tree** -> meta

An entry's key is the id of its directory and its name, so a rename moves one entry, however much is
below it. Changing the entries of a directory requires the lock on that directory's own record, in a
transaction that takes all such locks in the order of their keys. So a removed directory cannot get
new entries, and no two changes deadlock.

Looking up a path takes one request if the ids of its directories are known, else two: first the
hints (path -> id), then all entries of the path at once. Remembered ids and hints are guesses: the
entries confirm them, or the lookup continues name by name from the first wrong one. Before a name
is reported missing, its key is read again under its lock, so that a reader who looks for both names
of a rename in progress finds one of them. A listing is not a snapshot: an entry that appears,
disappears or moves in the meantime may or may not be listed.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from ignitetf.fs.meta import MetaCache, Transaction
from ignitetf.fs.path import join, os_error
from ignitetf.fs.records import (
    ROOT_ID,
    Entry,
    Extent,
    directory_key,
    encode,
    entry_key,
    entry_range,
    hint_key,
    new_id,
)
from ignitetf.net.failures import CONFLICT, Backoff

__all__ = ["Conditions", "Found", "Names", "Outdated", "Stale", "Tree"]

T = TypeVar("T")
Names = tuple[str, ...]

_MEMO_SIZE: Final = 20_000  # directories whose ids are remembered
_ATTEMPTS: Final = 100


class Stale(Exception):
    """What was looked up changed before it was locked; look it up again."""


class Outdated(Exception):
    """An entry is no longer the one that the caller relied on; nothing was changed."""


@dataclass(frozen=True)
class Conditions:
    """What must still be there for a transaction to take place.

    Attributes:
        extents: Content of each entry by its key; None for one that must not exist.
        directories: Keys of their directories, whose locks keep the entries as they are.
    """

    extents: Mapping[str, tuple[Extent, ...] | None]
    directories: frozenset[str]

    def check(self, held: Mapping[str, bytes]) -> None:
        """Compare with what is locked; raises Outdated if anything differs."""
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
        ids = self._guess(names)
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
        self._learn(corrections)
        return Found(names, parent, entry)

    def known_key(self, names: Names) -> str | None:
        """Return the key of a path's entry, as far as is remembered; a guess, or None."""
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
        """Whether the directory with this id has no entries."""
        return not list(self.meta.range(*entry_range(directory_id), limit=1))

    def conditions(self, seen: Mapping[Names, Entry | None]) -> Conditions:
        """Return the conditions that files are as they were seen; None for one that is missing.

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

    def _guess(self, names: Names) -> dict[int, str]:
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

    def _learn(self, corrections: dict[Names, str]) -> None:
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

    def settled(self, names: Names, work: Callable[[], T]) -> T:
        """Run work, and run it again while what it looked up is stale by the time it is locked."""
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
                return self.settled(names, lambda: self._make_directory(names, exist_ok))
            except FileNotFoundError:
                # A parent is missing, perhaps because it was removed in the meantime.
                with contextlib.suppress(FileNotFoundError):
                    for depth in range(self._depth(names) + 1, len(names)):
                        self._make_one(names[:depth])
        return self.settled(names, lambda: self._make_directory(names, exist_ok))

    def _make_one(self, names: Names) -> None:
        self.settled(names, lambda: self._make_directory(names, True))

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
