"""Counts the steps of Keras optimizers in this process.

optimizers -> **steps** -> reading -> status of the worker

An optimizer counts its steps both in `fit` and in a custom loop, so scripts need not report them.
With JAX, `fit` updates the count when a callback reads it, and at the end of an epoch. The worker
imports this module before its script, so the module uses only the standard library.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from ignitetf.post_import import when_imported

__all__ = ["steps_made", "watch_optimizers"]

# The modules and names of the base class of all optimizers in Keras 3 and tf_keras.
_BASES: Final = {
    "keras.src.optimizers.base_optimizer": "BaseOptimizer",
    "tf_keras.src.optimizers.optimizer": "_BaseOptimizer",
}
_optimizers: list[weakref.ref[Any]] = []


def watch_optimizers() -> None:
    """Register every optimizer that is made from now on, whenever Keras is imported."""
    for module, name in _BASES.items():
        when_imported(module, functools.partial(_watch, name=name))


def steps_made() -> int | None:
    """Return the largest step count of all optimizers; None if there are none."""
    found = [steps for made in _optimizers if (steps := _steps(made())) is not None]
    return max(found, default=None)


def _watch(module: ModuleType, name: str) -> None:
    base = getattr(module, name, None)
    if base is not None:
        base.__init__ = _recording(base.__init__)


def _recording(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _optimizers.append(weakref.ref(self, _optimizers.remove))

    return initialize


def _steps(optimizer: Any) -> int | None:
    # JAX may have donated the memory of the variable to a running step.
    with contextlib.suppress(Exception):
        return int(optimizer.iterations.numpy())
    return None
