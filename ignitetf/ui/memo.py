"""`Memo`: results kept for those who ask again, few of them, and each made by one thread only.

views -> **memo** -> samples, open data sets, figures of nodes
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["Memo"]

T = TypeVar("T")


class Memo(Generic[T]):
    """At most `most` results by key, the ones used last, each for `lives_s` seconds.

    Args:
        most: Number of results.
        lives_s: How long each is used.
    """

    def __init__(self, most: int, lives_s: float = float("inf")) -> None:
        self._most = most
        self._lives_s = lives_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[float, Future[T]]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of a key; who asks while another thread makes it waits for that one.

        An error is raised to all who waited, and not kept.
        """
        with self._lock:
            made, future = self._kept.get(key, (0.0, None))
            mine = future is None or time.monotonic() - made > self._lives_s
            if mine or future is None:
                future = Future()
                self._kept[key] = time.monotonic(), future
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        if mine:
            try:
                future.set_result(make())
            except BaseException as error:
                self._drop(key, future)
                future.set_exception(error)
        return future.result()

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()

    def _drop(self, key: Hashable, future: Future[T]) -> None:
        with self._lock:
            if self._kept.get(key, (0.0, None))[1] is future:
                del self._kept[key]
