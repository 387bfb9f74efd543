"""Copies the entries of one cache into another, as bytes.

Ignite cannot rename a cache, so a replacement that was loaded into a staging cache is copied into
one with the final name. Objects are copied unchanged, except that answers wrap them and requests do
not.

Source: Apache Ignite 2.17.0, `BinaryWriterExImpl.writeBinaryObject` (wrapped objects).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from ignitetf.load.writer import IN_FLIGHT, REQUEST_BYTES
from ignitetf.net.channel import Channel
from ignitetf.net.client import Client, cache_id
from ignitetf.net.pipeline import InFlight
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.encode import EncodedPage
from ignitetf.wire.encoders import copy_runs
from ignitetf.wire.frames import Page, read_first_page, read_page
from ignitetf.wire.objects import Bytes, Positions, find_rows, gather, unwrap
from ignitetf.wire.requests import batch_head, cursor_request, scan_request

__all__ = ["copy_entries"]

_PAGE_BYTES: Final = 4 << 20
# Offset of the length in the header of a binary object.
_OBJECT_LENGTH_AT: Final = 12


def copy_entries(
    client: Client,
    source: str,
    target: str,
    *,
    entry_bytes: int,
    check_lease: Callable[[], None] = lambda: None,
) -> int:
    """Copy every entry of one cache into another.

    Args:
        client: The connection.
        source: The cache to read.
        target: The cache to write; entries with the same key are replaced.
        entry_bytes: Approximate size of an entry, from which the page size follows.
        check_lease: Called before each request; raises if the lease on the target was lost.

    Returns:
        Number of entries.
    """
    page_size = max(1, min(_PAGE_BYTES // max(1, entry_bytes), 1 << 16))
    copied = 0
    with client.channel() as reading, client.channel() as writing:
        in_flight = InFlight(writing, IN_FLIGHT)
        for partition in range(client.partition_count(source)):
            request = scan_request(cache_id(source), page_size, partition)
            for page in _pages(reading, request):
                entries = unwrapped(page)
                for count, views in entries.pieces(REQUEST_BYTES):
                    check_lease()
                    head = batch_head(cache_id(target), count)
                    in_flight.send(OpCode.CACHE_PUT_ALL, head, *views)
                copied += page.count
        in_flight.drain()
    return copied


def _pages(channel: Channel, request: bytes) -> Iterator[Page]:
    cursor, page = read_first_page(channel.call(OpCode.QUERY_SCAN, request))
    yield page
    while page.more:
        page = read_page(channel.call(OpCode.QUERY_SCAN_PAGE, cursor_request(cursor)))
        yield page


def unwrapped(page: Page) -> EncodedPage:
    """Return a page of an answer in the form that a request needs."""
    data = page.data
    key_at, value_at = find_rows(data, page.count)
    ends = np.append(key_at[1:], len(data))[: page.count]
    keys, key_sizes = _objects(data, key_at, value_at)
    values, value_sizes = _objects(data, value_at, ends)
    out_ends = np.cumsum(key_sizes + value_sizes)
    out = np.empty(int(out_ends[-1]) if page.count else 0, np.uint8)
    begin = out_ends - key_sizes - value_sizes
    copy_runs(out, begin, data, keys, key_sizes)
    copy_runs(out, begin + key_sizes, data, values, value_sizes)
    return EncodedPage(out, out_ends)


def _objects(data: Bytes, at: Positions, ends: Positions) -> tuple[Positions, Positions]:
    """Return the start and length of each object without its wrapping."""
    inner = unwrap(data, at)
    sizes = ends - at
    wrapped = np.flatnonzero((data[at] == TypeCode.WRAPPED) & (data[inner] == TypeCode.OBJECT))
    sizes[wrapped] = gather(data, inner[wrapped] + _OBJECT_LENGTH_AT, "<i4")
    return inner, sizes
