"""The baseline of loads: requests that were encoded before the clock starts.

rows -> entries -> **requests** -> the connections that the writer would open

Nothing is computed while they are sent, so the rate is what the cluster and the loopback can take.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from ignitetf.bench.in_flight import send_ahead
from ignitetf.load.blocks import Blocks
from ignitetf.load.route import find_route
from ignitetf.load.writer import CONNECTIONS, IN_FLIGHT, REQUEST_BYTES, Work
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client, cache_id
from ignitetf.wire.answers import read_long
from ignitetf.wire.block_keys import BlockKeys
from ignitetf.wire.blocks import block_schema
from ignitetf.wire.codes import OpCode, StreamerFlag
from ignitetf.wire.encode import encode_entries
from ignitetf.wire.requests import batch_head, streamer_head, streamer_start_request
from ignitetf.wire.schema import Batch, Schema

__all__ = ["Sent", "blocks_to_send", "rows_to_send"]

_FLAGS: Final = StreamerFlag.KEEP_BINARY
_STREAM_ENTRIES: Final = 4096
_CLOSE_S: Final = 60.0

Requests = list[tuple[int, bytes]]


class Sent:
    """Requests for one cache, distributed over connections.

    Args:
        client: The cluster.
        cache: Name of the cache.
        lines: For each connection its node (None for any) and its requests.
    """

    def __init__(
        self, client: Client, cache: str, lines: list[tuple[uuid.UUID | None, Requests]]
    ) -> None:
        self.client, self.number, self.lines = client, cache_id(cache), lines

    def put_all(self) -> None:
        """Send everything with `put_all`."""
        head = functools.partial(batch_head, self.number)
        self._everywhere(
            lambda channel, requests: _send(channel, OpCode.CACHE_PUT_ALL, head, requests)
        )

    def stream(self) -> None:
        """Send everything through one data streamer per connection."""
        self._everywhere(self._stream)

    def _stream(self, channel: Channel, requests: Requests) -> None:
        start = streamer_start_request(self.number, _FLAGS, _STREAM_ENTRIES)
        stream = read_long(channel.call(OpCode.DATA_STREAMER_START, start), "a streamer")
        head = functools.partial(streamer_head, stream, _FLAGS)
        _send(channel, OpCode.DATA_STREAMER_ADD_DATA, head, requests)
        end = streamer_head(stream, _FLAGS | StreamerFlag.FLUSH | StreamerFlag.CLOSE, 0)
        channel.call(OpCode.DATA_STREAMER_ADD_DATA, end, timeout_s=_CLOSE_S)

    def _everywhere(self, send: Callable[[Channel, Requests], None]) -> None:
        def run(line: tuple[uuid.UUID | None, Requests]) -> None:
            with self.client.channel(line[0]) as channel:
                send(channel, line[1])

        with ThreadPoolExecutor(len(self.lines)) as pool:
            list(pool.map(run, self.lines))


def _send(channel: Channel, op: OpCode, head: Callable[[int], bytes], requests: Requests) -> None:
    """Send like the writer, with a few unanswered requests; `head` takes the number of entries."""
    bodies = ((head(count), entries) for count, entries in requests)
    send_ahead(channel, op, bodies, IN_FLIGHT + 1)


def rows_to_send(client: Client, cache: str, schema: Schema, batches: Iterable[Batch]) -> Sent:
    """Encode rows as requests to the nodes that own them; the cache exists."""
    route = find_route(client, cache, schema)
    if route is None:
        return Sent(client, cache, _dealt(_encoded(schema, batches)))
    parts: list[list[Batch]] = [[] for _ in route.nodes]
    for batch in batches:
        for place, rows in route.split(batch):
            parts[place].append(rows)
    lines = [(node, _encoded(schema, part)) for node, part in zip(route.nodes, parts, strict=True)]
    return Sent(client, cache, lines)  # type: ignore[arg-type]


def blocks_to_send(
    client: Client, cache: str, schema: Schema, batches: Iterable[Batch], partitions: int
) -> Sent:
    """Encode blocks of rows as requests."""
    packed = _Packed(schema)
    blocks = Blocks(packed, BlockKeys(partitions))  # type: ignore[arg-type]
    for batch in batches:
        blocks.add(batch)
    blocks.write()
    return Sent(client, cache, _dealt(packed.requests))


class _Packed:
    """Takes blocks like the writer, and keeps them as requests."""

    def __init__(self, schema: Schema) -> None:
        self.schema, self.requests = schema, Requests()

    def write(self, work: Work) -> None:
        """Encode some blocks."""
        assert work.entries is not None
        self.requests += _encoded(block_schema(self.schema), [work.entries(work.rows)])


def _encoded(schema: Schema, batches: Iterable[Batch]) -> Requests:
    pages = (encode_entries(schema, batch) for batch in batches)
    return [(n, b"".join(views)) for page in pages for n, views in page.pieces(REQUEST_BYTES)]


def _dealt(requests: Requests) -> list[tuple[Any, Requests]]:
    return [(None, requests[i::CONNECTIONS]) for i in range(CONNECTIONS)]
