"""The engine of this machine: the workers are processes beside the launcher.

spec -> **local** (ports, environment) -> group
"""

from __future__ import annotations

from typing import Any

from ignitetf.launch.engine import Place, Show
from ignitetf.launch.environment import shown, worker_environments
from ignitetf.launch.group import Group
from ignitetf.launch.ports import HeldPorts
from ignitetf.launch.process import worker_command
from ignitetf.launch.roles import roles_of
from ignitetf.launch.spec import LaunchSpec
from ignitetf.settings import Settings

__all__ = ["LocalEngine"]


class LocalEngine:
    """Starts groups on this machine.

    Args:
        settings: How workers connect.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def plan(self, spec: LaunchSpec, place: Place) -> list[dict[str, Any]]:
        """Return name, command and what is set in the environment of each worker."""
        roles = roles_of(spec.workers, spec.parameter_servers)
        ports = HeldPorts(len(roles) + 1)
        ports.close()
        environments = worker_environments(spec, self._settings, place, roles, ports.numbers)
        command = worker_command(spec.script, spec.arguments)
        return [
            {"worker": role.name, "command": command, "environment": shown(environment)}
            for role, environment in zip(roles, environments, strict=True)
        ]

    def begin(self, spec: LaunchSpec, place: Place, show: Show) -> Group:
        """Start a group on ports that were free."""
        roles = roles_of(spec.workers, spec.parameter_servers)
        ports = HeldPorts(len(roles) + 1)
        environments = worker_environments(spec, self._settings, place, roles, ports.numbers)
        return Group(spec, place, roles, environments, ports, show)
