"""`Member`: a worker on another machine, as that machine sees it; what an actor of Ray holds.

driver -> **member** (ports, process) -> news -> driver

It imports nothing of Ray, so that it is an ordinary object.
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
from ignitetf.launch.ports import HeldPorts
from ignitetf.launch.process import WorkerProcess
from ignitetf.launch.roles import Role

__all__ = ["Member", "News", "Script", "placed_script", "script_of"]

# Path and text.
Script = tuple[str, str]


@dataclass
class News:
    """What has happened to a worker since it was last asked about.

    Attributes:
        lines: Stream and text of the lines that it wrote.
        pid, code, arrived, left, started, usage, error: As of `WorkerProcess`.
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
    """Return where a script is on this machine.

    Args:
        script: Its path on the machine of the launcher, and its text. Where that path has the same
            text here, as on a shared disk, it stays there, beside its modules.
        folder: Where it is written to otherwise.
    """
    path, text = Path(script[0]), script[1]
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return path
    copy = folder / path.name
    copy.write_text(text, encoding="utf-8")
    return copy


def script_of(path: str) -> Script:
    """Return the path and the text of a script, to be placed elsewhere."""
    return str(Path(path).resolve()), Path(path).read_text(encoding="utf-8")


class Member:
    """Runs one worker on this machine.

    Args:
        address: The address under which the other members find this machine.
    """

    def __init__(self, address: str) -> None:
        self._ports = HeldPorts(2, address)
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
            environment: What is set beside the environment of this process.
        """
        there = placed_script(script, self._folder)
        self._ports.hand_over()
        command = [sys.executable, "-m", "ignitetf.launch.worker", str(there), *arguments]
        self._process = WorkerProcess(role, command, machine_environment(environment))

    def news(self) -> News:
        """Return what has happened since the last call."""
        process = self._process
        assert process is not None
        ended = process.poll()
        lines = [found for descriptor in process.open_pipes for found in process.read(descriptor)]
        while ended and (more := self._rest(process)):
            lines += more
        return News(
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
        """Send the worker what it waits for; see `WorkerProcess.release`."""
        if self._process is not None:
            self._process.release()

    def terminate(self) -> None:
        """Ask the worker to end."""
        if self._process is not None and not self._process.poll():
            self._process.terminate()

    def kill(self) -> None:
        """End the worker."""
        if self._process is not None:
            self._process.kill()

    def is_connected(self, port: int, shared: list[int]) -> bool:
        """Return whether the worker has joined its group."""
        return self._process is not None and self._process.is_connected(port, shared)

    def close(self) -> None:
        """Let go of everything."""
        if self._process is not None:
            self._process.kill()
            self._process.close()
        self._ports.close()
        shutil.rmtree(self._folder, ignore_errors=True)
