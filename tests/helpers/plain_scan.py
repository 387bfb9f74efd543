"""The rows of partitions by one request after the other, and the general decoder: nothing is clever."""

from ignitetf.net.client import cache_id
from ignitetf.wire.codes import OpCode
from ignitetf.wire.decode import Decoder
from ignitetf.wire.frames import read_first_page, read_page
from ignitetf.wire.requests import cursor_request, scan_request


def scanned_batches(reader, partitions, page_rows=100):
    """Yield a batch for each page that has rows."""
    decoder = Decoder(reader.schema, reader.registry)
    for partition in partitions:
        with reader.client.channel() as channel:
            request = scan_request(cache_id(reader.cache), page_rows, partition)
            cursor, page = read_first_page(channel.call(OpCode.QUERY_SCAN, request))
            while True:
                if page.count:
                    yield decoder.decode(page)
                if not page.more:
                    break
                page = read_page(channel.call(OpCode.QUERY_SCAN_PAGE, cursor_request(cursor)))
