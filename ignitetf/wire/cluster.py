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

from ignitetf.wire.answers import int_at, string_at, uuid_at

__all__ = [
    "NodeEndpoint",
    "PartitionMap",
    "read_cache_names",
    "read_endpoints",
    "read_partition_map",
]


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
    for _ in range(int_at(body, 0)):
        name, at = string_at(body, at, errors="replace")
        names.append(name or "")
    return names


def read_partition_map(body: memoryview) -> PartitionMap:
    """Parse the answer about one cache's partitions."""
    major, minor, groups = struct.unpack_from("<qii", body, 0)
    at, owners = 16, {}
    for _ in range(groups):
        applicable, caches = struct.unpack_from("<bi", body, at)
        at += 5
        for _ in range(caches):
            at += 4
            if applicable:
                at += 4 + 8 * int_at(body, at)  # keys
        if not applicable:
            continue
        nodes = int_at(body, at)
        at += 4
        for _ in range(nodes):
            node = uuid_at(body, at + 1)
            count = int_at(body, at + 17)
            at += 21
            for partition in struct.unpack_from(f"<{count}i", body, at):
                owners[partition] = node
            at += 4 * count
    return PartitionMap((major, minor), max(owners, default=-1) + 1, owners)


def read_endpoints(body: memoryview) -> list[NodeEndpoint]:
    """Parse the answer that lists the server nodes and their addresses."""
    _, added = struct.unpack_from("<qi", body, 0)
    at, found = 12, []
    for _ in range(added):
        node = uuid_at(body, at)
        port, count = struct.unpack_from("<ii", body, at + 16)
        at += 24
        hosts = []
        for _ in range(count):
            host, at = string_at(body, at, errors="replace")
            hosts.append(host or "")
        found.append(NodeEndpoint(node, tuple(_join_address(h, port) for h in hosts)))
    return found


def _join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
