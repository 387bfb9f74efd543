"""Which node each partition is read from: the nearest one that has a whole copy of it.

client -> **nearest** -> scan, entries

Every copy has the same entries in the same order, so what is read does not depend on the choice. A
node that was asked for a copy which it does not have any more asks the owner itself, so that a
choice which is out of date costs a detour and no row.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ignitetf.errors import IgniteTFError
from ignitetf.net.client import Client
from ignitetf.net.places import PLACES
from ignitetf.wire.cluster import NodeEndpoint

__all__ = ["chosen_copies", "differ_in_distance", "nearest_nodes"]

log = logging.getLogger(__name__)


def differ_in_distance(client: Client, nodes: Sequence[NodeEndpoint]) -> bool:
    """Return whether some of these nodes are nearer than others."""
    return len({client.place(node.node_id) for node in nodes}) > 1


def nearest_nodes(
    client: Client, cache: str, nodes: Sequence[NodeEndpoint]
) -> dict[int, uuid.UUID]:
    """Return the node to read each partition from; the primary if all nodes are equally near.

    Args:
        client: The connection.
        cache: Name of the cache.
        nodes: The nodes of the cluster.

    Returns:
        Partitions that nobody has, or of which the cluster does not tell, are missing.
    """
    primaries = client.partition_map(cache).owners
    if not differ_in_distance(client, nodes):
        return primaries
    try:
        copies = client.copies(cache)
    except IgniteTFError as error:
        log.warning("%s: its copies are not known, the primary ones are read: %s", cache, error)
        return primaries
    distance = {node.node_id: PLACES.index(client.place(node.node_id)) for node in nodes}
    return chosen_copies(primaries, copies, distance)


def chosen_copies(
    primaries: Mapping[int, uuid.UUID],
    copies: Iterable[tuple[int, uuid.UUID]],
    distance: Mapping[uuid.UUID, int],
) -> dict[int, uuid.UUID]:
    """Choose the nearest copy of each partition.

    Of equally near ones the node is taken that has the fewest partitions so far; then the primary;
    then the one with the lowest id. So the choice is the same for all processes at one place.

    Args:
        primaries: The primary node of each partition.
        copies: Partitions, and nodes that have a whole copy.
        distance: How far each node of the cluster is; others are left out.
    """
    having: dict[int, set[uuid.UUID]] = {p: {node} for p, node in primaries.items()}
    for partition, node in copies:
        having.setdefault(partition, set()).add(node)
    chosen: dict[int, uuid.UUID] = {}
    load: Counter[uuid.UUID] = Counter()
    for partition in sorted(having):
        primary = primaries.get(partition)
        there = [node for node in having[partition] if node in distance]
        if there:
            best = min(there, key=lambda n: (distance[n], load[n], n != primary, n))
            chosen[partition] = best
            load[best] += 1
        elif primary is not None:
            chosen[partition] = primary
    return chosen
