"""Keeps TensorFlow's messages about itself out of the output of our commands.

Only commands that import TensorFlow for themselves use it: a script that `ignitetf launch` runs, or
that imports ignitetf, decides for itself.
"""

from __future__ import annotations

import os
from types import ModuleType

from ignitetf.post_import import when_imported

__all__ = ["quiet_tensorflow"]


def quiet_tensorflow() -> None:
    """Silence TensorFlow, absl and oneDNN below errors; call it before TensorFlow is imported.

    `TF_CPP_MIN_LOG_LEVEL` in the environment decides otherwise.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    when_imported("absl.logging", _errors_only)


def _errors_only(logging: ModuleType) -> None:
    """Let absl, to which Keras and the rest of TensorFlow write, log errors alone."""
    logging.set_verbosity(logging.ERROR)
