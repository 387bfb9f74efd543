"""Scan and SQL frames: request bodies out, `Page` in.

bytes -> **frames** -> objects -> columns -> tensors

This module knows the heads of requests and answers; it opens no socket and looks into no entry.

Source: Apache Ignite 2.17.0, `ClientCacheScanQueryRequest`, `ClientCacheQueryNextPageRequest`,
`ClientCacheSqlFieldsQueryRequest`, `ClientCacheQueryResponse`. The published table of the scan
request calls the partition field a count; the server reads one partition id (-1 for all).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import WireError
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.parameters import encode_string

__all__ = [
    "Page",
    "count_in_head",
    "cursor_in_head",
    "cursor_request",
    "read_first_page",
    "read_first_sql_page",
    "read_page",
    "scan_request",
    "sql_request",
]

_SCAN = struct.Struct("<ibbii?")
_ALL_PARTITIONS = -1
_STATEMENT_SELECT = 1


@dataclass(frozen=True)
class Page:
    """One answer of a cursor.

    Attributes:
        count: Entries (rows) in it.
        more: Whether the cursor has another page; a cursor without closes itself.
        data: The entries' bytes, a view of the answer, uint8 `[nbytes]`.
    """

    count: int
    more: bool
    data: NDArray[np.uint8]


def scan_request(
    cache_id: int, page_size: int, partition: int | None = None, *, local: bool = False
) -> bytes:
    """Body of QUERY_SCAN.

    Args:
        cache_id: Java hash of the cache's name.
        page_size: Entries in a page, above zero.
        partition: One partition; None for the whole cache, in no stable order.
        local: Read what the asked node holds, a backup copy too, and fail where it holds none.
    """
    if partition is not None and partition < 0:
        # The server takes any negative number for the whole cache.
        raise ValueError(f"partition {partition} is negative")
    which = _ALL_PARTITIONS if partition is None else partition
    return _SCAN.pack(cache_id, 0, TypeCode.NULL, page_size, which, local)


def cursor_request(cursor: int) -> bytes:
    """Body of QUERY_SCAN_PAGE, QUERY_SQL_FIELDS_PAGE and RESOURCE_CLOSE."""
    return struct.pack("<q", cursor)


def sql_request(
    schema: str,
    statement: str,
    params: Sequence[bytes],
    page_size: int,
    *,
    partitions: Sequence[int] | None = None,
    timeout_ms: int = 0,
) -> bytes:
    """Body of QUERY_SQL_FIELDS: a lazy SELECT, with parameters as encoded objects.

    The list of partitions is read only by servers that announced the feature
    QUERY_PARTITIONS_BATCH_SIZE, to clients that did; others must not be sent it.
    """
    parts = [
        struct.pack("<ib", 0, 0),  # cache id and flags: the schema is given by name
        encode_string(schema),
        struct.pack("<ii", page_size, -1),  # page size, rows at most
        encode_string(statement),
        struct.pack("<i", len(params)),
        *params,
        struct.pack("<b", _STATEMENT_SELECT),
        # distributed joins, local, replicated only, enforce join order, collocated, lazy
        struct.pack("<6?", False, False, False, False, False, True),
        struct.pack("<q?", timeout_ms, False),  # timeout, include field names
        struct.pack("<i", -1 if partitions is None else len(partitions)),
        struct.pack(f"<{len(partitions or ())}i", *(partitions or ())),
        struct.pack("<i", 1),  # update batch size
    ]
    return b"".join(parts)


def read_first_page(body: memoryview) -> tuple[int, Page]:
    """Cursor id and first page from the answer of QUERY_SCAN."""
    return _int64(body, 0), read_page(body[8:])


def read_first_sql_page(body: memoryview) -> tuple[int, int, Page]:
    """Cursor id, number of columns and first page from the answer of QUERY_SQL_FIELDS."""
    cursor = _int64(body, 0)
    columns = _int32(body, 8)
    if columns < 0:
        raise WireError(f"SQL answer with {columns} columns")
    return cursor, columns, read_page(body[12:])


def cursor_in_head(head: memoryview) -> int | None:
    """Cursor id at the beginning of a first answer; None if it is cut."""
    return _int64(head, 0) if len(head) >= 8 else None


def count_in_head(head: memoryview, at: int) -> int:
    """The number of entries of a page, at byte `at` of the beginning of its answer; -1 if cut."""
    return _int32(head, at) if len(head) >= at + 4 else -1


def read_page(body: memoryview) -> Page:
    """The page of an answer: int32 count, entries, bool more."""
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
