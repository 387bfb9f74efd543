"""Answers: the numbers, texts and byte arrays that stand outside pages.

frames -> **answers** -> values

`read_...` takes a whole answer and raises WireError where it is not what was asked for. `..._at`
reads one value at a position, for answers of several; whoever calls it does so within `damaged`,
which turns what damaged bytes raise into a WireError.

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
    "read_int",
    "read_long",
    "read_sized",
    "sized_at",
    "string_at",
    "uuid_at",
]


@contextlib.contextmanager
def damaged(what: str) -> Iterator[None]:
    """Raise WireError where the bytes of an answer cannot be taken apart."""
    try:
        yield
    except (struct.error, IndexError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise WireError(f"damaged answer: {what}") from error


def read_long(body: memoryview, what: str) -> int:
    """A number of 64 bits: of CACHE_GET_SIZE, and the id that a cursor or a data streamer gets."""
    with damaged(what):
        return int(struct.unpack_from("<q", body, 0)[0])


def read_int(body: memoryview, what: str) -> int:
    """A number of 32 bits, such as the id of a transaction."""
    with damaged(what):
        return int_at(body, 0)


def read_bool(body: memoryview, what: str) -> bool:
    """Whether a conditional operation did something."""
    if len(body) != 1 or body[0] > 1:
        raise WireError(f"damaged answer: {what}: {len(body)} bytes instead of a bool")
    return bool(body[0])


def read_sized(body: memoryview, what: str) -> tuple[TypeCode, memoryview]:
    """The string or byte array that CACHE_GET found: type code, and a view of its bytes.

    The type code is NULL, and the view empty, where it found nothing.
    """
    with damaged(what):
        code, data, end = sized_at(body, 0)
        if end != len(body):
            raise IndexError(f"{len(body) - end} bytes behind the object")
    return code, data


def sized_at(body: memoryview, at: int) -> tuple[TypeCode, memoryview, int]:
    """A string, a byte array or a null: type code, a view of its bytes, the place behind it."""
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
    """So many pairs of strings or byte arrays, as bytes; None for a null."""
    found: list[bytes | None] = []
    for _ in range(2 * count):
        code, data, at = sized_at(body, at)
        found.append(None if code is TypeCode.NULL else bytes(data))
    return list(zip(found[::2], found[1::2], strict=True))


def int_at(body: Any, at: int) -> int:
    """A number of 32 bits."""
    return int(struct.unpack_from("<i", body, at)[0])


def string_at(body: Any, at: int, *, errors: str = "strict") -> tuple[str | None, int]:
    """A string, None for a null, and the place behind it."""
    if body[at] != TypeCode.STRING:
        return None, at + 1
    begin, length = at + 5, int_at(body, at + 1)
    if length < 0 or begin + length > len(body):
        raise IndexError("a string ends beyond the answer")
    return bytes(body[begin : begin + length]).decode("utf-8", errors), begin + length


def uuid_at(body: Any, at: int) -> uuid.UUID:
    """A UUID from its two little-endian longs."""
    high, low = struct.unpack_from("<QQ", body, at)
    return uuid.UUID(int=(high << 64) | low)
