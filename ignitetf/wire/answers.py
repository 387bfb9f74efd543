"""Reads the numbers, texts and byte arrays of answers that are not pages.

frames -> **answers** -> values

`read_...` parses a whole answer and raises WireError if it is not as expected. `..._at` reads one
value at a position, for answers with several values; call it within `damaged`, which turns the
errors that damaged bytes cause into a WireError.

Source: Apache Ignite 2.17.0, `ClientLongResponse`, `ClientIntResponse`, `ClientBooleanResponse`,
`BinaryWriterExImpl` (strings, byte arrays, UUIDs).
"""

from __future__ import annotations

import contextlib
import struct
import uuid
from collections.abc import Iterator
from typing import Any

from ignitetf.errors import WireError
from ignitetf.wire.codes import TypeCode

__all__ = [
    "damaged",
    "int_at",
    "pairs_at",
    "read_bool",
    "read_error",
    "read_int",
    "read_long",
    "read_sized",
    "sized_at",
    "string_at",
    "uuid_at",
]


@contextlib.contextmanager
def damaged(what: str) -> Iterator[None]:
    """Turn the errors that damaged bytes cause inside the block into a WireError."""
    try:
        yield
    except (struct.error, IndexError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise WireError(f"damaged answer: {what}") from error


def read_long(body: memoryview, what: str) -> int:
    """Read a 64-bit number: the answer to CACHE_GET_SIZE, or the id of a cursor or streamer."""
    with damaged(what):
        return int(struct.unpack_from("<q", body, 0)[0])


def read_int(body: memoryview, what: str) -> int:
    """Read a 32-bit number, such as the id of a transaction."""
    with damaged(what):
        return int_at(body, 0)


def read_bool(body: memoryview, what: str) -> bool:
    """Read whether a conditional operation changed something."""
    if len(body) != 1 or body[0] > 1:
        raise WireError(f"damaged answer: {what}: {len(body)} bytes instead of a bool")
    return bool(body[0])


def read_error(body: memoryview) -> tuple[int, str]:
    """Read the status code and the message of an answer that is an error."""
    with damaged("an error"):
        return int_at(body, 0), string_at(body, 4)[0] or ""


def read_sized(body: memoryview, what: str) -> tuple[TypeCode, memoryview]:
    """Read the string or byte array found by CACHE_GET: its type code and a view of its bytes.

    If nothing was found, the type code is NULL and the view is empty.
    """
    with damaged(what):
        code, data, end = sized_at(body, 0)
        if end != len(body):
            raise IndexError(f"{len(body) - end} bytes behind the object")
    return code, data


def sized_at(body: memoryview, at: int) -> tuple[TypeCode, memoryview, int]:
    """Read a string, byte array or null: type code, view of its bytes, position after it."""
    code = body[at]
    if code == TypeCode.NULL:
        return TypeCode.NULL, body[:0], at + 1
    if code not in (TypeCode.STRING, TypeCode.BYTE_ARRAY):
        raise WireError(f"a value of type {code} instead of a text or of bytes")
    begin, length = at + 5, int_at(body, at + 1)
    if length < 0 or begin + length > len(body):
        raise IndexError(f"an object of {length} bytes ends beyond the answer")
    return TypeCode(code), body[begin : begin + length], begin + length


def pairs_at(body: memoryview, at: int, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Read `count` pairs of strings or byte arrays as bytes, with None for a null."""
    found: list[bytes | None] = []
    for _ in range(2 * count):
        code, data, at = sized_at(body, at)
        found.append(None if code is TypeCode.NULL else bytes(data))
    return list(zip(found[::2], found[1::2], strict=True))


def int_at(body: Any, at: int) -> int:
    """Read a 32-bit number."""
    return int(struct.unpack_from("<i", body, at)[0])


def string_at(body: Any, at: int, *, errors: str = "strict") -> tuple[str | None, int]:
    """Read a string (None for a null) and return it with the position after it."""
    if body[at] != TypeCode.STRING:
        return None, at + 1
    begin, length = at + 5, int_at(body, at + 1)
    if length < 0 or begin + length > len(body):
        raise IndexError("a string ends beyond the answer")
    return bytes(body[begin : begin + length]).decode("utf-8", errors), begin + length


def uuid_at(body: Any, at: int) -> uuid.UUID:
    """Read a UUID from its two little-endian longs."""
    high, low = struct.unpack_from("<QQ", body, at)
    return uuid.UUID(int=(high << 64) | low)
