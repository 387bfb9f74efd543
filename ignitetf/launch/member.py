"""`Member`: runs a worker on its machine for a launcher elsewhere; used by actors of Ray.

driver -> **member** (ports, process) -> report -> driver

It does not import Ray, so that it is an ordinary object.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ignitetf.launch.environment import machine_environment
from ignitetf.launch.ports import ReservedPorts
from ignitetf.launch.process import WorkerProcess
from ignitetf.launch.roles import Role

__all__ = ["Member", "Script", "WorkerReport", "placed_script", "script_of"]

# Path and text.
Script = tuple[str, str]


@dataclass
class WorkerReport:
    """Changes of a worker since the previous call of `Member.report`.

    Attributes:
        lines: Stream and text of the lines that it wrote.
        pid, code, arrived, left, started, usage, error: As in `WorkerProcess`.
    """

    lines: list[tuple[str, str]] = field(default_factory=list)
    pid: int = 0
    code: int | None = None
    arrived: bool = False
    left: bool = False
    started: bool = False
    usage: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def placed_script(script: Script, folder: Path) -> Path:
    """Return the path of a script on this machine; write the script there if necessary.

    Args:
        script: Its path on the machine of the launcher, and its text. If the file at this path has
            the same text here, as on a shared disk, it is used in place, next to its modules.
        folder: The script is written to this folder otherwise.
    """
    path, text = Path(script[0]), script[1]
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return path
    copy = folder / path.name
    copy.write_text(text, encoding="utf-8")
    return copy


def script_of(path: str) -> Script:
    """Return the path and the text of a script, for `placed_script` on another machine."""
    return str(Path(path).resolve()), Path(path).read_text(encoding="utf-8")


class Member:
    """Runs one worker on this machine.

    Args:
        address: The address at which the other members reach this machine.
    """

    def __init__(self, address: str) -> None:
        self._ports = ReservedPorts(2, address)
        self._folder = Path(tempfile.mkdtemp(prefix="ignitetf-"))
        self._process: WorkerProcess | None = None

    def place(self) -> tuple[str, list[int]]:
        """Return the name of this machine and its two ports: the member's, and one for JAX."""
        return platform.node(), self._ports.numbers

    def start(
        self,
        role: Role,
        script: Script,
        arguments: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        """Start the script.

        Args:
            role: Which member this is.
            script: See `placed_script`.
            arguments: Its arguments.
            environment: Variables in addition to the environment of this process.
        """
        there = placed_script(script, self._folder)
        self._ports.allow_listening()
        command = [sys.executable, "-m", "ignitetf.launch.worker", str(there), *arguments]
        self._process = WorkerProcess(role, command, machine_environment(environment))

    def report(self) -> WorkerReport:
        """Return the changes since the previous call."""
        process = self._process
        assert process is not None
        ended = process.poll()
        lines = [found for descriptor in process.open_pipes for found in process.read(descriptor)]
        while ended and (more := self._rest(process)):
            lines += more
        return WorkerReport(
            lines,
            process.pid,
            process.code,
            process.arrived,
            process.left,
            process.started,
            process.usage,
            process.error,
        )

    def _rest(self, process: WorkerProcess) -> list[tuple[str, str]]:
        return [found for descriptor in process.open_pipes for found in process.read(descriptor)]

    def release(self) -> None:
        """Send the worker the next order; see `Worker.release`."""
        if self._process is not None:
            self._process.release()

    def terminate(self) -> None:
        """Request the worker to end."""
        if self._process is not None and not self._process.poll():
            self._process.terminate()

    def kill(self) -> None:
        """End the worker by force."""
        if self._process is not None:
            self._process.kill()

    def is_connected(self, port: int, shared: list[int]) -> bool:
        """Return whether the worker has joined its group."""
        return self._process is not None and self._process.is_connected(port, shared)

    def close(self) -> None:
        """End the worker, release its ports and delete its folder."""
        if self._process is not None:
            self._process.kill()
            self._process.close()
        self._ports.close()
        shutil.rmtree(self._folder, ignore_errors=True)
