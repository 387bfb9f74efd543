"""The nodes of a cluster: how near they are, which copy is read, how much heap a scan takes.

client -> **topology** -> flow, reading

Every copy has the same entries in the same order, so the choice does not change what is read. A
node that no longer has a copy forwards the request to the owner, so an outdated choice costs a
detour but no row. Answers are cached until the cluster reports another version of its topology.

Hashing gives some nodes more primary copies than others. If all nodes are equally near and a write
waits for every copy, backup copies are read too, so that all nodes serve equally many partitions.
The choice depends on the copies alone, so that all processes make the same one.

A node builds each page in its heap. Before it answers a scan, it also copies all rows of an index
leaf there. Its heap is often 1 GB (Ignite's own default); if it is full, the node answers "Java
heap space".
"""

from __future__ import annotations

import functools
import logging
import socket
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple
from weakref import WeakKeyDictionary

from ignitetf.errors import IgniteTFError, SqlError
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client
from ignitetf.settings import DATA_CENTER, is_loopback, split_address
from ignitetf.sql import statement
from ignitetf.wire.answers import NodeEndpoint, PartitionMap

__all__ = [
    "LEAF_ROWS",
    "Origin",
    "Place",
    "chosen_copies",
    "nearest_nodes",
    "origin_of",
    "owners_of",
    "place_of",
    "scan_bytes",
    "scans_at_once",
]

# From near to far.
Place = Literal["host", "data_center", "elsewhere"]
_PLACES: Final[tuple[Place, ...]] = ("host", "data_center", "elsewhere")


class Origin(NamedTuple):
    """The node that data was read from.

    Attributes:
        node: Address of the node.
        place: Its distance.
    """

    node: str
    place: Place


def place_of(addresses: Sequence[str], data_center: str | None, own: str | None) -> Place:
    """Return how near a node is.

    Args:
        addresses: The node's addresses.
        data_center: Its data center, if it has one and ours is known.
        own: Our data center; None if it is not known.
    """
    # One host has one data center. If they differ, the address belongs to a tunnel or a container.
    if own is not None and data_center not in (None, own):
        return "elsewhere"
    if _is_on_own_host(addresses):
        return "host"
    return "data_center" if own is not None and data_center == own else "elsewhere"


def _is_on_own_host(addresses: Sequence[str]) -> bool:
    """Return whether a node with these addresses runs on this machine.

    A node lists the addresses of all interfaces that it listens on, so a node on another machine
    has at least one address that is not ours. Loopback addresses, which every machine has, count
    only if there are no others.
    """
    if is_loopback(addresses):
        return bool(addresses)
    hosts = [split_address(a)[0].partition("%")[0] for a in addresses if not is_loopback([a])]
    return set(hosts) <= _own_addresses()


@functools.cache
def _own_addresses() -> frozenset[str]:
    """Return the names and addresses of this machine."""
    import psutil

    found = {
        address.address.partition("%")[0]
        for every in psutil.net_if_addrs().values()
        for address in every
    }
    return frozenset({*found, socket.gethostname()})


log = logging.getLogger(__name__)

# Primary copies are read unless some node has more than this many times the mean number of them.
_MOST_UNEVEN: Final = 1.05


@dataclass(frozen=True)
class _Known:
    """The cached answer of the cluster about a cache.

    Attributes:
        version: Version of the topology at that time; None if the answer must not be reused.
        primaries: The primary node of each partition.
        nearest: The node to read each partition from.
    """

    version: tuple[int, int] | None
    primaries: Mapping[int, uuid.UUID]
    nearest: Mapping[int, uuid.UUID]


@dataclass
class _Cluster:
    """Cached answers of a cluster to one client: about each cache, and how near each node is."""

    caches: dict[str, _Known] = field(default_factory=dict)
    places: dict[uuid.UUID, Place] = field(default_factory=dict)


_CLUSTERS: Final[WeakKeyDictionary[Client, _Cluster]] = WeakKeyDictionary()


def _cluster(client: Client) -> _Cluster:
    return _CLUSTERS.setdefault(client, _Cluster())


def place_of_node(client: Client, node: uuid.UUID) -> Place:
    """Return how near a node is; requests data centers only if our own is known."""
    places = _cluster(client).places
    if (known := places.get(node)) is not None:
        return known
    own, centers = client.settings.data_center, dict[uuid.UUID, str]()
    if own is None:
        addresses = client.addresses_of(node)
        found = place_of(addresses, None, None)
        if addresses:
            places[node] = found
        return found
    try:
        nodes = {node, *(each.node_id for each in client.nodes())}
        centers = dict(client.sql(statement("data_centers"), (DATA_CENTER,)).fetchall())
    except IgniteTFError as error:
        log.warning("cannot find out how near the nodes are: %s", error)
        nodes = {node}
    for each in nodes:
        places[each] = place_of(client.addresses_of(each), centers.get(each), own)
    return places[node]


def origin_of(client: Client, channel: Channel) -> Origin:
    """Return the node that a connection leads to, and how near it is."""
    node = channel.node_id
    if node is None:  # the cluster is too old to report it
        return Origin(channel.address, "elsewhere")
    return Origin(channel.address, place_of_node(client, node))


