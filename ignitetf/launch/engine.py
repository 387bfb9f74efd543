"""The specification of a launch, and the interface of engines, which start its processes.

command line -> spec -> **engine** -> attempt -> outcome

An engine is a class with this interface; `ENGINES` in `launch.job` lists them by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from ignitetf.errors import ConfigError
from ignitetf.jobs.record import WorkerStatus
from ignitetf.launch.roles import Role

__all__ = [
    "Attempt",
    "Control",
    "Engine",
    "Keras",
    "LaunchSpec",
    "Outcome",
    "Place",
    "Show",
    "elastic_range",
]

Keras = Literal["as-is", "repair", "legacy"]
_RANGE: Final = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True)
class LaunchSpec:
    """A script, and the group that runs it.

    Attributes:
        script: Path of the script.
        arguments: Its arguments.
        workers: Number of workers.
        parameter_servers: Number of parameter servers; above 0 there is also a chief.
        data: Data set that `IgniteDataset` reads instead of the one named in the script; None keeps
            the script's name.
        restarts: Maximum number of restarts after failures.
        elastic: Smallest and largest number of workers. A restarted group leaves out the workers
            that failed; None restarts the same number.
        start_timeout_s: Time limit for each worker to listen, connect or read; 0 means no limit.
        end_timeout_s: Time limit from the first finished worker to the last; 0 means no limit.
        grace_s: Time between the request to end and the end by force.
        engine: Name of the engine that starts the processes.
        keras: Change of Keras before the script imports it.
    """

    script: str
    arguments: tuple[str, ...] = ()
    workers: int = 1
    parameter_servers: int = 0
    data: str | None = None
    restarts: int = 0
    elastic: tuple[int, int] | None = None
    start_timeout_s: float = 120.0
    end_timeout_s: float = 3600.0
    grace_s: float = 10.0
    engine: str = "local"
    keras: Keras = "repair"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LaunchSpec:
        """Return the spec from a JSON object made by `dataclasses.asdict`."""
        for name in ("arguments", "elastic"):
            if data[name] is not None:
                data[name] = tuple(data[name])
        return cls(**data)


def elastic_range(text: str) -> tuple[int, int]:
    """Return the numbers of `MIN:MAX`."""
    found = _RANGE.fullmatch(text.strip())
    least, largest = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= least <= largest:
        raise ConfigError(f"--elastic {text!r} is not a range of workers", hint="MIN:MAX, as 1:4")
    return least, largest


# Takes each line of output: role, "stdout" or "stderr", the line without its end.
Show = Callable[[Role, str, str], None]


@dataclass(frozen=True)
class Place:
    """The job that an attempt belongs to.

    Attributes:
        job: Id of the job.
        directory: Directory for the checkpoints of the job.
        attempt: Number of the attempt, from 1 on.
    """

    job: str
    directory: str
    attempt: int = 1


@dataclass(frozen=True)
class Outcome:
    """The end of an attempt.

    Attributes:
        kind: All scripts ended without an error; or one failed; or the end was requested.
        code: Exit code of the first failure, otherwise of the chief; 128 + number for a signal.
        reason: Description of the failure; empty if there was none.
        lost: Workers that had failed when the group was ended.
        codes: Exit codes by number of the process; negative for signals.
    """

    kind: Literal["ended", "failed", "stopped"]
    code: int = 0
    reason: str = ""
    lost: int = 0
    codes: Mapping[int, int | None] = field(default_factory=dict)


class Control(Protocol):
    """Requests from outside to end an attempt."""

    @property
    def stopping(self) -> bool:
        """True if the group should end."""

    @property
    def hurry(self) -> bool:
        """True if it should end without a grace period."""


class Attempt(Protocol):
    """A group of processes that has been started."""

    def run(self, control: Control, tick: Callable[[], None]) -> Outcome:
        """Watch the group to its end; no process of it remains.

        Args:
            control: Checked ten times a second.
            tick: Called ten times a second.
        """

    @property
    def all_started(self) -> bool:
        """True if all workers have started."""

    def statuses(self) -> list[WorkerStatus]:
        """Return the current status of the workers."""


class Engine(Protocol):
    """Starts groups."""

    def begin(self, spec: LaunchSpec, place: Place, show: Show) -> Attempt:
        """Start a group.

        Raises:
            ConfigError: The group cannot be started.
        """
