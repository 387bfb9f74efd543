"""Global steps: the same rows for any number of workers, and a place that is one number."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.errors import ConfigError
from ignitetf.read.key_order import KeyOrder, Slices
from ignitetf.read.keys import IntegerKeys
from ignitetf.read.scan_order import Position, Shard
from ignitetf.wire.blocks import BLOCK_KEY
from ignitetf.wire.schema import Schema

pytestmark = pytest.mark.core

rows = st.integers(0, 60)
workers = st.integers(1, 6)
steps = st.integers(1, 25)
evens = st.sampled_from([None, "pad", "drop"])
seeds = st.none() | st.integers(0, 2**64)


def slices(first, end, step, count, even=None):
    return [Slices(first, end, step, Shard(i, count), even) for i in range(count)]


def by_step(parts):
    """The places of each step, worker after worker."""
    found = []
    for part in parts:
        at = 0
        for number, size in enumerate(part.sizes()):
            if number == len(found):
                found.append([])
            found[number] += part.places(at, at + size).tolist()
            at += size
        assert at == len(part)
    return found


def key_order(count, **options):
    return KeyOrder(IntegerKeys(Schema(None, BLOCK_KEY, ()), count), **options)


@given(rows, st.integers(0, 60), steps, workers)
def test_every_step_has_the_same_places_for_any_number_of_workers(end, first, step, count):
    """In the order of one worker, when the slices are laid end to end."""
    first, step = min(first, end), max(step, count)
    wanted = [list(range(at, min(at + step, end))) for at in range(first, end, step)]
    assert by_step(slices(first, end, step, count)) == wanted


@given(rows, steps, workers)
def test_slices_differ_by_one_row_at_most(end, step, count):
    sizes = [[*part.sizes(), 0] for part in slices(0, end, max(step, count), count)]
    for number in range(max(map(len, sizes)) - 1):
        of_step = [size[number] for size in sizes if len(size) > number]
        assert max(of_step) - min(of_step) <= 1
        assert sorted(of_step, reverse=True) == of_step


@given(rows, steps, workers, st.sampled_from(["pad", "drop"]))
def test_even_slices_have_one_length(end, step, count, even):
    step = max(step, count)
    parts = slices(0, end, step, count, even)
    assert len({tuple(part.sizes()) for part in parts}) == 1
    for number, places in enumerate(by_step(parts)):
        whole = set(range(number * step, min(number * step + step, end)))
        assert set(places) <= whole
        if even == "pad":
            assert set(places) == whole and len(places) < len(whole) + count
        else:
            assert len(places) == len(set(places)) > len(whole) - count


@given(rows, steps, workers, evens, st.data())
def test_places_may_be_asked_for_in_any_pieces(end, step, count, even, data):
    for part in slices(0, end, max(step, count), count, even):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(part)), max_size=5)))
        bounds = [0, *cuts, len(part)]
        pieces = [part.places(a, b) for a, b in pairwise(bounds)]
        assert np.concatenate(pieces).tolist() == part.places(0, len(part)).tolist()


@given(rows, steps, workers, seeds, st.data())
def test_from_any_step_any_workers_go_on_with_the_rest(count, step, first, seed, data):
    """Stop after k steps of n workers, go on with m: the keys that one worker would have left."""
    order = key_order(count, seed=seed, global_batch=max(step, 6))
    step = order.global_batch
    shard = Shard(data.draw(st.integers(0, first - 1)), first)
    before = order.slices(Position(3), shard)
    done = data.draw(st.integers(0, before.whole_steps))
    position = order.after(Position(3), sum(before.sizes()[:done]), shard)
    assert position.chain == ((1, done * step),)
    whole = order.numbers(3, np.arange(count)).tolist()
    assert sorted(whole) == list(range(count))
    then = data.draw(workers)
    parts = [order.slices(position, Shard(i, then)) for i in range(then)]
    rest = [order.numbers(3, np.array(places)).tolist() for places in by_step(parts)]
    assert [key for keys in rest for key in keys] == whole[done * step :]
    assert [len(keys) for keys in rest[:-1]] == [step] * (len(rest) - 1)


@given(rows, st.integers(1, 9), workers)
def test_without_a_global_batch_any_batch_size_makes_the_same_steps(count, batch, world):
    """The state counts rows alone, so it must be right whatever the batches are."""
    order = key_order(count)
    for index in range(world):
        shard = Shard(index, world)
        stepped = order.with_batch(batch, shard)
        assert stepped.global_batch == batch * world
        mine = stepped.slices(Position(0), shard)
        assert len(mine) == order.rows_left(Position(0), shard)
        at = 0
        for size in mine.sizes()[: mine.whole_steps]:
            at += size
            assert order.after(Position(0), at, shard) == stepped.after(Position(0), at, shard)


def test_in_the_middle_of_a_step_there_is_no_state():
    order = key_order(100, global_batch=10)
    assert order.after(Position(0), 4, Shard(0, 1)).chain == ((1, 4),)
    with pytest.raises(ConfigError, match="in the middle of a global step"):
        order.after(Position(0), 4, Shard(0, 2))


@pytest.mark.parametrize(
    ("step", "count", "batch", "fits"),
    [(12, 2, 6, True), (12, 2, 3, True), (12, 2, 4, False), (12, 2, 12, False),
     (13, 3, 5, True), (13, 3, 4, False), (12, 1, 12, True)],
)  # fmt: skip
def test_batches_have_to_fit_into_a_slice(step, count, batch, fits):
    order = key_order(100, global_batch=step)
    if fits:
        assert order.with_batch(batch, Shard(0, count)) is order
    else:
        with pytest.raises(ConfigError, match="do not divide"):
            order.with_batch(batch, Shard(0, count))


@pytest.mark.parametrize("chain", [((2, 3),), ((1, 101),), ((1, 3), (2, 1))])
def test_a_place_of_another_order_is_refused(chain):
    with pytest.raises(ConfigError, match="pass what state"):
        try:
            key_order(100).slices(Position(0, chain), Shard(0, 1))
        except ConfigError as error:
            raise ConfigError(f"{error.message}: {error.hint}") from error


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("world", [1, 3])
def test_no_rows_and_one_row(count, world):
    parts = [key_order(count, seed=1).slices(Position(0), Shard(i, world)) for i in range(world)]
    assert sum(map(len, parts)) == count
    assert [p for part in parts for p in part.places(0, len(part)).tolist()] == [0] * count
