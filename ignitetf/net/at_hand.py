"""What the cluster said last about its nodes and partitions, for who need not know it exactly.

client, distance -> **at hand** -> read

Where partitions are may be out of date at no other cost than a detour. So on a distant link nobody
waits for it: the last answer will do, and a newer one is asked for meanwhile. On a near link, where
asking takes less than a detour, it is asked for each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

from ignitetf.net.client import Client
from ignitetf.net.distance import bytes_ahead
from ignitetf.net.together import begin_ahead
from ignitetf.wire.cluster import NodeEndpoint, PartitionMap

__all__ = ["keep_nodes", "nodes_at_hand", "partitions_at_hand"]

T = TypeVar("T")

# An answer that is older is asked for anew, and one that is as new as this not at all.
_KEPT_S: Final = 60.0
_NEW_S: Final = 1.0
_NODES: Final = "nodes"


def nodes_at_hand(client: Client, *, anew: bool = False) -> Sequence[NodeEndpoint]:
    """Return the server nodes, as `Client.nodes`.

    Args:
        client: The connection.
        anew: Whether only an answer of now will do.
    """
    return _at_hand(client, _NODES, client.nodes, anew=anew)


def keep_nodes(client: Client, nodes: Sequence[NodeEndpoint]) -> None:
    """Keep a list of the nodes that came with something else."""
    _keep(client, _NODES, nodes)


def partitions_at_hand(client: Client, cache: str, *, anew: bool = False) -> PartitionMap:
    """Return the primary node of each partition of a cache, as `Client.partition_map`.

    Args:
        client: The connection.
        cache: Name of the cache.
        anew: Whether only an answer of now will do.
    """
    return _at_hand(client, ("partitions", cache), lambda: client.partition_map(cache), anew=anew)


def _at_hand(client: Client, what: Hashable, ask: Callable[[], T], *, anew: bool) -> T:
    if anew or (known := client.at_hand.get(what)) is None or not bytes_ahead(client):
        return _asked(client, what, ask)
    when, found = known
    age_s = time.monotonic() - when
    if age_s > _KEPT_S:
        return _asked(client, what, ask)
    if age_s > _NEW_S:
        begin_ahead(client, lambda: _asked(client, what, ask))
    last: T = found
    return last


def _asked(client: Client, what: Hashable, ask: Callable[[], T]) -> T:
    found = ask()
    _keep(client, what, found)
    return found


def _keep(client: Client, what: Hashable, found: object) -> None:
    if not bytes_ahead(client):
        return
    now = time.monotonic()
    for old, (when, _) in list(client.at_hand.items()):
        if now - when > _KEPT_S:
            client.at_hand.pop(old, None)
    client.at_hand[what] = now, found
