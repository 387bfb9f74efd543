"""Processes that take turns read the batches that one of them would have read alone."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.read.key_order import Slices, Turns
from ignitetf.read.scan_order import Shard

SLICES = st.tuples(
    st.integers(0, 70), st.integers(0, 70), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3)
)


def slices_of(drawn, even, shard):
    """The slices of a worker, and a batch size that divides its part of a step."""
    first, more, batch, times, workers = drawn
    return Slices(first, first + more, batch * times * workers, Shard(shard, workers), even), batch


def batches(turns):
    """The places of each batch."""
    places = turns.places(0, len(turns))
    return (
        [p.tolist() for p in np.split(places, np.cumsum(turns.sizes())[:-1])] if len(turns) else []
    )


@given(SLICES, st.sampled_from([None, "pad", "drop"]), st.booleans(), st.integers(1, 5), st.data())
def test_turns_make_the_batches_of_one_process(drawn, even, drop_last, count, data):
    slices, batch = slices_of(drawn, even, data.draw(st.integers(0, drawn[4] - 1)))
    alone = batches(Turns(slices, batch, Shard(), drop_last))
    parts = [batches(Turns(slices, batch, Shard(i, count), drop_last)) for i in range(count)]
    merged = [b for turn in itertools.zip_longest(*parts) for b in turn if b is not None]
    assert merged == alone
    rows = slices.places(0, len(slices)).tolist()
    flat = [place for b in alone for place in b]
    assert flat == (rows[: len(flat)] if drop_last else rows)
    done = data.draw(st.integers(0, len(alone)))
    assert batches(Turns(slices, batch, Shard(), drop_last, done)) == alone[done:]


@given(SLICES, st.sampled_from([None, "pad", "drop"]))
def test_without_short_batches_all_workers_have_as_many(drawn, even):
    found = [slices_of(drawn, even, shard) for shard in range(drawn[4])]
    counts = {tuple(Turns(slices, batch, Shard(), True).sizes()) for slices, batch in found}
    assert len(counts) == 1
    assert set(counts.pop()) <= {drawn[2]}


@given(st.integers(0, 60), st.integers(2, 9), st.integers(1, 4), st.booleans())
def test_steps_that_cannot_be_cut_equally_have_one_batch_for_each_worker(
    rows, step, workers, drop_last
):
    step = max(step, workers)
    turns = []
    for index in range(workers):
        slices = Slices(0, rows, step, Shard(index, workers))
        turns.append(Turns(slices, slices.step_rows, Shard(), drop_last))
    whole = rows // step
    assert all(len(t.sizes()) >= whole for t in turns)
    if drop_last and step % workers:
        assert {len(t.sizes()) for t in turns} == {whole}
    for number in range(whole):
        places = [place for t in turns for place in batches(t)[number]]
        assert places == list(range(number * step, (number + 1) * step))
