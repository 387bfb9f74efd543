"""`Cluster`: the connections of the page's requests, and caches shared by them.

settings -> **cluster** -> views

A client runs its SQL over one connection, a statement at a time. So each request borrows its own
client, and a long statement in one window does not delay another window.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from ignitetf import Client
from ignitetf.errors import ConnectError, RequestTimeout, ServerOverloaded, WireError
from ignitetf.settings import Settings

__all__ = ["Cluster"]

_MOST_IDLE: Final = 8
# Limit on concurrent statements of users; the other threads remain for other requests.
_MOST_STATEMENTS: Final = 4
_OPEN_DATA_SETS: Final = 32
_SAMPLES: Final = 64
_FIGURES_S: Final = 1.5


class Cluster:
    """The cluster that the pages show.

    Args:
        settings: Connection settings of it.

    Attributes:
        settings: The same.
        opened: Data sets that are open, by name and version.
        samples: Histograms by name and version.
        figures: Numbers that all windows request repeatedly; each is cached for a moment.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.opened: Memo[Any] = Memo(_OPEN_DATA_SETS)
        self.samples: Memo[Any] = Memo(_SAMPLES)
        self.figures: Memo[Any] = Memo(16, _FIGURES_S)
        self._idle: queue.LifoQueue[Client] = queue.LifoQueue(_MOST_IDLE)
        self._statements = threading.Semaphore(_MOST_STATEMENTS)
        self._reading: Client | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Lend a client; a client whose connection was lost is not lent again."""
        try:
            client = self._idle.get_nowait()
        except queue.Empty:
            client = Client(self.settings)
        try:
            yield client
        except (ConnectError, RequestTimeout, WireError):
            client.close()
            self.forget()
            raise
        except BaseException:
            self._release(client)
            raise
        self._release(client)

    @contextlib.contextmanager
    def client_for_statement(self) -> Iterator[Client]:
        """Lend a client for a user's statement, which may run for a long time.

        Raises:
            ServerOverloaded: Too many statements of users are running.
        """
        if not self._statements.acquire(blocking=False):
            raise ServerOverloaded(
                f"{_MOST_STATEMENTS} statements are running already",
                hint="wait for one of them to end",
            )
        try:
            with self.client() as client:
                yield client
        finally:
            self._statements.release()

    @property
    def reading(self) -> Client:
        """The client of the open data sets, which read pages over their own connections."""
        with self._lock:
            if self._reading is None:
                self._reading = Client(self.settings)
            return self._reading

    def forget(self) -> None:
        """Close idle connections, for example after losing a node; data sets are reopened."""
        self.opened.clear()
        with self._lock:
            if self._reading is not None:
                self._reading.close_idle()
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def close(self) -> None:
        """Close all unused connections."""
        self.forget()
        with self._lock:
            if self._reading is not None:
                self._reading.close()

    def _release(self, client: Client) -> None:
        try:
            self._idle.put_nowait(client)
        except queue.Full:
            client.close()


# A small cache of results; each is computed by one thread

T = TypeVar("T")


class Memo(Generic[T]):
    """Caches the most recently used results by key, each for `lifetime_s` seconds.

    Args:
        most: Number of results.
        lifetime_s: Time for which each is used.
    """

    def __init__(self, most: int, lifetime_s: float = float("inf")) -> None:
        self._most = most
        self._lifetime_s = lifetime_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[float, Future[T]]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of a key; wait if another thread is computing it.

        An error is raised in all waiting threads and is not cached.
        """
        with self._lock:
            made, future = self._kept.get(key, (0.0, None))
            mine = future is None or time.monotonic() - made > self._lifetime_s
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
