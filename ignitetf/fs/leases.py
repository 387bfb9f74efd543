"""Leases: who still writes or reads content that no entry, or no entry any more, refers to.

A writer puts a lease before its first chunk and beats until it published: what it wrote can then
be found and reclaimed when it dies. A reader whose file stays open beats for its content, so
that a replaced file can be read to its end. Beats are times of the machines' clocks; these must
agree to some seconds.

One daemon thread for each file system in use beats for all, and reclaims garbage on the way.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final

from ignitetf.errors import IgniteTFError
from ignitetf.fs.meta import MetaCache
from ignitetf.fs.records import encode, lease_key, reader_key
from ignitetf.owner import has_ended, machine, started

__all__ = ["GRACE_S", "LEASE_S", "Leases", "WriterLease", "is_dead", "is_here", "now_ms"]

GRACE_S: Final = 5.0  # how long garbage stays for readers without a lease
LEASE_S: Final = 45.0  # how long a lease counts without a beat
_READER_AFTER_S: Final = 1.0
_TICK_S: Final = 1.0
_BEAT_S: Final = 10.0
_RECLAIM_S: Final = 2.0
_RESERVED_CHUNKS: Final = 256


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def is_dead(lease: dict[str, Any]) -> bool:
    """Whether the owner of a lease is gone: known at once on its own machine, else by its beat."""
    if has_ended(lease.get("h"), int(lease["p"]), lease["s"]):
        return True
    return bool(now_ms() - lease["t"] > LEASE_S * 1000)


def is_here(lease: dict[str, Any]) -> bool:
    """Whether the owner of a lease is a process of this machine; `is_dead` is sure of those."""
    return bool(lease.get("h") == machine())


class WriterLease:
    """The lease of one writer.

    Attributes:
        content_id: Of the content it writes.
        lost: Whether somebody took the writer for dead.
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
    def taken(self) -> bool:
        """Whether the lease is in the cache."""
        return self._reserved > 0

    @property
    def reserved(self) -> int:
        """Chunks that may be written under the lease as it is."""
        return self._reserved

    def reserve(self, chunks: int) -> None:
        """Extend the lease to so many chunks before they are written."""
        with self._lock:
            if chunks > self._reserved and not self.lost:
                self._beat(-(-chunks // _RESERVED_CHUNKS) * _RESERVED_CHUNKS)

    def beat(self) -> None:
        """Tell that the writer lives."""
        with self._lock:
            if self.taken and not self.lost:
                self._beat(self._reserved)

    def end(self) -> None:
        """No beat after this; who removes the lease itself is the caller's affair."""
        with self._lock:
            self.lost = True

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
        self.beaten = 0.0


class Leases:
    """The leases of this process in one file system, and the thread that beats for them."""

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
        """A lease for a new writer; it is put into the cache at its first `reserve`."""
        lease = WriterLease(self._meta, content_id, key)
        with self._lock:
            self._writers.add(lease)
        self._wake()
        return lease

    def writer_ended(self, lease: WriterLease) -> None:
        """Stop beating for a writer."""
        lease.end()
        with self._lock:
            self._writers.discard(lease)

    def reader(self, contents: Iterable[str]) -> int:
        """Hold content for a reader; gives a number for `reader_ended`."""
        lease = _ReaderLease(contents)
        with self._lock:
            self._numbers += 1
            number = self._numbers
            self._readers[number] = lease
        self._wake()
        return number

    def reader_ended(self, number: int) -> None:
        """Let go of a reader's content."""
        with self._lock:
            lease = self._readers.pop(number, None)
            held = {content for other in self._readers.values() for content in other.contents}
        if lease is not None and lease.beaten:
            keys = [reader_key(c, self._reader) for c in lease.contents if c not in held]
            with contextlib.suppress(IgniteTFError):
                self._meta.remove(keys)

    def garbage_made(self) -> None:
        """Tell that this process left garbage, to be reclaimed after the grace."""
        self._garbage = True
        self._wake()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()

    def _wake(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="igfs-leases", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        beaten = reclaimed = time.monotonic()
        while not self._stop.wait(_TICK_S):
            now = time.monotonic()
            # The cluster may be away for a while; the next tick tries again.
            with contextlib.suppress(IgniteTFError, OSError):
                self._beat_readers(now)
                if now - beaten >= _BEAT_S:
                    beaten = now
                    for lease in list(self._writers):
                        lease.beat()
                if self._garbage and now - reclaimed >= _RECLAIM_S:
                    reclaimed = now
                    self._garbage = False
                    self._reclaim()
            with self._lock:
                if not (self._readers or len(self._writers) or self._garbage):
                    self._thread = None
                    return

    def _beat_readers(self, now: float) -> None:
        with self._lock:
            due = [
                lease
                for lease in self._readers.values()
                if now - lease.since >= _READER_AFTER_S and now - lease.beaten >= _BEAT_S
            ]
        value = encode({"t": now_ms(), "h": machine(), "p": os.getpid(), "s": started()})
        self._meta.put_all({reader_key(c, self._reader): value for r in due for c in r.contents})
        for lease in due:
            lease.beaten = now
