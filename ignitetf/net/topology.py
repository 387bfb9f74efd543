"""The nodes of a cluster, and which of them each partition is read from.

client, places -> **topology** -> reading

Every copy has the same entries in the same order, so what is read does not depend on the choice. A
node that no longer has a copy forwards the request to the owner, so an outdated choice costs a
detour and no row. Answers are cached until the cluster tells another version of its topology.

Hashing gives some nodes more primary copies than others. Where all nodes are equally near, and a
write waits for every copy, other copies are read so that all nodes have as many. The choice depends
on the copies alone, so that all processes make the same one.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from ignitetf.errors import IgniteTFError
from ignitetf.net.client import Client
from ignitetf.net.places import PLACES
from ignitetf.wire.cluster import NodeEndpoint, PartitionMap

__all__ = ["chosen_copies", "nearest_nodes", "owners_of"]

log = logging.getLogger(__name__)

# Primary copies are read as they are if no node has more of them by the mean than this.
_MOST_UNEVEN: Final = 1.05


@dataclass(frozen=True)
class _Known:
    """What the cluster answered about a cache.

    Attributes:
        version: Of the topology then; None if the answer is not to be used again.
        primaries: The primary node of each partition.
        nearest: The node to read each partition from.
    """

    version: tuple[int, int] | None
    primaries: Mapping[int, uuid.UUID]
    nearest: Mapping[int, uuid.UUID]


_KNOWN: Final[WeakKeyDictionary[Client, dict[str, _Known]]] = WeakKeyDictionary()


def owners_of(
    client: Client, cache: str, *, primary: bool = False, refresh: bool = False
) -> Mapping[int, uuid.UUID]:
    """Return the node to read each partition from; empty if it makes no difference.

    Args:
        client: The connection.
        cache: Name of the cache.
        primary: Whether only the primary node of a partition answers, as for SQL.
        refresh: Ignore the cached answer, because reading from one of its nodes failed.
    """
    known = _KNOWN.setdefault(client, {})
    found = known.get(cache)
    if refresh or found is None or found.version is None or found.version != client.told_topology:
        found = known[cache] = _requested(client, cache)
    return found.primaries if primary else found.nearest


def _requested(client: Client, cache: str) -> _Known:
    nodes = client.nodes() if client.nodes_are_old else client.known_nodes
    if len(nodes) < 2:
        return _Known(client.told_topology, {}, {})
    found = client.partition_map(cache)
    nearest, is_settled = nearest_nodes(client, cache, nodes, found)
    return _Known(client.told_topology if is_settled else None, found.owners, nearest)


def nearest_nodes(
    client: Client, cache: str, nodes: Sequence[NodeEndpoint], found: PartitionMap
) -> tuple[dict[int, uuid.UUID], bool]:
    """Return the node to read each partition from, and whether that can stay so.

    Args:
        client: The connection.
        cache: Name of the cache.
        nodes: The nodes of the cluster.
        found: The primary nodes of the partitions.

    Returns:
        Partitions that nobody has, or of which the cluster does not tell, are missing. It cannot
        stay so while copies are being filled, or the cluster does not tell.
    """
    primaries = found.owners
    distance = {node.node_id: PLACES.index(client.place(node.node_id)) for node in nodes}
    are_equally_near = len(set(distance.values())) < 2
    if are_equally_near and not (
        _is_uneven(primaries, len(nodes)) and client.writes_every_copy(cache)
    ):
        return primaries, True
    return _chosen(client, cache, primaries, distance)


def _is_uneven(primaries: Mapping[int, uuid.UUID], nodes: int) -> bool:
    most = max(Counter(primaries.values()).values(), default=0)
    return most > max(_MOST_UNEVEN * len(primaries) / nodes, -(-len(primaries) // nodes))


def _chosen(
    client: Client,
    cache: str,
    primaries: Mapping[int, uuid.UUID],
    distance: Mapping[uuid.UUID, int],
) -> tuple[dict[int, uuid.UUID], bool]:
    try:
        copies, moving = client.copies(cache)
    except IgniteTFError as error:
        log.warning("%s: its copies are not known, the primary ones are read: %s", cache, error)
        return dict(primaries), False
    return chosen_copies(primaries, copies, distance), not moving


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
    return _evened_out(near, chosen) | left


def _evened_out(
    copies: Mapping[int, Sequence[uuid.UUID]], chosen: Mapping[int, uuid.UUID]
) -> dict[int, uuid.UUID]:
    """Return a choice in which no node could pass a partition to one that has two fewer.

    A node passes a partition to another one that has a copy of it, which may pass on another one
    in turn. So the busiest node has as few as the copies allow.

    Args:
        copies: The nodes to choose from, by partition.
        chosen: The node of each partition to begin with; as many as can be stay.
    """
    nodes = _Nodes(copies, chosen)
    left = nodes.all
    while left:
        busiest = max(left, key=lambda node: (nodes.count[node], node))
        # Whoever can be reached in vain has as few as can be: it stays out of what follows.
        left -= nodes.relieve(busiest)
    return nodes.chosen


class _Nodes:
    """The partitions of each node, and to which others it could pass them."""

    def __init__(
        self, copies: Mapping[int, Sequence[uuid.UUID]], chosen: Mapping[int, uuid.UUID]
    ) -> None:
        self.chosen = dict(chosen)
        self._copies = copies
        self.all = {node for nodes in copies.values() for node in nodes}
        self.count = dict.fromkeys(self.all, 0)
        self._passing: dict[uuid.UUID, dict[uuid.UUID, set[int]]] = defaultdict(dict)
        for partition, node in chosen.items():
            self._add(partition, node)

    def relieve(self, node: uuid.UUID) -> set[uuid.UUID]:
        """Pass on a partition of a node, along a shortest way.

        Returns:
            All nodes that it could pass some to, if none has so few that it helps; else no node.
        """
        before: dict[uuid.UUID, uuid.UUID] = {node: node}
        waiting = deque([node])
        while waiting:
            here = waiting.popleft()
            if self.count[here] <= self.count[node] - 2:
                self._pass_along(before, here)
                return set()
            for there, partitions in self._passing[here].items():
                if partitions and there not in before:
                    before[there] = here
                    waiting.append(there)
        return set(before)

    def _pass_along(self, before: Mapping[uuid.UUID, uuid.UUID], last: uuid.UUID) -> None:
        while (giver := before[last]) != last:
            partition = min(self._passing[giver][last])
            self._remove(partition, giver)
            self._add(partition, last)
            last = giver

    def _add(self, partition: int, node: uuid.UUID) -> None:
        self.chosen[partition] = node
        self.count[node] += 1
        for other in self._copies.get(partition, ()):
            if other != node:
                self._passing[node].setdefault(other, set()).add(partition)

    def _remove(self, partition: int, node: uuid.UUID) -> None:
        self.count[node] -= 1
        for other in self._copies.get(partition, ()):
            if other != node:
                self._passing[node][other].discard(partition)
