"""Mixtures without a node: every row at one place, weights in every step, parts that move on."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.errors import ConfigError
from ignitetf.read.mix_order import MOST_PLACES, MOST_STEP, Interleaving, MixOrder, Share, rows_of
from ignitetf.read.scan_order import Position, Shard

pytestmark = pytest.mark.core

mixed_counts = st.lists(st.integers(0, 40) | st.integers(0, 3), min_size=1, max_size=6).filter(any)
steps = st.integers(1, 30) | st.integers(1, 200)


@given(mixed_counts, steps)
def test_interleaving_gives_every_row_one_place(counts, step):
    source, number = Interleaving(counts, step).at(np.arange(sum(counts)))
    for component, count in enumerate(counts):
        assert sorted(number[source == component].tolist()) == list(range(count))


@given(mixed_counts, steps)
def test_every_step_has_its_share_of_each_component_to_within_one_row(counts, step):
    total = sum(counts)
    source, _ = Interleaving(counts, step).at(np.arange(total))
    for start in range(0, total, step):
        part = source[start : start + step]
        for component, count in enumerate(counts):
            assert abs(int((part == component).sum()) - Fraction(len(part) * count, total)) < 1


@given(mixed_counts, steps)
def test_rows_come_step_by_step_in_their_order(counts, step):
    total = sum(counts)
    source, number = Interleaving(counts, step).at(np.arange(total))
    done = Counter()
    for start in range(0, total, step):
        for component in range(len(counts)):
            here = slice(start, start + step)
            found = sorted(number[here][source[here] == component].tolist())
            assert found == list(range(done[component], done[component] + len(found)))
            done[component] += len(found)


@given(mixed_counts, steps, st.data())
def test_any_places_are_what_they_are_among_all(counts, step, data):
    total = sum(counts)
    order = Interleaving(counts, step)
    whole = np.stack(order.at(np.arange(total)))
    cuts = sorted(data.draw(st.lists(st.integers(0, total), max_size=4)))
    pieces = [np.stack(order.at(np.arange(a, b))) for a, b in pairwise([0, *cuts, total])]
    assert np.concatenate(pieces, axis=1).tolist() == whole.tolist()


def test_steps_and_the_parts_of_workers_stay_near_the_shares():
    """Over an epoch the rows due so far, within a step those of any worker's part."""
    counts, step = [70_001, 20_000, 9_000, 999], 128
    source, _ = Interleaving(counts, step).at(np.arange(100_000))
    place = np.arange(1, 100_001)
    for component, count in enumerate(counts):
        late = np.cumsum(source == component) - place * count / 100_000
        assert np.abs(late).max() < 4
        for workers in (2, 4, 8):
            size = step // workers
            parts = (source[: 781 * step] == component).reshape(-1, size).sum(1)
            assert np.abs(parts - size * count / 100_000).max() < 2


