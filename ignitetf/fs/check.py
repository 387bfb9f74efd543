"""Check a file system for inconsistencies and leftovers, and repair it on request.

It reads all metadata once and counts the chunks. It checks individual chunks only if the count is
wrong, or if `read` requests it. Chunks are listed before the metadata: content ids are never
reused, so a chunk without a reference afterwards can be removed, even if clients changed files in
between.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ignitetf.errors import WireError
from ignitetf.fs.leases import GRACE_S, LEASE_S
from ignitetf.fs.meta import Transaction
from ignitetf.fs.path import os_errors
from ignitetf.fs.records import (
    ROOT_ID,
    Entry,
    decode,
    directory_key,
    encode,
    entry_key,
    hint_key,
    new_id,
)
from ignitetf.fs.store import Store

__all__ = ["CheckReport", "check"]

_READ_BYTES: Final = 4 << 20
_LOST_FOUND: Final = "lost+found"


@dataclass
class CheckReport:
    """The result of `check`.

    Attributes:
        files: Number of files.
        directories: Number of directories, including the root.
        size_bytes: Total bytes of all files.
        chunks: Number of chunks in the cache.
        leftover_chunks: Chunks without a reference from a file or a live writer.
        missing_chunks: Chunks that files refer to but that do not exist.
        waiting: Garbage notes, and leases of open writers and readers; after a repair, only entries
            that are not due yet.
        problems: One line for each remaining inconsistency.
        repaired: One line for each repair.
    """

    files: int = 0
    directories: int = 0
    size_bytes: int = 0
    chunks: int = 0
    leftover_chunks: int = 0
    missing_chunks: int = 0
    waiting: int = 0
    problems: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if the check found no problems and no leftover data."""
        return not self.problems and not self.leftover_chunks and not self.missing_chunks

    def facts(self) -> dict[str, Any]:
        """Return the report as a mapping."""
        return {"ok": self.ok, **self.__dict__}


class _Metadata:
    """All records of the metadata cache, grouped by kind."""

    def __init__(self, store: Store) -> None:
        self.entries: dict[str, dict[str, Entry]] = defaultdict(dict)
        self.directories: dict[str, str] = {}
        self.hints: dict[str, str] = {}
        self.kept: dict[str, int] = defaultdict(int)  # content id -> chunks held by a lease or note
        self.notes = 0
        self.damaged: list[str] = []
        for key, value in store.meta.range("", "\uffff"):
            try:
                self._take(key, value)
            except (WireError, ValueError, KeyError, TypeError) as error:
                self.damaged.append(f"record {key!r} is damaged: {error}")

    def _take(self, key: str, value: bytes) -> None:
        kind = key[0]
        if kind == "#":
            self.directories[key[1:]] = decode(value)["p"]
        elif kind == "@":
            self.hints[key[1:]] = value.decode()
        elif kind in "+!":
            content, note = key[1:], decode(value)
            self.kept[content] = max(self.kept[content], note["n"])
            self.notes += 1
        elif kind == "~":
            self.notes += 1
        elif kind in "0123456789abcdef":
            parent, _, name = key.partition("/")
            self.entries[parent][name] = Entry.from_bytes(value)

    def reachable(self) -> dict[str, str]:
        """Return the path of each directory reachable from the root, by id."""
        paths, waiting = {ROOT_ID: ""}, [ROOT_ID]
        while waiting:
            present = waiting.pop()
            for name, entry in self.entries.get(present, {}).items():
                found = entry.directory_id
                if found is not None and found not in paths:
                    paths[found] = f"{paths[present]}/{name}"
                    waiting.append(found)
        return paths


def check(
    store: Store,
    *,
    repair: bool = False,
    read: bool = False,
    wait: bool = True,
    on_progress: Callable[[str], None] = lambda _: None,
) -> CheckReport:
    """Look for inconsistencies and leftovers.

    Args:
        store: The file system.
        repair: Fix inconsistencies and remove leftovers.
        read: Read every file and verify the checksums.
        wait: With `repair`, wait until garbage and the leases of silent writers on other machines
            are due (at most the length of a lease).
        on_progress: Called with progress messages for the user.

    Raises:
        OSError: The cluster cannot be reached.
    """
    with os_errors():
        report = CheckReport()
        if repair:
            store.meta.finish_removals()
            report.waiting = _reclaim(store, wait, on_progress)
        _check_contents(store, report, repair)
        if read:
            _read_all(store, report, on_progress)
        return report


def _reclaim(store: Store, wait: bool, on_progress: Callable[[str], None]) -> int:
    deadline = time.monotonic() + max(GRACE_S, LEASE_S) + 5.0
    while True:
        waiting = store.reclaimer.run()
        if not waiting or not wait or time.monotonic() > deadline:
            return waiting
        on_progress(f"waiting for {waiting} leases and notes to expire")
        time.sleep(1.0)


def _check_contents(store: Store, report: CheckReport, repair: bool) -> None:
    metadata = _Metadata(store)
    if metadata.notes == 0 and store.chunks.count() == _expected(metadata):
        found = None
    else:
        # Chunks first, then the metadata again: see the module docstring.
        found = defaultdict(set)
        for content, number in store.chunks.scan():
            found[content].add(number)
        metadata = _Metadata(store)
    if not repair:
        report.waiting = metadata.notes
    paths = metadata.reachable()
    _count(metadata, paths, report)
    report.problems += metadata.damaged
    _check_tree(store, metadata, paths, report, repair)
    if found is not None:
        report.chunks = sum(map(len, found.values()))
        _check_chunks(store, metadata, found, report, repair)
    if repair:
        _drop_hints(store, metadata, paths)


