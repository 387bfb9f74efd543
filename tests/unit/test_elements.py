"""Columns packed into leaves: what TensorFlow puts together again equals what was packed."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ignitetf.read.elements import Text, TextStore
from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.schema import Column

values = st.lists(st.binary(max_size=40), max_size=30)


def column_within(texts: list[bytes], gap: int) -> Column:
    """Texts that stand in a page with other bytes before, between and after them."""
    page, starts = bytearray(b"#" * gap), []
    for text in texts:
        starts.append(len(page))
        page += text + b"#" * gap
    lengths = np.array([len(t) for t in texts], np.int64)
    return Column(np.frombuffer(bytes(page), np.uint8), np.array(starts, np.int64), lengths)


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
    packed = [list(Text().pack([c], BufferPool(), store)) for c in columns]
    joined = store.joined()
    for (starts, lengths), texts in zip(packed, expected, strict=True):
        found = [joined[p : p + n] for p, n in zip(starts, lengths, strict=True)]
        assert found == texts


def test_columns_of_one_page_are_copied_once():
    texts = [b"%03d" % i for i in range(200)]
    column = column_within(texts, 5)
    store = TextStore()
    store.add(column[:100])
    once = len(store.joined())
    store.add(column[10:90])
    assert len(store.joined()) == once
