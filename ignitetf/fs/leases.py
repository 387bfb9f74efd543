"""Leases mark content that a process still writes or reads without an entry that refers to it.

A writer stores a lease before its first chunk and renews it until it has published, so that its
chunks can be found and reclaimed if it dies. A reader whose file stays open keeps a lease on its
content, so that it can read a replaced file to the end. Leases hold times of the machines' clocks,
which must therefore agree to within a few seconds.

One daemon thread per file system in use renews all leases (a renewal is a "beat") and reclaims
garbage.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

from ignitetf.errors import IgniteTFError
from ignitetf.fs.meta import MetaCache
from ignitetf.fs.records import encode, lease_key, reader_key
from ignitetf.owner import has_ended, machine, started
from ignitetf.threads import BackgroundCall, held, start

__all__ = ["GRACE_S", "LEASE_S", "Leases", "WriterLease", "is_dead", "is_here", "now_ms"]

GRACE_S: Final = 5.0  # seconds that garbage is kept for readers that hold no lease yet
LEASE_S: Final = 45.0  # seconds that a lease is valid without a beat
_READER_AFTER_S: Final = 1.0  # a file that is read in less time needs no lease
_TICK_S: Final = 1.0
_BEAT_S: Final = 10.0  # several within LEASE_S, so that some may fail
_RECLAIM_S: Final = 2.0
# A lease begins with this many chunks and doubles, because each extension takes a round trip in
# which no chunks are sent.
_RESERVED_CHUNKS: Final = 256


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def is_dead(lease: dict[str, Any]) -> bool:
    """True if the owner of a lease has ended; on other machines its last heartbeat decides."""
    if has_ended(lease.get("h"), int(lease["p"]), lease["s"]):
        return True
    return bool(now_ms() - lease["t"] > LEASE_S * 1000)


def is_here(lease: dict[str, Any]) -> bool:
    """True if a lease's owner runs on this machine, where `is_dead` is certain."""
    return bool(lease.get("h") == machine())


class WriterLease:
    """The lease of one writer.

    Args:
        meta: Cache that stores it.
        content_id: Id of the content.
        key: Key of the file's entry.

    Attributes:
        content_id: Id of the content it writes.
        lost: True if another client considered the writer dead.
    """

    def __init__(self, meta: MetaCache, content_id: str, key: str) -> None:
        self.content_id = content_id
        self.lost = False
        self._meta = meta
        self._lock = threading.Lock()
        self._reserved = 0
        self._value = b""
        self._facts = {"h": machine(), "p": os.getpid(), "s": started(), "k": key}

    @property
    def key(self) -> str:
        """Key of the file's entry, without renames since it was opened."""
        return str(self._facts["k"])

    @property
    def taken(self) -> bool:
        """True if the lease is in the cache."""
        return self._reserved > 0

    @property
    def reserved(self) -> int:
        """Number of chunks that the lease covers now."""
        return self._reserved

    def reserve(self, chunks: int) -> None:
        """Extend the lease to this many chunks, before they are written."""
        with held(self._lock):
            if chunks > self._reserved and not self.lost:
                self._beat(max(chunks, _RESERVED_CHUNKS, 2 * self._reserved))

    def begin(self) -> Callable[[], None]:
        """Send the request that stores the lease; returns a function that waits for the answer."""
        value = encode({"n": _RESERVED_CHUNKS, "t": now_ms(), **self._facts})
        with held(self._lock):
            self._value, self._reserved = value, _RESERVED_CHUNKS
            return self._meta.begin_put(lease_key(self.content_id), value)

    def renew(self) -> None:
        """Renew the lease."""
        with held(self._lock):
            if self.taken and not self.lost:
                self._beat(self._reserved)

    def refer_to(self, key: str) -> None:
        """Note another key of the file's entry."""
        with held(self._lock):
            is_same, self._facts["k"] = self._facts["k"] == key, key
        if not is_same:
            self.renew()

    def end(self) -> None:
        """Stop renewing the lease; the caller decides who removes it."""
        with held(self._lock):
            self.lost = True

    def abandon(self) -> None:
        """End the lease, so that its reserved chunks are reclaimed after the grace period."""
        with held(self._lock):
            self.lost = True
            value = encode({"n": self._reserved, "t": now_ms(), "dead": now_ms(), **self._facts})
            self._meta.put(lease_key(self.content_id), value)

    def _beat(self, reserved: int) -> None:
        value = encode({"n": reserved, "t": now_ms(), **self._facts})
        key = lease_key(self.content_id)
        if self.taken:
            self.lost = not self._meta.replace(key, self._value, value)
        else:
            self._meta.put(key, value)
        self._value, self._reserved = value, reserved


