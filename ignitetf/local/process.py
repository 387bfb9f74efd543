"""Processes of this machine: start detached, recognise, end.

The only module of the node that knows operating systems. A process is recognised by its number
and the time it began, so that a number that was given to another process is never taken for it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "ProcessId",
    "end_at_signals",
    "identify",
    "is_alive",
    "is_ending",
    "kill",
    "launch",
    "private_directory",
    "terminate",
    "total_memory_bytes",
    "wait_gone",
    "write_private",
]

_POLL_S = 0.05
# Of the flags in /proc/PID/stat.
_PF_EXITING = 0x4
_CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


@dataclass(frozen=True)
class ProcessId:
    """A process, told apart from later ones with the same number.

    Attributes:
        pid: Its number.
        birth: When it began, as text that is compared and not interpreted.
    """

    pid: int
    birth: str


def launch(
    command: Sequence[str], *, directory: Path, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one and gets none of its signals.

    Args:
        command: Program and arguments.
        directory: Where it runs.
        log: File that takes its output; made anew.
        environment: Its whole environment.
    """
    options: dict[str, Any] = {}
    if sys.platform == "win32":
        options["creationflags"] = (
            subprocess.DETACHED_PROCESS
            | subprocess.CREATE_NEW_PROCESS_GROUP
            | subprocess.CREATE_NO_WINDOW
        )
    else:
        options["start_new_session"] = True
    with log.open("wb") as output:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=dict(environment),
            close_fds=True,
            **options,
        )


def identify(pid: int) -> ProcessId | None:
    """The living process of this number; None when there is none."""
    birth = _birth(pid)
    return None if birth is None else ProcessId(pid, birth)


def is_alive(process: ProcessId) -> bool:
    """Whether this very process still runs (one that ended and was not collected does not)."""
    _collect(process.pid)
    return _birth(process.pid) == process.birth


def is_ending(process: ProcessId) -> bool:
    """Whether this very process was killed, or exits, and is not gone yet.

    A large process on a busy machine takes a while to. Only Linux tells; elsewhere it is False.
    """
    if sys.platform != "linux" or not is_alive(process):
        return False
    folder = Path(f"/proc/{process.pid}")
    try:
        status = (folder / "status").read_text()
        flags = int((folder / "stat").read_text().rpartition(")")[2].split()[6])
    except OSError:
        return False  # gone meanwhile
    pending = re.findall(r"^S(?:ig|hd)Pnd:\s*([0-9a-f]+)", status, re.MULTILINE)
    killed = 1 << (signal.SIGKILL - 1)
    return bool(flags & _PF_EXITING) or any(int(mask, 16) & killed for mask in pending)


def terminate(process: ProcessId) -> None:
    """Ask the process to end; on Windows, which has no such request, end it."""
    if is_alive(process):
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGTERM)


def kill(process: ProcessId) -> None:
    """End the process, and its own children with it, at once."""
    if not is_alive(process):
        return
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            os.kill(process.pid, signal.SIGTERM)
        elif os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGKILL)


def wait_gone(process: ProcessId, timeout_s: float) -> bool:
    """Wait until the process is gone; False when it still runs after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while is_alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def private_directory(path: Path) -> Path:
    """Make a folder that only its owner can look into."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if sys.platform != "win32":
        path.chmod(0o700)
    return path


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file that only its owner can read; replaced whole, or not at all."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def total_memory_bytes() -> int:
    """Memory that this process may use: that of the machine, or of its container if less."""
    import psutil

    total = int(psutil.virtual_memory().total)
    for limit in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no limit is written as "max"
            total = min(total, int(Path(limit).read_text()))
    return total


@contextlib.contextmanager
def end_at_signals() -> Iterator[None]:
    """Within the block a request to end (SIGTERM, SIGHUP) is a KeyboardInterrupt, as Ctrl-C is."""
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        names = []
    before = {}
    for name in names:
        number = getattr(signal, name)
        if signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _birth(pid: int) -> str | None:
    if sys.platform == "linux":
        # In ticks since the machine started, so that setting the clock does not change it.
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else f"ticks {fields[19]}"
    else:
        import psutil

        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return f"time {process.create_time():.1f}"
        except psutil.Error:
            return None


def _collect(pid: int) -> None:
    """Let a child of ours that has ended disappear."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)
