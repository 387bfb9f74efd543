"""The global order of rows in blocks: a permutation that mixes whole blocks in bounded windows."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.errors import ConfigError
from ignitetf.read.blocks import BlockOrder, StoredBlocks
from ignitetf.read.keys import IntegerKeys
from ignitetf.read.scan_order import Position, Shard
from ignitetf.tables.catalog import Manifest
from ignitetf.tables.storage import LoadFacts
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.blocks import BLOCK_KEY, BlockKeys
from ignitetf.wire.columns import Dense
from ignitetf.wire.schema import Field, Schema

pytestmark = pytest.mark.core

KEY = Schema(None, BLOCK_KEY, ())
ROW_BYTES = 10
sizes = st.lists(st.integers(1, 9), max_size=30)
windows = st.sampled_from([1, 60, 200, 10**6])
seeds = st.none() | st.integers(0, 2**64)


def block_order(rows, window_bytes=200, seed=0, **options):
    keys = IntegerKeys(KEY, len(rows), np.arange(len(rows)) * 3)
    blocks = StoredBlocks(keys, np.array(rows, np.int64), ROW_BYTES)
    return BlockOrder(blocks, window_bytes, seed, **options)


@given(sizes, windows, seeds, st.integers(0, 3))
def test_an_epoch_is_a_permutation_of_all_rows(rows, window_bytes, seed, epoch):
    order = block_order(rows, window_bytes, seed)
    found = order.numbers(epoch, np.arange(order.total)).tolist()
    assert sorted(found) == list(range(sum(rows)))
    assert seed is not None or found == sorted(found)
    for at in range(0, len(found), 7):
        assert order.numbers(epoch, np.array([at])).tolist() == [found[at]]


@given(sizes, windows, seeds)
def test_windows_hold_whole_blocks_up_to_their_limit(rows, window_bytes, seed):
    order = block_order(rows, window_bytes, seed)
    layout = order.layout(2)
    assert sorted(layout.order.tolist()) == list(range(len(rows)))
    of_row = np.repeat(np.arange(len(rows)), rows)
    block = of_row[order.numbers(2, np.arange(order.total))]
    seen = []
    for first, end in zip(layout.windows, layout.windows[1:], strict=False):
        here = sorted(set(block[first:end].tolist()))
        assert sum(rows[b] for b in here) == end - first
        assert len(here) == 1 or (end - first) * ROW_BYTES <= window_bytes
        if seen:
            # The first block of a window did not fit into the window before.
            next_block = layout.order[sum(map(len, seen))]
            before = sum(rows[b] for b in seen[-1])
            assert (before + rows[next_block]) * ROW_BYTES > window_bytes
        seen.append(here)
    assert sorted(b for window in seen for b in window) == list(range(len(rows)))


def test_seeds_epochs_and_windows_have_orders_of_their_own():
    order = block_order([20] * 40, 4_000)
    first = order.numbers(0, np.arange(order.total))
    assert (first != order.numbers(1, np.arange(order.total))).any()
    assert (first != block_order([20] * 40, 4_000, 1).numbers(0, np.arange(800))).any()
    assert order.layout(0).windows.tolist() == [0, 400, 800]
    # Rows of two windows of one size are not permuted alike.
    at = order.layout_rows(0, np.arange(800))
    assert (at[:400] != at[400:] - 400).any()


@given(
    sizes, windows, st.integers(1, 12), st.integers(1, 5), st.sampled_from([None, "pad", "drop"])
)
def test_rows_before_a_place_are_those_that_one_counts(rows, window_bytes, step, count, even):
    order = block_order(rows, window_bytes, even=even, global_batch=max(step, count))
    done = sum(rows) // 3
    for index in range(count):
        slices = order.slices(Position(0, ((1, done),)), Shard(index, count))
        places = slices.places(0, len(slices)).tolist()
        bounds = [slices.rows_before(end) for end in order.layout(0).windows.tolist() if end > done]
        assert bounds == sorted(bounds) and (not places or bounds[-1] == len(places))
        for end, stop in zip(
            (e for e in order.layout(0).windows.tolist() if e > done), bounds, strict=True
        ):
            if even != "pad":
                assert stop == sum(place < end for place in places)
            # Whatever a row repeats, it is of the windows up to this one.
            assert all(place < end for place in places[:stop])


def manifest(blocks, block_rows, rows):
    schema = Schema("T", BLOCK_KEY, (Field("X", 3, np.dtype("<i4")),))
    facts = LoadFacts(blocks=blocks, block_rows=block_rows)
    return Manifest("T", schema, layout="blocks", rows=rows, nbytes=10 * rows, options=facts)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_blocks_are_numbered_by_partition_under_the_keys_that_the_load_chose(used):
    stored = StoredBlocks.of(manifest(tuple(used), (2,) * sum(used), 2 * sum(used)))
    chosen = BlockKeys(len(used))
    wanted = [chosen.reserve(p, n).tolist() for p, n in enumerate(used)]
    keys = stored.keys.values(np.arange(sum(used)))
    assert keys.tolist() == [key for keys in wanted for key in keys]
    found = partitions_of(KEY, Dense(keys), len(used))
    assert found.tolist() == np.repeat(np.arange(len(used)), used).tolist()


@pytest.mark.parametrize(("block_rows", "rows"), [((), 6), ((2, 3), 6), ((2, 3, 2), 6)])
def test_blocks_whose_rows_are_not_known_are_refused(block_rows, rows):
    with pytest.raises(ConfigError, match="rows of each block are not known") as caught:
        StoredBlocks.of(manifest((2, 1), block_rows, rows))
    assert "load it again" in caught.value.hint


def test_blocks_after_those_whose_rows_are_unknown_leave_them_unknown():
    from ignitetf.load.blocks import Blocks

    keys = BlockKeys(2, (1, 1))
    assert Blocks(SimpleNamespace(), keys).block_rows == ()
    assert Blocks(SimpleNamespace(), keys, (5, 6)).block_rows == (5, 6)