def _expected(metadata: _Metadata) -> int:
    return sum(
        sum(entry.contents().values())
        for entries in metadata.entries.values()
        for entry in entries.values()
    )


def _count(metadata: _Metadata, paths: dict[str, str], report: CheckReport) -> None:
    report.directories = len(paths)
    report.chunks = _expected(metadata)
    for directory in paths:
        for entry in metadata.entries.get(directory, {}).values():
            if not entry.is_directory:
                report.files += 1
                report.size_bytes += entry.size


def _check_tree(
    store: Store, metadata: _Metadata, paths: dict[str, str], report: CheckReport, repair: bool
) -> None:
    named: dict[str, list[str]] = defaultdict(list)
    for parent, entries in metadata.entries.items():
        for name, entry in entries.items():
            if entry.directory_id is not None:
                named[entry.directory_id].append(entry_key(parent, name))
                _check_record(store, metadata, parent, name, entry.directory_id, report, repair)
    for directory, keys in named.items():
        if len(keys) > 1:
            report.problems.append(f"directory {directory} has {len(keys)} names: {keys}")
    lost = [d for d in {*metadata.directories, *metadata.entries} if d not in paths]
    for directory in sorted(lost):
        if named.get(directory):
            continue  # its parent is lost too and will be repaired
        if not metadata.entries.get(directory):
            _repair_or_report(
                report,
                repair,
                f"directory {directory} is empty and has no name",
                lambda d=directory: store.meta.remove([directory_key(d)]),  # type: ignore[misc]
            )
        else:
            _repair_or_report(
                report,
                repair,
                f"directory {directory} has entries and no name",
                lambda d=directory: _find_again(store, d),  # type: ignore[misc]
            )
    for directory in set(lost) & set(named):
        if not any(key.partition("/")[0] in metadata.directories for key in named[directory]):
            report.problems.append(f"directory {directory} cannot be reached from the root")


def _check_record(
    store: Store,
    metadata: _Metadata,
    parent: str,
    name: str,
    directory: str,
    report: CheckReport,
    repair: bool,
) -> None:
    known = metadata.directories.get(directory)
    if known == parent:
        return
    what = "has no record" if known is None else f"has {known} as its parent"
    _repair_or_report(
        report,
        repair,
        f"directory {directory} ({name!r} in {parent}) {what}",
        lambda: store.meta.put(directory_key(directory), encode({"p": parent})),
    )


def _repair_or_report(
    report: CheckReport, repair: bool, what: str, how: Callable[[], object]
) -> None:
    if repair:
        how()
        report.repaired.append(what)
    else:
        report.problems.append(what)


def _find_again(store: Store, directory: str) -> None:
    """Link an orphaned directory into /lost+found."""
    with contextlib.suppress(FileExistsError):
        store.make_directory(f"/{_LOST_FOUND}", exist_ok=True)
    parent = store.stat(f"/{_LOST_FOUND}").directory_id or new_id()
    entry = Entry(directory, time.time_ns())

    def work(transaction: Transaction) -> None:
        transaction.lock(sorted([directory_key(parent), directory_key(directory)]))
        transaction.put(
            {
                entry_key(parent, directory): entry.to_bytes(),
                directory_key(directory): encode({"p": parent}),
            }
        )

    store.meta.transact(work)


def _check_chunks(
    store: Store,
    metadata: _Metadata,
    found: dict[str, set[int]],
    report: CheckReport,
    repair: bool,
) -> None:
    used: dict[str, int] = {}
    for parent, entries in metadata.entries.items():
        for name, entry in entries.items():
            for content, count in entry.contents().items():
                used[content] = max(count, used.get(content, 0))
                missing = count - len(found.get(content, set()) & set(range(count)))
                if missing:
                    report.missing_chunks += missing
                    report.problems.append(
                        f"file {name!r} in {parent} lacks {missing} of {count} chunks"
                    )
    for content, numbers in found.items():
        kept = max(used.get(content, 0), metadata.kept.get(content, 0))
        left = sorted(number for number in numbers if number >= kept)
        if left and repair:
            store.chunks.remove(content, left)
            report.repaired.append(f"{len(left)} chunks of content {content} are unused")
        report.leftover_chunks += 0 if repair else len(left)


def _drop_hints(store: Store, metadata: _Metadata, paths: dict[str, str]) -> None:
    """Remove hints that are wrong: each costs one more request."""
    right = {path: directory for directory, path in paths.items()}
    wrong = [p for p, directory in metadata.hints.items() if right.get(p) != directory]
    store.meta.remove(hint_key(path) for path in wrong)


def _read_all(store: Store, report: CheckReport, on_progress: Callable[[str], None]) -> None:
    buffer = memoryview(bytearray(_READ_BYTES))
    waiting = ["/"]
    while waiting:
        present = waiting.pop()
        for name, entry in store.list(present):
            path = f"{present.rstrip('/')}/{name}"
            if entry.is_directory:
                waiting.append(path)
                continue
            on_progress(path)
            try:
                with contextlib.closing(store.open_read(path)) as reader:
                    at = 0
                    while count := reader.read_into(at, buffer):
                        at += count
            except FileNotFoundError:
                continue
            except OSError as error:
                report.problems.append(f"{path}: {error.strerror}")
