"""Activity in the cluster: training jobs, their output, and the epochs they read.

job records -> **activity** -> page
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ignitetf import Client
from ignitetf.errors import IgniteTFError
from ignitetf.jobs.logs import LogReader
from ignitetf.jobs.record import ENDED, Job, WorkerStatus
from ignitetf.jobs.store import JobStore
from ignitetf.ui.files import open_files

__all__ = ["Epoch", "JobView", "job_view", "recent_jobs", "tail_of_log"]

_RECENT: Final = 20
_LOG_BYTES: Final = 32 << 10
_LOG_LINES: Final = 200


@dataclass(frozen=True)
class Epoch:
    """The part of one epoch of a data set that a job's workers have read together."""

    cache: str
    epoch: int
    shards: int
    rows: int
    ended: bool


@dataclass(frozen=True)
class JobView:
    """A job and its workers.

    Attributes:
        job: Its record.
        workers: The last status of each worker, and whether the worker is alive.
        epochs: The epochs that they read, the latest last.
        stopping: User who requested its end; None without a request.
    """

    job: Job
    workers: Sequence[tuple[WorkerStatus, bool]]
    epochs: Sequence[Epoch]
    stopping: str | None

    @property
    def rows_per_s(self) -> float:
        """Rows per second of all living workers."""
        return sum(w.rows_per_s for w, alive in self.workers if alive)


def recent_jobs(client: Client) -> list[JobView]:
    """Return the running jobs and the latest others, the newest first."""
    store = JobStore(client)
    jobs = store.jobs()
    shown = [j for n, j in enumerate(jobs) if n < _RECENT or j.state not in ENDED]
    return [_view(store, j) if j.state not in ENDED else JobView(j, (), (), None) for j in shown]


def job_view(client: Client, job: str) -> JobView:
    """Return one job; raises JobNotFound."""
    store = JobStore(client)
    return _view(store, store.get(job))


def tail_of_log(client: Client, job: str) -> list[tuple[str, list[str]]]:
    """Return the last lines of each worker of a job's latest attempt."""
    store = open_files(client)
    if store is None:
        return []
    try:
        return LogReader(store, job).tails(_LOG_BYTES, _LOG_LINES)
    except (OSError, IgniteTFError):
        return []
    finally:
        store.close()


def _view(store: JobStore, job: Job) -> JobView:
    workers = store.workers(job.id)
    living = store.living_workers(job.id, (worker.number for worker in workers))
    marked = [(worker, worker.number in living) for worker in workers]
    return JobView(job, marked, _epochs(workers), store.stop_requested(job.id))


def _epochs(workers: Sequence[WorkerStatus]) -> list[Epoch]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for worker in workers:
        for one in worker.epochs:
            found.setdefault((str(one["cache"]), int(one["epoch"])), []).append(one)
    return [
        Epoch(
            cache,
            epoch,
            len(parts),
            sum(int(part["rows"]) for part in parts),
            all(part.get("ended", False) for part in parts),
        )
        for (cache, epoch), parts in sorted(found.items())
    ]