def test_the_largest_interleaving_computes_without_overflow():
    counts = [MOST_PLACES // 2 + 1, MOST_PLACES // 2 - 8, 7]
    for step in (1, 3, 4096, MOST_STEP):
        order = Interleaving(counts, step)
        for first in (0, MOST_PLACES // 3, MOST_PLACES - 200):
            source, number = order.at(np.arange(first, first + 200))
            assert source.min() >= 0 and source.max() <= 2
            due = (first + 200) * (np.array(counts) / MOST_PLACES)
            assert (np.abs(number - due[source]) <= step + 2000).all()
            assert ((number >= 0) & (number < np.array(counts)[source])).all()


# The rows of a component

shares = st.builds(
    Share, st.integers(1, 30), st.integers(0, 100), st.none() | st.integers(0, 2**64)
)


@given(shares, st.integers(0, 2**62), st.booleans())
def test_an_epoch_uses_the_rows_of_a_component_equally_often(share, epoch, shuffled):
    found = share.numbers(epoch, np.arange(share.rows), shuffled).tolist()
    uses = Counter(found)
    assert set(uses) <= set(range(share.count))
    assert {uses[row] for row in range(share.count)} <= {
        share.rows // share.count, -(-share.rows // share.count)
    }  # fmt: skip


@given(shares, st.integers(0, 50), st.integers(1, 40), st.booleans())
def test_any_epochs_together_use_them_equally_often(share, first, epochs, shuffled):
    uses = Counter()
    for epoch in range(first, first + epochs):
        uses.update(share.numbers(epoch, np.arange(share.rows), shuffled).tolist())
    counts = [uses[row] for row in range(share.count)]
    assert max(counts) - min(counts) <= 1


@given(shares, st.integers(0, 9), st.booleans(), st.data())
def test_rows_of_a_component_are_found_in_any_pieces(share, epoch, shuffled, data):
    places = np.arange(share.rows)
    whole = share.numbers(epoch, places, shuffled)
    some = np.array(data.draw(st.lists(st.integers(0, max(0, share.rows - 1)))), np.int64)
    some = some[: 0 if share.rows == 0 else None]
    assert share.numbers(epoch, some, shuffled).tolist() == whole[some].tolist()


def test_a_component_of_many_rows_has_whole_passes_and_then_a_part():
    share = Share(100_000, 250_000, 7)
    found = share.numbers(3, np.arange(250_000), shuffled=False)
    for start in (0, 100_000):
        assert len(np.unique(found[start : start + 100_000])) == 100_000
    assert len(np.unique(found[200_000:])) == 50_000
    assert found[:100_000].tolist() != found[100_000:200_000].tolist()
    following = share.numbers(4, np.arange(250_000), shuffled=False)
    assert not set(found[200_000:].tolist()) & set(following[200_000:].tolist())


@given(
    st.lists(shares, min_size=1, max_size=4).filter(lambda parts: any(s.rows for s in parts)),
    st.none() | st.integers(0, 99), st.integers(8, 40), st.integers(1, 8), st.data(),
)  # fmt: skip
def test_workers_read_the_steps_of_one_and_go_on_with_the_rest(parts, seed, step, world, data):
    order = MixOrder(tuple(parts), seed, global_batch=step)
    total = sum(share.rows for share in parts)
    source, number = order.rows_at(4, np.arange(order.total))
    whole = list(zip(source.tolist(), number.tolist(), strict=True))
    counts = Counter(source.tolist())
    assert order.total == total and [counts[i] for i in range(len(parts))] == [
        share.rows for share in parts
    ]
    done = data.draw(st.integers(0, total // step)) * step
    position = order.after(Position(4), done, Shard())
    found, workers = [], [order.slices(position, Shard(i, world)) for i in range(world)]
    at = [0] * world
    for start in range(done, total, step):
        for index, worker in enumerate(workers):
            size = worker.sizes()[(start - done) // step] if at[index] < len(worker) else 0
            rows = order.rows_at(4, worker.places(at[index], at[index] + size))
            found += zip(*(column.tolist() for column in rows), strict=True)
            at[index] += size
    assert found == whole[done:]


# How many rows

names = st.sampled_from("abcdef")
weights = st.floats(0, 1e9) | st.integers(0, 5) | st.fractions(0, 9)


@given(st.dictionaries(names, weights, min_size=1), st.integers(1, 10**6))
def test_weights_divide_an_epoch_to_within_one_row(given_weights, size):
    exact = {name: Fraction(weight) for name, weight in given_weights.items()}
    has = {name: 1 + len(name) for name in given_weights}
    if not (whole := sum(exact.values())):
        with pytest.raises(ConfigError, match="all weights are zero"):
            rows_of(has, given_weights, size, None, None)
        return
    rows = rows_of(has, given_weights, size, None, None)
    assert sum(rows.values()) == size
    for name, weight in exact.items():
        assert abs(rows[name] - weight * size / whole) < 1
        assert rows[name] == 0 or weight > 0


def test_without_a_size_an_epoch_has_the_rows_of_the_components_that_count():
    has = {"a": 60, "b": 40, "c": 1000}
    assert rows_of(has, {"a": 1, "b": 3, "c": 0}, None, None, None) == {"a": 25, "b": 75, "c": 0}
    assert rows_of(has, None, None, None, None) == has
    asked = rows_of(has, None, None, {"a": 1.5, "b": Fraction(1, 3)}, {"c": 7})
    assert asked == {"a": 90, "b": 13, "c": 7}
