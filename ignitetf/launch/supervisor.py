"""The attempts of a job: a group, and after a failure another one, as often as it may be.

spec, settings -> **supervisor** (group) -> outcome
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ignitetf.launch.environment import worker_environments
from ignitetf.launch.group import Group, Outcome
from ignitetf.launch.ports import HeldPorts
from ignitetf.launch.process import WorkerProcess
from ignitetf.launch.roles import roles_of
from ignitetf.launch.signals import Requests
from ignitetf.launch.spec import LaunchSpec
from ignitetf.settings import Settings

__all__ = ["Supervisor"]


class Supervisor:
    """Runs the attempts of a job on this machine.

    Args:
        spec: What is launched.
        settings: How workers connect.
        job: Id of the job.
        directory: Where the job may keep checkpoints.
        show: Takes each line of output: worker, "stdout" or "stderr", line.
        note: Takes messages for the user.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        settings: Settings,
        job: str,
        directory: str,
        *,
        show: Callable[[WorkerProcess, str, str], None],
        note: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._job = job
        self._directory = directory
        self._show = show
        self._note = note

    def run(self, requests: Requests) -> Outcome:
        """Run the job to its end; nothing of it is left then."""
        spec, left = self._spec, self._restarts()
        while True:
            outcome = self._attempt(spec, requests)
            if outcome.kind != "failed" or not left or requests.stopping:
                return outcome
            left -= 1
            if spec.elastic is not None:
                spec = replace(spec, workers=max(spec.elastic[0], spec.workers - outcome.lost))
            self._note(
                f"{outcome.reason}; started again, workers: {spec.workers}, restarts left: {left}"
            )

    def _restarts(self) -> int:
        """Return how often the group may be started again; `elastic` alone allows some, too."""
        spec = self._spec
        if spec.elastic is None or spec.restarts:
            return spec.restarts
        return spec.workers - spec.elastic[0]

    def _attempt(self, spec: LaunchSpec, requests: Requests) -> Outcome:
        roles = roles_of(spec.workers, spec.parameter_servers)
        ports = HeldPorts(len(roles) + 1)
        environments = worker_environments(
            spec, self._settings, self._job, self._directory, roles, ports.numbers
        )
        return Group(spec, roles, environments, ports, self._show).run(requests)
