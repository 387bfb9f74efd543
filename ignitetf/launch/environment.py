"""The environment of a worker: its group, its job, and how to connect.

settings, spec, roles, ports -> **environment** -> group

Secrets travel in the environment alone, which other users of the machine do not see.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from ignitetf.launch.engine import LaunchSpec, Place
from ignitetf.launch.roles import ADDRESS, Role, cluster_environment
from ignitetf.settings import VARIABLES, Settings

__all__ = [
    "job_environment",
    "launcher_environment",
    "machine_environment",
    "shown",
    "worker_environments",
]

_CONNECTION: Final = frozenset(VARIABLES.values())
_DATA_CENTER: Final = VARIABLES["data_center"]


def launcher_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of this process, in which every connection has these settings."""
    # A setting of this process that is not one of these might exclude one that is.
    kept = {name: value for name, value in os.environ.items() if name not in _CONNECTION}
    return kept | settings.environment()


def machine_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process on this machine that a launcher elsewhere starts.

    The settings of connections are the launcher's, except the data center of this machine.

    Args:
        given: The variables that the launcher sets.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _CONNECTION}
    own = {name: os.environ[name] for name in (_DATA_CENTER,) if name in os.environ}
    return kept | dict(given) | own


def job_environment(spec: LaunchSpec, settings: Settings, place: Place) -> dict[str, str]:
    """Return what is set for every worker of a job.

    Args:
        spec: What is launched.
        settings: How workers connect.
        place: Which job and attempt it is.
    """
    found = settings.environment() | {
        "IGNITETF_JOB": place.job,
        "IGNITETF_JOB_DIR": place.directory,
        "IGNITETF_ATTEMPT": str(place.attempt),
        "IGNITETF_KERAS": spec.keras,
    }
    if spec.data is not None:
        found["IGNITE_DATASET_CACHE_NAME"] = spec.data
    if spec.keras == "legacy":
        found["TF_USE_LEGACY_KERAS"] = "1"
    return found


def worker_environments(
    spec: LaunchSpec,
    settings: Settings,
    place: Place,
    roles: Sequence[Role],
    ports: Sequence[int],
) -> list[dict[str, str]]:
    """Return the environment of each role: that of this process, and what is set for the job.

    Args:
        spec: What is launched.
        settings: How workers connect.
        place: Which job and attempt it is.
        roles: All members of the group.
        ports: A port for each, and one for the coordinator of JAX.
    """
    common = launcher_environment(settings) | job_environment(spec, settings, place)
    # Of a group around this process; that of a worker alone has none.
    common.pop("TF_CONFIG", None)
    *own, coordinator = (f"{ADDRESS}:{port}" for port in ports)
    return [
        {
            **common,
            "IGNITETF_WORKER": str(role.number),
            **cluster_environment(roles, role, own, coordinator),
        }
        for role in roles
    ]


def shown(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what this environment has beside that of this process, without secrets."""
    return {
        name: "(secret)" if name.endswith("PASSWORD") else value
        for name, value in environment.items()
        if os.environ.get(name) != value or name in _CONNECTION
    }