def owners_of(
    client: Client, cache: str, *, primary: bool = False, refresh: bool = False
) -> Mapping[int, uuid.UUID]:
    """Return the node to read each partition from; empty if it makes no difference.

    Args:
        client: The connection.
        cache: Name of the cache.
        primary: True if only the primary node of a partition answers, as for SQL.
        refresh: Ignore the cached answer, because reading from one of its nodes failed.
    """
    known = _cluster(client).caches
    found = known.get(cache)
    if (
        refresh
        or found is None
        or found.version is None
        or found.version != client.reported_topology
    ):
        found = known[cache] = _requested(client, cache)
    return found.primaries if primary else found.nearest


def _requested(client: Client, cache: str) -> _Known:
    nodes = client.nodes() if client.nodes_are_old else client.known_nodes
    if len(nodes) < 2:
        return _Known(client.reported_topology, {}, {})
    found = client.partition_map(cache)
    nearest, is_settled = nearest_nodes(client, cache, nodes, found)
    return _Known(client.reported_topology if is_settled else None, found.owners, nearest)


def nearest_nodes(
    client: Client, cache: str, nodes: Sequence[NodeEndpoint], found: PartitionMap
) -> tuple[dict[int, uuid.UUID], bool]:
    """Return the node to read each partition from, and whether the choice may be cached.

    Args:
        client: The connection.
        cache: Name of the cache.
        nodes: The nodes of the cluster.
        found: The primary nodes of the partitions.

    Returns:
        Partitions without a known node are missing. The choice must not be cached while copies are
        being filled, or if the cluster does not report its copies.
    """
    primaries = found.owners
    distance = {node.node_id: _PLACES.index(place_of_node(client, node.node_id)) for node in nodes}
    are_equally_near = len(set(distance.values())) < 2
    if are_equally_near and not (
        _is_uneven(primaries, len(nodes)) and _writes_every_copy(client, cache)
    ):
        return primaries, True
    return _chosen(client, cache, primaries, distance)


def _writes_every_copy(client: Client, cache: str) -> bool:
    """Return whether a write to a cache is acknowledged only when all copies have it."""
    query = "SELECT WRITE_SYNCHRONIZATION_MODE FROM SYS.CACHES WHERE CACHE_NAME = ?"
    try:
        rows = client.sql(query, (cache,)).fetchall()
    except SqlError:
        return False
    return bool(rows) and rows[0][0] == "FULL_SYNC"


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
        log.warning("%s: its copies are unknown, so primary copies are read: %s", cache, error)
        return dict(primaries), False
    return chosen_copies(primaries, copies, distance), not moving


def chosen_copies(
    primaries: Mapping[int, uuid.UUID],
    copies: Iterable[tuple[int, uuid.UUID]],
    distance: Mapping[uuid.UUID, int],
) -> dict[int, uuid.UUID]:
    """Choose the nearest copy of each partition.

    Among equally near nodes the partitions are spread as evenly as the copies allow, and primary
    copies are preferred as far as that allows. All processes at one place make the same choice.

    Args:
        primaries: The primary node of each partition.
        copies: Partitions, and nodes that have a whole copy.
        distance: The distance of each node of the cluster; copies on other nodes are ignored.
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
    return _balanced(near, chosen) | left


def _balanced(
    copies: Mapping[int, Sequence[uuid.UUID]], chosen: Mapping[int, uuid.UUID]
) -> dict[int, uuid.UUID]:
    """Return a choice in which no node could pass a partition to a node with two fewer.

    A node can pass a partition to another node that has a copy of it, and that node may pass one
    of its own to a third. So the busiest node gets as few partitions as the copies allow.

    Args:
        copies: The nodes to choose from, by partition.
        chosen: The initial node of each partition; as few as possible are changed.
    """
    nodes = _Nodes(copies, chosen)
    left = nodes.all
    while left:
        busiest = max(left, key=lambda node: (nodes.count[node], node))
        # None of the returned nodes can be relieved further, so they are left out from here on.
        left -= nodes.relieve(busiest)
    return nodes.chosen


class _Nodes:
    """The partitions of each node, and the other nodes to which it could pass them."""

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
        """Pass on one partition of a node, along a shortest chain of nodes.

        Returns:
            An empty set if that worked. Otherwise all nodes that chains reach; none of them has two
            partitions fewer than `node`, so passing one on would not help.
        """
        before: dict[uuid.UUID, uuid.UUID] = {node: node}
        waiting = deque([node])
        while waiting:
            here = waiting.popleft()
            if self.count[here] <= self.count[node] - 2:
                self._move_partitions(before, here)
                return set()
            for there, partitions in self._passing[here].items():
                if partitions and there not in before:
                    before[there] = here
                    waiting.append(there)
        return set(before)

    def _move_partitions(self, before: Mapping[uuid.UUID, uuid.UUID], last: uuid.UUID) -> None:
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


# Rows in a leaf of the index, which has an item of 12 bytes for each row.
LEAF_ROWS: Final = 336
# Bytes of rows that the scans of one reader may occupy in a node's heap; it serves other readers
# too.
_ROWS_BYTES: Final = 128 << 20


def scan_bytes(row_bytes: float, partition_rows: float) -> float:
    """Return the bytes of rows that a node copies into its heap for a scan of a partition."""
    return row_bytes * min(LEAF_ROWS, partition_rows)


def scans_at_once(scan: float) -> int:
    """Return how many scans, of `scan` bytes each, may be open on a node."""
    return int(_ROWS_BYTES // max(1.0, scan))
