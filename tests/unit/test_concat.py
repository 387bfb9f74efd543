"""Joined batches have the values of their parts, whatever the layout of the columns."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.wire.columns import Batch, Dense, Runs, Struct, concat, concat_columns

texts = st.binary(max_size=6)
numbers = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5)


def column_of_texts(values):
    return Runs.from_bytes(values)


def column_of_lists(values):
    offsets = np.cumsum([0, *map(len, values)])
    flat = np.array([x for v in values for x in v], np.int32)
    return Runs.from_offsets(Dense(flat), offsets)


def lists_of(column):
    items, offsets = column.compact()
    return [items.values[a:b].tolist() for a, b in itertools.pairwise(offsets)]


def parts(values):
    return st.lists(st.lists(values, min_size=1, max_size=6), min_size=1, max_size=5)


@given(parts(texts))
def test_texts(found):
    whole = concat_columns([column_of_texts(part) for part in found])
    assert whole.to_bytes() == [text for part in found for text in part]


@given(parts(numbers))
def test_lists(found):
    whole = concat_columns([column_of_lists(part) for part in found])
    assert lists_of(whole) == [v for part in found for v in part]


@given(parts(numbers), st.data())
def test_rows_in_any_order_are_compacted_with_their_bytes(found, data):
    values = [v for part in found for v in part]
    order = data.draw(st.permutations(range(len(values))))
    picked = column_of_lists(values)[np.array(order)]
    assert lists_of(picked) == [values[i] for i in order]
    assert lists_of(concat_columns([picked, picked])) == [values[i] for i in order] * 2


@given(parts(st.tuples(st.integers(0, 255), st.booleans(), texts)))
def test_batches_with_nulls_and_nested_objects(found):
    batches = []
    for part in found:
        number = Dense(np.array([n for n, _, _ in part], np.uint8))
        # One part knows of no null, the others mark them.
        valid = None if all(v for _, v, _ in part) else np.array([v for _, v, _ in part])
        inner = Struct({"n": number, "t": column_of_texts([t for _, _, t in part])}, valid=valid)
        batches.append(Batch(number, {"o": inner}))
    whole = concat(batches)
    rows = [row for part in found for row in part]
    assert len(whole) == len(rows)
    assert whole.key.values.tolist() == [n for n, _, _ in rows]
    nested = whole.columns["o"]
    assert nested.fields["t"].to_bytes() == [t for _, _, t in rows]
    assert ([True] * len(rows) if nested.valid is None else nested.valid.tolist()) == [
        v for _, v, _ in rows
    ]
    assert concat(batches[:1]) is batches[0]
