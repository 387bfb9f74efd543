"""Evens out how many partitions are read from each node, where several have a copy.

**balance** -> nearest

The result depends on nothing but the copies, so that all processes come to the same one without a
word between them.
"""

from __future__ import annotations

import uuid
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence

__all__ = ["evened_out"]


def evened_out(
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
