"""Where the objects of a page stand, found in C: a fifteenth of the time of a loop in Python.

frames -> objects -> **walk** -> objects -> columns

Each object tells its length, so that one has to be looked at after the other. Smaller pages, and
machines without a compiler, are left to the loop in objects.py.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.native import native_library
from ignitetf.wire.datatypes import DATA_TYPES

__all__ = ["object_positions"]

_SOURCE: Final = Path(__file__).with_name("_walk.c")
# Fewer are found soon enough without a library to build and load.
_WORTH_OBJECTS: Final = 256
_CODES: Final = 256


def object_positions(data: NDArray[np.uint8], count: int) -> NDArray[np.int64] | None:
    """Where `count` objects begin that follow each other and fill the page.

    Args:
        data: The page's bytes, contiguous.
        count: Objects in it.

    Returns:
        int64 `[count]`, in bytes from the page's beginning. None where objects.py has to look,
        which raises WireError for a page that is not whole: there, and for few objects, and
        where there is no compiler.
    """
    if count < _WORTH_OBJECTS or (native := _native()) is None:
        return None
    return native(data, count)


@functools.cache
def _native() -> Callable[[NDArray[np.uint8], int], NDArray[np.int64] | None] | None:
    """The C function; None where it cannot be had."""
    if (library := native_library(_SOURCE)) is None:
        return None
    function = library.walk
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [pointer, number, number, pointer, pointer]
    extents = _extents()

    def walk(data: NDArray[np.uint8], count: int) -> NDArray[np.int64] | None:
        starts = np.empty(count, np.int64)
        failed = function(
            data.ctypes.data, len(data), count, extents.ctypes.data, starts.ctypes.data
        )  # fmt: skip
        return None if failed else starts

    return walk


def _extents() -> NDArray[np.int32]:
    """By type code, the `Extent` of its objects, as `_walk.c` has it; int32 `[256, 5]`."""
    table = np.zeros((_CODES, 5), np.int32)
    for code, row in DATA_TYPES.items():
        if (end := row.extent) is not None:
            table[code] = end.head, end.unit, end.objects, end.count_at, end.class_id
    return table
