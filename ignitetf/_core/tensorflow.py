"""Finds the library with TensorFlow's C API; TensorFlow loads it with hidden symbols."""

from __future__ import annotations

from pathlib import Path

__all__ = ["library_in"]


def library_in(folder: str) -> str:
    """Return the path of TensorFlow's library.

    Args:
        folder: `tf.sysconfig.get_lib()`.

    Raises:
        ValueError: The library is missing.
    """
    for pattern in (
        "libtensorflow_framework*.so*",
        "libtensorflow_framework*.dylib",
        "libtensorflow_cc*.so*",
    ):
        if found := sorted(Path(folder).glob(pattern)):
            return str(found[0])
    raise ValueError(f"{folder} has no libtensorflow_framework")
