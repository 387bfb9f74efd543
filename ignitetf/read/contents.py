"""The contents of a data set: what it has when opened, and whether that changes during reading.

manifest, size of the cache -> **contents** -> reader

A data set is what the cluster holds now. The manifest records what a load stored. Other programs
may have written or removed rows since. Opening compares the number of entries. If it equals that of
the load, and the keys do not contradict it, the manifest's counts are used. If not, rows are counted
when an order needs their number in each partition.

If a cache answers for lost partitions as if they were empty, lost rows look like removed rows. The
topology distinguishes the two: if no node joined or left since the load, nothing can be lost.

During reading, the entries of each partition are counted and compared (`Changes`), for two reasons.
Under Ignite's default loss policy, a lost partition scans as empty without any error. And added or
removed entries shift those that follow. The keys of a partition get a running checksum, in order.
It does not depend on pages, connections, nodes or ways of reading. It is compared with the checksum
of an earlier epoch. If rows are fetched again, it is compared with that of the rows delivered before.
New values under the same keys are not detected.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import (
    CacheNotFound,
    ConfigError,
    DataChanged,
    IgniteTFError,
    PartitionLost,
    SchemaError,
    ServerError,
    ServerOverloaded,
)
from ignitetf.net.client import Client
from ignitetf.net.common import Question
from ignitetf.net.statements import statement_request
from ignitetf.tables.catalog import (
    Manifest,
    catalog,
    journal_question,
    manifest_of,
    manifest_question,
    read_manifest,
)
from ignitetf.tables.storage import Storage, rows_table
from ignitetf.wire.answers import NodeEndpoint
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.frames import read_named_sql_page

__all__ = [
    "Changes",
    "Contents",
    "Opened",
    "contents_of",
    "disprove",
    "explained",
    "has_moved",
    "look_up",
]

_LONGS: Final = struct.Struct("<BqBq")

# Loads whose recorded counts this process has found to be wrong for the current rows.
_contradicted: set[str] = set()


class Opened(NamedTuple):
    """The cluster's answers about a name.

    Attributes:
        manifest: The manifest of the data set; None for a cache that ignitetf did not load.
        partitions: Partitions of the cache; None if the cache does not exist, 0 if the cluster does
            not report their number.
        nodes: The server nodes.
        entries: Entries of the cache; None if the cache does not exist.
        ends: The smallest and the largest key, if they are whole numbers and were requested.
    """

    manifest: Manifest | None
    partitions: int | None
    nodes: Sequence[NodeEndpoint]
    entries: int | None
    ends: tuple[int, int] | None


@dataclass(frozen=True)
class Contents:
    """The contents of a data set, as far as they are known without reading.

    Attributes:
        entries: Number of entries of its cache.
        rows: Number of its records.
        counts: Records in each partition; empty if they were not counted.
        own_keys: The number of rows if their keys are 0, 1, 2 ..., otherwise None.
        is_as_loaded: True if it is assumed to be unchanged since the load.
    """

    entries: int
    rows: int
    counts: tuple[int, ...] = ()
    own_keys: int | None = None
    is_as_loaded: bool = False

    def counted(self, counts: Sequence[int]) -> Contents:
        """Return these contents with the counted rows of each partition."""
        rows = sum(counts)
        return replace(self, entries=rows, rows=rows, counts=tuple(counts))


def look_up(client: Client, name: str) -> Opened:
    """Request from the cluster what it knows of a data set, or of the cache with this name."""
    ends = None
    text, journal, count, nodes, size, own_ends = client.ask(
        manifest_question(client, name),
        journal_question(client, name),
        client.partitions_question(name),
        client.nodes_question,
        client.size_question(name),
        _key_range_query(client, name),  # a cache without such a table refuses
    )
    manifest = manifest_of(client, name, text)
    if manifest is None and count is None:
        return Opened(None, _partitions(client, name), nodes, size, None)
    if manifest is None and journal is not None:
        _check_unfinished(client, name, journal)
    while manifest is not None and (not count or manifest.cache != name):
        count = _partitions(client, manifest.cache)
        (size,) = client.ask(client.size_question(manifest.cache))
        if count and size is not None:
            break
        # A replacement that finished in between uses another cache now.
        count = None
        before, manifest = manifest, read_manifest(client, name)
        if manifest == before:
            break
    if manifest is not None and _gives_keys(manifest) and size == manifest.rows:
        if manifest.cache == name:
            ends = own_ends
        else:
            (ends,) = client.ask(_key_range_query(client, manifest.cache))
    return Opened(manifest, count, nodes, size, ends)


def _check_unfinished(client: Client, name: str, text: str) -> None:
    """Warn that the first load of a data set has not finished; raise an error for blocks.

    Blocks can only be read once the load has finished.
    """
    layout = None
    # A damaged journal contains no facts about the rows.
    with contextlib.suppress(SchemaError, KeyError, TypeError, AttributeError):
        journal = catalog(client).parse(name, text)
        if journal["cache"] == name:  # not a replacement of a cache that ignitetf did not load
            layout = Storage.from_json(journal["options"]).layout
    hint = "'ignitetf load ... --if-exists resume' continues a load that was interrupted"
    if layout == "blocks":
        raise SchemaError(
            f"the load of {name} has not finished; until then, its blocks cannot be read", hint=hint
        )
    if layout is not None:
        log.warning("the load of %s has not finished: rows may be missing; %s", name, hint)


def _partitions(client: Client, cache: str) -> int | None:
    try:
        return client.partition_count(cache)
    except CacheNotFound:
        return None
    except ConfigError:
        return 0


def _gives_keys(manifest: Manifest) -> bool:
    """Return True if SQL can check that the keys are the ones that the load generated."""
    facts = manifest.options
    return (
        manifest.layout == "rows"
        and facts.storage.sql
        and manifest.schema.key.type is TypeCode.LONG
        and facts.next_key == manifest.rows > 0
    )


def _key_range_query(client: Client, cache: str) -> Question[tuple[int, int] | None]:
    """Return the query for the smallest and the largest key, answered from an index.

    Its result is None if the cluster cannot answer it.
    """
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
    """Return the contents of a data set.

    Args:
        found: The cluster's answers.
        entries: Number of entries of its cache.
        counts_matter: True to refuse unconfirmed counts. Set it if a change is not reported as
            an error, because wrong counts would then go unnoticed.
    """
    manifest = found.manifest
    if manifest is None:
        return Contents(entries, entries)
    facts = manifest.options
    if manifest.layout == "blocks":
        # SQL cannot read the rows inside blocks.
        return Contents(entries, manifest.rows, manifest.partition_rows, None, is_as_loaded=True)
    if entries != manifest.rows or facts.load in _contradicted:
        return Contents(entries, entries)
    # n different whole numbers from 0 to n - 1 are all the numbers in that range.
    is_proved = found.ends == (0, entries - 1)
    if (found.ends is not None or counts_matter) and not is_proved:
        return Contents(entries, entries)
    own = manifest.rows if facts.next_key == manifest.rows else None
    return Contents(entries, entries, manifest.partition_rows, own, is_as_loaded=True)


def disprove(manifest: Manifest | None) -> None:
    """Stop using the counts of this load, because a partition has other rows."""
    if manifest is not None and manifest.layout == "rows":
        _contradicted.add(manifest.options.load)


def has_moved(client: Client, manifest: Manifest) -> bool:
    """Return True if a node has joined or left since the load, so that rows may be lost.

    The list of nodes shows a lost node at once, the partition map only some time later.
    """
    client.nodes()
    version = client.topology
    if version is None:  # a cluster that is too old to list its nodes
        version = client.partition_map(manifest.cache).version[0]
    return version != manifest.options.topology


log = logging.getLogger(__name__)
_SHOWN = 20
_UNKNOWN = -1
_OTHER_KEYS = "other keys than in an earlier epoch"
_LOST = (
    "SELECT DISTINCT S.PARTITION_ID FROM SYS.PARTITION_STATES S"
    " JOIN SYS.CACHES C ON C.CACHE_GROUP_ID = S.CACHE_GROUP_ID"
    " WHERE C.CACHE_NAME = ? AND S.STATE = 'LOST' ORDER BY 1"
)


class Changes:
    """Expected rows of the partitions of a cache, and the policy if they differ.

    Args:
        name: Name of the data set, for messages.
        policy: `error`, `warn` or `ignore`.
        partitions: Number of partitions.
        counts: Entries by partition as the load stored them; empty if unknown.
    """

    def __init__(self, name: str, policy: str, partitions: int, counts: Sequence[int]) -> None:
        self.name = name
        self.policy = policy
        self.source = "the load stored"
        # For each partition: the expected entries; the entries and their mark in an earlier epoch.
        size = max(partitions, len(counts))
        self._counts, self._seen, self._marks = np.full((3, size), _UNKNOWN, np.int64)
        self._counts[: len(counts)] = counts

    @property
    def has_counts(self) -> bool:
        """True if the expected number of entries of partitions is known."""
        return bool((self._counts != _UNKNOWN).any())

    def known_rows(self, partitions: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the expected or last seen entries of partitions, `[n]`; None if one is unknown."""
        counts = self._counts[partitions]
        found = np.where(counts == _UNKNOWN, self._seen[partitions], counts)
        return None if (found == _UNKNOWN).any() else found

    def count_found(self, partition: int, rows: int) -> None:
        """Remember the count of a first scan as the expected one."""
        self.source = "the first scan found"
        self._counts[partition] = rows

    def other_count(self, partition: int, rows: int) -> DataChanged:
        """Return the error for a partition whose number of entries differs from the known one."""
        expected = int(self._counts[partition])
        if expected in (rows, _UNKNOWN):
            return self._error(partition, _OTHER_KEYS)
        return self._error(partition, f"{rows} entries, {self.source} {expected}")

    def changed_while_read(self, partition: int) -> DataChanged:
        """Return the error for a partition whose rows differ when they are fetched again."""
        return DataChanged(
            f"{self.name}, partition {partition}: keys were added or removed while it was read",
            hint="or lost with a node that had no backup; load with --if-exists replace to change"
            " data under readers",
            cache=self.name,
            partition=partition,
        )

    def check_size(self, size: int | None, rows: int, when: str = "when the epoch began") -> None:
        """Compare the total entry count with the size that the cache had before."""
        if size is not None and rows != size:
            self._report(None, f"{rows} entries, there were {size} {when}")

    def check_lost(self, partitions: Sequence[int], stored: int, rows: int) -> None:
        """Report partitions that are empty although the load stored rows in them."""
        shown = ", ".join(map(str, partitions[:_SHOWN])) + (
            ", ..." if len(partitions) > _SHOWN else ""
        )
        found = f"{rows} rows, the load stored {stored}; of partition {shown} there is none"
        if self.policy == "error":
            raise PartitionLost(
                f"{self.name}: {found}",
                hint="nodes joined or left since the load, and this cache returns lost partitions as"
                " empty: load it again, or read what is there with on_change='warn'",
                cache=self.name,
                partitions=list(partitions),
            )
        self._report(None, found)

    def check_block(self, key: int, rows: int | None, expected: int) -> None:
        """Compare the rows of a block with what the load stored; None for a removed block."""
        if rows is None:
            self._report(None, f"block {key} is gone")
        elif rows != expected:
            self._report(None, f"block {key} has {rows} rows, the load stored {expected}")

    def check_units(
        self, partitions: NDArray[np.int64], rows: NDArray[np.int64], marks: NDArray[np.int64]
    ) -> None:
        """Compare partitions with what the load stored, and with an earlier epoch.

        Args:
            partitions: The partitions, int64 `[n]`.
            rows: Entries of each; for blocks, their records.
            marks: The mark of the keys of each.
        """
        counts, before = self._counts[partitions], self._marks[partitions]
        has_other_count = (counts != _UNKNOWN) & (counts != rows)
        has_other_keys = (before != _UNKNOWN) & (before != marks)
        self._seen[partitions], self._marks[partitions] = rows, marks
        for number in np.flatnonzero(has_other_count | has_other_keys):
            partition = int(partitions[number])
            if has_other_count[number]:
                self._report(partition, f"{rows[number]} entries, {self.source} {counts[number]}")
            if has_other_keys[number]:
                self._report(partition, _OTHER_KEYS)

    def _report(self, partition: int | None, found: str) -> None:
        error = self._error(partition, found)
        if self.policy == "error":
            raise error
        if self.policy == "warn":
            log.warning("%s", error.message)

    def _error(self, partition: int | None, found: str) -> DataChanged:
        where = self.name if partition is None else f"{self.name}, partition {partition}"
        return DataChanged(
            f"{where}: {found}",
            hint="entries were added or removed since, or lost with a node that had no"
            " backup; on_change='warn' reads on",
            cache=self.name,
            partition=partition,
        )


