"""Resolves wrappers, handles and objects of JDK classes to the values that they represent.

objects -> **meaning** -> columns, infer

Most values are directly in place. Others are wrapped (code 27), handles to an earlier object of the
record (code 102), raw data (TreeSet, TreeMap), or in Java's own serialization (code 254), which
`jdk` converts to the binary protocol. Values that cannot be read keep their code, and `described`
describes them for a message.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import WireError
from ignitetf.wire.codes import BinaryFlag, TypeCode, java_hash
from ignitetf.wire.jdk import NotReadable, plain_object
from ignitetf.wire.objects import (
    TREES,
    Bytes,
    Positions,
    bytes_at,
    check_bounds,
    follow,
    gather,
    headers,
    unwrap,
)
from ignitetf.wire.types import TypeRegistry
from ignitetf.wire.zones import as_sql_days

__all__ = ["described", "meant", "type_code", "type_codes"]

Codes = NDArray[np.uint8]

# A wrapper may hold a wrapper, or a handle.
_MAX_STEPS: Final = 64
_HEAD: Final = 5
# Classes that represent other classes in a stream.
_TIMES, _IMMUTABLE = java_hash("java.time.Ser"), java_hash("java.util.CollSer")
# The head of a java.sql.Date, which every row of a SQL table with a DATE column contains.
_SQL_DATE: Final = struct.pack("<BiBi", TypeCode.OPTIMIZED, 15, 102, java_hash("java.sql.Date"))
_SQL_DATE_AT: Final = len(_SQL_DATE) + 2
_SQL_DATE_BYTES: Final = _SQL_DATE_AT + 8


def type_code(code: int) -> str:
    """Return the name and number of a type code, for a message."""
    try:
        return f"{TypeCode(code).name} ({code})"
    except ValueError:
        return f"unknown type code {code}"


def type_codes(data: Bytes, at: Positions) -> Codes:
    """Return the type codes at these positions, with NULL for position -1."""
    if len(at) and int(at.min()) >= 0:
        check_bounds(data, at, 1)
        return data[at]
    check_bounds(data, at[at >= 0], 1)
    return np.where(at >= 0, data[np.maximum(at, 0)], np.uint8(TypeCode.NULL))


def meant(data: Bytes, at: Positions) -> tuple[Bytes, Positions, Codes]:
    """Resolve the values at these positions.

    Args:
        data: The page.
        at: Positions of the values; -1 for missing ones.

    Returns:
        The bytes that contain them (the page, possibly followed by converted objects), their
        positions there, and their codes. A TreeSet has the code of a collection. Unreadable values
        have OPTIMIZED, CLASS, PROXY, or HANDLE for a reference to an object that contains it.

    Raises:
        WireError: A wrapper does not contain its object, or a handle has no earlier object.
    """
    codes = type_codes(data, at)
    for _ in range(_MAX_STEPS):
        if (wrapped := codes == TypeCode.WRAPPED).any():
            at = at.copy()
            at[wrapped] = unwrap(data, at[wrapped])
        elif (handles := np.flatnonzero(codes == TypeCode.HANDLE)).size:
            target, cyclic = follow(data, at[handles])
            if cyclic.all():
                break
            at = at.copy()
            at[handles[~cyclic]] = target[~cyclic]
        else:
            break
        codes = type_codes(data, at)
    if (trees := np.flatnonzero(codes == TypeCode.OBJECT)).size:
        check_bounds(data, at[trees], 8)
        types = gather(data, at[trees] + 4, "<i4")
        if (special := np.isin(types, list(TREES))).any():
            codes = codes.copy()
            codes[trees[special]] = [TREES[t] for t in types[special].tolist()]
    if (foreign := np.flatnonzero(codes == TypeCode.OPTIMIZED)).size:
        return _rewritten(data, at, codes, foreign)
    return data, at, codes


def _rewritten(
    data: Bytes, at: Positions, codes: Codes, foreign: Positions
) -> tuple[Bytes, Positions, Codes]:
    """Convert objects of Java's own serialization, and append them to the page; see `meant`."""
    at, codes = at.copy(), codes.copy()
    dates = _sql_dates(data, at[foreign])
    others = foreign if dates is None else foreign[~dates]
    made: list[bytes] = []
    end = len(data)
    if dates is not None and dates.any():
        rows = foreign[dates]
        objects = np.empty((len(rows), 9), np.uint8)
        objects[:, 0] = TypeCode.DATE
        moments = bytes_at(data, at[rows] + _SQL_DATE_AT, 8).view("<i8")
        objects[:, 1:] = as_sql_days(moments).view(np.uint8)
        made.append(objects.tobytes())
        at[rows] = end + 9 * np.arange(len(rows))
        codes[rows] = TypeCode.DATE
        end += objects.size
    known: dict[bytes, bytes | None] = {}
    for row in others.tolist():
        body = _body(data, int(at[row]))
        if body not in known:
            try:
                known[body] = plain_object(body)
            except NotReadable:
                known[body] = None
        if (found := known[body]) is not None:
            at[row], codes[row] = end, found[0]
            made.append(found)
            end += len(found)
    if not made:
        return data, at, codes
    return np.concatenate((data, np.frombuffer(b"".join(made), np.uint8))), at, codes


