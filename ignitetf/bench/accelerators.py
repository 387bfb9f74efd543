"""Simulated accelerators: each takes a batch, sleeps for a step, and takes the next one.

batches -> **one feeding thread, a thread for each accelerator** -> utilisation

All are fed from one iterator through a bounded queue, as the devices of one host are from one
reader. A batch is let go when its step begins, since by then a device would have its own copy.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Utilisation", "ahead_of", "utilisation_of"]

_AHEAD_BYTES: Final = 64 << 20
_MOST_AHEAD_BYTES: Final = 1 << 30
_POLL_S: Final = 0.2
_END_S: Final = 60.0


@dataclass(frozen=True)
class Utilisation:
    """What simulated accelerators did.

    Attributes:
        accelerators: How many they were.
        steps: Steps of all of them.
        seconds: Time of all of them together, from the first batch of each.
        utilisation: Share of that time in which they computed, by the time of a step that was
            asked for: what a sleep takes beyond that counts as waiting.
    """

    accelerators: int
    steps: int
    seconds: float
    utilisation: float


def ahead_of(accelerators: int, batch_bytes: int) -> int:
    """Return how many batches are read ahead: two for each accelerator, 64 MiB to 1 GiB."""
    wanted = max(2 * accelerators, _AHEAD_BYTES // batch_bytes)
    return max(1, min(wanted, _MOST_AHEAD_BYTES // batch_bytes))


def utilisation_of(
    batches: Generator[Any, None, None],
    accelerators: int,
    step_s: float,
    seconds: float,
    ahead: int,
) -> Utilisation:
    """Let accelerators consume batches for some seconds.

    Args:
        batches: Yields batches without an end; closed afterwards.
        accelerators: How many there are.
        step_s: Seconds of a step.
        seconds: How long each goes on from its first batch; it ends with a whole step.
        ahead: Batches that wait in the queue at most.

    Raises:
        Exception: What `batches` raises.
    """
    shared = _Shared(batches, ahead)
    devices = [_Accelerator(shared, step_s, seconds) for _ in range(accelerators)]
    feeding = threading.Thread(target=shared.feed, name="ignitetf-bench-feed", daemon=True)
    try:
        for thread in (feeding, *devices):
            thread.start()
        for device in devices:
            while device.is_alive():
                device.join(_POLL_S)  # without a limit, Ctrl-C would wait, too
    finally:
        shared.stop.set()
        feeding.join(_END_S)
    if shared.error is not None:
        raise shared.error
    steps, took = sum(d.steps for d in devices), sum(d.took_s for d in devices)
    return Utilisation(accelerators, steps, took, steps * step_s / took if took else 0.0)


class _Shared:
    """The queue between the batches and the accelerators."""

    def __init__(self, batches: Generator[Any, None, None], ahead: int) -> None:
        self._batches = batches
        self._queue: queue.Queue[Any] = queue.Queue(ahead)
        self.stop = threading.Event()
        self.error: BaseException | None = None

    def feed(self) -> None:
        """Put batches into the queue until told to stop, or an error."""
        try:
            with contextlib.closing(self._batches) as batches:
                for batch in batches:
                    while not self.stop.is_set():
                        with contextlib.suppress(queue.Full):
                            self._queue.put(batch, timeout=_POLL_S)
                            break
                    if self.stop.is_set():
                        return
        except BaseException as error:
            self.error = error
        finally:
            self.stop.set()

    def take(self) -> bool:
        """Wait for a batch and let it go; returns False if there will be none."""
        while not self.stop.is_set():
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=_POLL_S)
                return True
        return False


class _Accelerator(threading.Thread):
    """Takes a batch and sleeps, in turn."""

    def __init__(self, shared: _Shared, step_s: float, seconds: float) -> None:
        super().__init__(name="ignitetf-bench-accelerator", daemon=True)
        self._shared = shared
        self._step_s = step_s
        self._seconds = seconds
        self.steps = 0
        self.took_s = 0.0

    def run(self) -> None:
        """Go on until the time is over; the wait for the batch after a step belongs to it."""
        going = self._shared.take()
        begin = time.monotonic()
        while going and self.took_s < self._seconds:
            time.sleep(self._step_s)
            going = self._shared.take()
            self.steps += going
            self.took_s = time.monotonic() - begin
