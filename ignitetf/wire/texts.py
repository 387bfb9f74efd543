"""`bytes_of`: runs of bytes in a page as Python's `bytes`, made in C.

columns -> **texts** -> NumPy, lists
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import WireError
from ignitetf.native import NotBuilt, shared_object
from ignitetf.wire.buffers import address_of

__all__ = ["bytes_of"]

_SOURCE: Final = Path(__file__).with_name("_bytes.c")
# As much as glibc may be brought to keep.
_KEPT_BYTES: Final = 60 << 20
# In the order of the members of `Functions` in _bytes.c.
_FUNCTIONS: Final = ("PyBytes_FromStringAndSize", "PyBytes_AsString", "Py_DecRef")
# Of this many bytes and more each, objects are filled without the GIL, which the threads that receive
# need several times a page. Shorter ones take as long to create as to fill.
_LONG_BYTES: Final = 1 << 10


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
    if (native := _native()) is None:
        view = data.data
        ends = (starts + lengths).tolist()
        out[:] = [bytes(view[p:q]) for p, q in zip(starts.tolist(), ends, strict=True)]
        return out
    if len(out):
        _keep_memory()
        native(data, np.ascontiguousarray(starts), np.ascontiguousarray(lengths), out)
    return out


@functools.cache
def _keep_memory() -> None:
    """Have malloc keep the memory of objects that are gone, for those of the next batch.

    Otherwise the C library returns it to the system with each batch, and clearing it anew takes two
    thirds of the time of longer values. It keeps up to twice as many bytes as the largest block that
    was ever freed (glibc, `M_TRIM_THRESHOLD`).
    """
    np.empty(_KEPT_BYTES // 2, np.uint8)


@functools.cache
def _native() -> Callable[..., None] | None:
    try:
        path = str(shared_object(_SOURCE))
        # PyDLL keeps the GIL, which Python's functions need.
        held, free = ctypes.PyDLL(path), ctypes.CDLL(path)
    except (NotBuilt, OSError):
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    create, fill = held.make_bytes, free.fill_bytes
    create.restype, fill.restype = number, None
    create.argtypes = [pointer, pointer, number, pointer, pointer, number, pointer, pointer]
    fill.argtypes = [pointer, pointer, pointer, number, pointer]
    found = [ctypes.cast(getattr(ctypes.pythonapi, n), pointer).value for n in _FUNCTIONS]
    table = (pointer * len(found))(*found)

    def make(
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        out: NDArray[Any],
    ) -> None:
        page, runs = address_of(data), (address_of(starts), address_of(lengths), len(out))
        are_long = lengths.sum() >= _LONG_BYTES * len(out)
        places = np.empty(len(out) if are_long else 0, np.intp)
        put = address_of(places) if are_long else None
        made = create(ctypes.addressof(table), page, len(data), *runs, out.ctypes.data, put)
        if made == len(out):
            if are_long:
                fill(page, *runs, put)
            return
        if starts[made] >= 0 and 0 <= lengths[made] <= len(data) - starts[made]:
            raise MemoryError(f"no memory for {lengths[made]} bytes")
        raise WireError(f"a value reaches beyond the end of the page ({len(data)} bytes)")

    return make
