"""Reads what a cluster reports about itself: its caches, nodes and partition owners.

frames -> **cluster** -> values

Damaged bytes raise errors that `wire.answers.damaged` turns into a WireError.

Source: Apache Ignite 2.17.0, `ClientCachePartitionsResponse` (op 1101),
`ClientClusterGroupGetNodesEndpointsResponse` (op 5102).
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import Final

from ignitetf.wire.answers import count_at, ends, int_at, string_at, uuid_at
from ignitetf.wire.codes import TypeCode

__all__ = [
    "NodeEndpoint",
    "PartitionMap",
    "read_cache_names",
    "read_endpoints",
    "read_partition_map",
]

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
    # Each has one owner: there are as many as the highest number says, or fewer.
    if any(not 0 <= number < _MAX_PARTITIONS for number in owners):
        raise IndexError("a partition has an impossible number")
    return PartitionMap((major, minor), max(owners, default=-1) + 1, owners)


def _read_owners(body: memoryview, at: int, owners: dict[int, uuid.UUID]) -> int:
    """Add the owners of partitions; returns the position after them."""
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
