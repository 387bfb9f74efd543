"""Frames: builds the heads of requests and reads the `Page`s of scans and SQL queries.

bytes -> **frames** -> objects -> columns -> tensors

This module opens no socket and does not look inside entries; `requests` builds the bodies of
requests.

Source: Apache Ignite 2.17.0, `ClientMessageParser`, `ClientCacheQueryResponse`,
`ClientCacheSqlFieldsQueryResponse`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import WireError
from ignitetf.wire.codes import OpCode

__all__ = [
    "Page",
    "count_in_head",
    "cursor_in_head",
    "read_first_page",
    "read_first_sql_page",
    "read_page",
    "request_head",
]

_REQUEST: Final = struct.Struct("<ihq")  # length of the rest, op code, request id


@dataclass(frozen=True)
class Page:
    """One page of a cursor.

    Attributes:
        count: Number of entries (rows).
        more: Whether the cursor has another page; an exhausted cursor closes itself.
        data: The entries' bytes, a view of the answer, uint8 `[nbytes]`.
    """

    count: int
    more: bool
    data: NDArray[np.uint8]


def request_head(nbytes: int, op: OpCode | int, request_id: int) -> bytes:
    """Return the head of a request with a body of `nbytes` bytes."""
    return _REQUEST.pack(10 + nbytes, op, request_id)


def read_first_page(body: memoryview) -> tuple[int, Page]:
    """Read the cursor id and first page from the answer to QUERY_SCAN."""
    return _int64(body, 0), read_page(body[8:])


def read_first_sql_page(body: memoryview) -> tuple[int, int, Page]:
    """Read the cursor id, column count and first page from the answer to QUERY_SQL_FIELDS."""
    cursor = _int64(body, 0)
    columns = _int32(body, 8)
    if columns < 0:
        raise WireError(f"SQL answer with {columns} columns")
    return cursor, columns, read_page(body[12:])


def cursor_in_head(head: memoryview) -> int | None:
    """Read the cursor id from the beginning of a first answer; None if it is cut off."""
    return _int64(head, 0) if len(head) >= 8 else None


def count_in_head(head: memoryview, at: int) -> int:
    """Read a page's entry count at byte `at` of the beginning of its answer; -1 if cut off."""
    return _int32(head, at) if len(head) >= at + 4 else -1


def read_page(body: memoryview) -> Page:
    """Read the page in an answer: int32 count, entries, bool more."""
    count = _int32(body, 0)
    if len(body) < 5:
        raise WireError(f"page of {len(body)} bytes is cut")
    # The smallest entry is a key and a value of one byte each (SQL rows: one null).
    if not 0 <= count <= len(body) - 5:
        raise WireError(f"page of {len(body)} bytes cannot hold {count} entries")
    if body[-1] > 1:
        raise WireError(f"page ends with byte {body[-1]}, expected a bool")
    return Page(count, bool(body[-1]), np.frombuffer(body, np.uint8)[4:-1])


def _int32(body: memoryview, at: int) -> int:
    if len(body) < at + 4:
        raise WireError(f"answer of {len(body)} bytes is cut")
    return int.from_bytes(body[at : at + 4], "little", signed=True)


def _int64(body: memoryview, at: int) -> int:
    if len(body) < at + 8:
        raise WireError(f"answer of {len(body)} bytes is cut")
    return int.from_bytes(body[at : at + 8], "little", signed=True)