class _ReaderLease:
    def __init__(self, contents: Iterable[str]) -> None:
        self.contents = tuple(contents)
        self.since = time.monotonic()
        self.renewed_at = 0.0


class Leases:
    """The leases of this process in one file system, and the thread that renews them."""

    def __init__(self, meta: MetaCache, reclaim: Callable[[], None]) -> None:
        self._meta = meta
        self._reclaim = reclaim
        self._reader = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._writers: weakref.WeakSet[WriterLease] = weakref.WeakSet()
        self._readers: dict[int, _ReaderLease] = {}
        self._numbers = 0
        self._thread: threading.Thread | None = None
        self._garbage = False
        self._stop = threading.Event()

    def writer(self, content_id: str, key: str) -> WriterLease:
        """Return a lease for a new writer; its first `reserve` stores it in the cache.

        Args:
            content_id: Id of the content that is written.
            key: Key of the file's entry.
        """
        lease = WriterLease(self._meta, content_id, key)
        with held(self._lock):
            self._writers.add(lease)
        self._wake()
        return lease

    def writer_ended(self, lease: WriterLease) -> None:
        """Stop renewing a writer's lease."""
        lease.end()
        with held(self._lock):
            self._writers.discard(lease)

    def reader(self, contents: Iterable[str]) -> int:
        """Keep content for a reader, and return a number for `reader_ended`."""
        lease = _ReaderLease(contents)
        with held(self._lock):
            self._numbers += 1
            number = self._numbers
            self._readers[number] = lease
        self._wake()
        return number

    def reader_ended(self, number: int) -> None:
        """Stop keeping a reader's content."""
        if sys.is_finalizing():
            return  # the lease belongs to a process that has ended
        with held(self._lock):
            lease = self._readers.pop(number, None)
            others = {content for other in self._readers.values() for content in other.contents}
        if lease is not None and lease.renewed_at:
            keys = [reader_key(c, self._reader) for c in lease.contents if c not in others]
            BackgroundCall(lambda: self._remove(keys))  # its result is not needed

    def _remove(self, keys: list[str]) -> None:
        with contextlib.suppress(IgniteTFError):
            self._meta.remove(keys)

    def garbage_made(self) -> None:
        """Note that this process left garbage, which the thread reclaims after the grace period."""
        self._garbage = True
        self._wake()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()

    def _wake(self) -> None:
        with held(self._lock):
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="igfs-leases", daemon=True)
                start(self._thread)

    def _run(self) -> None:
        renewed_at = reclaimed = time.monotonic()
        while not self._stop.wait(_TICK_S):
            now = time.monotonic()
            # The cluster may be unreachable for a while; the next tick tries again.
            with contextlib.suppress(IgniteTFError, OSError):
                self._beat_readers(now)
                if now - renewed_at >= _BEAT_S:
                    renewed_at = now
                    for lease in list(self._writers):
                        lease.renew()
                if self._garbage and now - reclaimed >= _RECLAIM_S:
                    reclaimed = now
                    self._garbage = False
                    self._reclaim()
            with held(self._lock):
                if not (self._readers or len(self._writers) or self._garbage):
                    self._thread = None
                    return

    def _beat_readers(self, now: float) -> None:
        with held(self._lock):
            due = [
                lease
                for lease in self._readers.values()
                if now - lease.since >= _READER_AFTER_S and now - lease.renewed_at >= _BEAT_S
            ]
        value = encode({"t": now_ms(), "h": machine(), "p": os.getpid(), "s": started()})
        self._meta.put_all({reader_key(c, self._reader): value for r in due for c in r.contents})
        for lease in due:
            lease.renewed_at = now
