"""Threads and locks at the end of a program, for what is closed last."""

from __future__ import annotations

import contextlib
import sys
import threading

__all__ = ["held", "start"]


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
