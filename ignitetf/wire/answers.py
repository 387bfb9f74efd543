"""Reads answers that are not pages: numbers, texts, and what a cluster reports about itself.

frames -> **answers** -> values

`read_...` parses a whole answer and raises WireError if it is not as expected. `..._at` reads one
value at a position, for answers with several values (caches, nodes, owners of partitions). Call it
inside `damaged`, which converts the errors caused by damaged bytes to a WireError.

Source: Apache Ignite 2.17.0, `ClientLongResponse`, `ClientIntResponse`, `ClientBooleanResponse`,
`BinaryWriterExImpl` (strings, byte arrays, UUIDs), `ClientCachePartitionsResponse` (op 1101),
`ClientClusterGroupGetNodesEndpointsResponse` (op 5102).
"""

from __future__ import annotations

import contextlib
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ignitetf.errors import WireError
from ignitetf.wire.codes import TypeCode

__all__ = [
    "NodeEndpoint",
    "PartitionMap",
    "count_at",
    "damaged",
    "ends",
    "int_at",
    "pairs_at",
    "read_bool",
    "read_cache_names",
    "read_endpoints",
    "read_error",
    "read_int",
    "read_long",
    "read_partition_map",
    "read_sized",
    "sized_at",
    "string_at",
    "text_of",
    "uuid_at",
]


@contextlib.contextmanager
def damaged(what: str) -> Iterator[None]:
    """Convert errors that damaged bytes cause in the `with` block to a WireError."""
    try:
        yield
    except (struct.error, IndexError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise WireError(f"damaged answer: {what}") from error


def read_long(body: memoryview, what: str) -> int:
    """Read a 64-bit number: the answer to CACHE_GET_SIZE, or the id of a cursor."""
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
            raise IndexError(f"{len(body) - end} bytes after the object")
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
    """Raise an error unless the answer ends at `at`."""
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
        # Java encodes an unpaired surrogate as if it were a character.
        return bytes(data).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise WireError(f"damaged answer: a text is not UTF-8: {error.reason}") from error


def uuid_at(body: Any, at: int) -> uuid.UUID:
    """Read a UUID from its two little-endian longs."""
    high, low = struct.unpack_from("<QQ", body, at)
    return uuid.UUID(int=(high << 64) | low)


_MAX_PORT: Final = 65_535
_MAX_PARTITIONS: Final = 65_000  # as in `ignitetf.partitions`


@dataclass(frozen=True)
class NodeEndpoint:
    """A server node and the addresses of its thin client port."""

    node_id: uuid.UUID
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class PartitionMap:
    """The owner of each partition, at one version of the topology.

    Attributes:
        version: Affinity version (major, minor).
        count: Number of partitions of the cache.
        owners: Primary node by partition; a partition without an owner is missing. Empty for a
            cache whose affinity the thin client protocol does not expose.
    """

    version: tuple[int, int]
    count: int
    owners: dict[int, uuid.UUID]

    def owner(self, partition: int) -> uuid.UUID | None:
        """Return the node id of the partition's primary, or None if it is unknown."""
        return self.owners.get(partition)


def read_cache_names(body: memoryview) -> list[str]:
    """Parse the answer that lists all cache names."""
    names, at = [], 4
    for _ in range(count_at(body, 0)):
        name, at = string_at(body, at)
        names.append(name or "")
    ends(body, at)
    return names


def read_partition_map(body: memoryview) -> PartitionMap:
    """Parse the answer about one cache's partitions."""
    major, minor = struct.unpack_from("<qi", body, 0)
    at, owners = 16, dict[int, uuid.UUID]()
    for _ in range(count_at(body, 12)):
        applicable, caches = _flag_at(body, at), count_at(body, at + 1, 4)
        at += 5
        for _ in range(caches):
            at += 4
            if applicable:
                at += 4 + 8 * count_at(body, at, 8)  # keys
        if applicable:
            at = _read_owners(body, at, owners)
    ends(body, at)
    # Each partition has at most one owner, so the count follows from the highest number.
    if any(not 0 <= number < _MAX_PARTITIONS for number in owners):
        raise IndexError("a partition has an impossible number")
    return PartitionMap((major, minor), max(owners, default=-1) + 1, owners)


def _read_owners(body: memoryview, at: int, owners: dict[int, uuid.UUID]) -> int:
    """Add owners of partitions to `owners`; return the position after them."""
    nodes = count_at(body, at, 21)
    at += 4
    for _ in range(nodes):
        if body[at] != TypeCode.UUID:
            raise IndexError(f"a value of type {body[at]} instead of the id of a node")
        node, count = uuid_at(body, at + 1), count_at(body, at + 17, 4)
        at += 21
        owners |= dict.fromkeys(struct.unpack_from(f"<{count}i", body, at), node)
        at += 4 * count
    return at


def _flag_at(body: memoryview, at: int) -> bool:
    if body[at] > 1:
        raise IndexError(f"byte {body[at]} instead of a bool")
    return bool(body[at])


def read_endpoints(body: memoryview) -> list[NodeEndpoint]:
    """Parse the answer that lists the server nodes and their addresses."""
    at, found = 12, []
    for _ in range(count_at(body, 8, 24)):
        node, port, count = uuid_at(body, at), int_at(body, at + 16), count_at(body, at + 20)
        if not 0 <= port <= _MAX_PORT:
            raise IndexError(f"port {port}")
        at += 24
        hosts = []
        for _ in range(count):
            host, at = string_at(body, at)
            hosts.append(host or "")
        found.append(NodeEndpoint(node, tuple(_join_address(h, port) for h in hosts)))
    ends(body, at + 4 + 16 * count_at(body, at, 16))  # nodes that have left
    return found


def _join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
