"""Identifies the process that holds a lease in the cluster, and detects that it has ended.

Leases of files and of data sets identify their holder by machine, process and start time. They are
only meaningful on the holder's own machine; for other machines, each kind of lease is renewed
regularly.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
from pathlib import Path

__all__ = ["has_ended", "machine", "started"]


@functools.cache
def machine() -> str:
    """Return an identity of this machine since its boot, and of this process namespace on it."""
    marks = [platform.node()]
    with contextlib.suppress(OSError):
        marks.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        marks.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return "/".join(marks)


def started(pid: int | None = None) -> float | None:
    """Return when a process started (by default this one); None if it does not exist.

    On Linux these are seconds since the boot, so that setting the clock does not change them.
    """
    number = os.getpid() if pid is None else pid
    if sys.platform == "linux":
        try:
            facts = Path(f"/proc/{number}/stat").read_text(errors="replace")
        except OSError:
            return None
        fields = facts.rpartition(")")[2].split()
        # A killed process stays in the process list until its parent reaps it.
        return None if fields[0] in "ZX" else int(fields[19]) / os.sysconf("SC_CLK_TCK")
    else:
        import psutil

        try:
            process = psutil.Process(number)
            ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            return None if ended else float(process.create_time())
        except psutil.NoSuchProcess:
            return None


def has_ended(where: object, pid: int, since: float) -> bool:
    """Return whether this process of a machine has certainly ended; False if unknown."""
    if where != machine():
        return False
    found = started(pid)
    return found is None or abs(found - since) > 1.0
