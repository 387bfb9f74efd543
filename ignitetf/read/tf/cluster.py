"""Detects a process of a TensorFlow cluster, and a fault of Keras 3 in it.

**cluster** -> tensors -> dataset, train/keras_repair

In such a process a strategy divides batches. Keras 3 takes the mean of a batch of which each worker
holds a part, and fails. This module locates the fault and makes the error say what to do.
`train/keras_repair` repairs it. Importing this module does not import TensorFlow.
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
    """Return whether a strategy over several processes was created in this process.

    TensorFlow requires the strategy to be created first, so before any dataset.
    """
    import tensorflow as tf

    found = any("/job:" in device.name for device in tf.config.list_logical_devices("CPU"))
    if found:
        when_imported(TRAINER, _explain)
    return found


def _explain(trainer: ModuleType) -> None:
    """Wrap the two functions in which Keras 3 fails: their errors then say what to do.

    See train.keras_repair.
    """
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


# Keras versions with which the repair was tested. In others the replaced functions may differ.
TESTED: Final = frozenset({"3.13.2", "3.14.1", "3.15.1"})

TRAINER: Final = "keras.src.backend.tensorflow.trainer"


def is_faulty(trainer: ModuleType) -> bool:
    """Return whether this module of Keras has the fault; False if Keras or our repair fixed it."""
    kind = getattr(trainer, "TensorFlowTrainer", None)
    build = getattr(kind, "_maybe_symbolic_build", None)
    return build is not None and "MEAN" in inspect.unwrap(build).__code__.co_consts
