"""The environment of a worker: its group, its job, and how to connect.

settings, spec, roles, ports -> **environment** -> group

Secrets are passed only in the environment, which other users of the machine cannot see.
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
    """Return the environment of this process, changed so that connections use these settings."""
    # Remove all settings of this process, because one of them might conflict with a given one.
    kept = {name: value for name, value in os.environ.items() if name not in _CONNECTION}
    return kept | settings.environment()


def machine_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process on this machine, started by a launcher elsewhere.

    Connections use the settings of the launcher, but the data center of this machine.

    Args:
        given: The variables that the launcher sets.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _CONNECTION}
    own = {name: os.environ[name] for name in (_DATA_CENTER,) if name in os.environ}
    return kept | dict(given) | own


def job_environment(spec: LaunchSpec, settings: Settings, place: Place) -> dict[str, str]:
    """Return the variables that are set for every worker of a job.

    Args:
        spec: The script and its group.
        settings: Connection settings of the workers.
        place: The job and the attempt.
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
    """Return the environment of each role: that of this process plus the variables of the job.

    Args:
        spec: The script and its group.
        settings: Connection settings of the workers.
        place: The job and the attempt.
        roles: All members of the group.
        ports: A port for each member, and one for the coordinator of JAX.
    """
    common = launcher_environment(settings) | job_environment(spec, settings, place)
    # This process may belong to a group itself. A single worker must not inherit its TF_CONFIG.
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
    """Return the variables that differ from this process's environment, without secrets."""
    return {
        name: "(secret)" if name.endswith("PASSWORD") else value
        for name, value in environment.items()
        if os.environ.get(name) != value or name in _CONNECTION
    }
