"""What starts the processes of a job: one attempt at a time, on whatever machines.

spec -> **engine** -> attempt -> outcome

An engine is a module with a class of this interface; `engines` lists them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ignitetf.jobs.record import WorkerStatus
from ignitetf.launch.roles import Role
from ignitetf.launch.spec import LaunchSpec

__all__ = ["Attempt", "Control", "Engine", "Outcome", "Place", "Show"]

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

    def plan(self, spec: LaunchSpec, place: Place) -> list[dict[str, Any]]:
        """Return what would be started, a record for each process, without secrets."""

    def begin(self, spec: LaunchSpec, place: Place, show: Show) -> Attempt:
        """Start a group.

        Raises:
            ConfigError: It cannot be started.
        """
