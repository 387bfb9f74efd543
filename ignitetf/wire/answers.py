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
    "count_at",
    "damaged",
    "ends",
    "int_at",
    "pairs_at",
    "read_bool",
    "read_error",
    "read_int",
    "read_long",
    "read_sized",
    "sized_at",
    "string_at",
    "text_of",
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


def count_at(body: Any, at: int, least: int = 1) -> int:
    """Read the number (int32) of the items that follow, of at least `least` bytes each."""
    count = int_at(body, at)
    if not 0 <= count * least <= len(body) - at - 4:
        raise IndexError(f"{count} items end beyond the answer")
    return count


def ends(body: Any, at: int) -> None:
    """Raise unless the answer ends here."""
    if at != len(body):
        raise IndexError(f"the answer has {len(body)} bytes, {at} were expected")


def string_at(body: Any, at: int) -> tuple[str | None, int]:
    """Read a string (None for a null) and return it with the position after it."""
    code, data, end = sized_at(body, at)
    if code is TypeCode.BYTE_ARRAY:
        raise WireError("damaged answer: bytes instead of a text")
    return None if code is TypeCode.NULL else text_of(data), end


def text_of(data: Any) -> str:
    """Decode a text of a node; raises WireError if its bytes are not UTF-8."""
    try:
        # Java writes a surrogate that has no partner as if it were a character.
        return bytes(data).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise WireError(f"damaged answer: a text is not UTF-8: {error.reason}") from error


def uuid_at(body: Any, at: int) -> uuid.UUID:
    """Read a UUID from its two little-endian longs."""
    high, low = struct.unpack_from("<QQ", body, at)
    return uuid.UUID(int=(high << 64) | low)
