"""`Job` and `WorkerStatus`: the records of a training job, as JSON.

launcher, workers -> **record** -> store -> ps, describe, attach
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, TypeVar

from ignitetf.notebook import pairs, table

__all__ = [
    "ENDED",
    "Job",
    "JobState",
    "WorkerState",
    "WorkerStatus",
    "jobs_html",
    "log_folder",
]

JobState = Literal["starting", "running", "restarting", "ended", "failed", "stopped", "dead"]
WorkerState = Literal["starting", "running", "waiting", "ended", "failed"]

# States in which no process of the job runs any more.
ENDED: Final = ("ended", "failed", "stopped", "dead")


@dataclass(frozen=True)
class Job:
    """A script that runs on several workers.

    Attributes:
        id: Unique name, by which commands find it.
        script: The script, as it was given.
        args: Its arguments.
        workers: Workers that read and train, at first.
        ps: Parameter servers.
        data: The data set that it trains on, if given.
        engine: Starter of the processes: local, ray or kubernetes.
        restarts: Maximum number of restarts of the group.
        elastic: Minimum and maximum number of workers, if it may change.
        keras: Handling of Keras: as-is, repair or legacy.
        host: The machine of the launcher, for people.
        pid: Process id of the launcher.
        user: User who started it.
        created: Time of creation, ISO 8601 in UTC.
        ended: Time of its end, likewise; empty before that.
        state: Its state; `dead` if the launcher vanished without recording an end.
        attempt: Number of the current start of the group, from 1 on.
        running: Workers of this attempt.
        exit_code: Exit code of the launcher; None before its end.
        cause: Why it failed, was restarted or stopped, in one line.
        seen: Time of the launcher's last heartbeat, ISO 8601 in UTC.
    """

    id: str
    script: str
    args: tuple[str, ...] = ()
    workers: int = 1
    ps: int = 0
    data: str | None = None
    engine: str = "local"
    restarts: int = 0
    elastic: tuple[int, int] | None = None
    keras: str = "repair"
    host: str = ""
    pid: int = 0
    user: str = ""
    created: str = ""
    ended: str = ""
    state: JobState = "starting"
    attempt: int = 1
    running: int = 0
    exit_code: int | None = None
    cause: str = ""
    seen: str = ""

    @property
    def most_processes(self) -> int:
        """Maximum number of processes at a time: workers, parameter servers and a chief."""
        workers = self.workers if self.elastic is None else max(self.workers, self.elastic[1])
        return 1 + workers + self.ps

    def _repr_html_(self) -> str:
        record = {
            name: value for name, value in asdict(self).items() if value not in (None, "", ())
        }
        del record["id"]
        return pairs(record, title=self.id)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns back into an equal job."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """Restore a job; ignore fields that a later version added."""
        given = _known(cls, data)
        given["args"] = tuple(given.get("args", ()))
        if given.get("elastic") is not None:
            given["elastic"] = tuple(given["elastic"])
        return cls(**given)


@dataclass(frozen=True)
class WorkerStatus:
    """The status that a worker reports every second.

    Attributes:
        number: Its number in the group; 0 is the chief.
        name: Its name in output and messages.
        attempt: The start of the group that it belongs to.
        host: Its machine.
        pid: Its process id.
        state: Its state; `waiting` if it has ended and waits for the others.
        exit_code: Exit code of its script; None before its end.
        step: Steps that its Keras optimizer has made; None without such an optimizer.
        rows: Rows that it has consumed.
        rows_per_s: Rows per second since the previous heartbeat; over the whole run, once it has
            ended.
        wait: Share of that time spent waiting for data, 0 to 1.
        retries: Number of failures after which its reads continued.
        skipped: Rows that `map_rows` left out, by data set and class of errors.
        places: Bytes by their origin.
        epochs: For each epoch read: data set, epoch, shard, rows, sum of the keys' hashes.
    """

    number: int
    name: str = ""
    attempt: int = 1
    host: str = ""
    pid: int = 0
    state: WorkerState = "starting"
    exit_code: int | None = None
    step: int | None = None
    rows: int = 0
    rows_per_s: float = 0.0
    wait: float = 0.0
    retries: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    epochs: tuple[dict[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns back into an equal status."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorkerStatus:
        """Restore a status; ignore fields that a later version added."""
        given = _known(cls, data)
        given["epochs"] = tuple(given.get("epochs", ()))
        return cls(**given)


_SHOWN: Final = ("id", "state", "script", "workers", "data", "user", "host", "created", "cause")


def jobs_html(jobs: Iterable[Job]) -> str:
    """Return jobs as an HTML table for notebooks."""
    return table(_SHOWN, [[getattr(job, name) for name in _SHOWN] for job in jobs])


def log_folder(job: str) -> str:
    """Return the folder of the output of a job's workers, in `igfs://`."""
    return f"igfs:///jobs/{job}/logs"


_R = TypeVar("_R", Job, WorkerStatus)


def _known(cls: type[_R], data: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(cls)}
    return {name: value for name, value in data.items() if name in names}
