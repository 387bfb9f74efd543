"""Simulated accelerators: each takes a batch, sleeps for a step, and takes the next one.

batches -> **one feeding thread, a thread for each accelerator** -> utilisation

One iterator feeds all of them through a bounded queue, as one reader feeds the devices of a host. A
batch is released when its step begins, since a device would have its own copy by then.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

__all__ = ["Utilisation", "ahead_of", "utilisation_of"]

_AHEAD_BYTES: Final = 64 << 20
_MOST_AHEAD_BYTES: Final = 1 << 30
_POLL_S: Final = 0.2
_END_S: Final = 60.0


@dataclass(frozen=True)
class Utilisation:
    """The result of a run of simulated accelerators.

    Attributes:
        accelerators: Number of accelerators.
        steps: Total number of steps.
        seconds: Total time of all accelerators, from the first batch of each.
        utilisation: Share of that time in which they computed, by the requested step time. A
            sleep's excess over that time counts as waiting.
        first_s: Seconds from the request for batches to the first one.
        wait_p50_s: Median of the seconds that a step waited for its batch, without the first ones.
        wait_p99_s: Their 99th percentile.
    """

    accelerators: int
    steps: int
    seconds: float
    utilisation: float
    first_s: float = 0.0
    wait_p50_s: float = 0.0
    wait_p99_s: float = 0.0


def ahead_of(accelerators: int, batch_bytes: int) -> int:
    """Return the number of batches to read ahead: two for each accelerator, 64 MiB to 1 GiB."""
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
        batches: Endless iterator of batches; closed afterwards.
        accelerators: Number of accelerators.
        step_s: Seconds of a step.
        seconds: Duration of each accelerator's run from its first batch; it ends with a whole step.
        ahead: Maximum number of batches in the queue.

    Raises:
        Exception: The error of `batches`.
    """
    shared = _Shared(batches, ahead)
    devices = [_Accelerator(shared, step_s, seconds) for _ in range(accelerators)]
    feeding = threading.Thread(target=shared.feed, name="ignitetf-bench-feed", daemon=True)
    try:
        for thread in (feeding, *devices):
            thread.start()
        for device in devices:
            while device.is_alive():
                device.join(_POLL_S)  # without a time limit, Ctrl-C would wait, too
    finally:
        shared.stop.set()
        feeding.join(_END_S)
    if shared.error is not None:
        raise shared.error
    steps, took = sum(d.steps for d in devices), sum(d.took_s for d in devices)
    waits = np.concatenate([device.waits_s for device in devices])
    half, most = np.percentile(waits, [50, 99]) if len(waits) else (0.0, 0.0)
    share = steps * step_s / took if took else 0.0
    return Utilisation(accelerators, steps, took, share, shared.first_s, float(half), float(most))


class _Shared:
    """The queue between the batches and the accelerators."""

    def __init__(self, batches: Generator[Any, None, None], ahead: int) -> None:
        self._batches = batches
        self._queue: queue.Queue[Any] = queue.Queue(ahead)
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.first_s = 0.0

    def feed(self) -> None:
        """Put batches into the queue until stopped, or until an error."""
        begin = time.monotonic()
        try:
            with contextlib.closing(self._batches) as batches:
                for batch in batches:
                    self.first_s = self.first_s or time.monotonic() - begin
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
        """Wait for a batch and release it; returns False if there are no more."""
        while not self.stop.is_set():
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=_POLL_S)
                return True
        return False


class _Accelerator(threading.Thread):
    """Takes a batch, sleeps for a step, and repeats."""

    def __init__(self, shared: _Shared, step_s: float, seconds: float) -> None:
        super().__init__(name="ignitetf-bench-accelerator", daemon=True)
        self._shared = shared
        self._step_s = step_s
        self._seconds = seconds
        self.steps = 0
        self.took_s = 0.0
        self.waits_s: list[float] = []

    def run(self) -> None:
        """Run until the time is over; a step includes the wait for the next batch."""
        going = self._shared.take()
        begin = time.monotonic()
        while going and self.took_s < self._seconds:
            time.sleep(self._step_s)
            asked = time.monotonic()
            going = self._shared.take()
            self.steps += going
            now = time.monotonic()
            self.waits_s.append(now - asked)
            self.took_s = now - begin
