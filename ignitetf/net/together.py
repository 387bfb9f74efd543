"""Independent requests at the same time, where each round trip takes long.

distance -> **together** -> load, tables

On a near link the requests go one after the other, which costs least there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from ignitetf.errors import IgniteTFError
from ignitetf.net.distance import bytes_ahead
from ignitetf.net.pool import Pool
from ignitetf.threads import start

__all__ = ["begin_ahead", "open_ahead", "together", "unawaited"]


class _Call:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._found: Any = None
        self._error: BaseException | None = None
        # A daemon: after Ctrl-C nobody waits for its answer.
        self._thread = threading.Thread(target=self._run, name="ignitetf-together", daemon=True)
        self._runs = start(self._thread)
        if not self._runs:
            self._run()

    def _run(self) -> None:
        try:
            self._found = self._call()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        if self._runs:
            self._thread.join()

    def result(self) -> Any:
        self.wait()
        if self._error is not None:
            raise self._error
        return self._found


def together(pool: Pool, *calls: Callable[[], Any]) -> list[Any]:
    """Return what the calls return, in their order; each uses connections of its own.

    Raises:
        Exception: The first error in the order of the calls, once all of them have ended.
    """
    if not bytes_ahead(pool):
        return [call() for call in calls]
    if not calls:
        return []
    first, *others = calls
    started = [_Call(call) for call in others]
    try:
        return [first(), *(call.result() for call in started)]
    except Exception:
        # What the caller now undoes must not be made after that.
        for call in started:
            call.wait()
        raise


def unawaited(pool: Pool, call: Callable[[], Any]) -> None:
    """Make a call that nothing depends on; on a distant link nobody waits for it."""
    if bytes_ahead(pool):
        _Call(call)
    else:
        call()


def begin_ahead(pool: Pool, call: Callable[[], Any]) -> None:
    """Begin a call that spares others a round trip soon; only on a distant link."""
    if bytes_ahead(pool):
        _Call(call)


def open_ahead(pool: Pool, count: int) -> None:
    """Begin to open connections, until so many are not in use; only on a distant link."""
    for _ in range(count - pool.idle_count):
        begin_ahead(pool, lambda: _open(pool))


def _open(pool: Pool) -> None:
    with contextlib.suppress(IgniteTFError):
        pool.release(pool.open_channel(pool.settings.addresses[0]))
