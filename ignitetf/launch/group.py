"""The processes of one attempt on this machine: started together, watched, and ended together.

spec -> **group** (ports, environments, processes) -> outcome

The first process that fails ends the group. Scripts that end without an error wait for each other,
and then exit together. The chief exits last, because the others need it until they have exited.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ignitetf.errors import ConfigError
from ignitetf.jobs.record import WorkerStatus
from ignitetf.launch.engine import Control, LaunchSpec, Outcome, Place, Show
from ignitetf.launch.environment import shown, worker_environments
from ignitetf.launch.ports import Ports, ReservedPorts
from ignitetf.launch.process import (
    Worker,
    WorkerProcess,
    shell_code,
    status_of,
    worker_command,
)
from ignitetf.launch.roles import roles_of
from ignitetf.settings import Settings

__all__ = ["Group", "LocalEngine"]

_STEP_S: Final = 0.1
_POLL_S: Final = 0.5
_KILLED_S: Final = 10.0
# Time to read output after all processes were ended; others may keep the pipes open.
_DRAIN_S: Final = 1.0


@dataclass(frozen=True)
class _Verdict:
    """Why a group must end; its exit codes are known only after that."""

    kind: Literal["ended", "failed", "stopped"]
    failed: Sequence[Worker] = ()
    reason: str = ""


class Group:
    """The processes of one attempt.

    Args:
        spec: The script and its group.
        place: The job and the attempt.
        starts: Functions that start the members, the chief first.
        ports: A port for each member, and one for the coordinator of JAX.
        show: Called with each line of output.

    Attributes:
        workers: The processes.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        place: Place,
        starts: Sequence[Callable[[], Worker]],
        ports: Ports,
        show: Show,
    ) -> None:
        self.workers: list[Worker] = []
        self._spec = spec
        self._place = place
        self._ports = ports
        self._show = show
        self._selector = selectors.DefaultSelector()
        self._started_at = time.monotonic()
        self._first_arrival: float | None = None
        self._released = False
        self._tick: Callable[[], None] = lambda: None
        ports.allow_listening()
        try:
            for start in starts:
                worker = start()
                self.workers.append(worker)
                for descriptor in worker.open_pipes:
                    self._selector.register(descriptor, selectors.EVENT_READ, worker)
        except OSError as error:
            self.close(0)
            raise ConfigError(f"a worker cannot be started: {error}") from error

    def run(self, control: Control, tick: Callable[[], None]) -> Outcome:
        """Watch the group to its end; no process of it remains."""
        self._tick = tick
        try:
            verdict = self._watch(control)
        finally:
            self.close(self._spec.grace_s, control)
        codes = {worker.role.number: worker.code for worker in self.workers}
        lost = sum(worker.role.type == "worker" for worker in verdict.failed)
        return Outcome(verdict.kind, *_exit_code_and_reason(verdict), lost, codes)

    @property
    def all_started(self) -> bool:
        """True if all workers have started."""
        return all(self._has_started(worker) for worker in self.workers)

    def statuses(self) -> list[WorkerStatus]:
        """Return the current status of the workers."""
        return [
            status_of(worker, self._place.attempt, served=self._released) for worker in self.workers
        ]

    # Watching

    def _watch(self, control: Control) -> _Verdict:
        while True:
            self._step()
            if failed := [worker for worker in self.workers if worker.code]:
                return _Verdict("failed", failed)
            if control.stopping:
                return _Verdict("stopped")
            if all(w.arrived or w.code == 0 for w in self._trainers()):
                return self._release_workers(control)
            if late := self._late_workers():
                return late

    def _step(self) -> None:
        """Wait briefly, show new output, and poll the workers."""
        for key, _ in self._selector.select(_STEP_S):
            self._read(key.fd, key.data)
        for worker in self.workers:
            worker.poll()
        if self._first_arrival is None and any(w.arrived for w in self.workers):
            self._first_arrival = time.monotonic()
        self._tick()

    def _read(self, descriptor: int, worker: Worker) -> None:
        for stream, line in worker.read(descriptor):
            self._show(worker.role, stream, line)
        if descriptor not in worker.open_pipes:
            self._selector.unregister(descriptor)

    def _trainers(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.role.serves]

    def _late_workers(self) -> _Verdict | None:
        """Return the failure of workers that exceeded a time limit; None if there are none."""
        now = time.monotonic()
        limit = self._spec.end_timeout_s
        if limit and self._first_arrival is not None and now - self._first_arrival > limit:
            slow = [w for w in self._trainers() if not w.arrived and w.code is None]
            reason = f"{_names(slow)} not ended {limit:g} s after the first worker was done"
            return _Verdict("failed", slow, reason)
        limit = self._spec.start_timeout_s
        if not limit or now - self._started_at < limit:
            return None
        waiting = [w for w in self.workers if not self._has_started(w)]
        if not waiting:
            return None
        reason = (
            f"{_names(waiting)} not started within {limit:g} s: no connection to the group, and no"
            " row read"
        )
        return _Verdict("failed", waiting, reason)

    def _has_started(self, worker: Worker) -> bool:
        """Return whether a worker has started; a single worker always counts as started."""
        if worker.started or worker.arrived or worker.code is not None:
            return True
        if len(self.workers) == 1:
            worker.started = True
        elif time.monotonic() - worker.polled_at > _POLL_S:
            worker.polled_at = time.monotonic()
            *ports, coordinator = self._ports.numbers
            shared = [coordinator, *(ports if worker.role.type == "chief" else ())]
            worker.started = worker.is_connected(ports[worker.role.number], shared)
        return worker.started

    # The end

    def _release_workers(self, control: Control) -> _Verdict:
        """End the group after all scripts have ended without an error."""
        chief, *others = self._trainers()
        for worker in (chief, *others):
            worker.release()
        self._wait(lambda: all(w.left or w.code is not None for w in (chief, *others)), control)
        for worker in (chief, *others):
            worker.release()
        self._wait(lambda: all(w.code is not None for w in others), control)
        chief.release()
        self._wait(lambda: chief.code is not None, control)
        if control.stopping:
            return _Verdict("stopped")
        if failed := [w for w in self._trainers() if w.code != 0]:
            return _Verdict("failed", failed)
        self._released = True
        return _Verdict("ended")

    def _wait(self, is_over: Callable[[], bool], control: Control) -> None:
        begun, limit = time.monotonic(), self._spec.end_timeout_s
        while not is_over() and not control.stopping:
            self._step()
            if limit and time.monotonic() - begun > limit:
                return

    def close(self, grace_s: float, control: Control | None = None) -> None:
        """End processes that still run: by request, and after `grace_s` by force."""
        try:
            self._end(grace_s, control)
        finally:
            for worker in self.workers:
                worker.kill()
            self._ports.close()
            self._drain()

    def _end(self, grace_s: float, control: Control | None) -> None:
        deadline = time.monotonic() + grace_s
        for worker in self.workers:
            if not worker.poll():
                worker.terminate()
        while any(w.code is None for w in self.workers) and time.monotonic() < deadline:
            if control is not None and control.hurry:
                break
            self._step()
        deadline = time.monotonic() + _KILLED_S
        while any(w.code is None for w in self.workers) and time.monotonic() < deadline:
            for worker in self.workers:
                worker.kill()
            self._step()

    def _drain(self) -> None:
        """Show the rest of the output, for a limited time: other processes may keep pipes open."""
        deadline = time.monotonic() + _DRAIN_S
        while self._selector.get_map() and time.monotonic() < deadline:
            for key, _ in self._selector.select(_STEP_S):
                self._read(key.fd, key.data)
        self._selector.close()
        for worker in self.workers:
            worker.close()


