"""The functions of the native core that are called by ctypes, not as Python's.

It goes with its users, which the core takes over one after the other.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from ignitetf._core import LIBRARY

__all__ = ["NotBuilt", "native_library", "shared_object", "tensorflow_library"]


class NotBuilt(Exception):
    """A native part is not available; `hint` says what would help, if anything."""

    hint = None


def shared_object(source: Path) -> Path:
    """Return the file of the core."""
    return LIBRARY


def native_library(source: Path) -> ctypes.CDLL | None:
    """Load the core, for the functions of a C file."""
    return ctypes.CDLL(str(shared_object(source)))


def tensorflow_library(folder: str) -> ctypes.CDLL:
    """Load the library with TensorFlow's C API, whose symbols TensorFlow's own loading hides.

    Args:
        folder: `tf.sysconfig.get_lib()`.

    Raises:
        NotBuilt: It is missing.
    """
    for pattern in ("libtensorflow_framework.so*", "libtensorflow_cc.so*"):
        if found := sorted(Path(folder).glob(pattern)):
            return ctypes.CDLL(str(found[0]))
    raise NotBuilt(f"no libtensorflow_framework in {folder}")
