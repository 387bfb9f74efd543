"""`Iterations`: begins the iterations of a dataset, some of them before TensorFlow asks for one.

**head start** -> dataset

TensorFlow takes 20 to 30 ms to prepare a pipeline, in which an epoch of some ten thousand rows can
be half received.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final

import numpy as np

from ignitetf.read.iteration import Epochs
from ignitetf.read.rows import EpochRows
from ignitetf.read.tf.eager import Packed

__all__ = ["Iterations"]

# As much as a node sends in the time that TensorFlow takes.
_MOST_BYTES: Final = 32 << 20


class Iterations:
    """The iterations of a dataset, an epoch each.

    Args:
        epochs: The epochs.
        packed: Begins to read one.
    """

    def __init__(self, epochs: Epochs[EpochRows], packed: Callable[[EpochRows], Packed]) -> None:
        self._epochs = epochs
        self._packed = packed
        self._lock = threading.Lock()
        self._begun: list[_Begun] = []
        self._waited_for = 0  # callers of `begun` that have not returned

    def __call__(self) -> Packed:
        """Begin an iteration, or go on with one that has been begun."""
        with self._lock:
            if self._begun:
                return self._begun.pop(0).packed()
        return self._packed(self._epochs.take())

    @contextlib.contextmanager
    def begun(self) -> Generator[None, None, None]:
        """Begin an iteration for whoever asks for one meanwhile; else it never was."""
        with self._lock:
            self._waited_for += 1
            rows = self._epochs.take()
            self._begun.append(_Begun(rows, self._packed(rows)))
        try:
            yield
        finally:
            with self._lock:
                self._waited_for -= 1
                # Of several threads, one may have taken what another one began.
                left = self._begun[self._waited_for :]
                del self._begun[self._waited_for :]
            for begun in reversed(left):
                begun.close()
                self._epochs.give_back(begun.rows)


class _Begun:
    """An iteration whose first pages are read by a thread, until somebody takes them."""

    def __init__(self, rows: EpochRows, packed: Packed) -> None:
        self.rows = rows
        self._packed = packed
        self._pages: deque[tuple[int, tuple[Any, ...]]] = deque()
        self._error: BaseException | None = None
        self._is_wanted = threading.Event()
        self._thread = threading.Thread(target=self._read, name="ignitetf-begin", daemon=True)
        self._thread.start()

    def packed(self) -> Packed:
        """Yield what was read, then read on."""
        self._is_wanted.set()
        with contextlib.closing(self._packed):
            self._thread.join()
            while self._pages:
                yield self._pages.popleft()
            if self._error is not None:
                raise self._error
            yield from self._packed

    def close(self) -> None:
        """End the iteration."""
        self._is_wanted.set()
        self._thread.join()
        self._packed.close()

    def _read(self) -> None:
        nbytes = 0
        try:
            while nbytes < _MOST_BYTES and not self._is_wanted.is_set():
                if (page := next(self._packed, None)) is None:
                    return
                self._pages.append(page)
                nbytes += sum(leaf.nbytes for leaf in page[1] if isinstance(leaf, np.ndarray))
        except BaseException as error:
            self._error = error
