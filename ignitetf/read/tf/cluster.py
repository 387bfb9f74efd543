"""What is different in a process of a TensorFlow cluster, where a strategy divides batches.

**cluster** -> tensors -> dataset, train/keras_repair

Keras 3 takes the mean of a batch of which each worker holds a part, and fails. Here is where that
fault is, and what to do is said; `train/keras_repair` repairs it. To import this module takes no
TensorFlow.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any, Final

from ignitetf.errors import ConfigError
from ignitetf.post_import import when_imported

__all__ = ["TESTED", "TRAINER", "in_cluster", "is_faulty"]

_CANNOT: Final = "Keras 3 cannot train on several workers of TensorFlow"
_HINT: Final = (
    "call ignitetf.train.repair_keras() before fit, start with ignitetf launch --keras repair, or"
    " use tf_keras (TF_USE_LEGACY_KERAS=1)"
)


def in_cluster() -> bool:
    """Return whether a strategy over several processes has been made in this one.

    TensorFlow wants it made before anything else, so before any dataset.
    """
    import tensorflow as tf

    found = any("/job:" in device.name for device in tf.config.list_logical_devices("CPU"))
    if found:
        when_imported(TRAINER, _explain)
    return found


def _explain(trainer: ModuleType) -> None:
    """Make the two functions with which Keras 3 fails say what to do; see train.keras_repair."""
    if not is_faulty(trainer):
        return
    places = (trainer.TensorFlowTrainer, "_maybe_symbolic_build"), (trainer, "reduce_per_replica")
    for place, name in places:
        function = getattr(place, name, None)
        if function is not None and not hasattr(function, "__wrapped__"):
            setattr(place, name, _explained(trainer, function))


def _explained(trainer: Any, function: Any) -> Any:
    @functools.wraps(function)
    def explaining(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            if is_faulty(trainer):
                raise ConfigError(_CANNOT, hint=_HINT) from error
            raise

    return explaining


# Versions of Keras with which the repair was tested: others may differ in what it replaces.
TESTED: Final = frozenset({"3.13.2", "3.14.1", "3.15.1"})

TRAINER: Final = "keras.src.backend.tensorflow.trainer"


def is_faulty(trainer: ModuleType) -> bool:
    """Return whether this module of Keras has the fault; not if Keras or we have mended it."""
    kind = getattr(trainer, "TensorFlowTrainer", None)
    build = getattr(kind, "_maybe_symbolic_build", None)
    return build is not None and "MEAN" in inspect.unwrap(build).__code__.co_consts
