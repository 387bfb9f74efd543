"""What a call was making in the cluster when it was interrupted is removed.

A node finishes a request whose client has gone. So a cache whose CREATE was under way when Ctrl-C
or a signal came is not there yet while the client cleans up, but a moment later.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from ignitetf.errors import CacheNotFound, IgniteTFError, ServerError

__all__ = ["unmade_if_interrupted"]

_MAKING_S: Final = 0.5
_POLL_S: Final = 0.02


@contextlib.contextmanager
def unmade_if_interrupted(exists: Callable[[], bool], remove: Callable[[], None]) -> Iterator[None]:
    """Remove what the block was making when it is interrupted, and pass the interruption on.

    Errors are left to the block: the node has answered then, or is lost.

    Args:
        exists: Whether it is there; it must not have been when the block began.
        remove: Removes it.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException:
        with contextlib.suppress(IgniteTFError):
            _unmake(exists, remove)
        raise


def _unmake(exists: Callable[[], bool], remove: Callable[[], None]) -> None:
    """Remove it as soon as it is there; half made it may refuse to go, so that is repeated."""
    deadline = time.monotonic() + _MAKING_S
    while True:
        if exists():
            with contextlib.suppress(ServerError, CacheNotFound):
                remove()
                return
        if time.monotonic() > deadline:
            return
        time.sleep(_POLL_S)
