"""What a worker has read and trained so far, reported to its launcher every second.

ignitetf.read.usage, optimizers -> **reading** (thread) -> link -> status of the worker
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict
from types import ModuleType
from typing import Any, Final

from ignitetf.launch.link import WorkerLink
from ignitetf.post_import import when_imported
from ignitetf.read.usage import Snapshot, snapshot

__all__ = ["ReadingReporter", "watch_optimizers"]

_EVERY_S: Final = 1.0


class ReadingReporter:
    """Reports until the process ends.

    Args:
        link: The link to the launcher.
    """

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._before, self._at = Snapshot(), time.monotonic()
        self._begin, self._over = self._at, False
        threading.Thread(target=self._run, name="ignitetf-usage", daemon=True).start()

    def report(self, *, last: bool = False) -> None:
        """Report what has been read, and how fast since the report before; in all, if `last`."""
        with self._lock:
            if self._over:
                return
            now, at = snapshot(), time.monotonic()
            if last:
                self._before, self._at, self._over = Snapshot(), self._begin, True
            seconds = max(at - self._at, 1e-9)
            usage = {"step": steps_made(), **_facts(now)}
            usage["rows_per_s"] = round((now.rows - self._before.rows) / seconds, 1)
            waited = (now.wait_s - self._before.wait_s) / seconds
            usage["wait"] = round(min(1.0, max(0.0, waited)), 3)
            self._before, self._at = now, at
            self._link.report(usage=usage)

    def _run(self) -> None:
        while not self._over:
            self.report()
            time.sleep(_EVERY_S)


def _facts(now: Snapshot) -> dict[str, Any]:
    """Return the totals under the names that the status of a worker has for them."""
    return {
        "rows": now.rows,
        "places": {place: amount.nbytes for place, amount in now.places.items()},
        "epochs": [
            {**asdict(one.of), "rows": one.rows, "checksum": one.checksum, "ended": one.ended}
            for one in now.iterations
        ],
    }


# Steps of the optimizers of Keras. An optimizer counts its steps in `fit` as well as in a loop of
# one's own, so scripts need not report them. With JAX, `fit` updates the count when callbacks look at
# it, and at the end of an epoch.

# Where Keras 3 and tf_keras have the class that all optimizers derive from.
_BASES: Final = {
    "keras.src.optimizers.base_optimizer": "BaseOptimizer",
    "tf_keras.src.optimizers.optimizer": "_BaseOptimizer",
}
_optimizers: list[weakref.ref[Any]] = []


def watch_optimizers() -> None:
    """Take note of the optimizers that are made from now on, whenever Keras is imported."""
    for module, name in _BASES.items():
        when_imported(module, functools.partial(_watch, name=name))


def steps_made() -> int | None:
    """Return the steps of the optimizer that has made most; None if there is none."""
    found = [steps for made in _optimizers if (steps := _steps(made())) is not None]
    return max(found, default=None)


def _watch(module: ModuleType, name: str) -> None:
    base = getattr(module, name, None)
    if base is not None:
        base.__init__ = _noting(base.__init__)


def _noting(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _optimizers.append(weakref.ref(self, _optimizers.remove))

    return initialize


def _steps(optimizer: Any) -> int | None:
    # JAX may have given the memory of the variable to a step that is running.
    with contextlib.suppress(Exception):
        return int(optimizer.iterations.numpy())
    return None
