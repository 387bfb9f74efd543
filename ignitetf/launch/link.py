"""The messages between a worker's process and its launcher: three pipes.

- `life`: nothing is ever sent. When the launcher closes it or dies, a guard ends all processes of
  the worker.
- `orders`: the launcher sends one byte when all scripts have ended, another one when all workers
  have run their exit functions, and a third one to the first worker when the others have exited.
- `reports`: the worker sends JSON objects, one per line.

The guard is a process of the worker's group, but not a child of the script. So the script can
neither affect it nor see it. It is forked before any thread is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Any, Final

__all__ = ["VARIABLE", "WorkerLink", "start_guard"]

# Descriptors of the worker's ends, separated by commas: life, orders, reports.
VARIABLE: Final = "IGNITETF_LAUNCH_PIPES"
_IGNORED: Final = ("SIGINT", "SIGTERM", "SIGHUP")


class WorkerLink:
    """The worker's end of the pipes; removes their variable from the environment."""

    def __init__(self) -> None:
        self.life, self._orders, self._reports = map(int, os.environ.pop(VARIABLE).split(","))
        for descriptor in (self.life, self._orders, self._reports):
            os.set_inheritable(descriptor, False)

    def report(self, **facts: Any) -> None:
        """Send facts to the launcher; does nothing if the launcher has exited."""
        with contextlib.suppress(OSError):
            os.write(self._reports, json.dumps(facts).encode() + b"\n")

    def arrive(self) -> None:
        """Report that the script has ended, and wait until all scripts have.

        The launcher limits the time; if it dies, the guard ends this process.
        """
        self.report(arrived=True)
        self.wait()

    def leave(self, *, last: bool) -> None:
        """Report that the exit functions have run, and wait until those of all workers have.

        Args:
            last: True to wait also until the other workers have exited.
        """
        self.report(left=True)
        self.wait()
        if last:
            self.wait()

    def wait(self) -> None:
        """Wait for the launcher's next byte."""
        with contextlib.suppress(OSError):
            os.read(self._orders, 1)


def start_guard(life: int) -> None:
    """Fork the guard of this process group; it ends the group when `life` is closed."""
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        os.close(life)
        return
    # Fork a second time, so that the script has no child that it did not start.
    if os.fork() == 0:
        _guard(life)
    os._exit(0)


def _guard(life: int) -> None:
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    # The output of the worker must end when the worker does.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.closerange(3, life)
    os.closerange(life + 1, max(nothing, life) + 64)
    with contextlib.suppress(OSError):
        os.read(life, 1)
    os.killpg(0, signal.SIGKILL)
