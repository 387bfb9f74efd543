"""Columns have the values of Python's lists, whatever their form, and however they are cut and joined."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.errors import WireError
from ignitetf.wire.columns import (
    Batch,
    Dense,
    Runs,
    Struct,
    concat,
    concat_columns,
    merged,
)

NUMBERS, TEXTS = "numbers", "texts"
forms = st.recursive(
    st.sampled_from((NUMBERS, TEXTS)),
    lambda inner: st.one_of(
        st.tuples(inner),  # lists of these
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: {str(i): p for i, p in enumerate(parts)}
        ),
    ),
    max_leaves=4,
)


def value_of(form):
    """A value of a form, or None."""
    if form == NUMBERS:
        found = st.integers(-(2**31), 2**31 - 1)
    elif form == TEXTS:
        found = st.binary(max_size=6)
    elif isinstance(form, tuple):
        found = st.lists(value_of(form[0]), max_size=4)
    else:
        found = st.fixed_dictionaries({name: value_of(inner) for name, inner in form.items()})
    return found | st.none()


def column_of(form, values):
    marks = np.array([v is not None for v in values], bool)
    valid = None if marks.all() else marks
    if form == NUMBERS:
        return Dense(np.array([v or 0 for v in values], np.int32), valid)
    if form == TEXTS:
        return Runs.from_bytes(values)
    if isinstance(form, tuple):
        offsets = np.cumsum([0, *(len(v or ()) for v in values)])
        return Runs.from_offsets(
            column_of(form[0], [x for v in values for x in v or ()]), offsets, valid
        )
    parts = {n: [None if v is None else v[n] for v in values] for n in form}
    return Struct({n: column_of(form[n], part) for n, part in parts.items()}, valid)


def values_in(form, column):
    if form == NUMBERS:
        found = column.values.tolist()
    elif form == TEXTS:
        found = column.to_bytes()
    elif isinstance(form, tuple):
        items, offsets = column.compact()
        inner = values_in(form[0], items)
        found = [inner[p:q] for p, q in itertools.pairwise(offsets.tolist())]
    else:
        parts = [values_in(inner, column.fields[name]) for name, inner in form.items()]
        found = [dict(zip(form, row, strict=True)) for row in zip(*parts, strict=True)]
    marks = [True] * len(column) if column.valid is None else column.valid.tolist()
    return [v if there else None for v, there in zip(found, marks, strict=True)]


@given(st.data())
def test_a_column_is_the_list_of_its_values(data):
    form = data.draw(forms)
    parts = data.draw(st.lists(st.lists(value_of(form), max_size=6), min_size=1, max_size=4))
    columns = [column_of(form, part) for part in parts]
    whole, every = concat_columns(columns), [v for part in parts for v in part]
    assert len(whole) == len(every) and values_in(form, whole) == every
    order = np.array(data.draw(st.permutations(range(len(every)))), np.int64)
    picked = whole[order]
    assert values_in(form, picked) == [every[i] for i in order]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(every))] * 2)))
    assert values_in(form, picked[start:stop]) == [every[i] for i in order[start:stop]]
    both = concat_columns([picked[start:], picked[:start]])
    assert values_in(form, both) == [every[i] for i in [*order[start:], *order[:start]]]
    assert values_in(form, whole.present()) == [v for v in every if v is not None]
    assert whole.marked(None).valid is None and values_in(form, whole) == every


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=6)), min_size=1), min_size=1
    )
)
def test_batches_are_joined_with_all_their_columns(parts):
    batches = [
        Batch(
            Dense(np.array([n for n, _ in part], np.uint8)),
            {"t": Runs.from_bytes([t for _, t in part])},
        )
        for part in parts
    ]
    whole, rows = concat(batches), [row for part in parts for row in part]
    assert whole.key.values.tolist() == [n for n, _ in rows]
    assert whole.columns["t"].to_bytes() == [t for _, t in rows]
    assert whole.nbytes == sum(1 + len(t) for _, t in rows)
    assert concat(batches[:1]) is batches[0]


def test_rows_that_follow_one_another_in_memory_are_one_view():
    texts = Runs.from_bytes([b"%d" % i for i in range(9)])
    batch = Batch(Dense(np.arange(9)[:]), {"x": Dense(np.zeros((9, 2))[:]), "t": texts[:]})
    batch = Batch(
        batch.key, {**batch.columns, "t": Runs(texts.items, texts.starts[:], np.ones(9, int)[:])}
    )
    (one,) = merged(list(batch.slices(4)))
    assert np.shares_memory(one.key.values, batch.key.values) and len(one) == 9
    assert one.columns["t"].to_bytes() == texts.to_bytes()
    assert len(merged([batch[4:], batch[:4]])) == 2


@pytest.mark.parametrize("run", [(0, 4), (-1, 1), (3, 1), (0, -1)])
def test_runs_beyond_their_items_are_refused(run):
    items = Dense(np.zeros(3, np.int32))
    column = Runs(items, np.array([1, run[0]]), np.array([1, run[1]]))
    with pytest.raises((WireError, ValueError)):
        column.compact()
