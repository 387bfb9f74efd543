"""`DeviceBatches`: batches on a device, read and copied by a thread ahead of their consumer.

rows -> batches of NumPy columns -> **ahead** -> training with JAX or PyTorch
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from ignitetf.read.devices import Device

__all__ = ["DeviceBatches", "Source"]


class Source(Protocol):
    """Batches of NumPy columns that know how many rows they have handed out."""

    consumed: int

    def __next__(self) -> dict[str, Any]: ...

    def state(self, rows_consumed: int | None = None) -> dict[str, Any]:
        """Return the state after so many rows."""

    def close(self) -> None:
        """Stop reading."""


class DeviceBatches(Iterator[dict[str, Any]]):
    """Batches of an epoch on a device, and how far their consumer has come.

    A thread reads and copies from the beginning on. It ends with the last batch, with an error,
    with `close`, or when nothing refers to this object any more.

    Attributes:
        consumed: Rows of the batches that the consumer has had.
    """

    def __init__(self, source: Source, device: Device, keys: bool, ahead: int) -> None:
        self.consumed = 0
        self._source = source
        self._device = device
        copier = _Copier(source, device, keys, ahead)
        self._next = copier.take
        # Also when it is dropped, and before the interpreter ends.
        self._end = weakref.finalize(self, copier.end)
        copier.start()

    def __next__(self) -> dict[str, Any]:
        consumed, copied = self._next()
        self.consumed = consumed
        return self._device.arrived(copied)  # type: ignore[no-any-return]

    def state(self) -> dict[str, Any]:
        """Return the state after the last batch that the consumer has, for `EpochRows.resume`."""
        return self._source.state(self.consumed)

    def close(self) -> None:
        """Stop reading, wait for the thread, and drop the batches that were copied ahead."""
        self._end()

    def __enter__(self) -> DeviceBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Copier(threading.Thread):
    """Keeps up to `ahead` batches on the device that the consumer does not have yet."""

    def __init__(self, source: Source, device: Device, keys: bool, ahead: int) -> None:
        super().__init__(name="ignitetf-device", daemon=True)
        self._source = source
        self._device = device
        self._keys = keys
        self._ahead = ahead
        self._changed = threading.Condition()
        # Rows up to the end of the batch, and the batch.
        self._copied: deque[tuple[int, Any]] = deque()
        self._ending = False
        self._ended = False
        self._error: BaseException | None = None

    # The consumer's side

    def take(self) -> tuple[int, Any]:
        """Wait for the next batch; raises what ended the thread, once, then StopIteration."""
        with self._changed:
            self._changed.wait_for(lambda: self._copied or self._ended)
            if self._copied:
                self._changed.notify_all()
                return self._copied.popleft()
            error, self._error = self._error, None
        raise StopIteration if error is None else error

    def end(self) -> None:
        """End the thread after the batch that it is reading, and wait for it."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        # Garbage may be collected in the thread itself.
        if threading.current_thread() is not self:
            self.join()
        self._copied.clear()

    # The thread's side

    def run(self) -> None:
        """Read and copy all batches; an error is passed to the consumer."""
        try:
            with contextlib.closing(self._source):
                while self._has_room() and self._copy_next():
                    pass
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _has_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._ending or len(self._copied) < self._ahead)
            return not self._ending

    # A function of its own, so that nothing holds the batch while the thread waits for room.
    def _copy_next(self) -> bool:
        batch = next(self._source, None)
        if batch is None:
            return False
        if not self._keys:
            del batch["key"]
        copied = self._device.copy(batch)
        with self._changed:
            self._copied.append((self._source.consumed, copied))
            self._changed.notify_all()
        return True
