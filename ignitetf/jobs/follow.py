"""A job as it goes on: its record, its workers and their new output, again and again.

store, logs -> **follow** -> attach, stop
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from ignitetf.jobs.logs import LogReader
from ignitetf.jobs.record import ENDED, Job, WorkerStatus
from ignitetf.jobs.store import JobStore

__all__ = ["Look", "exit_code_of", "follow", "wait_for_end"]

_EVERY_S = 0.5


@dataclass(frozen=True)
class Look:
    """One look at a job.

    Attributes:
        job: Its record.
        workers: The last status of each worker.
        lines: Attempt, worker and text of the lines since the look before.
    """

    job: Job
    workers: list[WorkerStatus]
    lines: list[tuple[int, str, str]]


def follow(store: JobStore, logs: LogReader, job: str) -> Iterator[Look]:
    """Yield looks at a job, two a second, the last one when it has ended.

    Raises:
        JobNotFound: There is no such job, or it was removed.
    """
    while True:
        found = store.get(job)
        over = found.state in ENDED
        # After the record: the launcher publishes all output before it says that it has ended.
        lines = list(logs.lines(rest=over))
        yield Look(found, store.workers(job), lines)
        if over:
            return
        time.sleep(_EVERY_S)


def wait_for_end(store: JobStore, job: str, limit_s: float) -> Job:
    """Wait until a job has ended, at most `limit_s`, and return it as it is then."""
    until = time.monotonic() + limit_s
    while (found := store.get(job)).state not in ENDED and time.monotonic() < until:
        time.sleep(_EVERY_S)
    return found


def exit_code_of(job: Job) -> int:
    """Return the exit code of a job that has ended; 1 if its launcher told none."""
    return 1 if job.exit_code is None else job.exit_code
