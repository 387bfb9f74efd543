"""Threads in which requests wait for the cluster, so that the server itself never does.

app -> **work** -> views

They are daemons: a thread that waits for a node does not hold up the end of the program.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from ignitetf.errors import RequestTimeout, ServerOverloaded

__all__ = ["Workers"]

T = TypeVar("T")
THREADS: Final = 8
_MOST_WAITING: Final = 256


class Workers:
    """A fixed number of threads and a bounded queue before them.

    Args:
        limit_s: Seconds after which a caller is told that it took too long.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._queue: queue.Queue[tuple[Future[Any], Callable[[], Any]]] = queue.Queue(_MOST_WAITING)
        for number in range(THREADS):
            threading.Thread(target=self._work, name=f"ui-{number}", daemon=True).start()

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in a thread and return its result.

        Raises:
            ServerOverloaded: Too many others wait.
            RequestTimeout: It took longer than the limit; it goes on unobserved to its own end.
        """
        future: Future[T] = Future()
        try:
            self._queue.put_nowait((future, function))
        except queue.Full:
            raise ServerOverloaded(
                "too many requests at once", hint="close other windows, or try again in a moment"
            ) from None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._limit_s)
        except TimeoutError:
            raise RequestTimeout(
                f"the cluster took longer than {self._limit_s:g} s for this page",
                hint="it may be busy with a load or a large query; try again in a moment",
            ) from None

    def _work(self) -> None:
        while True:
            future, function = self._queue.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, function
