"""Finds the objects of a page in C, in a fifteenth of the time of a Python loop.

frames -> objects -> **walk** -> objects -> columns

The length of each object is only found inside it, so they have to be visited one by one. Smaller
pages use the loop in objects.py.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf._core import LIBRARY
from ignitetf.wire.datatypes import DATA_TYPES

__all__ = ["extents", "object_positions"]

# For fewer objects, calling a library is not worthwhile.
_WORTH_OBJECTS: Final = 256
_CODES: Final = 256


def object_positions(data: NDArray[np.uint8], count: int) -> NDArray[np.int64] | None:
    """Return where `count` adjacent objects begin that fill the page.

    Args:
        data: The page's bytes, contiguous.
        count: Number of objects in it.

    Returns:
        int64 `[count]`, in bytes from the beginning of the page. None if objects.py has to do it:
        for few objects, and for a damaged page, where it raises WireError.
    """
    if count < _WORTH_OBJECTS or (native := _native()) is None:
        return None
    return native(data, count)


@functools.cache
def _native() -> Callable[[NDArray[np.uint8], int], NDArray[np.int64] | None] | None:
    """The C function; None if it is not available."""
    function = ctypes.CDLL(str(LIBRARY)).walk
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [pointer, number, number, pointer, pointer]
    table = extents()

    def walk(data: NDArray[np.uint8], count: int) -> NDArray[np.int64] | None:
        starts = np.empty(count, np.int64)
        failed = function(
            data.ctypes.data, len(data), count, table.ctypes.data, starts.ctypes.data
        )  # fmt: skip
        return None if failed else starts

    return walk


@functools.cache
def extents() -> NDArray[np.int32]:
    """Return the `Extent` of each type code as _rows.c expects it; int32 `[256, 5]`."""
    table = np.zeros((_CODES, 5), np.int32)
    for code, row in DATA_TYPES.items():
        if (end := row.extent) is not None:
            table[code] = end.head, end.unit, end.objects, end.count_at, end.class_id
    return table
