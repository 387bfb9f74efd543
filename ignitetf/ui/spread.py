"""Distribution of a data set's rows: partitions, their owners, and its skew.

manifest, partition map, SYS.NODES -> **spread** -> page
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass

import numpy as np

from ignitetf import Client
from ignitetf.explore.browse import View

__all__ = ["Owner", "Part", "Spread", "spread_of"]


@dataclass(frozen=True)
class Part:
    """A partition: its number of rows if known, and the index of its owner in `owners`."""

    number: int
    rows: int | None
    owner: int | None


@dataclass(frozen=True)
class Owner:
    """A node: its primary share of the data set, and the number of its copies."""

    name: str
    address: str
    partitions: int
    rows: int | None
    copies: int


@dataclass(frozen=True)
class Spread:
    """The distribution of a data set's rows.

    Attributes:
        parts: The partitions.
        owners: The nodes that own partitions.
        fewest: Rows of the smallest partition; None if unknown.
        most: Rows of the largest.
        mean: Mean number of rows in a partition.
        skew: Rows of the largest divided by the mean.
    """

    parts: tuple[Part, ...]
    owners: tuple[Owner, ...]
    fewest: int | None = None
    most: int | None = None
    mean: float | None = None
    skew: float | None = None


def spread_of(client: Client, data: View) -> Spread:
    """Return the current distribution of the rows of a data set."""
    cache, count = data.cache, data.partition_count
    rows: tuple[int, ...] = () if data.manifest is None else data.manifest.partition_rows
    counted = len(rows) == count
    primary = client.partition_map(cache).owners
    copies = Counter(node for _, node in client.copies(cache)[0])
    names = {row[0]: row for row in client.about("nodes")}
    nodes = sorted({*primary.values(), *copies}, key=lambda node: _name(names, node))
    place = {node: number for number, node in enumerate(nodes)}
    owned_by = {partition: place[node] for partition, node in primary.items()}
    parts = tuple(
        Part(number, rows[number] if counted else None, owned_by.get(number))
        for number in range(count)
    )
    owners = tuple(
        Owner(
            _name(names, node),
            "" if node not in names else str(names[node][2]),
            sum(part.owner == place[node] for part in parts),
            sum(part.rows or 0 for part in parts if part.owner == place[node]) if counted else None,
            copies.get(node, 0),
        )
        for node in nodes
    )
    if not counted or not count:
        return Spread(parts, owners)
    mean = float(np.mean(rows))
    skew = max(rows) / mean if mean else 0.0
    return Spread(parts, owners, min(rows), max(rows), mean, skew)


def _name(names: dict[uuid.UUID, tuple[object, ...]], node: uuid.UUID) -> str:
    return str(names[node][1]) if node in names else str(node)
