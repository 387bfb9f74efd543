"""`repair_keras`: Keras 3 `fit`, `evaluate` and `predict` on several workers of TensorFlow.

launcher, script -> **keras repair** -> Keras

Keras 3 fails before the first step of a `MultiWorkerMirroredStrategy`, for two reasons: it takes
the mean of a batch whose parts are on different workers, and it reduces numbers along an axis that
they do not have. A third fault ends epochs of unknown length with a step without data, which Keras
counts as a step. This module patches all three, only for this strategy, and imports nothing.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ignitetf.post_import import when_imported
from ignitetf.read.tf.cluster import TESTED, TRAINER, is_faulty

__all__ = ["repair_keras"]


def repair_keras() -> None:
    """Make Keras 3 train under `tf.distribute.MultiWorkerMirroredStrategy`.

    Call it anywhere before `fit`: Keras is repaired now, or as soon as it is imported with
    TensorFlow as its backend. A line on stderr reports the repair, or why there was none. Only
    versions of Keras with which the repair was tested are repaired, and none that has fixed the
    faults. Other strategies, other backends and tf_keras are not changed.
    """
    when_imported(TRAINER, _repair)


def _repair(trainer: ModuleType) -> None:
    if not is_faulty(trainer):
        return
    version = importlib.import_module("keras.src.version").__version__
    if version not in TESTED:
        tested = ", ".join(sorted(TESTED))
        _say(f"Keras {version} is not repaired: that was tested with {tested} only")
        return
    kind = trainer.TensorFlowTrainer
    kind._maybe_symbolic_build = _building(trainer, kind._maybe_symbolic_build)
    trainer.reduce_per_replica = _reducing(trainer, trainer.reduce_per_replica)  # type: ignore[attr-defined]
    epoch = trainer.TFEpochIterator
    epoch._enumerate_iterator = _enumerating(trainer, epoch._enumerate_iterator)
    _say(f"Keras {version} is repaired for MultiWorkerMirroredStrategy")


def _say(line: str) -> None:
    print(f"ignitetf: {line}", file=sys.stderr, flush=True)


def _building(trainer: Any, original: Callable[..., None]) -> Callable[..., None]:
    """Return a method that builds a model from the structure of a batch; no batch is read."""

    def build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self._distribute_strategy
        if iterator is None or not trainer._collective_all_reduce_multi_worker(strategy):
            original(self, iterator, data_batch)
            return
        spec = trainer.tree.map_structure(_replica_spec, iterator._get_iterator().element_spec)
        with strategy.scope():
            self._symbolic_build(data_batch=spec)

    return build


def _replica_spec(spec: Any) -> Any:
    """Return the spec of the part of a batch for this worker's first replica."""
    return getattr(spec, "_value_specs", (spec,))[0]


def _reducing(trainer: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that reduces the values of all replicas of all workers."""

    def reduce(values: Any, strategy: Any, reduction: str) -> Any:
        several = trainer._collective_all_reduce_multi_worker(strategy)
        if not several or reduction not in ("auto", "mean", "sum"):
            return original(values, strategy, reduction)
        how = "SUM" if reduction == "sum" else "MEAN"
        return trainer.tree.map_structure(lambda v: strategy.reduce(how, v, axis=None), values)

    return reduce


def _enumerating(
    trainer: Any, original: Callable[..., Iterator[Any]]
) -> Callable[..., Iterator[Any]]:
    """Return a method that yields steps; without a known number, until no worker has data.

    It fetches the batches before the step: a step without data would advance the optimizer.
    """

    def enumerate_steps(self: Any) -> Iterator[Any]:
        known = self.steps_per_epoch or self._num_batches
        if known or not trainer._collective_all_reduce_multi_worker(self._distribute_strategy):
            yield from original(self)
            return
        self.data_adapter.on_epoch_begin()
        batches, count = iter(self._get_iterator()), self.steps_per_execution
        for step in itertools.count(0, count):
            taken = list(itertools.islice(batches, count))
            if not taken:
                break
            yield step, step + len(taken) - 1, iter(taken)
        self.data_adapter.on_epoch_end()

    return enumerate_steps
