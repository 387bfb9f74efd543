"""The handshake, the first message of a connection, and its answer.

version, features, login -> **handshake** -> bytes; bytes -> **handshake** -> `Accepted`, `Refused`

Source: Apache Ignite 2.17.0, `ClientListenerNioListener`; IEP-9, IEP-23.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import Final

from ignitetf.errors import WireError
from ignitetf.wire.answers import damaged, int_at, sized_at, string_at, uuid_at
from ignitetf.wire.codes import Feature, Status, TypeCode
from ignitetf.wire.frames import framed
from ignitetf.wire.parameters import encode_bytes, encode_string

__all__ = ["Accepted", "Refused", "handshake_request", "read_handshake"]

_FIRST_WITH_FEATURES: Final = (1, 7, 0)
_FIRST_WITH_NODE_ID: Final = (1, 4, 0)
_HANDSHAKE: Final = 1
_THIN_CLIENT: Final = 2


@dataclass(frozen=True)
class Accepted:
    """The node takes the connection.

    Attributes:
        features: What the node announces, including what this side does not know.
        node_id: Id of the node; None if it does not tell.
    """

    features: Feature
    node_id: uuid.UUID | None


@dataclass(frozen=True)
class Refused:
    """The node does not take the connection.

    Attributes:
        version: The protocol version that it wants; zeros if it names none.
        message: What it says.
        status: Its reason.
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
        username: User name of the login; None or "" for none.
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
        WireError: It is damaged.
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
