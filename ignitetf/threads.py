"""Threads and locks: concurrent calls, and safe use while the program ends."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["BackgroundCall", "held", "run_parallel", "start"]


def held(lock: threading.Lock) -> contextlib.AbstractContextManager[object]:
    """Hold a lock; skip this while Python exits, because a stopped thread may still hold it."""
    return contextlib.nullcontext() if sys.is_finalizing() else lock


def start(thread: threading.Thread) -> bool:
    """Start a thread, and return whether it runs; no thread can start while Python exits.

    At that time Python up to 3.11 waits for the thread for ever; later versions raise RuntimeError.
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


class BackgroundCall:
    """A call in a separate thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._found: Any = None
        self._error: BaseException | None = None
        # A daemon: the program does not wait for it after Ctrl-C.
        self._thread = threading.Thread(target=self._run, name="ignitetf-call", daemon=True)
        self._runs = start(self._thread)
        if not self._runs:
            self._run()

    def _run(self) -> None:
        try:
            self._found = self._call()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Wait until the call has ended."""
        if self._runs:
            self._thread.join()

    def result(self) -> Any:
        """Return the result of the call, or raise its error."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._found


def run_parallel(first: Callable[[], Any], *others: Callable[[], Any]) -> list[Any]:
    """Make calls at the same time, and return their results in order.

    Raises:
        Exception: The first error in the order of the calls, once all of them have ended.
    """
    started = [BackgroundCall(call) for call in others]
    try:
        return [first(), *(call.result() for call in started)]
    except Exception:
        # Wait for all: a late call must not repeat work that the caller undoes.
        for call in started:
            call.wait()
        raise
