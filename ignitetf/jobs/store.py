"""`JobStore`: the jobs of a cluster, kept in the cache `IGNITETF_JOBS`.

launcher, workers -> record -> **store** -> ps, describe, attach, stop

Its entries, by name:

- `<job>`: the record (`Job`), changed by compare and replace.
- `<job>#beat`: the launcher's heartbeat, with a time to live. The cluster expires it by its own
  clock, so a missing entry means that the launcher has been silent for `ALIVE_S`.
- `<job>#seen`: the time of the last heartbeat, for people; it does not expire.
- `<job>#worker-<attempt>-<i>`: the last status of a worker (`WorkerStatus`) in an attempt.
- `<job>#worker-<i>#beat`: the worker's heartbeat.
- `<job>#stop`: the user who requested the end of the job.
- `<job>#end-<attempt>-<i>`: a worker has ended its script and waits for the others.
- `<job>#exit-<attempt>-<i>`: the worker has run its exit functions, too.
"""

from __future__ import annotations

import datetime
import getpass
import os
import platform
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from ignitetf.errors import ConfigError, JobNotFound
from ignitetf.jobs.record import ENDED, Job, WorkerStatus, jobs_html
from ignitetf.net.client import Client
from ignitetf.spelling import did_you_mean
from ignitetf.tables.texts import Texts, json_text

__all__ = ["ALIVE_S", "BEAT_S", "JOBS_CACHE", "JobStore", "new_id", "user_and_host", "utc_now"]

JOBS_CACHE: Final = "IGNITETF_JOBS"
BEAT_S: Final = 1.0
ALIVE_S: Final = 10.0
_SEPARATOR: Final = "#"
# The step that a worker has finished before it waits for the others.
Step = Literal["script", "exit"]


def utc_now() -> str:
    """Return the time as ISO 8601 in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def new_id(script: str) -> str:
    """Return an id for a new job: the script's name, shortened, and four random characters."""
    name = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")[:24].rstrip("-")
    return f"{name or 'job'}-{secrets.token_hex(2)}"


