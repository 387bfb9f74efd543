"""Frames: the heads of requests and answers, the handshake, and the `Page`s of scans and queries.

bytes -> **frames** -> objects -> columns -> tensors

This module opens no socket and does not look inside entries; `requests` builds the bodies of
requests.

Source: Apache Ignite 2.17.0, `ClientMessageParser`, `ClientResponse` (head of an answer),
`ClientCacheQueryResponse`, `ClientCacheSqlFieldsQueryResponse`, `ClientListenerNioListener`; IEP-9, IEP-23.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ignitetf.errors import WireError
from ignitetf.wire.answers import damaged, int_at, sized_at, string_at, uuid_at
from ignitetf.wire.codes import Feature, OpCode, Status, TypeCode
from ignitetf.wire.requests import encode_bytes, encode_string

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "LENGTH_BYTES",
    "MAX_HEAD_BYTES",
    "Accepted",
    "AnswerHead",
    "Page",
    "Refused",
    "framed",
    "handshake_request",
    "join_pages",
    "read_answer_head",
    "read_answer_length",
    "read_entries",
    "read_first_page",
    "read_first_sql_page",
    "read_handshake",
    "read_length",
    "read_named_sql_page",
    "read_page",
    "read_request_head",
    "request_frames",
    "request_head",
]

LENGTH_BYTES: Final = 4  # before each message: the length of the rest
# In a page: before the entries their number, after them whether more pages follow.
_COUNT_BYTES: Final = 4
_MORE_BYTES: Final = 1
_REQUEST: Final = struct.Struct("<ihq")  # length of the rest, op code, request id
_LENGTH: Final = struct.Struct("<i")
_REQUEST_DTYPE: Final = [("length", "<i4"), ("op", "<i2"), ("id", "<i8")]
_ANSWER: Final = struct.Struct("<qh")  # request id, flags
_TOPOLOGY: Final = struct.Struct("<qi")
_FLAG_ERROR: Final = 1
_FLAG_TOPOLOGY: Final = 2
MAX_HEAD_BYTES: Final = _ANSWER.size + _TOPOLOGY.size


class AnswerHead(NamedTuple):
    """The head of an answer.

    Attributes:
        request_id: Id of the request that it answers.
        failed: True if the body is an error, for `answers.read_error`.
        topology: Version (major, minor) of the topology, which a node reports when it has changed;
            otherwise None.
        begin: Start of the body, counted from the end of the length.
    """

    request_id: int
    failed: bool
    topology: tuple[int, int] | None
    begin: int


@dataclass(frozen=True)
class Page:
    """One page of a cursor.

    Attributes:
        count: Number of entries (rows).
        more: True if the cursor has another page; an exhausted cursor closes itself.
        data: The entries' bytes, a view of the answer, uint8 `[nbytes]`.
    """

    count: int
    more: bool
    data: NDArray[np.uint8]


def request_head(nbytes: int, op: OpCode | int, request_id: int) -> bytes:
    """Return the head of a request with a body of `nbytes` bytes."""
    return _REQUEST.pack(_REQUEST.size - LENGTH_BYTES + nbytes, op, request_id)


def request_frames(op: OpCode | int, first_id: int, bodies: NDArray[np.void]) -> bytes:
    """Return requests with bodies of equal size and consecutive ids, one after another."""
    import numpy as np  # not for a handshake

    size = bodies.dtype.itemsize
    kind = np.dtype([("head", _REQUEST_DTYPE), ("body", f"V{size}")])
    out = np.empty(len(bodies), kind)
    head = out["head"]
    head["length"], head["op"] = _REQUEST.size - LENGTH_BYTES + size, op
    head["id"] = np.arange(first_id, first_id + len(bodies))
    out["body"] = bodies
    return out.tobytes()


def read_request_head(request: bytes) -> tuple[int, int]:
    """Read the op code and the id of a request."""
    _, op, request_id = _REQUEST.unpack_from(request, 0)
    return op, request_id


def framed(message: bytes) -> bytes:
    """Return a message with its length before it."""
    return len(message).to_bytes(LENGTH_BYTES, "little") + message


def read_length(prefix: Any) -> int:
    """Read the length of a message from the bytes before it; negative if they are damaged."""
    return int.from_bytes(prefix[:LENGTH_BYTES], "little", signed=True)


def read_answer_length(prefix: Any) -> int:
    """Read the length of an answer; raises WireError if it is impossible."""
    length = read_length(prefix)
    if length < _ANSWER.size:
        raise WireError(f"answer of impossible length {length}")
    return length


def read_answer_head(answer: Any) -> AnswerHead:
    """Read the head of an answer; the first `MAX_HEAD_BYTES` after its length are enough.

    Raises:
        WireError: The head is cut, or has unknown flags.
    """
    try:
        request_id, flags = _ANSWER.unpack_from(answer, 0)
        if flags & ~(_FLAG_ERROR | _FLAG_TOPOLOGY):
            raise WireError(f"answer with unknown flags {flags:#x}")
        topology, begin = None, _ANSWER.size
        if flags & _FLAG_TOPOLOGY:
            topology, begin = _TOPOLOGY.unpack_from(answer, begin), MAX_HEAD_BYTES
    except struct.error as error:
        raise WireError("damaged answer header") from error
    return AnswerHead(request_id, bool(flags & _FLAG_ERROR), topology, begin)


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


def read_named_sql_page(body: memoryview) -> tuple[int, list[str], Page]:
    """Read the cursor id, column names and first page from an answer that has names."""
    cursor, count = _int64(body, 0), _int32(body, 8)
    if not 0 < count <= len(body):
        raise WireError(f"SQL answer with {count} columns")
    at, names = 12, []
    with damaged("the names of columns"):
        for _ in range(count):
            name, at = string_at(body, at)
            names.append(name or "")
    return cursor, names, read_page(body[at:])


def read_entries(body: memoryview) -> Page:
    """Read the entries in the answer to CACHE_GET_ALL: int32 count, entries in any order."""
    import numpy as np  # not for a handshake

    count = _int32(body, 0)
    _check_count(count, len(body) - _COUNT_BYTES)
    return Page(count, False, np.frombuffer(body, np.uint8)[4:])


def read_page(body: memoryview) -> Page:
    """Read the page in an answer: int32 count, entries, bool more."""
    import numpy as np  # not for a handshake

    count = _int32(body, 0)
    if len(body) < _COUNT_BYTES + _MORE_BYTES:
        raise WireError(f"page of {len(body)} bytes is cut")
    _check_count(count, len(body) - _COUNT_BYTES - _MORE_BYTES)
    return Page(count, _more(body), np.frombuffer(body, np.uint8)[_COUNT_BYTES:-_MORE_BYTES])


def _check_count(count: int, nbytes: int) -> None:
    # The smallest entry is a key and a value of one byte each (SQL rows: one null).
    if not 0 <= count <= nbytes or (nbytes and not count):
        raise WireError(f"a page with {nbytes} bytes of entries cannot hold {count} of them")


def _more(body: memoryview) -> bool:
    if body[-1] > 1:
        raise WireError(f"page ends with byte {body[-1]}, expected a bool")
    return bool(body[-1])


def join_pages(pages: Sequence[Page], room: Callable[[int], NDArray[np.uint8]]) -> Page:
    """Join several pages into one; its `more` is that of the last page.

    Args:
        pages: The pages, one or more. A single one is returned as it is.
        room: Returns memory of a given size, uint8 `[nbytes]`; the entries are copied there.
    """
    if len(pages) == 1:
        return pages[0]
    import numpy as np  # not for a handshake

    data = room(sum(page.data.nbytes for page in pages))
    np.concatenate([page.data for page in pages], out=data)
    return Page(sum(page.count for page in pages), pages[-1].more, data)


def _int32(body: memoryview, at: int) -> int:
    if len(body) < at + 4:
        raise WireError(f"answer of {len(body)} bytes is cut")
    value: int = _LENGTH.unpack_from(body, at)[0]
    return value


def _int64(body: memoryview, at: int) -> int:
    if len(body) < at + 8:
        raise WireError(f"answer of {len(body)} bytes is cut")
    return int.from_bytes(body[at : at + 8], "little", signed=True)


_FIRST_WITH_FEATURES: Final = (1, 7, 0)
_FIRST_WITH_NODE_ID: Final = (1, 4, 0)
_HANDSHAKE: Final = 1
_THIN_CLIENT: Final = 2


@dataclass(frozen=True)
class Accepted:
    """The node accepts the connection.

    Attributes:
        features: The features that the node announces, including unknown ones.
        node_id: Id of the node; None if it does not report it.
    """

    features: Feature
    node_id: uuid.UUID | None


@dataclass(frozen=True)
class Refused:
    """The node refuses the connection.

    Attributes:
        version: The protocol version that it wants; zeros if it names none.
        message: Its message.
        status: The status code of the reason.
    """

    version: tuple[int, int, int]
    message: str
    status: int


def handshake_request(
    version: tuple[int, int, int], features: Feature, username: str | None, password: str | None
) -> bytes:
    """Return the first message of a connection, including its length.

    Args:
        version: The requested protocol version.
        features: The features of this side; sent from version 1.7 on.
        username: User name of the login; None or "" for no login.
        password: Password of that user.
    """
    body = struct.pack("<b3hb", _HANDSHAKE, *version, _THIN_CLIENT)
    if version >= _FIRST_WITH_FEATURES:
        body += encode_bytes(int(features).to_bytes(int(features).bit_length() // 8 + 1, "little"))
    if username:
        body += encode_string(username) + encode_string(password or "")
    return framed(body)


def read_handshake(answer: bytes, version: tuple[int, int, int]) -> Accepted | Refused:
    """Read the answer, without its length, to a handshake of the given protocol version.

    Raises:
        WireError: The answer is damaged.
    """
    with damaged("the handshake"):
        if answer[0] > 1:
            raise WireError(f"handshake answer begins with byte {answer[0]}")
        return _accepted(answer, version) if answer[0] else _refused(answer)


def _accepted(answer: bytes, version: tuple[int, int, int]) -> Accepted:
    at, features, node_id = 1, Feature(0), None
    if version >= _FIRST_WITH_FEATURES:
        code, data, at = sized_at(memoryview(answer), at)
        if code is TypeCode.STRING:
            raise WireError("damaged answer: a text instead of the features of a node")
        features = Feature(int.from_bytes(data, "little"))
    if version >= _FIRST_WITH_NODE_ID:
        if answer[at] not in (TypeCode.UUID, TypeCode.NULL):
            raise WireError(f"a value of type {answer[at]} instead of the id of a node")
        if answer[at] == TypeCode.UUID:
            node_id = uuid_at(answer, at + 1)
    return Accepted(features, node_id)


def _refused(answer: bytes) -> Refused:
    major, minor, patch = struct.unpack_from("<3h", answer, 1)
    message, at = string_at(memoryview(answer), 7)
    status = int_at(answer, at) if len(answer) >= at + 4 else Status.FAILED
    return Refused((major, minor, patch), message or "", status)