@contextlib.contextmanager
def explained(client: Client, name: str, cache: str, partitions: int) -> Iterator[None]:
    """Raise the cause of a read error instead of the error, if the cluster knows the cause.

    Just after a node died, its partitions scan as empty, so the entry count shows the loss first.
    A data set that was replaced may have fewer partitions now; the node refuses requests for the
    others.

    Args:
        client: The connection.
        name: Name of the data set, for messages.
        cache: Its cache.
        partitions: Number of partitions when it was opened.

    Raises:
        PartitionLost: Partitions have lost all owners.
        DataChanged: The number of partitions changed.
        IgniteTFError: The original error, if no cause was found.
    """
    try:
        yield
    except (DataChanged, PartitionLost) as error:
        if (lost := _without_owner(client, name, cache, error)) is None:
            raise
        raise lost from error
    except ServerOverloaded:
        raise
    except ServerError as error:
        if (changed := _replaced(client, name, cache, partitions)) is None:
            raise
        raise changed from error


def _without_owner(
    client: Client, name: str, cache: str, error: DataChanged | PartitionLost
) -> PartitionLost | None:
    try:
        lost = [int(p) for (p,) in client.sql(_LOST, (cache,), schema="SYS")]
    except IgniteTFError:
        return None
    if not lost:
        return None
    shown = ", ".join(map(str, lost[:_SHOWN])) + (", ..." if len(lost) > _SHOWN else "")
    return PartitionLost(
        f"{name}: {len(lost)} partitions have no owner: {shown}",
        hint="start the nodes that hold them again, or reload the cache",
        **{**error.fields, "cache": name, "partitions": lost},
    )


def _replaced(client: Client, name: str, cache: str, partitions: int) -> DataChanged | None:
    try:
        now = _partitions_now(client, name, cache)
    except IgniteTFError:
        return None
    if now == partitions:
        return None
    found = (
        "is in another cache" if now is None else f"has {now} partitions instead of {partitions}"
    )
    return DataChanged(
        f"{name} {found} since it was opened",
        hint="it was replaced: open it again",
        cache=name,
    )


def _partitions_now(client: Client, name: str, cache: str) -> int | None:
    """Return the number of partitions now; None if the cache is gone but the data set exists."""
    try:
        return client.partition_count(cache)
    except CacheNotFound:
        if read_manifest(client, name) is None:
            raise
        return None