def _exit_code_and_reason(verdict: _Verdict) -> tuple[int, str]:
    """Return the exit code and the reason of a verdict."""
    if verdict.reason or not verdict.failed:
        return (1 if verdict.reason else 0), verdict.reason
    worker = verdict.failed[0]
    code = 1 if worker.code is None else worker.code
    error = f": {worker.error}" if worker.error and code > 0 else ""
    return shell_code(code), f"{worker.role.name} {_ended(code)}{error}"


def _names(workers: Iterable[Worker]) -> str:
    names = [worker.role.name for worker in workers]
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'}"


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


class LocalEngine:
    """Starts groups on this machine.

    Args:
        settings: Connection settings of the workers.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def plan(self, spec: LaunchSpec, place: Place) -> list[dict[str, Any]]:
        """Return the name, the command and the added environment of each worker."""
        roles = roles_of(spec.workers, spec.parameter_servers)
        ports = ReservedPorts(len(roles) + 1)
        ports.close()
        environments = worker_environments(spec, self._settings, place, roles, ports.numbers)
        command = worker_command(spec.script, spec.arguments)
        return [
            {"worker": role.name, "command": command, "environment": shown(environment)}
            for role, environment in zip(roles, environments, strict=True)
        ]

    def begin(self, spec: LaunchSpec, place: Place, show: Show) -> Group:
        """Start a group on free ports."""
        roles = roles_of(spec.workers, spec.parameter_servers)
        ports = ReservedPorts(len(roles) + 1)
        environments = worker_environments(spec, self._settings, place, roles, ports.numbers)
        command = worker_command(spec.script, spec.arguments)
        starts = [
            functools.partial(WorkerProcess, role, command, environment)
            for role, environment in zip(roles, environments, strict=True)
        ]
        return Group(spec, place, starts, ports, show)
