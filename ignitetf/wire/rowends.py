"""`RowsEnd`: how the functions of _rows.c and _receive.c end.

**rowends** -> builder, receiving
"""

from __future__ import annotations

import enum

__all__ = ["RowsEnd"]


class RowsEnd(enum.IntEnum):
    """Why a function came to an end.

    The first four are of all functions: `DONE`, all rows are there; `MORE`, the bytes end within a
    row; `FULL`, the columns have no room for the next row; `OTHER`, the next row has a form that
    was not learned. _receive.c says what the others are.
    """

    DONE = 0
    MORE = 1
    FULL = 2
    OTHER = 3
    END = 4
    ASK = 5
    ENOUGH = 6
    BYTES = 7
    LARGE = 8
    ROOM = 9
    UNKNOWN = 10
    CLOSED = 11
    FAILED = 12
    COUNT = 13
