"""Runs of bytes of a page: as Python's `bytes`, or copied into other memory, both in C.

bytes.c -> **runs** -> columns, encoders
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import ignitetf._core._native as core
from ignitetf.errors import WireError

__all__ = ["bytes_of", "copy_runs"]

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]

# As much as glibc may be brought to keep.
_KEPT_BYTES: Final = 60 << 20


def bytes_of(data: Bytes, starts: Positions, lengths: Positions) -> NDArray[Any]:
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


def copy_runs(
    out: Bytes, at: Positions, data: Bytes, starts: Positions, lengths: Positions
) -> None:
    """Copy run i of the page to `out[at[i]]`, in other memory.

    Raises:
        WireError: A run lies beyond the page, or its copy beyond `out`.
    """
    places = (np.ascontiguousarray(each, np.int64) for each in (at, starts, lengths))
    where, first, size = places
    try:
        core.copy_runs(out, where, np.ascontiguousarray(data), first, size)
    except ValueError as error:
        raise WireError(f"a value reaches beyond the end of the page: {error}") from error


@functools.cache
def _keep_memory() -> None:
    """Have malloc keep the memory of objects that are gone, for those of the next batch.

    Otherwise the C library returns it to the system with each batch, and clearing it anew takes two
    thirds of the time of longer values. It keeps up to twice as many bytes as the largest block that
    was ever freed (glibc, `M_TRIM_THRESHOLD`).
    """
    np.empty(_KEPT_BYTES // 2, np.uint8)
