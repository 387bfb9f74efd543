"""Validates answers before pyignite parses them, and converts types that it does not know.

bytes -> **check_answer** -> pyignite

pyignite trusts counts: one changed byte in the number of columns makes it allocate gigabytes for
minutes. So every object of an answer is skipped over first, and the last must end where the answer
ends. pyignite also cannot read Java's own serialization, which SQL uses for a DATE, so such objects
are replaced by equivalent ones of the binary protocol.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Final

from ignitetf.errors import WireError
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.jdk import NotReadable, plain_object
from ignitetf.wire.objects import object_end
from ignitetf.wire.types import read_binary_type

__all__ = ["check_answer", "readable"]

_INT32: Final = struct.Struct("<i")
_Spans = list[tuple[int, int]]
_SINGLE: Final = frozenset(
    {
        OpCode.CACHE_GET,
        OpCode.CACHE_GET_AND_PUT,
        OpCode.CACHE_GET_AND_REPLACE,
        OpCode.CACHE_GET_AND_REMOVE,
        OpCode.CACHE_GET_AND_PUT_IF_ABSENT,
    }
)


def check_answer(op: int, request: bytes | memoryview, body: memoryview) -> list[tuple[int, int]]:
    """Raise WireError unless the objects in the body of an answer fill it exactly.

    Args:
        op: The request's op code; answers without object counts are not checked.
        request: The request, whose last byte says whether a SQL answer names its columns.
        body: The answer after its header.

    Returns:
        The begin and end of each object in Java's own serialization, for `readable`.
    """
    spans: _Spans = []
    try:
        if op == OpCode.QUERY_SQL_FIELDS:
            _sql(body, spans, named=bool(request[-1]))
        elif op == OpCode.QUERY_SQL_FIELDS_PAGE:
            _rows(body, spans, 0, None)
        elif op == OpCode.QUERY_SCAN:
            _rows(body, spans, 8, 2)
        elif op == OpCode.QUERY_SCAN_PAGE:
            _rows(body, spans, 0, 2)
        elif op == OpCode.CACHE_GET_ALL:
            _rows(body, spans, 0, 2, tail=0)
        elif op in _SINGLE:
            _fill(_end(body, spans, 0), len(body))
        elif op == OpCode.CACHE_GET_NAMES:
            _rows(body, spans, 0, 1, tail=0)
        elif op == OpCode.BINARY_TYPE_GET:
            read_binary_type(body)
    except (struct.error, IndexError, RecursionError) as error:
        raise WireError("an answer is cut within an object") from error
    return spans


def readable(body: memoryview, spans: list[tuple[int, int]]) -> bytes:
    """Replace the objects that Java serialized in an answer by objects of the binary protocol.

    Objects of classes without an equivalent stay as they are.

    Args:
        body: The answer after its header.
        spans: As returned by `check_answer`.
    """
    parts: list[bytes | memoryview] = []
    at = 0
    for begin, end in spans:
        with contextlib.suppress(NotReadable):
            plain = plain_object(bytes(body[begin + 5 : end]), marked=False)
            parts += [body[at:begin], plain]
            at = end
    return b"".join([*parts, body[at:]])


def _sql(body: memoryview, spans: _Spans, *, named: bool) -> None:
    """Check the cursor, the names or number of columns, and the rows."""
    (columns,) = _INT32.unpack_from(body, 8)
    at = 12
    if not 0 < columns <= len(body):
        raise WireError(f"a SQL answer with {columns} columns")
    for _ in range(columns if named else 0):
        if body[at] != TypeCode.STRING:
            raise WireError("the name of a column is not a text")
        at = object_end(body, at)
    _rows(body, spans, at, columns)


def _rows(body: memoryview, spans: _Spans, at: int, columns: int | None, tail: int = 1) -> None:
    """Check a row count, that many rows, and `tail` bytes after them (a bool: more pages)."""
    (rows,) = _INT32.unpack_from(body, at)
    at, end, objects = at + 4, len(body) - tail, 0
    if rows < 0:
        raise WireError(f"an answer with {rows} rows")
    while at < end:
        at = _end(body, spans, at)
        objects += 1
    _fill(at, end)
    if (objects % rows if columns is None and rows else objects != rows * (columns or 0)) or (
        tail and body[-1] > 1
    ):
        raise WireError(f"an answer of {objects} objects cannot be {rows} rows")


def _end(body: memoryview, spans: _Spans, at: int) -> int:
    end = object_end(body, at)
    if body[at] == TypeCode.OPTIMIZED:
        spans.append((at, end))
    return end


def _fill(at: int, end: int) -> None:
    if at != end:
        raise WireError(f"the objects of an answer end at byte {at}, it has {end}")
