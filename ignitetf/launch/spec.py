"""What to launch, as `ignitetf launch` was asked.

command line -> **spec** -> job, supervisor
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from ignitetf.errors import ConfigError

__all__ = ["Keras", "LaunchSpec", "elastic_range"]

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
