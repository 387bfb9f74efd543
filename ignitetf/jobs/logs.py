"""The output of a job's workers in `igfs://`, written while it runs and read from anywhere.

launcher: lines -> **logs** -> `igfs:///jobs/<job>/logs/attempt-<k>/<worker>.log` -> logs, attach

Lines wait in memory, at most `MOST_BYTES` a worker. A thread publishes them about once a second, so
that a slow or absent cluster never delays a worker. Lines that do not fit are dropped, and the log
says how many.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ignitetf.errors import IgniteTFError
from ignitetf.fs.files import FileWriter
from ignitetf.fs.path import path_of_url
from ignitetf.fs.records import Entry
from ignitetf.fs.store import Store, open_store
from ignitetf.jobs.record import ENDED, Job, WorkerStatus, log_folder
from ignitetf.jobs.store import JobStore
from ignitetf.settings import Settings

__all__ = [
    "JobSnapshot",
    "LogReader",
    "LogWriter",
    "exit_code_of",
    "follow",
    "wait_for_end",
]

MOST_BYTES: Final = 1 << 20
_PUBLISH_S: Final = 1.0
_READ_BYTES: Final = 1 << 20
_ATTEMPT: Final = re.compile(r"attempt-(\d+)")


@dataclass
class _UnsentLines:
    """One worker's lines that are not yet stored in the cluster.

    Attributes:
        lines: Lines that are not being stored at the moment.
        nbytes: Size of all lines, including those being stored.
        dropped: Number of lines dropped after the last one of `lines`.
        writer: The open file; None if it must be opened first.
    """

    lines: list[bytes] = field(default_factory=list)
    nbytes: int = 0
    dropped: int = 0
    writer: FileWriter | None = None

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self.nbytes += len(line)

    def report_dropped(self) -> None:
        """Add a line with the number of dropped lines, at their position, if any were dropped."""
        if self.dropped:
            self.add(b"[%d lines were dropped here: too many at once]\n" % self.dropped)
            self.dropped = 0


class LogWriter:
    """Keeps the output of the workers of one attempt.

    Args:
        settings: Connection settings of the cluster.
        job: Id of the job.
        attempt: Number of the attempt.
    """

    def __init__(self, settings: Settings, job: str, attempt: int) -> None:
        self._settings = settings
        self._folder = f"{path_of_url(log_folder(job))}/attempt-{attempt}"
        self._waiting: dict[str, _UnsentLines] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._publish_often, name="logs", daemon=True)
        self._thread.start()

    def write(self, worker: str, line: str) -> None:
        """Queue a line of a worker; returns at once."""
        data = line.encode("utf-8", "replace") + b"\n"
        with self._lock:
            waiting = self._waiting.setdefault(worker, _UnsentLines())
            if waiting.nbytes + len(data) > MOST_BYTES:
                waiting.dropped += 1
                return
            waiting.report_dropped()
            waiting.add(data)

    def close(self, limit_s: float = 10.0) -> bool:
        """Publish the remaining lines; return False if this was not done within `limit_s`."""
        self._ended.set()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _publish_often(self) -> None:
        while not self._ended.wait(_PUBLISH_S):
            self._publish()
        self._publish()
        self._publish()  # how many lines were dropped after the last one
        for waiting in self._all():
            if waiting.writer is not None:
                with contextlib.suppress(OSError, IgniteTFError):
                    waiting.writer.close()

    def _all(self) -> list[_UnsentLines]:
        with self._lock:
            return list(self._waiting.values())

    def _publish(self) -> None:
        with self._lock:
            waiting = dict(self._waiting)
        for worker, one in waiting.items():
            # The cluster is not reachable: the lines wait for the next attempt.
            with contextlib.suppress(OSError, IgniteTFError):
                self._publish_worker(worker, one)

    def _publish_worker(self, worker: str, waiting: _UnsentLines) -> None:
        with self._lock:
            # After waiting lines, the count is reported once there is room again, so only once.
            if not waiting.lines:
                waiting.report_dropped()
            lines, waiting.lines = waiting.lines, []
        if not lines:
            return
        try:
            if waiting.writer is None:
                store = open_store(self._settings)
                path = f"{self._folder}/{_file_name(worker)}"
                waiting.writer = store.open_write(path, "a")
            waiting.writer.write(memoryview(b"".join(lines)))
            waiting.writer.publish()
        except BaseException:
            self._keep(waiting, lines)
            raise
        with self._lock:
            waiting.nbytes -= sum(map(len, lines))

    def _keep(self, waiting: _UnsentLines, lines: list[bytes]) -> None:
        """Queue lines again that may not have been stored; a reader may then see them twice."""
        if waiting.writer is not None:
            with contextlib.suppress(OSError, IgniteTFError):
                waiting.writer.discard()
            waiting.writer = None
        with self._lock:
            waiting.lines = [*lines, *waiting.lines]


class LogReader:
    """Reads the output of a job's workers, each line once; call `lines` again for new lines.

    Args:
        store: The file system.
        job: Id of the job.
        worker: Only this worker ("worker 0"), or all.
        attempt: Only this attempt, or all.
    """

    def __init__(
        self, store: Store, job: str, worker: str | None = None, attempt: int | None = None
    ) -> None:
        self._store = store
        self._folder = path_of_url(log_folder(job))
        self._worker = worker
        self._attempt = attempt
        self._read: dict[str, int] = {}

    def lines(self, *, rest: bool = False) -> Iterator[tuple[int, str, str]]:
        """Yield attempt, worker and text of new lines, worker by worker.

        Args:
            rest: Also yield a last line without a line end.
        """
        attempts = self.attempts() if self._attempt is None else [self._attempt]
        for attempt, worker, path, size in self._files(attempts):
            begin = self._read.get(path, 0)
            if size <= begin:
                continue
            for line, end in self._new_lines(path, begin, size, rest):
                self._read[path] = end
                yield attempt, worker, line

    def attempts(self) -> list[int]:
        """Return the numbers of the attempts that have output, ascending."""
        found = (_ATTEMPT.fullmatch(name) for name, entry in self._list(self._folder))
        return sorted(int(match[1]) for match in found if match)

    def tails(self, nbytes: int, lines: int) -> list[tuple[str, list[str]]]:
        """Return each worker of the latest attempt, with its last lines of output.

        Args:
            nbytes: Bytes to read from the end of each worker's output.
            lines: Maximum number of lines of each worker.
        """
        found = []
        for _, worker, path, size in self._files(self.attempts()[-1:]):
            with contextlib.closing(self._store.open_read(path)) as reader:
                data = reader.read(max(0, size - nbytes), nbytes)
            found.append((worker, data.decode("utf-8", "replace").splitlines()[-lines:]))
        return found

    def _files(self, attempts: Sequence[int]) -> Iterator[tuple[int, str, str, int]]:
        for attempt in attempts:
            folder = f"{self._folder}/attempt-{attempt}"
            for name, entry in sorted(self._list(folder), key=lambda found: _sorted_name(found[0])):
                worker = _worker_name(name)
                if self._worker in (None, worker):
                    yield attempt, worker, f"{folder}/{name}", entry.size

    def _list(self, folder: str) -> list[tuple[str, Entry]]:
        try:
            return self._store.list(folder)
        except FileNotFoundError:
            return []

    def _new_lines(self, path: str, begin: int, size: int, rest: bool) -> Iterator[tuple[str, int]]:
        reader = self._store.open_read(path)
        try:
            kept = b""
            while begin < size:
                data = reader.read(begin, min(_READ_BYTES, size - begin))
                if not data:
                    break
                at = begin - len(kept)
                begin += len(data)
                *lines, kept = (kept + data).split(b"\n")
                for line in lines:
                    at += len(line) + 1
                    yield line.decode("utf-8", "replace"), at
            if kept and rest:
                yield kept.decode("utf-8", "replace"), begin
        finally:
            reader.close()


def _file_name(worker: str) -> str:
    return worker.replace(" ", "-") + ".log"


def _worker_name(file: str) -> str:
    return file.removesuffix(".log").replace("-", " ")


def _sorted_name(file: str) -> tuple[str, int]:
    kind, _, number = _worker_name(file).partition(" ")
    return kind, int(number) if number.isdigit() else -1


# Follow a job: its record, its workers and their new output, repeatedly

_REFRESH_S = 0.5


@dataclass(frozen=True)
class JobSnapshot:
    """A snapshot of a job.

    Attributes:
        job: Its record.
        workers: The last status of each worker.
        lines: Attempt, worker and text of the lines since the previous snapshot.
    """

    job: Job
    workers: list[WorkerStatus]
    lines: list[tuple[int, str, str]]


def follow(store: JobStore, logs: LogReader, job: str) -> Iterator[JobSnapshot]:
    """Yield snapshots of a job, two a second, the last one when it has ended.

    Raises:
        JobNotFound: The job does not exist, or was removed.
    """
    while True:
        found = store.get(job)
        over = found.state in ENDED
        # Read after the record: the launcher publishes all output before it records the end.
        lines = list(logs.lines(rest=over))
        yield JobSnapshot(found, store.workers(job), lines)
        if over:
            return
        time.sleep(_REFRESH_S)


def wait_for_end(store: JobStore, job: str, limit_s: float) -> Job:
    """Wait until a job has ended, at most `limit_s`, and return its record."""
    until = time.monotonic() + limit_s
    while (found := store.get(job)).state not in ENDED and time.monotonic() < until:
        time.sleep(_REFRESH_S)
    return found


def exit_code_of(job: Job) -> int:
    """Return the exit code of a job that has ended; 1 if its launcher recorded none."""
    return 1 if job.exit_code is None else job.exit_code
