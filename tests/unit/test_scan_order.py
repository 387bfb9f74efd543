"""Orders, shards and positions: every row once, in one order, whatever the workers."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ignitetf.errors import ConfigError
from ignitetf.read.scan_order import Position, ScanOrder, Shard, whole, whole_argument

pytestmark = pytest.mark.core

counts = st.lists(st.integers(0, 9), min_size=1, max_size=12).map(tuple)
workers = st.integers(1, 5)
seeds = st.none() | st.integers(0, 2**64)


@st.composite
def orders(draw, *even):
    sizes = draw(counts)
    window = draw(st.sampled_from([1, 5, 40, 10**6]))
    return ScanOrder(
        tuple(range(len(sizes))),
        sizes,
        1.0,
        draw(seeds),
        draw(st.sampled_from(even or (None,))),
        window,
    )


def rows_of(order, shard, epoch):
    """The rows of a shard's epoch in order, each as (partition, number in it)."""
    out = []
    for window in order.windows(shard, epoch):
        rows = [(p, i) for p in window.partitions for i in range(order.counts[p])]
        assert (window.first, window.rows) == (len(out), len(rows))
        index = range(len(rows)) if order.seed is None else order.permutation(window, epoch)
        assert sorted(index) == list(range(len(rows)))
        out += [rows[i] for i in index]
    return out


def read(order, pieces, epoch):
    """What a worker reads of pieces; a padded shard begins again with its own rows."""
    out = []
    for piece in pieces:
        own = rows_of(order, piece.shard, epoch)
        out += [own[i % len(own)] for i in range(piece.start, piece.stop)]
    return out


def every_row(order):
    return [(p, i) for p, count in enumerate(order.counts) for i in range(count)]


def shards(count):
    return [Shard(i, count) for i in range(count)]


@given(orders(), workers, st.integers(0, 3))
def test_every_row_is_in_one_shard_once(order, count, epoch):
    found = [row for shard in shards(count) for row in rows_of(order, shard, epoch)]
    assert sorted(found) == every_row(order)
    assert [order.own_rows(s) for s in shards(count)] == [
        len(rows_of(order, s, epoch)) for s in shards(count)
    ]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(0, 2**32))
def test_windows_of_a_shuffle_grow_from_8_mb_up_to_their_limit(sizes, seed):
    mb, most = 1 << 20, 64
    order = ScanOrder(tuple(range(len(sizes))), tuple(sizes), mb, seed, window_bytes=most * mb)
    windows = order.windows(Shard(), 0)
    for number, window in enumerate(windows):
        limit = min(most, 8 << number)
        assert window.rows <= limit or len(window.partitions) == 1
        if window is not windows[-1]:
            following = windows[number + 1].partitions[0]
            assert window.rows + sizes[following] > limit


@given(orders(), workers)
def test_the_largest_partition_goes_to_the_smallest_shard(order, count):
    sizes = [order.own_rows(s) for s in shards(count)]
    assert max(sizes) - min(sizes) <= max(order.counts)


@given(orders(), st.integers(0, 3))
def test_an_epoch_depends_on_seed_and_number_alone(order, epoch):
    again = ScanOrder(order.partitions, order.counts, 1.0, order.seed, None, order.window_bytes)
    assert rows_of(order, Shard(), epoch) == rows_of(again, Shard(), epoch)
    if order.seed is None:
        assert rows_of(order, Shard(), epoch) == every_row(order)


@given(orders("pad", "drop"), workers)
def test_even_shards_have_one_length(order, count):
    try:
        lengths = {order.rows(s) for s in shards(count)}
    except ConfigError:
        assert order.even == "pad" and 0 in [order.own_rows(s) for s in shards(count)]
        return
    own = [order.own_rows(s) for s in shards(count)]
    assert lengths == {max(own) if order.even == "pad" else min(own)}


@given(orders(), st.lists(st.tuples(workers, st.floats(0, 1)), min_size=1, max_size=4), workers)
def test_an_interrupted_epoch_gives_each_row_once(order, links, last):
    """Stopped several times and gone on by other numbers of workers."""
    seen, position = [], Position(0)
    for count, share in links:
        pieces = [order.pieces(position.chain, s) for s in shards(count)]
        longest = max(sum(map(len, p)) for p in pieces)
        consumed = int(longest * share)
        for own in pieces:
            seen += read(order, own, 0)[:consumed]
        position = position.after(consumed, count)
    rest = [row for s in shards(last) for row in read(order, order.pieces(position.chain, s), 0)]
    assert sorted(seen + rest) == every_row(order)


@given(orders("pad"), workers, workers, st.floats(0, 1))
def test_a_padded_rest_has_one_length_and_every_row(order, before, after, share):
    assume(min(order.own_rows(s) for s in shards(before)) > 0)
    length = order.rows(Shard(0, before))
    consumed = int(length * share)
    first = [read(order, order.pieces((), s), 0) for s in shards(before)]
    chain = Position(0).after(consumed, before).chain
    rest = [read(order, order.pieces(chain, s), 0) for s in shards(after)]
    assert len({len(r) for r in rest}) == 1
    every = {row for rows in [*[f[:consumed] for f in first], *rest] for row in rows}
    assert every == set(every_row(order))


@given(orders(), workers, st.integers(1, 50))
def test_a_place_behind_the_end_is_refused(order, count, more):
    longest = max(order.rows(s) for s in shards(count))
    with pytest.raises(ConfigError, match="at most"):
        order.pieces(((count, longest + more),), Shard())


@given(workers, st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_links_of_one_number_of_workers_are_one(count, steps):
    position = Position(3)
    for rows in steps:
        position = position.after(rows, count)
    assert position == Position(3, ((count, sum(steps)),))
    state = {"epoch": 3, "chain": [list(link) for link in position.chain]}
    assert Position.from_state(state) == position


@pytest.mark.parametrize(
    "state",
    [
        {},
        [],
        "3",
        {"epoch": 0},
        {"epoch": -1, "chain": []},
        {"epoch": 1.5, "chain": []},
        {"epoch": True, "chain": []},
        {"epoch": 0, "chain": "ab"},
        {"epoch": 0, "chain": [[0, 1]]},
        {"epoch": 0, "chain": [[1, -1]]},
        {"epoch": 0, "chain": [[1, 1], [1, 1]]},
        {"epoch": 0, "chain": [[2, 1]] * 2000},
    ],
)
def test_what_is_no_position_is_refused(state):
    with pytest.raises(ConfigError):
        Position.from_state(state)


@pytest.mark.parametrize(
    "value", [(1, 1), (-1, 2), (0, 0), (1.5, 3), ("0", 1), (0, 1, 2), 3, None, (True, 2)]
)
def test_what_is_no_shard_is_refused(value):
    with pytest.raises(ConfigError):
        Shard.of(value)


@given(st.integers(-5, 5), st.integers(-5, 5))
def test_shards_are_those_whose_index_is_below_their_count(index, count):
    if 0 <= index < count:
        assert Shard.of((index, count)) == Shard(index, count) == Shard.of(Shard(index, count))
    else:
        with pytest.raises(ConfigError):
            Shard(index, count)


@given(st.integers(), st.integers(), st.integers())
def test_whole_arguments_are_between_their_bounds(value, least, most):
    if least <= value <= most:
        assert whole_argument("x", value, least, most) == whole(value) == value
    else:
        with pytest.raises(ConfigError, match="x="):
            whole_argument("x", value, least, most)
