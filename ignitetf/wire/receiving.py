"""What `PageReader` and `UnitReader` share: the functions of _receive.c, and how they end.

builder -> **receiving** -> page reader, units
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from typing import Any, NamedTuple

from ignitetf._core import LIBRARY
from ignitetf.wire.builder import rows_library
from ignitetf.wire.rowends import RowsEnd

__all__ = ["Native", "Source", "failure", "native"]


class Source(ctypes.Structure):
    """Where bytes come from, as `Source` of _receive.c."""

    _fields_ = (
        ("socket", ctypes.c_int64),
        ("limit_ns", ctypes.c_int64),
        ("waited_ns", ctypes.c_int64),
        ("error", ctypes.c_int64),
        ("since", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


class Native(NamedTuple):
    """The functions of _receive.c, and the structure with those of _rows.c that they call."""

    read_page: Any
    read_units: Any
    rows: Any


@functools.cache
def native() -> Native | None:
    """Return the functions."""
    library, rows = ctypes.CDLL(str(LIBRARY)), rows_library()
    for function in (library.read_page, library.read_units):
        function.argtypes = [ctypes.c_void_p]
    functions = (rows.build, rows.take_back, rows.find_gap, rows.build_around)
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
    table = (ctypes.c_void_p * len(addresses))(*addresses)
    return Native(library.read_page, library.read_units, table)


def failure(end: RowsEnd, source: Source) -> OSError | None:
    """Return what has ended the connection; None if nothing has."""
    if end is RowsEnd.CLOSED:
        return ConnectionResetError("the node closed the connection")
    if end is not RowsEnd.FAILED:
        return None
    number = int(source.error)
    kind = TimeoutError if number in (errno.EAGAIN, errno.EWOULDBLOCK) else OSError
    return kind(number, os.strerror(number))
