"""The nodes of the cluster: memory of data and of Java, load, traffic.

SYS.NODES, SYS.NODE_METRICS, SYS.METRICS of each node -> **nodes** -> page
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ignitetf import Client
from ignitetf.explore.cluster import regions_of

__all__ = ["NodeView", "Region", "node_views"]

# The node's internal regions.
_INTERNAL: Final = ("sysMemPlc", "TxLog", "volatileDsMemPlc", "metastoreMemPlc")


@dataclass(frozen=True)
class Region:
    """A data region: bytes in use, and their maximum."""

    name: str
    used: int
    most: int


@dataclass(frozen=True)
class NodeView:
    """A node.

    Attributes:
        name: Its name in the cluster, unchanged by a restart.
        addresses: Its addresses.
        version: Version of Ignite.
        regions: Its data regions; None if it did not answer.
        heap_used: Bytes of Java's heap in use.
        heap_most: Maximum size of Java's heap in bytes.
        other: Bytes of Java outside the heap.
        cpu: Share of its processors in use.
        processors: Number of its processors.
        threads: Number of its threads.
        up_s: Seconds since it was started.
        sent: Bytes sent to other nodes.
        received: Bytes received from other nodes.
    """

    name: str
    addresses: str
    version: str
    regions: Sequence[Region] | None
    heap_used: int
    heap_most: int
    other: int
    cpu: float
    processors: int
    threads: int
    up_s: float
    sent: int
    received: int


def node_views(client: Client) -> list[NodeView]:
    """Return the server nodes, the oldest first."""
    places = {node.node_id: node.addresses for node in client.nodes()}
    measured = {row[0]: row for row in client.about("node_metrics")}
    return [
        _view(name, places.get(node, ()), version, _regions(client, node), measured.get(node))
        for node, name, _, version, _ in client.about("nodes")
    ]


def _regions(client: Client, node: uuid.UUID) -> list[Region] | None:
    sizes = regions_of(client, node)
    if sizes is None:
        return None
    return [
        Region(name, used, most)
        for name, (used, most) in sorted(sizes.items())
        if most and name not in _INTERNAL
    ]


def _view(
    name: str,
    addresses: Sequence[str],
    version: str,
    regions: list[Region] | None,
    row: Sequence[Any] | None,
) -> NodeView:
    _, heap, heap_most, other, cpu, processors, threads, up_ms, sent, received = row or (0,) * 10
    return NodeView(
        str(name), ", ".join(addresses), str(version).partition("#")[0], regions, heap, heap_most,
        other, cpu, processors, threads, up_ms / 1000, sent, received,
    )  # fmt: skip
