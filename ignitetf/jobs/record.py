"""`Job` and `WorkerStatus`: what is recorded of a training job, as JSON.

launcher, workers -> **record** -> store -> ps, describe, attach
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, TypeVar

__all__ = ["ENDED", "Job", "JobState", "WorkerState", "WorkerStatus", "log_folder"]

JobState = Literal["starting", "running", "restarting", "ended", "failed", "stopped", "dead"]
WorkerState = Literal["starting", "running", "waiting", "ended", "failed"]

# States in which nothing of the job runs any more.
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
        data: The data set it trains on, if it was named.
        engine: What starts the processes: local, ray or kubernetes.
        restarts: How often the group may be started again.
        elastic: Least and most workers, if their number may change.
        keras: What is done about Keras: as-is, repair or legacy.
        host: The machine of the launcher, for people.
        pid: The launcher's process.
        user: Who started it.
        created: When, ISO 8601 in UTC.
        ended: When it ended, likewise; empty before that.
        state: Where it is; `dead` if the launcher went without a word.
        attempt: Number of the current start of the group, from 1 on.
        running: Workers of this attempt.
        exit_code: What the launcher ended with; None before that.
        cause: Why it failed, was restarted or stopped, in a line.
        seen: When the launcher was last heard of, ISO 8601 in UTC.
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
        """How many processes it can have at a time: a chief beside workers and servers."""
        workers = self.workers if self.elastic is None else max(self.workers, self.elastic[1])
        return 1 + workers + self.ps

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns back into an equal job."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """Restore a job; what a later version added is ignored."""
        given = _known(cls, data)
        given["args"] = tuple(given.get("args", ()))
        if given.get("elastic") is not None:
            given["elastic"] = tuple(given["elastic"])
        return cls(**given)


@dataclass(frozen=True)
class WorkerStatus:
    """What a worker tells of itself every second.

    Attributes:
        number: Its place in the group; 0 is the chief.
        name: What output and messages call it.
        attempt: The start of the group that it belongs to.
        host: Its machine.
        pid: Its process.
        state: Where it is; `waiting` at the end for the others.
        exit_code: What its script ended with; None before that.
        step: Steps that its optimizer of Keras has made; None if it has none.
        rows: Rows that it took.
        rows_per_s: Rows a second since the heartbeat before; in all, once it has ended.
        wait: Share of that time in which it waited for data, 0 to 1.
        places: Bytes by where they came from.
        epochs: For each epoch that it read: data set, epoch, shard, rows, sum of the keys' hashes.
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
    places: dict[str, int] = field(default_factory=dict)
    epochs: tuple[dict[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that `from_json` turns back into an equal status."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorkerStatus:
        """Restore a status; what a later version added is ignored."""
        given = _known(cls, data)
        given["epochs"] = tuple(given.get("epochs", ()))
        return cls(**given)


def log_folder(job: str) -> str:
    """Return where the output of a job's workers is, in `igfs://`."""
    return f"igfs:///jobs/{job}/logs"


_R = TypeVar("_R", Job, WorkerStatus)


def _known(cls: type[_R], data: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(cls)}
    return {name: value for name, value in data.items() if name in names}
