"""`python -m ignitetf.launch.pod SCRIPT [ARGS...]`: one member of a group that no launcher started.

index of the pod -> **pod** (worker process) -> record, output, exit code

Kubernetes starts and ends the members; each finds its role by its index. The tasks that a launcher
performs for a whole group are performed by each member for itself: it writes its output to
`igfs://`, sends heartbeats, and at the end waits for the others, by means of the job's record. The
first member keeps that record. A read-only cluster has no record: the script still runs, and ends
without waiting for the others.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ignitetf import Client, connect
from ignitetf.errors import ClusterReadOnly, ConfigError, ConnectError, IgniteTFError
from ignitetf.jobs.logs import LogWriter
from ignitetf.jobs.record import Job, WorkerStatus
from ignitetf.jobs.store import BEAT_S, JobStore, utc_now
from ignitetf.launch.process import WorkerProcess, shell_code, status_of, worker_command
from ignitetf.launch.recorder import Recorder
from ignitetf.launch.roles import Role, cluster_environment, roles_of
from ignitetf.launch.signals import Requests

__all__ = ["main"]

_NAMES_S: Final = 300.0
_GRACE_S: Final = 20.0  # Kubernetes forces the end after 30 s
_STEP_S: Final = 0.1
_ATTEMPT: Final = 1


@dataclass(frozen=True)
class _Member:
    """This pod's place in the group, from its environment.

    Attributes:
        job: Id of the job.
        addresses: `HOST:PORT` of each member.
        coordinator: `HOST:PORT` of the coordinator of JAX.
        roles: The roles of all members.
        role: The role of this pod.
    """

    job: str
    addresses: tuple[str, ...]
    coordinator: str
    roles: tuple[Role, ...]
    role: Role

    @classmethod
    def of_environment(cls) -> _Member:
        try:
            addresses = tuple(os.environ["IGNITETF_GROUP"].split(","))
            servers = int(os.environ["IGNITETF_PARAMETER_SERVERS"])
            coordinator, job = os.environ["IGNITETF_COORDINATOR"], os.environ["IGNITETF_JOB"]
            number = int(os.environ["JOB_COMPLETION_INDEX"])
            workers = len(addresses) - servers - (1 if servers else 0)
            roles = tuple(roles_of(workers, servers))
            return cls(job, addresses, coordinator, roles, roles[number])
        except (KeyError, ValueError, IndexError) as error:
            raise ConfigError(
                f"this process is not a member of a group: {error!r}",
                hint="'ignitetf launch --engine kubernetes --dry-run' writes the environment",
            ) from error

    @property
    def is_first(self) -> bool:
        """True if this member keeps the record of the job."""
        return self.role.number == 0

    @property
    def trainers(self) -> list[int]:
        """Numbers of the members whose scripts end by themselves."""
        return [role.number for role in self.roles if not role.serves]

    def environment(self) -> dict[str, str]:
        """Return the environment of the script."""
        return {
            **os.environ,
            **cluster_environment(self.roles, self.role, self.addresses, self.coordinator),
            "IGNITETF_WORKER": str(self.role.number),
            "IGNITETF_ATTEMPT": str(_ATTEMPT),
        }


def main() -> None:
    """Run the script as this pod's member of the group, and exit with its exit code."""
    try:
        member = _Member.of_environment()
        _wait_for_names(member.addresses)
        with connect() as client, Requests(lambda: False) as requests:
            code = _Pod(member, client, requests).run(sys.argv[1], sys.argv[2:])
    except IgniteTFError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        code = 1
    raise SystemExit(shell_code(code))


def _wait_for_names(addresses: Sequence[str]) -> None:
    """Wait until the names of all members resolve, that is, all pods have been scheduled."""
    until = time.monotonic() + _NAMES_S
    for address in addresses:
        host = address.rpartition(":")[0]
        while True:
            try:
                socket.getaddrinfo(host, None)
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise ConnectError(
                        f"{host} is not known after {_NAMES_S:g} s: {error}",
                        hint="are there resources for all pods? see 'kubectl describe job'",
                    ) from error
                time.sleep(1.0)


