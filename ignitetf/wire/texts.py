"""`bytes_of`: runs of bytes in a page as Python's `bytes`, made in C.

columns -> **texts** (bytes.c) -> NumPy, lists
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import ignitetf._core._native as core
from ignitetf.errors import WireError

__all__ = ["bytes_of"]

# As much as glibc may be brought to keep.
_KEPT_BYTES: Final = 60 << 20


def bytes_of(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[Any]:
    """Return runs of bytes as an object array `[n]` of `bytes`, copies.

    Args:
        data: The page, contiguous.
        starts: Where each run begins.
        lengths: How many bytes it has.

    Raises:
        WireError: A run lies beyond the page.
    """
    out = np.empty(len(starts), object)
    if len(out):
        _keep_memory()
    try:
        core.bytes_of(data, np.ascontiguousarray(starts), np.ascontiguousarray(lengths), out)
    except ValueError as error:
        raise WireError(f"a value reaches beyond the end of the page: {error}") from error
    return out


@functools.cache
def _keep_memory() -> None:
    """Have malloc keep the memory of objects that are gone, for those of the next batch.

    Otherwise the C library returns it to the system with each batch, and clearing it anew takes two
    thirds of the time of longer values. It keeps up to twice as many bytes as the largest block that
    was ever freed (glibc, `M_TRIM_THRESHOLD`).
    """
    np.empty(_KEPT_BYTES // 2, np.uint8)
