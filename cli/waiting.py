"""`waiting`: how long something takes, on the terminal, once it takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["waiting"]

_AFTER_S: Final = 1.0
_EVERY_S: Final = 0.5


@contextmanager
def waiting(label: str) -> Iterator[None]:
    """Show the seconds on stderr from the first one on, and remove them at the end of the block.

    Nothing is shown if stderr is no terminal.
    """
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    shower = threading.Thread(target=_show, args=(label, ended), daemon=True)
    shower.start()
    try:
        yield
    finally:
        ended.set()
        shower.join()


def _show(label: str, ended: threading.Event) -> None:
    begin = time.monotonic()
    if ended.wait(_AFTER_S):
        return
    while True:
        sys.stderr.write(f"\r{label}, {time.monotonic() - begin:.0f} s (Ctrl-C ends it)")
        sys.stderr.flush()
        if ended.wait(_EVERY_S):
            break
    sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()