class _Pod:
    """The script of one member, from its start to its end."""

    def __init__(self, member: _Member, client: Client, requests: Requests) -> None:
        self._member = member
        self._requests = requests
        self._store = JobStore(client)
        self._logs = LogWriter(client.settings, member.job, _ATTEMPT)
        self._patience_s = client.settings.idle_timeout_s
        self._arrived = self._left = self._all_arrived = self._all_left = False

    def run(self, script: str, arguments: Sequence[str]) -> int:
        """Run the script; return its exit code."""
        member = self._member
        with contextlib.suppress(ClusterReadOnly):
            self._store.leave(member.job, _ATTEMPT, member.role.number)
        job = self._job(script, arguments)
        self._recorder = Recorder(
            self._store,
            job,
            lambda text: print(text, file=sys.stderr, flush=True),
            create=lambda: self._begin(job),
            leads=member.is_first,
        )
        try:
            command = worker_command(script, arguments)
            code = self._run(WorkerProcess(member.role, command, member.environment()))
            if member.is_first:
                state = "stopped" if self._requests.stopping else "failed" if code else "ended"
                self._recorder.change(state=state, exit_code=shell_code(code), ended=utc_now())
        finally:
            self._recorder.close()
        return code

    def _run(self, worker: WorkerProcess) -> int:
        worker.started = True  # no other process waits for its start
        try:
            return self._watch(worker)
        finally:
            worker.kill()
            self._look(worker)
            self._logs.close()
            worker.close()

    def _watch(self, worker: WorkerProcess) -> int:
        due, failing_since = 0.0, None
        while not worker.poll():
            self._look(worker)
            now = time.monotonic()
            if self._requests.stopping:
                self._end(worker)
            elif worker.arrived and now > due:
                due = now + BEAT_S
                try:
                    self._exchange_progress(worker)
                    failing_since = None
                except IgniteTFError:
                    failing_since = failing_since or now
                    if now - failing_since > self._patience_s:
                        raise
            time.sleep(_STEP_S)
        with contextlib.suppress(IgniteTFError):
            if self._arrived and not self._left:
                self._leave()
        return 0 if worker.code is None else worker.code

    def _exchange_progress(self, worker: WorkerProcess) -> None:
        """Record the progress of this member, or check the progress of the others."""
        if not self._arrived:
            self._arrive(worker)
        elif worker.left and not self._left:
            self._leave()
        else:
            self._let_go(worker)

    def _arrive(self, worker: WorkerProcess) -> None:
        """Record that this member waits for the others; without a record, do not wait."""
        member = self._member
        try:
            self._store.arrive(member.job, _ATTEMPT, member.role.number)
        except ClusterReadOnly:
            # The script waits twice for the others; the first member also waits until they have
            # exited.
            for _ in range(3 if member.is_first else 2):
                worker.release()
        self._arrived = True

    def _leave(self) -> None:
        """Record that the exit functions of this member have run."""
        with contextlib.suppress(ClusterReadOnly):
            self._store.arrive(self._member.job, _ATTEMPT, self._member.role.number, "exit")
        self._left = True

    def _let_go(self, worker: WorkerProcess) -> None:
        """Release the script when all have arrived, then left; the first after the others exited."""
        member = self._member
        trainers = member.trainers
        if not self._all_arrived:
            arrived = self._store.arrived(member.job, _ATTEMPT, trainers)
            if len(arrived) == len(trainers):
                self._all_arrived = True
                worker.release()
            return
        if not self._all_left:
            living = self._store.living_workers(member.job, set(trainers))
            if living <= self._store.arrived(member.job, _ATTEMPT, trainers, "exit"):
                self._all_left = True
                worker.release()
            return
        if member.is_first and not self._store.living_workers(member.job, set(trainers) - {0}):
            worker.release()

    def _end(self, worker: WorkerProcess) -> None:
        worker.terminate()
        until = time.monotonic() + _GRACE_S
        while not worker.poll() and time.monotonic() < until and not self._requests.hurry:
            self._look(worker)
            time.sleep(_STEP_S)
        worker.kill()

    def _look(self, worker: WorkerProcess) -> None:
        """Show and store the new output of the script, and record its status."""
        for descriptor in worker.open_pipes:
            for stream, line in worker.read(descriptor):
                print(line, file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)
                self._logs.write(self._member.role.name, line)
        self._recorder.statuses([status_of(worker, _ATTEMPT)])

    # The record

    def _job(self, script: str, arguments: Sequence[str]) -> Job:
        member = self._member
        return Job(
            id=member.job,
            script=script,
            args=tuple(arguments),
            workers=sum(role.type == "worker" for role in member.roles),
            ps=sum(role.type == "ps" for role in member.roles),
            data=os.environ.get("IGNITE_DATASET_CACHE_NAME"),
            engine="kubernetes",
            host=platform.node(),
            pid=os.getpid(),
            created=utc_now(),
            state="running",
        )

    def _begin(self, job: Job) -> None:
        """Record the start of this member; the first one also replaces the record of the job."""
        role = self._member.role
        if self._member.is_first:
            self._store.beat(job.id)
            self._store.put(job)
        status = WorkerStatus(role.number, role.name, _ATTEMPT, job.host, 0, "starting")
        self._store.beat_worker(job.id, status)


if __name__ == "__main__":
    main()
