"""Which node each partition is read from: the nearest one that has a whole copy of it.

client, balance -> **nearest** -> scan, entries

Every copy has the same entries in the same order, so what is read does not depend on the choice. A
node that was asked for a copy which it does not have any more asks the owner itself, so that a
choice which is out of date costs a detour and no row.

Hashing gives some nodes more primary copies than others. Where all nodes are equally near, and a
write waits for every copy, other copies are read so that all nodes have as many.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from ignitetf.errors import IgniteTFError
from ignitetf.net.client import Client
from ignitetf.net.places import PLACES
from ignitetf.read.balance import evened_out
from ignitetf.wire.cluster import NodeEndpoint, PartitionMap

__all__ = ["chosen_copies", "differ_in_distance", "nearest_nodes"]

log = logging.getLogger(__name__)

# Primary copies are read as they are if no node has more of them by the mean than this.
_MOST_UNEVEN: Final = 1.05
# Of each client and cache the version of the topology, and what was chosen for it.
_Known = dict[str, tuple[tuple[int, int], dict[int, uuid.UUID]]]
_EVENED: Final[WeakKeyDictionary[Client, _Known]] = WeakKeyDictionary()


def differ_in_distance(client: Client, nodes: Sequence[NodeEndpoint]) -> bool:
    """Return whether some of these nodes are nearer than others."""
    return len({client.place(node.node_id) for node in nodes}) > 1


def nearest_nodes(
    client: Client, cache: str, nodes: Sequence[NodeEndpoint], found: PartitionMap
) -> dict[int, uuid.UUID]:
    """Return the node to read each partition from.

    Args:
        client: The connection.
        cache: Name of the cache.
        nodes: The nodes of the cluster.
        found: The primary nodes of the partitions.

    Returns:
        Partitions that nobody has, or of which the cluster does not tell, are missing.
    """
    primaries = found.owners
    distance = {node.node_id: PLACES.index(client.place(node.node_id)) for node in nodes}
    if differ_in_distance(client, nodes):
        return _chosen(client, cache, primaries, distance)
    if not _is_uneven(primaries, len(nodes)):
        return primaries
    # One question for each version of the topology: a copy that is filled later is not missed.
    known = _EVENED.setdefault(client, {})
    if known.get(cache, (None,))[0] != found.version:
        all_equal = client.writes_every_copy(cache)
        nodes_of = _chosen(client, cache, primaries, distance) if all_equal else primaries
        known[cache] = found.version, nodes_of
    return known[cache][1]


def _is_uneven(primaries: Mapping[int, uuid.UUID], nodes: int) -> bool:
    most = max(Counter(primaries.values()).values(), default=0)
    return most > max(_MOST_UNEVEN * len(primaries) / nodes, -(-len(primaries) // nodes))


def _chosen(
    client: Client,
    cache: str,
    primaries: Mapping[int, uuid.UUID],
    distance: Mapping[uuid.UUID, int],
) -> dict[int, uuid.UUID]:
    try:
        copies = client.copies(cache)
    except IgniteTFError as error:
        log.warning("%s: its copies are not known, the primary ones are read: %s", cache, error)
        return dict(primaries)
    return chosen_copies(primaries, copies, distance)


def chosen_copies(
    primaries: Mapping[int, uuid.UUID],
    copies: Iterable[tuple[int, uuid.UUID]],
    distance: Mapping[uuid.UUID, int],
) -> dict[int, uuid.UUID]:
    """Choose the nearest copy of each partition.

    Among equally near ones all nodes get as many partitions as can be, and primary copies as far as
    that allows. So the choice is the same for all processes at one place.

    Args:
        primaries: The primary node of each partition.
        copies: Partitions, and nodes that have a whole copy.
        distance: How far each node of the cluster is; others are left out.
    """
    having: dict[int, set[uuid.UUID]] = {p: {node} for p, node in primaries.items()}
    for partition, node in copies:
        having.setdefault(partition, set()).add(node)
    near: dict[int, list[uuid.UUID]] = {}
    chosen: dict[int, uuid.UUID] = {}
    for partition in sorted(having):
        primary = primaries.get(partition)
        there = [node for node in having[partition] if node in distance]
        if there:
            least = min(distance[node] for node in there)
            near[partition] = sorted(node for node in there if distance[node] == least)
            is_near = primary in near[partition]
            chosen[partition] = primary if is_near and primary else near[partition][0]
    left = {p: node for p, node in primaries.items() if p not in near}
    return evened_out(near, chosen) | left
