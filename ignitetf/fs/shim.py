"""Locate the native part of the TensorFlow plugin; see `native`.

Without it `NativeIOUnavailable` is raised; fsspec and `ignitetf checkpoint push` do not need it.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Final

from ignitetf.fs.oserrors import NativeIOUnavailable
from ignitetf.native import NotBuilt, shared_object

__all__ = ["SOURCE", "shim_path"]

SOURCE: Final = Path(__file__).with_name("_gfile.c")
_HINT: Final = "use fsspec (igfs:// URLs), or 'ignitetf checkpoint push' and 'pull'"


def shim_path() -> Path:
    """Return the path of the shared object for this machine, building it if necessary.

    Raises:
        NativeIOUnavailable: It can be neither found nor built.
    """
    if sys.platform != "linux":
        raise NativeIOUnavailable(
            f"igfs:// inside TensorFlow needs Linux, this is {platform.system()}", hint=_HINT
        )
    try:
        return shared_object(SOURCE)
    except NotBuilt as error:
        raise NativeIOUnavailable(
            f"igfs:// inside TensorFlow needs a small native part: {error}",
            hint=f"{error.hint}, or {_HINT}" if error.hint else _HINT,
        ) from error
