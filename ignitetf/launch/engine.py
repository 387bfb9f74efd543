"""What to launch, and what starts its processes: one attempt at a time, on whatever machines.

command line -> spec -> **engine** -> attempt -> outcome

An engine is a module with a class of this interface; `engines` lists them by name.
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
        data: Data set that `IgniteDataset` reads, whatever name the script says; None for that one.
        restarts: How often the group is started again after a failure.
        elastic: Least and largest number of workers of a group that is started again without those
            that failed; None for as many as before.
        start_timeout_s: Limit for each worker to listen, connect or read; 0 for none.
        end_timeout_s: Limit from the first worker that is done to the last; 0 for none.
        grace_s: Time between the request to end and the end by force.
        engine: What starts the processes.
        keras: What is done to Keras before the script imports it.
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
        """Return the spec that `dataclasses.asdict` made JSON of."""
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
    """Which job an attempt belongs to.

    Attributes:
        job: Its id.
        directory: Where it may keep checkpoints.
        attempt: Number of the attempt, from 1 on.
    """

    job: str
    directory: str
    attempt: int = 1


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        kind: All scripts ended well; or one failed; or somebody asked for the end.
        code: Exit code of the first failure, else of the chief; 128 + number for a signal.
        reason: What failed, in words; empty if nothing did.
        lost: Workers that had failed when the group was ended.
        codes: Exit codes by number of the process; negative for signals.
    """

    kind: Literal["ended", "failed", "stopped"]
    code: int = 0
    reason: str = ""
    lost: int = 0
    codes: Mapping[int, int | None] = field(default_factory=dict)


class Control(Protocol):
    """What may end an attempt from outside."""

    @property
    def stopping(self) -> bool:
        """Whether the group shall end."""

    @property
    def hurry(self) -> bool:
        """Whether it shall end without grace."""


class Attempt(Protocol):
    """A group of processes that has been started."""

    def run(self, control: Control, tick: Callable[[], None]) -> Outcome:
        """Watch the group until all is over; nothing of it is left then.

        Args:
            control: Asked ten times a second.
            tick: Called as often.
        """

    @property
    def all_started(self) -> bool:
        """Whether no worker's start is waited for any more."""

    def statuses(self) -> list[WorkerStatus]:
        """Return how the workers are now."""


class Engine(Protocol):
    """Starts groups."""

    def begin(self, spec: LaunchSpec, place: Place, show: Show) -> Attempt:
        """Start a group.

        Raises:
            ConfigError: It cannot be started.
        """