class JobStore:
    """The jobs of a cluster.

    Args:
        client: The connection.
    """

    def __init__(self, client: Client) -> None:
        self._texts = Texts(client, JOBS_CACHE)

    def _repr_html_(self) -> str:
        return jobs_html(self.jobs())

    # The record

    def create(self, job: Job) -> None:
        """Record a new job.

        Raises:
            ConfigError: A job with this id exists.
        """
        self.beat(job.id)
        if not self._texts.add(job.id, json_text(job.to_json())):
            raise ConfigError(f"there is a job {job.id!r} already")

    def put(self, job: Job) -> None:
        """Record a job, replacing an earlier one with the same id."""
        self._texts.put(job.id, json_text(job.to_json()))

    def update(self, job: str, **changes: Any) -> Job:
        """Change fields of a job's record, and return the new one.

        Raises:
            JobNotFound: There is none.
        """
        while True:
            text = self._texts.get(job)
            if text is None:
                raise self._missing(job)
            found = Job.from_json(self._texts.parse(job, text))
            changed = replace(found, **changes)
            if self._texts.replace(job, text, json_text(changed.to_json())):
                return changed

    def get(self, job: str) -> Job:
        """Return a job by its id; it is `dead` if its launcher vanished without recording an end.

        Raises:
            JobNotFound: There is none.
        """
        found = self._texts.get_json(job)
        if found is None:
            raise self._missing(job)
        return self._as_it_is(Job.from_json(found))

    def find(self, start: str) -> Job:
        """Return a job by its id, or by a unique beginning of an id.

        Raises:
            JobNotFound: No job matches, or several do.
        """
        ids = [job.id for job in self.jobs()]
        found = [start] if start in ids else [job for job in ids if job.startswith(start)]
        if len(found) == 1:
            return self.get(found[0])
        if found:
            raise JobNotFound(f"{start!r} can be {', '.join(found[:5])}")
        raise self._missing(start, ids)

    def jobs(self) -> list[Job]:
        """Return all jobs, the newest first."""
        jobs = [
            self._as_it_is(Job.from_json(self._texts.parse(name, text)))
            for name, text in self._texts.all().items()
            if _SEPARATOR not in name
        ]
        return sorted(jobs, key=lambda job: (job.created, job.id), reverse=True)

    def remove(self, job: str) -> None:
        """Remove the records of a job; its files in `igfs://` stay."""
        for name in self._texts.all():
            if name.split(_SEPARATOR)[0] == job:
                self._texts.delete(name)

    def _as_it_is(self, job: Job) -> Job:
        if job.state in ENDED:
            return job
        # Read by name: a scan may still return an entry that has just expired.
        seen = self._texts.get(_beat(job.id))
        if seen is not None:
            return replace(job, seen=seen)
        # Launchers record the end before their heartbeats stop, so the record may be newer than
        # `job`.
        record = self._texts.get_json(job.id)
        now = job if record is None else Job.from_json(record)
        if now.state in ENDED:
            return now
        return replace(now, state="dead", seen=self._texts.get(_seen(job.id)) or "")

    def _missing(self, job: str, ids: Sequence[str] = ()) -> JobNotFound:
        hint = did_you_mean(job, ids, "see 'ignitetf ps --all'", form=repr)
        return JobNotFound(f"job {job!r} does not exist", hint=hint)

    # Heartbeats

    def beat(self, job: str) -> None:
        """Record that the launcher is alive; repeat every `BEAT_S`."""
        now = utc_now()
        self._texts.put(_seen(job), now)
        self._texts.put(_beat(job), now, lifetime_s=ALIVE_S)

    def end_beat(self, job: str) -> None:
        """Record that the launcher ends now."""
        self._texts.delete(_beat(job))

    def beat_worker(self, job: str, status: WorkerStatus) -> None:
        """Record the status of a worker, and that it is alive; repeat every `BEAT_S`."""
        entry = _status(job, status.attempt, status.number)
        self._texts.put(entry, json_text(status.to_json()))
        beat = _beat(_worker(job, status.number))
        if status.state in ("ended", "failed"):
            self._texts.delete(beat)
        else:
            self._texts.put(beat, str(status.attempt), lifetime_s=ALIVE_S)

    def workers(self, job: str, attempt: int | None = None) -> list[WorkerStatus]:
        """Return each worker's last status in an attempt, in their order; skip workers without one.

        Args:
            job: Its id.
            attempt: Number of the attempt; None for the latest.

        Raises:
            JobNotFound: The job does not exist.
        """
        record = self._texts.get_json(job)
        if record is None:
            raise self._missing(job)
        of = Job.from_json(record)
        wanted = of.attempt if attempt is None else attempt
        # Read by name: a scan would read the entries of all jobs, twice a second in `attach`.
        names = [_status(job, wanted, number) for number in range(of.most_processes)]
        found = map(self._texts.get_json, names)
        return [WorkerStatus.from_json(status) for status in found if status is not None]

    def living_workers(self, job: str, workers: Iterable[int]) -> set[int]:
        """Return which of these workers had a heartbeat within `ALIVE_S`."""
        beats = {number: _beat(_worker(job, number)) for number in workers}
        return {number for number, beat in beats.items() if self._texts.get(beat) is not None}

    # Requests of others

    def request_stop(self, job: str, by: str) -> None:
        """Request the launcher to end a job."""
        self._texts.add(f"{job}{_SEPARATOR}stop", by)

    def stop_requested(self, job: str) -> str | None:
        """Return who requested the end of a job, or None."""
        return self._texts.get(f"{job}{_SEPARATOR}stop")

    # The end of an attempt

    def arrive(self, job: str, attempt: int, worker: int, step: Step = "script") -> None:
        """Record that a worker has ended its script or exit functions and waits for the others."""
        self._texts.put(f"{_end(job, attempt, step)}{worker}", utc_now())

    def leave(self, job: str, attempt: int, worker: int) -> None:
        """Remove the `arrive` record of an earlier process of this worker."""
        for step in get_args(Step):
            self._texts.delete(f"{_end(job, attempt, step)}{worker}")

    def arrived(
        self, job: str, attempt: int, workers: Iterable[int], step: Step = "script"
    ) -> set[int]:
        """Return which of these workers have ended their script, or their exit functions."""
        start = _end(job, attempt, step)
        return {number for number in workers if self._texts.get(f"{start}{number}") is not None}


def _beat(name: str) -> str:
    return f"{name}{_SEPARATOR}beat"


def _seen(job: str) -> str:
    return f"{job}{_SEPARATOR}seen"


def _worker(job: str, number: int) -> str:
    return f"{job}{_SEPARATOR}worker-{number}"


def _status(job: str, attempt: int, number: int) -> str:
    return f"{job}{_SEPARATOR}worker-{attempt}-{number}"


def _end(job: str, attempt: int, step: Step) -> str:
    return f"{job}{_SEPARATOR}{'end' if step == 'script' else step}-{attempt}-"


def user_and_host() -> str:
    """Return user and host of this process, for the records that people read."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user}@{platform.node()}"
