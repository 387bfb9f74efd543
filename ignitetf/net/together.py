"""Independent requests at the same time, where each round trip takes long.

distance -> **together** -> load, tables

On a near link the requests go one after the other, which costs least there.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from ignitetf.errors import IgniteTFError
from ignitetf.net.distance import bytes_ahead
from ignitetf.net.pool import Pool
from ignitetf.threads import start

__all__ = ["at_hand", "begin_ahead", "open_ahead", "outcome", "together", "unawaited"]

T = TypeVar("T")

# An answer that is older is asked for anew, and one that is as new as this not at all.
_AT_HAND_S: Final = 60.0
_NEW_S: Final = 1.0


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


def outcome(call: Callable[[], T]) -> Callable[[], T]:
    """Make a call, and return what returns its result, or raises its error."""
    try:
        found = call()
    except Exception as error:
        failed = error
    else:
        return lambda: found

    def fail() -> T:
        raise failed

    return fail


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


def at_hand(pool: Pool, what: Hashable, ask: Callable[[], T], *, anew: bool = False) -> T:
    """Return what the cluster answered last; on a distant link nobody waits for a newer answer.

    It is asked for meanwhile, for the next time. For what may be out of date once at no other cost
    than a detour, as where partitions are.

    Args:
        pool: The connections.
        what: Names the question.
        ask: Asks it.
        anew: Whether only an answer of now will do.
    """

    def asked() -> T:
        found = ask()
        pool.at_hand[what] = time.monotonic(), found
        return found

    known = pool.at_hand.get(what)
    age_s = math.inf if known is None else time.monotonic() - known[0]
    if anew or known is None or not bytes_ahead(pool) or age_s > _AT_HAND_S:
        return asked()
    if age_s > _NEW_S:
        begin_ahead(pool, asked)
    found: T = known[1]
    return found


def open_ahead(pool: Pool, count: int) -> None:
    """Begin to open connections that will be used soon; only on a distant link."""
    for _ in range(count):
        begin_ahead(pool, lambda: _open(pool))


def _open(pool: Pool) -> None:
    with contextlib.suppress(IgniteTFError):
        pool.release(pool.open_channel(pool.settings.addresses[0]))
