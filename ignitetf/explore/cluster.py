"""List what a cluster holds: data sets, other caches, unfinished loads, memory of nodes.

catalog, system views -> **cluster** -> people, the web page
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from ignitetf.errors import IgniteTFError
from ignitetf.load.journal import Journal, read_journal
from ignitetf.net.client import Client
from ignitetf.tables.catalog import SEPARATOR, Manifest, catalog, list_manifests, read_manifest
from ignitetf.tables.describe import data_name, list_caches
from ignitetf.tables.room import data_regions

__all__ = [
    "Manifest",
    "UnfinishedLoad",
    "data_regions",
    "find_data_set",
    "list_caches",
    "list_manifests",
    "regions_of",
    "unfinished_loads",
]


@dataclass(frozen=True)
class UnfinishedLoad:
    """A load that has begun and not ended.

    Attributes:
        journal: The parts stored so far.
        held: True if a process holds its lease; if none does, it waits to be resumed.
    """

    journal: Journal
    held: bool


def unfinished_loads(client: Client) -> list[UnfinishedLoad]:
    """Return the loads that have not ended, by name."""
    every = catalog(client).all()
    found = []
    for entry in sorted(every):
        name, _, kind = entry.partition(SEPARATOR)
        if kind == "journal" and (journal := read_journal(client, name)) is not None:
            found.append(UnfinishedLoad(journal, f"{name}{SEPARATOR}lease" in every))
    return found


def find_data_set(client: Client, name: str) -> tuple[str, Manifest | None]:
    """Return the cache that holds the data of a name, and the manifest if a load wrote one.

    Args:
        client: The cluster.
        name: Name of a data set, a cache or a table.

    Raises:
        CacheNotFound: There is none.
    """
    found = data_name(client, name).name
    manifest = read_manifest(client, found)
    return (found if manifest is None else manifest.cache), manifest


def regions_of(client: Client, node: uuid.UUID) -> dict[str, tuple[int, int]] | None:
    """Return used and maximum bytes of each data region of a node; only that node knows them.

    None if the node cannot be reached.
    """
    nodes = {each.node_id: each.addresses for each in client.nodes()}
    if len(nodes) == 1:
        return data_regions(client)
    if not nodes.get(node):
        return None
    try:
        with Client(client.settings.replace(addresses=tuple(nodes[node]))) as own:
            return data_regions(own)
    except IgniteTFError:
        return None
