"""The process that holds something in the cluster, and whether it is known to have ended.

Leases of files and of data sets name their holder by these facts. What they prove holds on the
holder's own machine only; for others, each kind of lease has its beat.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from pathlib import Path

__all__ = ["has_ended", "machine", "started"]


@functools.cache
def machine() -> str:
    """This machine since its start, and this process space in it."""
    marks = [platform.node()]
    with contextlib.suppress(OSError):
        marks.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        marks.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return "/".join(marks)


def started(pid: int | None = None) -> float | None:
    """When a process started, by default this one; None where there is none of this number."""
    import psutil

    try:
        process = psutil.Process(os.getpid() if pid is None else pid)
        # One that was killed stays in the list until its parent asks for it.
        ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return None if ended else float(process.create_time())
    except psutil.NoSuchProcess:
        return None


def has_ended(where: object, pid: int, since: float) -> bool:
    """Whether the process that started then on a machine is known to have ended; sure if it is."""
    if where != machine():
        return False
    found = started(pid)
    return found is None or abs(found - since) > 1.0
