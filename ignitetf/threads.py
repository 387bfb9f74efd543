"""Threads and locks: work at the same time, and the end of a program, for what is closed last."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Beside", "held", "side_by_side", "start"]


def held(lock: threading.Lock) -> contextlib.AbstractContextManager[object]:
    """Hold a lock; not at the very end, when threads that were stopped may have it for ever."""
    return contextlib.nullcontext() if sys.is_finalizing() else lock


def start(thread: threading.Thread) -> bool:
    """Start a thread, and return whether it runs: at the very end of a program there are no more.

    Up to Python 3.11 whoever starts one then waits for it forever; later ones raise RuntimeError.
    """
    if sys.is_finalizing():
        return False
    try:
        thread.start()
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        return False
    return True


class Beside:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._found: Any = None
        self._error: BaseException | None = None
        # A daemon: after Ctrl-C nobody waits for it.
        self._thread = threading.Thread(target=self._run, name="ignitetf-beside", daemon=True)
        self._runs = start(self._thread)
        if not self._runs:
            self._run()

    def _run(self) -> None:
        try:
            self._found = self._call()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Wait until it has ended."""
        if self._runs:
            self._thread.join()

    def result(self) -> Any:
        """Return what it returned, or raise its error."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._found


def side_by_side(first: Callable[[], Any], *others: Callable[[], Any]) -> list[Any]:
    """Make calls at the same time, and return what they return, in their order.

    Raises:
        Exception: The first error in the order of the calls, once all of them have ended.
    """
    started = [Beside(call) for call in others]
    try:
        return [first(), *(call.result() for call in started)]
    except Exception:
        # What the caller now undoes must not be made after that.
        for call in started:
            call.wait()
        raise
