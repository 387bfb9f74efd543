"""Renames: one entry moves, however much is below it; atomic for readers.

store -> **rename** -> tree
"""

from __future__ import annotations

import errno

from ignitetf.fs.meta import Transaction
from ignitetf.fs.path import join, os_error
from ignitetf.fs.records import (
    MOVE_LOCK_KEY,
    ROOT_ID,
    Entry,
    decode,
    directory_key,
    encode,
    garbage,
    hint_key,
    moved_key,
)
from ignitetf.fs.tree import Found, Names, Stale, Tree

__all__ = ["rename"]


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

    tree.settled(source, attempt)
    tree.forget(source)
    tree.forget(target)


class _Move:
    """One rename; see `rename`."""

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
        # Two such moves at once could each put its directory below the other's.
        if self._crosses:
            locks.add(MOVE_LOCK_KEY)
        # The goal's key comes first: the first key locked is the first written at the commit.
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
            # Writers that have the file open find its new key here.
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
        """Whether an earlier try was committed although its answer was lost."""
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
