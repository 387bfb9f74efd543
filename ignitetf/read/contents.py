"""What a data set holds when it is opened, compared with what its load stored.

manifest, size of the cache -> **contents** -> reader

A data set is what the cluster holds; the manifest says what a load stored, and others may have
written or removed rows since. Opening compares the number of entries. If it is that of the load,
and the keys do not show otherwise, the manifest's counts are used. If not, rows are counted where
an order needs their number in each partition.

Rows that others removed and rows that were lost with a node look alike where a cache answers for
lost partitions as if they were empty. The topology tells them apart: without a node that came or
left since the load nothing can be lost.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ignitetf.errors import CacheNotFound, ConfigError
from ignitetf.net.client import Client
from ignitetf.net.common import Question
from ignitetf.net.statements import statement_request
from ignitetf.tables.caches import UNSAFE_LOSS, loss_policy_of
from ignitetf.tables.catalog import Manifest, manifest_of, manifest_question, read_manifest
from ignitetf.tables.owned import rows_table
from ignitetf.wire.cluster import NodeEndpoint
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.frames import read_named_sql_page

if TYPE_CHECKING:
    from ignitetf.read.reader import CacheReader

__all__ = [
    "Contents",
    "Opened",
    "contents_of",
    "disprove",
    "find_lost",
    "has_moved",
    "look_up",
]

_LONGS: Final = struct.Struct("<BqBq")

# Loads whose counts this process has found to be those of other rows.
_disproved: set[str] = set()


class Opened(NamedTuple):
    """What the cluster says of a name.

    Attributes:
        manifest: The manifest of the data set; None for a cache that no load of ours made.
        partitions: Partitions of the cache; None if there is no such cache, 0 if the cluster does
            not tell.
        nodes: The server nodes.
        entries: Entries of the cache; None if there is no such cache.
        ends: The smallest and the largest key, if they are whole numbers and were asked for.
    """

    manifest: Manifest | None
    partitions: int | None
    nodes: Sequence[NodeEndpoint]
    entries: int | None
    ends: tuple[int, int] | None


@dataclass(frozen=True)
class Contents:
    """What a data set holds, as far as that is known without reading.

    Attributes:
        entries: Entries of its cache.
        rows: Its records.
        counts: Records in each partition; empty if they were not counted.
        own_keys: The number of rows if their keys are 0, 1, 2 ..., else None.
        is_as_loaded: Whether it is taken for what the load stored.
    """

    entries: int
    rows: int
    counts: tuple[int, ...] = ()
    own_keys: int | None = None
    is_as_loaded: bool = False

    def counted(self, counts: Sequence[int]) -> Contents:
        """Return the contents after all rows were counted."""
        rows = sum(counts)
        return replace(self, entries=rows, rows=rows, counts=tuple(counts))


def look_up(client: Client, name: str) -> Opened:
    """Return what the cluster says of a data set, or of the cache with this name."""
    ends = None
    text, count, nodes, size, told = client.ask(
        manifest_question(client, name),
        client.partitions_question(name),
        client.nodes_question,
        client.size_question(name),
        _ends_question(client, name),  # a cache without such a table refuses
    )
    manifest = manifest_of(client, name, text)
    if manifest is None and count is None:
        return Opened(None, _partitions(client, name), nodes, size, None)
    while manifest is not None and (not count or manifest.cache != name):
        count = _partitions(client, manifest.cache)
        (size,) = client.ask(client.size_question(manifest.cache))
        if count and size is not None:
            break
        # A replacement that ended in between has moved on.
        count = None
        before, manifest = manifest, read_manifest(client, name)
        if manifest == before:
            break
    if manifest is not None and _gives_keys(manifest) and size == manifest.rows:
        if manifest.cache == name:
            ends = told
        else:
            (ends,) = client.ask(_ends_question(client, manifest.cache))
    return Opened(manifest, count, nodes, size, ends)


def _partitions(client: Client, cache: str) -> int | None:
    try:
        return client.partition_count(cache)
    except CacheNotFound:
        return None
    except ConfigError:
        return 0


def _gives_keys(manifest: Manifest) -> bool:
    """Whether SQL can tell that the keys are those that the load gave out."""
    facts = manifest.options
    return (
        manifest.layout == "rows"
        and facts.storage.sql
        and manifest.schema.key.type is TypeCode.LONG
        and facts.next_key == manifest.rows > 0
    )


def _ends_question(client: Client, cache: str) -> Question[tuple[int, int] | None]:
    """Ask for the smallest and the largest key, which an index tells; None if it does not."""
    table = rows_table(cache).replace('"', '""')
    text = f'SELECT MIN(_KEY), MAX(_KEY) FROM "{table}"'  # nosec B608
    request = statement_request(client, text, (), "PUBLIC", 16, None)
    return Question(OpCode.QUERY_SQL_FIELDS, request, _read_ends, lambda _: None)


def _read_ends(body: memoryview) -> tuple[int, int] | None:
    _, _, page = read_named_sql_page(body)
    data = bytes(page.data.data)
    if page.count != 1 or len(data) != _LONGS.size:
        return None
    first, least, second, most = _LONGS.unpack(data)
    return (least, most) if first == second == TypeCode.LONG else None


def contents_of(found: Opened, entries: int, *, counts_matter: bool) -> Contents:
    """Return what a data set holds.

    Args:
        found: What the cluster says.
        entries: Entries of its cache.
        counts_matter: Whether counts that nothing has confirmed must not be used: where a change is
            not an error, it would go unnoticed.
    """
    manifest = found.manifest
    if manifest is None:
        return Contents(entries, entries)
    facts = manifest.options
    if manifest.layout == "blocks":
        # SQL does not reach the rows in blocks.
        return Contents(entries, manifest.rows, manifest.partition_rows, None, is_as_loaded=True)
    if entries != manifest.rows or facts.load in _disproved:
        return Contents(entries, entries)
    # Different whole numbers from 0 to n - 1, n of them, are all of these.
    is_proved = found.ends == (0, entries - 1)
    if (found.ends is not None or counts_matter) and not is_proved:
        return Contents(entries, entries)
    own = manifest.rows if facts.next_key == manifest.rows else None
    return Contents(entries, entries, manifest.partition_rows, own, is_as_loaded=True)


def disprove(manifest: Manifest | None) -> None:
    """Do not use the counts of this load any more: a partition has other rows."""
    if manifest is not None and manifest.layout == "rows":
        _disproved.add(manifest.options.load)


def has_moved(client: Client, manifest: Manifest) -> bool:
    """Whether a node has come or left since the load, so that rows may be lost.

    The list of nodes tells it at once; the map of partitions some time after a node was lost.
    """
    client.nodes()
    version = client.topology
    if version is None:  # a cluster that is too old to list its nodes
        version = client.partition_map(manifest.cache).version[0]
    return version != manifest.options.topology


def find_lost(reader: CacheReader) -> list[int]:
    """Return the partitions that are empty, had rows, and may have been lost with a node.

    Only for a cache that is smaller than the load left it, where `has_moved`. Counts its rows,
    unless it answers for lost partitions with an error.
    """
    manifest = reader.manifest
    assert manifest is not None
    stored, policy = manifest.partition_rows, loss_policy_of(reader.client, manifest.cache)
    if len(stored) != reader.partition_count or policy not in (UNSAFE_LOSS, None):
        return []
    counts = reader.partition_counts(range(reader.partition_count))
    return [p for p, (a, b) in enumerate(zip(stored, counts, strict=True)) if a and not b]
