"""Pages that come in turn and before their turn are the same rows; long texts of the latter are views."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_builder import LONG_KEY, entries_of, page_of, registry_of, same, schema_of

from ignitetf.read.collector import Collector, PagePlace
from ignitetf.read.page_decoder import PageDecoder
from ignitetf.read.page_query import Ends
from ignitetf.wire.builder import BatchBuilder
from ignitetf.wire.concat import concat
from ignitetf.wire.decoder import Decoder
from ignitetf.wire.frames import Page
from ignitetf.wire.schema import Batch, Column

SCHEMA = schema_of(LONG_KEY, ["JPEG", "LABEL", "NAME"])
REGISTRY = registry_of(SCHEMA)
# Bytes of a row, and rows of a page; views are worth it for some pages of the last two kinds.
KINDS = ((50, 900), (3000, 500), (9000, 250), (60_000, 40))


class Arrival:
    """Bytes of which all are here."""

    limit_s, socket_number = 20.0, -1

    def __init__(self, data):
        self._data = memoryview(data)

    @property
    def bytes_here(self):
        return len(self._data)

    def receive_into(self, view):
        view[:], self._data = self._data[: len(view)], self._data[len(view) :]


def page(rng, first, rows, size):
    blobs = [
        None if rng.random() < 0.1 else rng.bytes(int(rng.integers(size // 2, 3 * size // 2 + 1)))
        for _ in range(rows)
    ]
    keys = np.arange(first, first + rows, dtype=np.int64)
    columns = {
        "LABEL": Column(keys.astype(np.int32)),
        "JPEG": Column.from_bytes(blobs),
        "NAME": Column.from_bytes([b"name %d" % i for i in range(rows)]),
    }
    batch = Batch(Column(keys), {field.name: columns[field.name] for field in SCHEMA.fields})
    return page_of(entries_of(SCHEMA, batch))


def collector_of(room, row_bytes):
    decoder = PageDecoder(None, "T", SCHEMA, REGISTRY)
    builder = BatchBuilder(SCHEMA, REGISTRY, decoder.pool, room, row_bytes)
    return Collector(decoder, builder, 4 << 20, 64, Ends([]))


def collect(collector, number, part, *, early):
    """Collect a page, the only one of its unit."""
    place, nbytes = PagePlace(number, number), part.data.nbytes
    if not early:
        collector.taker(place)(part.count)(Arrival(part.data), nbytes)
        part = Page(part.count, False, part.data[:0])
    collector.add(place, part, nbytes, last=True)


@settings(deadline=None, max_examples=60, print_blob=True)
@given(st.data())
def test_rows_marks_and_order_are_those_of_the_pages(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 16)))
    size, most = data.draw(st.sampled_from(KINDS))
    collector = collector_of(data.draw(st.sampled_from([7, 200, 1000])), size)
    pages, portions, first = [], [], 0
    for number in range(data.draw(st.integers(1, 6))):
        rows = data.draw(st.integers(0, most))
        pages.append(page(rng, first, rows, size))
        first += rows
        collect(collector, number, pages[-1], early=data.draw(st.booleans()))
        if data.draw(st.booleans()):
            portions.append(collector.portion(data.draw(st.booleans()), data.draw(st.booleans())))
    portions.append(collector.portion(whole=True))
    records = [record for portion in portions for record in portion.pages]
    apart = [collector_of(1000, size) for _ in pages]
    for number, (one, part) in enumerate(zip(apart, pages, strict=True)):
        collect(one, number, part, early=False)
    expected = [record for one in apart for record in one.portion(whole=True).pages]
    assert records == expected
    parts = list(itertools.chain.from_iterable(portion.parts for portion in portions))
    if not first:
        assert sum(map(len, parts)) == 0
        return
    decoder = Decoder(SCHEMA, REGISTRY)
    same(concat(parts), concat([decoder.decode(part) for part in pages if part.count]))


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("size", [4000, 12_000, 60_000])
def test_long_texts_of_a_page_that_came_early_are_views(size, early):
    collector = collector_of(1000, size)
    part = page(np.random.default_rng(size), 0, 300, size)
    collect(collector, 0, part, early=early)
    (found,) = collector.portion(whole=True).parts
    is_view = np.shares_memory(found.columns["JPEG"].values, part.data)
    assert is_view == (early and size > 8192)