def _sql_dates(data: Bytes, at: Positions) -> NDArray[np.bool_] | None:
    """Return which objects are a `java.sql.Date`; None if one is too close to the end to check."""
    if int(at.max()) + _SQL_DATE_BYTES > len(data):
        return None
    head = bytes_at(data, at, len(_SQL_DATE))
    same: NDArray[np.bool_] = (head == np.frombuffer(_SQL_DATE, np.uint8)).all(axis=1)
    return same


def _body(data: Bytes, at: int) -> bytes:
    if at + _HEAD > len(data):
        raise WireError("an object in Java's own serialization is cut")
    (length,) = struct.unpack_from("<i", data.data, at + 1)
    if not 0 <= length <= len(data) - at - _HEAD:
        raise WireError("an object in Java's own serialization reaches beyond the page")
    return data[at + _HEAD : at + _HEAD + length].tobytes()


def described(data: Bytes, at: int, code: int, registry: TypeRegistry) -> str:
    """Describe a value that cannot be read as expected, for a message.

    Args:
        data: The bytes returned by `meant`.
        at: Its position there.
        code: Its code there.
        registry: Types and class names; raises UnknownClass for a name that it lacks.
    """
    if code == TypeCode.HANDLE:
        return "a reference to an object that contains it"
    if code == TypeCode.PROXY:
        return "a Java proxy"
    if code == TypeCode.CLASS:
        (number,) = struct.unpack_from("<i", data.data, at + 1)
        return f"a Java class object ({registry.class_name(number)})"
    if code == TypeCode.OPTIMIZED:
        return _foreign(_body(data, at), registry)
    if code == TypeCode.OBJECT:
        found = headers(data, np.array([at], np.int64))
        if is_raw(found.flags).any():
            kind = registry.find(int(found.type_id[0]))
            name = kind.name if kind is not None else "an unregistered class"
            return f"an object of {name}, whose raw data only that class can read"
    return type_code(code)


def is_raw(flags: NDArray[np.uint16]) -> NDArray[np.bool_]:
    """Return which objects have raw data but no fields."""
    both = BinaryFlag.HAS_RAW | BinaryFlag.HAS_SCHEMA
    raw: NDArray[np.bool_] = (flags & both) == BinaryFlag.HAS_RAW
    return raw


def _foreign(body: bytes, registry: TypeRegistry) -> str:
    """Describe an object in Java's own serialization, and the part of it that cannot be read."""
    try:
        plain_object(body)
    except NotReadable as found:
        inner = found.name or registry.class_name(found.class_id or 0)
        own = 0
        if len(body) >= _HEAD and body[0] in (101, 102):
            (own,) = struct.unpack_from("<i", body, 1)
        if own in (0, found.class_id, _TIMES):
            return f"an object of {inner}, in Java's own serialization"
        outer = "an immutable collection" if own == _IMMUTABLE else registry.class_name(own)
        return f"{outer} with an object of {inner}, in Java's own serialization"
    return type_code(TypeCode.OPTIMIZED)
