"""Keeps a job's record in the cluster up to date, without delaying the group.

supervisor, pod -> **recorder** (thread) -> ignitetf.jobs.store

Changes are queued here and written by a separate thread, because a cluster that loses a node may
answer late. The job does not depend on it: if the cluster does not answer, the thread retries every
second, and the job continues. A read-only cluster has no record until it accepts changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from ignitetf.errors import ClusterReadOnly, IgniteTFError
from ignitetf.jobs.record import Job, WorkerStatus
from ignitetf.jobs.store import BEAT_S, JobStore

__all__ = ["Recorder"]

# Time limit for retries to record the end of a job.
_LAST_S: Final = 15.0


class Recorder:
    """Records a new job, and sends its heartbeats until it is closed.

    Args:
        store: The jobs of the cluster.
        job: The new job.
        note: Called with messages for the user.
        needed: True if the job must not begin without a record.
        create: Makes the first entries; None records a new job.
        leads: True if this process sends the heartbeats of the job.

    Attributes:
        job: The job with all changes, whether or not the cluster has them yet.
        recorded: True if the cluster has a record of the job.
        stop_by: User who requested the end of the job; None without a request.
    """

    def __init__(
        self,
        store: JobStore,
        job: Job,
        note: Callable[[str], None],
        *,
        needed: bool = False,
        create: Callable[[], None] | None = None,
        leads: bool = True,
    ) -> None:
        self.stop_by: str | None = None
        self._store = store
        self.job = job
        self._note = note
        self._make = create
        self._leads = leads
        self._lock = threading.Lock()
        self._changes: dict[str, Any] = {}
        self._statuses: dict[tuple[int, int], WorkerStatus] = {}
        self._silent = False
        self._wake = threading.Event()
        self._closing: float | None = None
        self.recorded = False
        try:
            self._create()
        except ClusterReadOnly as error:
            if needed:
                raise
            note(
                f"{error}; the job runs without a record, so 'ignitetf ps', 'attach', 'stop' and"
                " 'logs' do not know it"
            )
            self._silent = True
        self._thread = threading.Thread(target=self._run, name="ignitetf-job", daemon=True)
        self._thread.start()

    def _create(self) -> None:
        if self._make is None:
            self._store.create(self.job)
        else:
            self._make()
        self.recorded = True

    def change(self, **changes: Any) -> None:
        """Record new values of fields of the job."""
        with self._lock:
            self._changes |= changes
            self.job = replace(self.job, **changes)
        self._wake.set()

    def statuses(self, statuses: Iterable[WorkerStatus]) -> None:
        """Record the status of workers, replacing their earlier status in this attempt."""
        with self._lock:
            self._statuses |= {(one.attempt, one.number): one for one in statuses}

    def close(self) -> None:
        """Write the remaining changes, and stop the heartbeats."""
        self._closing = time.monotonic() + _LAST_S
        self._wake.set()
        self._thread.join(_LAST_S + 2 * BEAT_S)

    def _run(self) -> None:
        while True:
            self._wake.wait(BEAT_S)
            self._wake.clear()
            closing = self._closing
            written = self._write(closing is not None)
            if closing is not None and (written or time.monotonic() > closing):
                return

    def _write(self, last: bool) -> bool:
        """Write all queued changes; return whether the cluster accepted them or is read-only."""
        with self._lock:
            changes, self._changes = self._changes, {}
            statuses, self._statuses = self._statuses, {}
        try:
            if not self.recorded:
                self._create()
            for status in statuses.values():
                self._store.beat_worker(self.job.id, status)
            if changes:
                self._store.update(self.job.id, **changes)
            if self._leads and last:
                self._store.end_beat(self.job.id)
            elif self._leads:
                self._store.beat(self.job.id)
                self.stop_by = self._store.stop_requested(self.job.id) or self.stop_by
        except (IgniteTFError, OSError) as error:
            with self._lock:
                self._changes = changes | self._changes
                self._statuses = statuses | self._statuses
            if not self._silent:
                self._note(f"the job cannot be recorded now: {error}")
            self._silent = True
            return isinstance(error, ClusterReadOnly)  # waiting at the end would not help
        self._silent = False
        return True
