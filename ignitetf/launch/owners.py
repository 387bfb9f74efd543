"""Which Ignite node each worker of a job should run beside: the one with most of its rows.

data set, workers -> **owners** -> placement
"""

from __future__ import annotations

from collections import Counter

from ignitetf import Client
from ignitetf.explore.cluster import find_data_set
from ignitetf.settings import Settings

__all__ = ["owners_of"]


def owners_of(settings: Settings, data: str | None, workers: int) -> list[str | None]:
    """Return `HOST:PORT` of a node for each worker; None where nothing is known.

    Nodes get workers in proportion to their partitions; a node that is nearest to none is left out.

    Args:
        settings: How to connect.
        data: Name of the data set; None if it was not named.
        workers: Number of workers.
    """
    if data is None:
        return [None] * workers
    with Client(settings) as client:
        cache, _ = find_data_set(client, data)
        owners = client.partition_map(cache).owners
        addresses = {node.node_id: node.addresses for node in client.nodes()}
    # The largest remainder: each worker goes where most partitions are left for one.
    partitions = Counter(owners.values())
    given: Counter[object] = Counter()
    found: list[str | None] = []
    for _ in range(workers):
        node = max(sorted(partitions), key=lambda n: partitions[n] / (given[n] + 1), default=None)
        given[node] += 1
        known = addresses.get(node, ()) if node is not None else ()
        found.append(known[0] if known else None)
    return found
