"""The fault with which Keras 3 fails on several workers of TensorFlow, and where it is.

**keras fault** -> tf/cluster (says what to do), train/keras_repair (repairs it)

Keras takes the mean of a batch of which each worker holds a part. Nothing is imported here.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Final

__all__ = ["TESTED", "TRAINER", "is_faulty"]

# Versions of Keras with which the repair was tested: others may differ in what it replaces.
TESTED: Final = frozenset({"3.13.2", "3.14.1", "3.15.1"})

TRAINER: Final = "keras.src.backend.tensorflow.trainer"


def is_faulty(trainer: ModuleType) -> bool:
    """Return whether this module of Keras has the fault; not if Keras or we have mended it."""
    kind = getattr(trainer, "TensorFlowTrainer", None)
    build = getattr(kind, "_maybe_symbolic_build", None)
    return build is not None and "MEAN" in inspect.unwrap(build).__code__.co_consts
