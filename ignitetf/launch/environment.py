"""The environment of a worker: its group, its job, and how to connect.

settings, spec, roles, ports -> **environment** -> group

Secrets travel in the environment alone, which other users of the machine do not see.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ignitetf.launch.engine import Place
from ignitetf.launch.roles import ADDRESS, Role, cluster_environment
from ignitetf.launch.spec import LaunchSpec
from ignitetf.settings import Settings

__all__ = [
    "connection_environment",
    "job_environment",
    "launcher_environment",
    "shown",
    "worker_environments",
]

_VARIABLES: Final = {
    "addresses": "IGNITETF_ADDRESS",
    "username": "IGNITETF_USERNAME",
    "password": "IGNITETF_PASSWORD",
    "tls": "IGNITETF_TLS",
    "ca": "IGNITETF_CA",
    "cert": "IGNITETF_CERT",
    "key": "IGNITETF_KEY",
    "key_password": "IGNITETF_KEY_PASSWORD",
    "tls_insecure": "IGNITETF_TLS_INSECURE",
    "connect_timeout_s": "IGNITETF_CONNECT_TIMEOUT",
    "request_timeout_s": "IGNITETF_REQUEST_TIMEOUT",
    "idle_timeout_s": "IGNITETF_IDLE_TIMEOUT",
    "data_center": "IGNITETF_DATA_CENTER",
}
# All is resolved: these would be looked at once more, perhaps in another folder.
_RESOLVED: Final = ("IGNITETF_PASSWORD_FILE", "IGNITETF_KEY_PASSWORD_FILE", "IGNITETF_PROFILE")


def connection_environment(settings: Settings) -> dict[str, str]:
    """Return the variables with which every connection has these settings."""
    found = {}
    for name, variable in _VARIABLES.items():
        if (value := getattr(settings, name)) is not None:
            found[variable] = _text(value)
    return found


def launcher_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of this process, in which every connection has these settings."""
    dropped = {*_RESOLVED, *_VARIABLES.values()}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | connection_environment(settings)


def job_environment(spec: LaunchSpec, settings: Settings, place: Place) -> dict[str, str]:
    """Return what is set for every worker of a job.

    Args:
        spec: What is launched.
        settings: How workers connect.
        place: Which job and attempt it is.
    """
    found = connection_environment(settings) | {
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
        if os.environ.get(name) != value or name in _VARIABLES.values()
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)
