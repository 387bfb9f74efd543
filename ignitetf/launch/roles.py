"""The members of a group, and the environment from which a process learns its role.

number of workers, ports -> **roles** -> environment -> process
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["ADDRESS", "Role", "cluster_environment", "roles_of"]

ADDRESS: Final = "127.0.0.1"


@dataclass(frozen=True)
class Role:
    """One process of a group.

    Attributes:
        number: Its index among all processes of the group; 0 is the chief.
        type: Its type in TF_CONFIG.
        index: Its index among the processes of its type.
        serves: True if it answers requests until the chief ends, and is then ended by the launcher.
    """

    number: int
    type: Literal["chief", "worker", "ps"]
    index: int
    serves: bool = False

    @property
    def name(self) -> str:
        """Its name in messages and output."""
        return "chief" if self.type == "chief" else f"{self.type} {self.index}"


def roles_of(workers: int, parameter_servers: int = 0) -> list[Role]:
    """Return the roles of a group, the chief first.

    Without parameter servers all are workers, as MultiWorkerMirroredStrategy requires. With them a
    chief coordinates the workers, as ParameterServerStrategy requires.
    """
    if not parameter_servers:
        return [Role(index, "worker", index) for index in range(workers)]
    roles = [Role(0, "chief", 0)]
    roles += [Role(1 + index, "worker", index, serves=True) for index in range(workers)]
    first = len(roles)
    roles += [Role(first + index, "ps", index, serves=True) for index in range(parameter_servers)]
    return roles


def cluster_environment(
    roles: Sequence[Role], role: Role, addresses: Sequence[str], coordinator: str
) -> dict[str, str]:
    """Return the variables from which TensorFlow, JAX and Keras learn their place in a group.

    A group of one gets none, so that its script runs as if started by hand.

    Args:
        roles: All roles.
        role: The role of the process.
        addresses: `HOST:PORT` of each role, in the same order.
        coordinator: `HOST:PORT` of the coordinator of JAX.
    """
    if len(roles) == 1:
        return {}
    cluster: dict[str, list[str]] = {}
    for member, address in zip(roles, addresses, strict=True):
        cluster.setdefault(member.type, []).append(address)
    task = {"type": role.type, "index": role.index}
    count, number = str(len(roles)), str(role.number)
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_NUM_PROCESSES": count,
        "JAX_PROCESS_ID": number,
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": coordinator,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": count,
        "KERAS_DISTRIBUTION_PROCESS_ID": number,
    }
