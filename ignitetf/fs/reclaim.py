"""Reclaim unreferenced content: garbage after its grace period, and chunks of dead writers.

Every chunk in the cache is covered by an entry, a garbage note or a writer's lease, so nothing
here has to scan chunks. After each step any client can continue from the state it leaves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ignitetf.errors import IgniteTFError
from ignitetf.fs.chunks import ChunkCache
from ignitetf.fs.leases import GRACE_S, is_dead, is_here, now_ms
from ignitetf.fs.meta import MetaCache, Transaction
from ignitetf.fs.records import (
    Entry,
    decode,
    directory_key,
    encode,
    garbage_key,
    lease_key,
    moved_key,
    reader_key,
    removed_key,
)
from ignitetf.fs.tree import Removal
from ignitetf.net.failures import is_full

__all__ = ["Reclaimer"]

_BATCH = 500


class Reclaimer:
    """Removes the garbage of one file system."""

    def __init__(self, removal: Removal, meta: MetaCache, chunks: ChunkCache) -> None:
        self._removal = removal
        self._meta = meta
        self._chunks = chunks

    def run(self, grace_s: float = GRACE_S) -> int:
        """Reclaim garbage and leases that are due.

        Returns:
            Number of garbage notes and leases that may be due soon, not counting those of living
            processes on this machine.
        """
        # Garbage first: on a full node this frees the memory that the other steps need.
        waiting = self.garbage(grace_s)
        waiting += self.directories()
        waiting += self.writers(grace_s)
        self.readers()
        return waiting

    def garbage(self, grace_s: float) -> int:
        """Remove content that was released before the grace period and that has no reader."""
        waiting, due = 0, dict[str, int]()
        notes = list(self._meta.range(*_prefix(garbage_key(""))))
        read = self._contents_read() if notes else set()
        for key, value in notes:
            content, note = key[1:], decode(value)
            if now_ms() - note["at"] < grace_s * 1000 or content in read:
                waiting += 1
            else:
                due[content] = note["n"]
        contents = list(due)
        for at in range(0, len(contents), _BATCH):
            batch = contents[at : at + _BATCH]
            self._chunks.remove_all((c, number) for c in batch for number in range(due[c]))
            self._meta.remove(garbage_key(content) for content in batch)
        return waiting

    def writers(self, grace_s: float) -> int:
        """Take over the leases of dead writers, and remove the chunks they did not publish.

        For the grace period after a writer has ended by itself, its last publication and puts in
        flight may still arrive.
        """
        waiting = 0
        for key, value in list(self._meta.range(*_prefix(lease_key("")))):
            lease = decode(value)
            if not lease.get("dead"):
                if not is_dead(lease):
                    waiting += not is_here(lease)
                    continue
                if not self._take(key, value, lease):
                    waiting += 1
                    continue
            elif now_ms() - lease["dead"] < grace_s * 1000:
                waiting += 1
                continue
            self.remove_reserved(key[1:], lease["n"], lease["k"])
        return waiting

    def _take(self, key: str, value: bytes, lease: dict[str, Any]) -> bool:
        """Take over a lease: from now on the writer's next beat or publication fails."""
        try:
            return self._meta.replace(key, value, encode({**lease, "dead": 1}))  # due at once
        except IgniteTFError as error:
            if not is_full(error):
                raise
            # A client that dies right after this leaves chunks for `check` to find.
            return self._meta.remove_if(key, value)

    def remove_reserved(self, content: str, reserved: int, first_key: str) -> None:
        """Remove the reserved chunks of an ended writer, except those of a file it published."""
        key, kept = self.entry_of(content, first_key)
        # Before the entry is written: on a full node this frees the memory for it.
        self._chunks.remove(content, range(kept, reserved))
        if key is not None:
            self._meta.transact(lambda transaction: _end_writer(transaction, key, content))
        self._meta.remove([lease_key(content), moved_key(content)])

    def entry_of(self, content: str, first_key: str) -> tuple[str | None, int]:
        """Return the key of the entry with this content, following renames, and its chunk count.

        Without such an entry the result is (None, 0).
        """
        pointer = moved_key(content)
        while True:
            moved = self._meta.get(pointer)
            key = moved.decode() if moved is not None else first_key
            value = self._meta.get(key)
            contents = Entry.from_bytes(value).contents() if value is not None else {}
            if content in contents:
                return key, contents[content]
            # A rename may be half visible: wait for it, then check whether it left a pointer.
            self._meta.wait_for_transactions(key)
            self._meta.wait_for_transactions(pointer)
            if self._meta.get(pointer) == moved:
                return None, 0

    def directories(self) -> int:
        """Finish the removal of directories; return how many entries became garbage."""
        return sum(
            self._removal.purge(key[1:])
            for key, _ in list(self._meta.range(*_prefix(removed_key(""))))
        )

    def readers(self) -> None:
        """Remove the leases of dead readers."""
        stale = [
            key
            for key, value in self._meta.range(*_prefix(reader_key("", "")[:1]))
            if is_dead(decode(value))
        ]
        self._meta.remove(stale)

    def _contents_read(self) -> set[str]:
        """Return the contents that a living reader holds a lease on."""
        return {
            key[1:].partition("/")[0]
            for key, value in self._meta.range(*_prefix(reader_key("", "")[:1]))
            if not is_dead(decode(value))
        }


def _end_writer(transaction: Transaction, key: str, content: str) -> None:
    """Remove the mark of an open writer from an entry."""
    held = transaction.lock([directory_key(key.partition("/")[0]), key])
    if key not in held:
        return
    entry = Entry.from_bytes(held[key])
    if content in entry.writers:
        others = tuple(writer for writer in entry.writers if writer != content)
        transaction.put({key: replace(entry, writers=others).to_bytes()})


def _prefix(prefix: str) -> tuple[str, str]:
    """Return the range of all keys with this prefix."""
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)
