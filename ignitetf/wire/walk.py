"""Finds the objects of a page in C, in a fifteenth of the time of a Python loop.

frames -> objects -> **walk** -> objects -> columns

The length of each object is only found inside it, so they have to be visited one by one.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf._core._native import object_starts
from ignitetf.wire.datatypes import DATA_TYPES

__all__ = ["extents", "object_positions"]

_CODES: Final = 256


def object_positions(data: NDArray[np.uint8], count: int) -> NDArray[np.int64] | None:
    """Return where `count` adjacent objects begin that fill the page.

    Args:
        data: The page's bytes, contiguous.
        count: Number of objects in it.

    Returns:
        int64 `[count]`, in bytes from the beginning of the page; None if they do not fill it.
    """
    starts = np.empty(count, np.int64)
    return starts if object_starts(data, count, extents(), starts) else None


@functools.cache
def extents() -> NDArray[np.int32]:
    """Return the `Extent` of each type code as the core expects it; int32 `[256, 5]`."""
    table = np.zeros((_CODES, 5), np.int32)
    for code, row in DATA_TYPES.items():
        if (end := row.extent) is not None:
            table[code] = end.head, end.unit, end.objects, end.count_at, end.class_id
    return table
