"""One worker: its process and the processes it starts, its output, its reports.

role, command, environment -> **process** -> lines, reports, exit code
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import psutil

from ignitetf.jobs.record import WorkerStatus
from ignitetf.launch.link import VARIABLE
from ignitetf.launch.output import Lines
from ignitetf.launch.roles import Role

__all__ = ["Worker", "WorkerProcess", "shell_code", "status_of", "worker_command"]

_READ: Final = 1 << 16
_TOGETHER: Final = (psutil.CONN_LISTEN, psutil.CONN_ESTABLISHED)


def worker_command(script: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs a script as a worker."""
    return [sys.executable, "-m", "ignitetf.launch.worker", script, *arguments]


class Worker(Protocol):
    """One member of a group, on any machine; see `WorkerProcess` for the attributes."""

    role: Role
    host: str
    pid: int
    code: int | None
    arrived: bool
    left: bool
    started: bool
    polled_at: float
    usage: dict[str, Any]
    error: str

    @property
    def open_pipes(self) -> list[int]:
        """Descriptors to read output from; empty if output arrives in another way."""

    def read(self, descriptor: int) -> Iterator[tuple[str, str]]:
        """Read the available output, and yield (stream, line)."""

    def poll(self) -> bool:
        """Return whether the worker has ended."""

    def release(self) -> None:
        """Send the next order: all have arrived; all have left; (first only) others have exited."""

    def terminate(self) -> None:
        """Request all processes of the worker to end."""

    def kill(self) -> None:
        """End all processes of the worker by force."""

    def is_connected(self, port: int, shared: Collection[int]) -> bool:
        """Return whether it listens on `port`, or listens on or is connected to a shared port."""

    def close(self) -> None:
        """Release its resources."""


def status_of(worker: Worker, attempt: int, *, served: bool = False) -> WorkerStatus:
    """Return the status of a worker; `served`: the servers were ended because the job is done."""
    code = worker.code
    if code is not None:
        # Members that serve until the chief is done are ended by signals, which is not a failure.
        state = "failed" if code and not (worker.role.serves and served) else "ended"
    elif worker.arrived:
        state = "waiting"
    else:
        state = "running" if worker.started else "starting"
    return WorkerStatus(
        worker.role.number,
        worker.role.name,
        attempt,
        worker.host,
        worker.pid,
        state,  # type: ignore[arg-type]
        None if code is None else shell_code(code),
        **worker.usage,
    )


def shell_code(code: int) -> int:
    """Return the exit code that a shell reports for a process, also if a signal ended it."""
    return 128 - code if code < 0 else code


class WorkerProcess:
    """A worker in its own process group, which ends when this process does.

    Args:
        role: Which worker.
        command: Program and arguments.
        environment: Its entire environment.

    Attributes:
        role: As given.
        host: Name of this machine.
        pid: Process id, and id of its process group.
        code: Exit code; negative for a signal; None while it runs.
        arrived: Its script has ended without an error, and it waits for the others.
        left: Its exit functions have run, and it waits for the others again.
        started: It listens, is connected, or has read.
        polled_at: When its connections were last checked, by the monotonic clock.
        usage: Its last report about its reading.
        error: The exception that ended its script, in one line; empty if there was none.
    """

    def __init__(self, role: Role, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.role = role
        self.host = platform.node()
        self.code: int | None = None
        self.arrived = self.left = False
        self.started = False
        self.polled_at = 0.0
        self.usage: dict[str, Any] = {}
        self.error = ""
        life, self._life = os.pipe()
        orders, self._orders = os.pipe()
        self._reports, reports = os.pipe()
        theirs = (life, orders, reports)
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**environment, VARIABLE: ",".join(map(str, theirs))},
                start_new_session=True,
                pass_fds=theirs,
            )
        except BaseException:
            for descriptor in (self._life, self._orders, self._reports):
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.pid = self._process.pid
        assert self._process.stdout is not None and self._process.stderr is not None
        self._pipes: dict[int, tuple[str, Lines]] = {
            self._process.stdout.fileno(): ("stdout", Lines()),
            self._process.stderr.fileno(): ("stderr", Lines()),
            self._reports: ("reports", Lines()),
        }
        for descriptor in self._pipes:
            os.set_blocking(descriptor, False)

    @property
    def open_pipes(self) -> list[int]:
        """Descriptors that may still deliver output or reports."""
        return list(self._pipes)

    def read(self, descriptor: int) -> Iterator[tuple[str, str]]:
        """Read the available output, and yield (stream, line); process reports without yielding."""
        stream, lines = self._pipes[descriptor]
        try:
            data = os.read(descriptor, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            del self._pipes[descriptor]
        for line in lines.feed(data) if data else lines.end():
            if stream == "reports":
                self._take(line)
            else:
                yield stream, line

    def _take(self, line: str) -> None:
        with contextlib.suppress(ValueError):  # cut off by a kill
            report = json.loads(line)
            self.arrived = self.arrived or report.get("arrived", False)
            self.left = self.left or report.get("left", False)
            self.error = report.get("error", self.error)
            self.usage = report.get("usage", self.usage)
            self.started = self.started or self.usage.get("rows", 0) > 0

    def poll(self) -> bool:
        """Return whether the worker has ended; if so, end the rest of its process group, too."""
        if self.code is not None:
            return True
        # The pid, which is also the id of the process group, cannot be reused before we reap it.
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self._signal(signal.SIGKILL)
        self.code = self._process.wait()
        return True

    def release(self) -> None:
        """See `Worker`."""
        with contextlib.suppress(OSError):
            os.write(self._orders, b".")

    def terminate(self) -> None:
        """Request all processes of the worker to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all processes of the worker by force, including those in other sessions."""
        if self.code is not None:
            return
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()
        self._signal(signal.SIGKILL)

    def is_connected(self, port: int, shared: Collection[int]) -> bool:
        """See `Worker`."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            for member in (process, *process.children(recursive=True)):
                for found in _connections(member):
                    if found.status == psutil.CONN_LISTEN and found.laddr.port == port:
                        return True
                    ends = {end.port for end in (found.laddr, found.raddr) if end}
                    if found.status in _TOGETHER and not ends.isdisjoint(shared):
                        return True
        return False

    def close(self) -> None:
        """Close all pipes; the guard then ends processes that still run."""
        for descriptor in (self._life, self._orders, self._reports):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self._pipes = {}

    def _signal(self, number: int) -> None:
        if self.code is None:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, number)


def _connections(process: psutil.Process) -> list[Any]:
    """Return the TCP sockets of a process; psutil 6 renamed the method."""
    listed = getattr(process, "net_connections", None) or process.connections
    return list(listed(kind="tcp"))
