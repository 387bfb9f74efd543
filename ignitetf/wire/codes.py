"""Op codes, type codes and flags of Ignite's thin client protocol.

Source: Apache Ignite 2.17.0, `ClientMessageParser` (op codes), `GridBinaryMarshaller` (type
codes), `BinaryUtils` (flags), `ClientStatus` (status codes), `ClientBitmaskFeature` (features).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable
from enum import IntEnum, IntFlag

__all__ = [
    "BinaryFlag",
    "Feature",
    "OpCode",
    "Status",
    "TypeCode",
    "java_hash",
    "java_hash_lower",
]


class OpCode(IntEnum):
    """Requests of the thin client protocol."""

    RESOURCE_CLOSE = 0
    CACHE_GET = 1000
    CACHE_PUT = 1001
    CACHE_PUT_IF_ABSENT = 1002
    CACHE_GET_ALL = 1003
    CACHE_PUT_ALL = 1004
    CACHE_GET_AND_PUT = 1005
    CACHE_GET_AND_REPLACE = 1006
    CACHE_GET_AND_REMOVE = 1007
    CACHE_GET_AND_PUT_IF_ABSENT = 1008
    CACHE_REPLACE = 1009
    CACHE_REPLACE_IF_EQUALS = 1010
    CACHE_CONTAINS_KEY = 1011
    CACHE_CONTAINS_KEYS = 1012
    CACHE_CLEAR = 1013
    CACHE_CLEAR_KEY = 1014
    CACHE_CLEAR_KEYS = 1015
    CACHE_REMOVE_KEY = 1016
    CACHE_REMOVE_IF_EQUALS = 1017
    CACHE_REMOVE_KEYS = 1018
    CACHE_REMOVE_ALL = 1019
    CACHE_GET_SIZE = 1020
    CACHE_GET_NAMES = 1050
    CACHE_CREATE_WITH_NAME = 1051
    CACHE_GET_OR_CREATE_WITH_NAME = 1052
    CACHE_CREATE_WITH_CONFIGURATION = 1053
    CACHE_GET_OR_CREATE_WITH_CONFIGURATION = 1054
    CACHE_GET_CONFIGURATION = 1055
    CACHE_DESTROY = 1056
    CACHE_PARTITIONS = 1101
    QUERY_SCAN = 2000
    QUERY_SCAN_PAGE = 2001
    QUERY_SQL_FIELDS = 2004
    QUERY_SQL_FIELDS_PAGE = 2005
    BINARY_TYPE_NAME_GET = 3000
    BINARY_TYPE_NAME_PUT = 3001
    BINARY_TYPE_GET = 3002
    BINARY_TYPE_PUT = 3003
    TX_START = 4000
    TX_END = 4001
    CLUSTER_GET_STATE = 5000
    CLUSTER_CHANGE_STATE = 5001
    CLUSTER_GROUP_NODE_ENDPOINTS = 5102


class TypeCode(IntEnum):
    """The first byte of every object."""

    BYTE = 1
    SHORT = 2
    INT = 3
    LONG = 4
    FLOAT = 5
    DOUBLE = 6
    CHAR = 7
    BOOL = 8
    STRING = 9
    UUID = 10
    DATE = 11
    BYTE_ARRAY = 12
    SHORT_ARRAY = 13
    INT_ARRAY = 14
    LONG_ARRAY = 15
    FLOAT_ARRAY = 16
    DOUBLE_ARRAY = 17
    CHAR_ARRAY = 18
    BOOL_ARRAY = 19
    STRING_ARRAY = 20
    UUID_ARRAY = 21
    DATE_ARRAY = 22
    OBJECT_ARRAY = 23
    COLLECTION = 24
    MAP = 25
    WRAPPED = 27
    ENUM = 28
    ENUM_ARRAY = 29
    DECIMAL = 30
    DECIMAL_ARRAY = 31
    CLASS = 32
    TIMESTAMP = 33
    TIMESTAMP_ARRAY = 34
    PROXY = 35
    TIME = 36
    TIME_ARRAY = 37
    BINARY_ENUM = 38
    NULL = 101
    HANDLE = 102
    OBJECT = 103
    OPTIMIZED = 254


class BinaryFlag(IntFlag):
    """Flags in the header of a binary object (int16)."""

    USER_TYPE = 0x0001
    HAS_SCHEMA = 0x0002
    HAS_RAW = 0x0004
    OFFSET_ONE_BYTE = 0x0008
    OFFSET_TWO_BYTES = 0x0010
    COMPACT_FOOTER = 0x0020


class Feature(IntFlag):
    """Feature bits that both sides announce in the handshake, from protocol 1.7 on."""

    CLUSTER_STATES = 1 << 2
    CLUSTER_GROUP_GET_NODES_ENDPOINTS = 1 << 3
    QUERY_PARTITIONS_BATCH_SIZE = 1 << 7


class Status(IntEnum):
    """Status codes; nearly all failures are FAILED and differ only in the Java class they name."""

    SUCCESS = 0
    FAILED = 1
    INVALID_OP_CODE = 2
    INVALID_NODE_STATE = 10
    NODE_IN_RECOVERY = 11
    CACHE_DOES_NOT_EXIST = 1000
    CACHE_EXISTS = 1001
    CACHE_CONFIG_INVALID = 1002
    TOO_MANY_CURSORS = 1010
    RESOURCE_DOES_NOT_EXIST = 1011
    AUTHORIZATION_FAILURE = 1012
    AUTH_FAILED = 2000


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, over UTF-16 units; a cache's id is the hash of its name.

    Returns:
        A signed 32-bit number.
    """
    return _hash(_units(text))


@functools.lru_cache(maxsize=1024)
def java_hash_lower(text: str) -> int:
    """Return the id of a binary type or field: the hash of its lower-case name.

    As in `BinaryBasicIdMapper`, each UTF-16 unit is lowered on its own: a final sigma is treated
    like any other, letters beyond the basic plane stay, and a capital I with a dot becomes one
    letter.
    """
    return _hash([_lower(unit) for unit in _units(text)])


def _units(text: str) -> list[int]:
    data = text.encode("utf-16-le", "surrogatepass")
    return list(struct.unpack(f"<{len(data) // 2}H", data))


def _lower(unit: int) -> int:
    """`Character.toLowerCase` of Java."""
    # Python lowers only the capital I with a dot to two letters.
    return ord(chr(unit).lower()[0])


def _hash(units: Iterable[int]) -> int:
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
