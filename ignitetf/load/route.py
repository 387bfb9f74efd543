"""Sends rows to the nodes that own their keys.

A node forwards a row that another node owns, which costs it time and the network a second transfer.
The route is only a hint: if a node has left since, its rows still arrive.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from typing import Final

import numpy as np

from ignitetf.net.client import Client
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.columns import Batch
from ignitetf.wire.datatypes import INTEGERS
from ignitetf.wire.schema import Schema

__all__ = ["Route", "find_route"]

# Each node needs a connection and a thread here; with more nodes, rows go to any of them.
_MAX_NODES: Final = 8


class Route:
    """Chooses one of several nodes for each row.

    Attributes:
        nodes: The nodes.
    """

    def __init__(self, schema: Schema, nodes: list[uuid.UUID], owners: list[uuid.UUID]) -> None:
        self.schema, self.nodes = schema, nodes
        places = {node: place for place, node in enumerate(nodes)}
        self._places = np.array([places[owner] for owner in owners], np.int64)
        self._turns = itertools.cycle(range(len(nodes)))

    def split(self, rows: Batch) -> list[tuple[int, Batch]]:
        """Split rows by node, as (index in `nodes`, rows).

        Nodes take turns if the owners are not known.
        """
        found = None
        if rows.key is not None:
            found = partitions_of(self.schema, rows.key, len(self._places))
        if found is None:
            return [(self.next_place(), rows)]
        place = self._places[found]
        groups = [(i, np.flatnonzero(place == i)) for i in range(len(self.nodes))]
        return [(i, rows[group]) for i, group in groups if len(group)]

    def next_place(self) -> int:
        """Return the index of the next node in turn."""
        return next(self._turns)


def find_route(
    client: Client, cache: str, schema: Schema, nodes: Sequence[uuid.UUID] | None = None
) -> Route | None:
    """Return the route to a cache, or None if there is one node or the owners are unknown.

    Args:
        client: The connection.
        cache: Name of the cache.
        schema: The rows.
        nodes: The server nodes, if they are known.
    """
    known_nodes = [node.node_id for node in client.nodes()] if nodes is None else list(nodes)
    if not 2 <= len(known_nodes) <= _MAX_NODES or not _is_quick(schema):
        return None
    found = client.partition_map(cache)
    owners = [found.owners.get(partition) for partition in range(found.count)]
    known = [owner for owner in owners if owner in known_nodes]
    if not owners or len(known) < len(owners):
        return None
    return Route(schema, known_nodes, known)


def _is_quick(schema: Schema) -> bool:
    """Whether the hashes of keys can be computed for whole columns."""
    deciding = [
        field
        for field in schema.key.fields
        if schema.affinity_key is not None and field.name.lower() == schema.affinity_key.lower()
    ]
    return (deciding[0] if deciding else schema.key).type in INTEGERS
