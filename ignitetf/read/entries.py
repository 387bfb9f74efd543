"""Asks the nearest nodes that have them for entries, by the numbers of their keys.

numbers -> **entries** -> fetch -> lookup, block lookup
"""

from __future__ import annotations

import contextlib
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ignitetf.net.at_hand import nodes_at_hand, partitions_at_hand
from ignitetf.net.client import cache_id
from ignitetf.net.retry import retry
from ignitetf.read.fetch import Fetch, Parts, Received, Request, Sink
from ignitetf.read.keys import IntegerKeys, Keys, Numbers
from ignitetf.read.nearest import differ_in_distance, nearest_nodes
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import read_entries
from ignitetf.wire.requests import batch_head

if TYPE_CHECKING:
    from ignitetf.read.reader import CacheReader

__all__ = ["VIEWED_BYTES", "Entries", "parts"]

S = TypeVar("S", bound=Sink)

# Rows of so many bytes are handed over as they came: their copy costs more than each hand-over.
VIEWED_BYTES: Final = 256 << 10

# Of rows of 784 bytes 128 a request were best: a node answers requests in parallel. Of large ones
# several, as Python does the same for each answer.
_REQUEST_BYTES: Final = 128 << 10
_LARGE_REQUEST_BYTES: Final = 2 << 20
_MOST_KEYS: Final = 2048
# Each node asked has a connection and a thread; with more nodes, any of them answers.
_MOST_NODES: Final = 8


class Entries:
    """The entries of a cache by the numbers of their keys.

    Args:
        reader: The cache.
        keys: Its keys.
        entry_bytes: About as many bytes as an entry has.
        links: Connections to each node, for `groups`.

    Attributes:
        request_keys: Keys that are asked for by one request.
    """

    def __init__(self, reader: CacheReader, keys: Keys, entry_bytes: int, links: int = 1) -> None:
        self._reader = reader
        self._keys = keys
        self._entry_bytes = entry_bytes
        self._links = links
        nbytes = _LARGE_REQUEST_BYTES if entry_bytes >= VIEWED_BYTES else _REQUEST_BYTES
        self.request_keys = max(1, min(_MOST_KEYS, nbytes // entry_bytes))

    def pages(
        self, groups: Iterable[Numbers]
    ) -> Generator[tuple[Numbers, list[Received]], None, None]:
        """Yield each group with its entries, which are in no order; missing keys have none.

        Args:
            groups: As of `groups`.

        Raises:
            PartitionLost: As `groups`.
        """
        with contextlib.closing(self.groups(groups, parts)) as found:
            for numbers, sink in found:
                yield numbers, sink.pages()

    def groups(
        self, groups: Iterable[Numbers], new_sink: Callable[[Sequence[Request], int], S]
    ) -> Generator[tuple[Numbers, S], None, None]:
        """Yield each group with the sink that has its entries.

        Args:
            groups: Numbers of keys, no number twice in a group. Groups are taken ahead, in other
                threads.
            new_sink: Makes the sink of a group, given its requests and the number of connections.

        Raises:
            PartitionLost: A partition has no owner; all such partitions are named.
        """
        reader = self._reader
        waiting: deque[Numbers] = deque()
        owners, nodes = self._owners()

        def requests() -> Iterator[Sequence[Request]]:
            for numbers in groups:
                waiting.append(numbers)
                yield list(self._requests(numbers, owners, nodes))

        fetch = Fetch(
            reader.client,
            reader.name,
            requests(),
            nodes,
            lambda asked: new_sink(asked, self._links * len(nodes)),
            links=self._links,
            retry=reader.retry,
            times=reader.times,
        )
        with reader.explained(), contextlib.closing(fetch.groups()) as found:
            for sink in found:
                yield waiting.popleft(), sink

    def page(self, numbers: Numbers) -> Received:
        """Return the entries of a few keys, by one request."""
        client = self._reader.client
        (request,) = self._cut(numbers, None, 0)

        def once(_: object) -> Received:
            with client.channel() as channel:
                body = channel.call(OpCode.CACHE_GET_ALL, request.body)
                return Received(read_entries(body), client.source_of(channel))

        return retry(client.settings, once)

    def _owners(self) -> tuple[NDArray[np.int64] | None, list[uuid.UUID | None]]:
        """Return the node to ask for each partition, as an index into those asked."""
        client, every = self._reader.client, range(self._reader.partition_count)
        nodes = nodes_at_hand(client)
        many = len(nodes) > _MOST_NODES
        if len(nodes) < 2 or (many and not differ_in_distance(client, nodes)):
            return None, [None]
        cache = self._reader.cache
        owners = nearest_nodes(client, cache, nodes, partitions_at_hand(client, cache))
        there = {node.node_id for node in nodes}
        asked = sorted({node for p in every if (node := owners.get(p)) in there})
        if not 1 <= len(asked) <= _MOST_NODES:
            return None, [None]
        places = {node: place for place, node in enumerate(asked)}
        # A partition without an owner goes to the first node, which says what is wrong with it.
        of = [places.get(owners.get(p), 0) for p in every]  # type: ignore[arg-type]
        return np.array(of, np.int64), list(asked)

    def _requests(
        self, numbers: Numbers, owners: NDArray[np.int64] | None, nodes: Sequence[uuid.UUID | None]
    ) -> Iterator[Request]:
        partitions = None
        if owners is not None:
            partitions = self._keys.partitions(numbers, len(owners))
        if owners is None or partitions is None:
            yield from self._cut(numbers, nodes[0], 0)
            return
        node_of, first = owners[partitions], 0
        for place, node in enumerate(nodes):
            part = numbers[node_of == place]
            yield from self._cut(part, node, first)
            first += len(part)

    def _cut(self, numbers: Numbers, node: uuid.UUID | None, first: int) -> Iterator[Request]:
        cache = cache_id(self._reader.cache)
        size = self.request_keys
        for start in range(0, len(numbers), size):
            part = numbers[start : start + size]
            body = batch_head(cache, len(part)) + self._keys.objects(part)
            keys = self._keys.values(part) if isinstance(self._keys, IntegerKeys) else None
            nbytes = len(part) * self._entry_bytes
            yield Request(node, first + start, len(part), keys, body, nbytes)


def parts(requests: Sequence[Request], links: int) -> Parts:
    """Return a sink that leaves the entries of a group as they come."""
    return Parts(sum(request.nbytes for request in requests), links)
