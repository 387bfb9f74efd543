"""TensorFlow, or an error that names the extra which installs it."""

from __future__ import annotations

from ignitetf.errors import MissingExtra

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtra.of("datasets and callbacks need TensorFlow", "tensorflow", error) from error

__all__ = ["tf"]
