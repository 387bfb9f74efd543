"""Processes of this machine: start detached, identify, end.

This is the only module of the node that depends on the operating system. A process is identified by
its number and its start time, so that a reused number is never mistaken for the old process.
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
# A flag in /proc/PID/stat.
_PF_EXITING = 0x4
_CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


@dataclass(frozen=True)
class ProcessId:
    """A process; its start time distinguishes it from later ones with the same number.

    Attributes:
        pid: Its number.
        birth: Its start time, as text that is only compared, not interpreted.
    """

    pid: int
    birth: str


def launch(
    command: Sequence[str], *, directory: Path, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one and receives none of its signals.

    Args:
        command: Program and arguments.
        directory: Its working directory.
        log: File for its output; overwritten.
        environment: Its entire environment.
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
    """Return the living process with this number, or None."""
    birth = _birth(pid)
    return None if birth is None else ProcessId(pid, birth)


def is_alive(process: ProcessId) -> bool:
    """True if exactly this process still runs; False for one that waits to be reaped."""
    _collect(process.pid)
    return _birth(process.pid) == process.birth


def is_ending(process: ProcessId) -> bool:
    """True if exactly this process was killed or is exiting, but is not gone yet.

    A large process on a busy machine needs a while. Only Linux shows it; elsewhere this is False.
    """
    if sys.platform != "linux" or not is_alive(process):
        return False
    folder = Path(f"/proc/{process.pid}")
    try:
        status = (folder / "status").read_text()
        flags = int((folder / "stat").read_text().rpartition(")")[2].split()[6])
    except OSError:
        return False  # gone in the meantime
    pending = re.findall(r"^S(?:ig|hd)Pnd:\s*([0-9a-f]+)", status, re.MULTILINE)
    killed = 1 << (signal.SIGKILL - 1)
    return bool(flags & _PF_EXITING) or any(int(mask, 16) & killed for mask in pending)


def terminate(process: ProcessId) -> None:
    """Request the process to end; Windows has no such request, so end it there."""
    if is_alive(process):
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGTERM)


def kill(process: ProcessId) -> None:
    """End the process and its children immediately."""
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
    """Wait until the process has ended; return False if it still runs after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while is_alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def private_directory(path: Path) -> Path:
    """Create a folder that only its owner can access."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if sys.platform != "win32":
        path.chmod(0o700)
    return path


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file that only its owner can read, atomically."""
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
    """Return the memory this process may use: the machine's, or its container's if smaller."""
    import psutil

    total = int(psutil.virtual_memory().total)
    for limit in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" means no limit
            total = min(total, int(Path(limit).read_text()))
    return total


@contextlib.contextmanager
def end_at_signals() -> Iterator[None]:
    """Treat a request to end (SIGTERM, SIGHUP) within the block as KeyboardInterrupt."""
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
        # In ticks since boot, so that setting the clock does not change it.
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
    """Reap a child process that has ended, so that it does not remain a zombie."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)
