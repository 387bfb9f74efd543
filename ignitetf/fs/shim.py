"""Locate TensorFlow's plugin, which is in the native core.

Where it cannot be used `NativeIOUnavailable` is raised; fsspec and `ignitetf checkpoint push` do not need it.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Final

from ignitetf._core import LIBRARY
from ignitetf.fs.oserrors import NativeIOUnavailable

__all__ = ["shim_path"]

_HINT: Final = "use fsspec (igfs:// URLs), or 'ignitetf checkpoint push' and 'pull'"


def shim_path() -> Path:
    """Return the path of the shared object with the plugin.

    Raises:
        NativeIOUnavailable: This is not Linux.
    """
    if sys.platform != "linux":
        raise NativeIOUnavailable(
            f"igfs:// inside TensorFlow needs Linux, this is {platform.system()}", hint=_HINT
        )
    return LIBRARY
