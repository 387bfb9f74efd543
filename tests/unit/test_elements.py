"""Columns packed into leaves: what TensorFlow puts together again equals what was packed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignitetf.read.export import TextNode, TextStore
from ignitetf.wire.buffers import ALIGNMENT, BufferPool
from ignitetf.wire.columns import Dense, Runs

values = st.lists(st.binary(max_size=40), max_size=30)


def column_within(texts: list[bytes], gap: int) -> Runs:
    """Texts that stand in a page with other bytes before, between and after them."""
    page, starts = bytearray(b"#" * gap), []
    for text in texts:
        starts.append(len(page))
        page += text + b"#" * gap
    lengths = np.array([len(t) for t in texts], np.int64)
    return Runs(Dense(np.frombuffer(bytes(page), np.uint8)), np.array(starts, np.int64), lengths)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(values, st.integers(0, 3000)), min_size=1, max_size=4), st.randoms())
def test_joined_texts_are_the_texts(parts, random):
    columns, expected = [], []
    for texts, gap in parts:
        column = column_within(texts, gap)
        order = list(range(len(texts)))
        random.shuffle(order)
        columns += [column, column[np.array(order, np.int64)]]
        expected += [texts, [texts[i] for i in order]]
    store = TextStore()
    packed = [list(TextNode().pack([c], BufferPool(), store)) for c in columns]
    halves = store.halves(BufferPool())
    whole = np.concatenate(halves).tobytes()
    for (starts, lengths), texts in zip(packed, expected, strict=True):
        found = [whole[p : p + n] for p, n in zip(starts, lengths, strict=True)]
        assert found == texts
    for (starts, lengths), _ in zip(packed, expected, strict=True):
        # No text reaches from one half into the other.
        border = len(halves[0])
        assert not ((starts < border) & (starts + lengths > border)).any()


def test_columns_of_one_page_are_copied_once():
    texts = [b"%03d" % i for i in range(200)]
    column = column_within(texts, 5)
    store = TextStore()
    store.add(column[:100])
    once = sum(map(len, store.halves(BufferPool())))
    store.add(column[10:90])
    assert sum(map(len, store.halves(BufferPool()))) == once


@pytest.mark.parametrize("before", [0, 1, 17, 63, 64, 200, 5000])
def test_pages_are_taken_over_as_they_are(before):
    """From an aligned address on, as TensorFlow needs it, and without a copy."""
    block = BufferPool().take(100_000)
    block[:] = np.arange(len(block)) % 251
    page = np.frombuffer(memoryview(block)[before:], np.uint8)
    starts = np.arange(5_000, 60_000, 100)
    store = TextStore()
    places = store.add(Runs(Dense(page), starts, np.full(len(starts), 90)))
    whole, rest = store.halves(BufferPool())
    assert np.shares_memory(whole, block) and len(rest) == 0
    assert whole.ctypes.data % ALIGNMENT == 0
    for place, start in zip(places, starts, strict=True):
        assert (whole[place : place + 90] == page[start : start + 90]).all()
