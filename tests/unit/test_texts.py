"""Runs of bytes as Python objects: what slices give, and nothing leaks."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf._core import _native
from ignitetf.errors import WireError
from ignitetf.wire import columns
from ignitetf.wire.columns import Dense, Runs


@given(st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40))))
def test_runs_are_the_slices_of_the_page(page, runs):
    runs = [(min(a, len(page)), n) for a, n in runs]
    runs = [(a, min(n, len(page) - a)) for a, n in runs]
    data = np.frombuffer(page, np.uint8)
    starts, lengths = (np.array([run[i] for run in runs], np.int64) for i in (0, 1))
    expected = [page[a : a + n] for a, n in runs]
    assert columns.bytes_of(data, starts, lengths).tolist() == expected
    backwards = Runs(Dense(data), starts, lengths)[::-1]
    assert backwards.to_bytes() == expected[::-1]


@pytest.mark.parametrize("run", [(-1, 2), (3, -1), (8, 3), (2**62, 2**62), (11, 0)])
def test_runs_beyond_the_page_are_refused(run):
    starts, lengths = np.array([[0, run[0]], [4, run[1]]], np.int64)
    with pytest.raises(WireError, match="beyond the end"):
        columns.bytes_of(np.zeros(10, np.uint8), starts, lengths)


@pytest.mark.parametrize("size", [1, 1023, 1024, 5000])
def test_runs_of_any_length_are_the_slices(size):
    """Long ones are filled without the GIL."""
    page = np.random.default_rng(size).integers(0, 256, 20_000, np.uint8)
    starts = np.arange(0, len(page) - size, 777)
    lengths = np.full(len(starts), size)
    expected = [page[a : a + size].tobytes() for a in starts]
    assert columns.bytes_of(page, starts, lengths).tolist() == expected


def test_only_arrays_of_objects_take_bytes():
    runs = np.zeros(2, np.int64)
    for out in (np.zeros(2, np.int64), np.empty(3, object), np.empty(4, object)[::2]):
        with pytest.raises(ValueError):
            _native.bytes_of(np.zeros(9, np.uint8), runs, runs, out)


def test_several_threads_make_large_ones_at_a_time():
    page = np.random.default_rng(1).integers(0, 256, 4 << 20, np.uint8)
    starts = np.arange(0, len(page), 4096)
    lengths = np.arange(len(starts)) * 4 % 4097  # 2 KB on average
    expected = [page[a : a + n].tobytes() for a, n in zip(starts, lengths, strict=True)]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: columns.bytes_of(page, starts, lengths).tolist(), range(32))
        assert all(each == expected for each in found)


def test_objects_live_as_long_as_they_are_held():
    data = np.frombuffer(b"some text of a page" * 50, np.uint8)
    starts = np.arange(0, 900, 19)
    lengths = np.full(len(starts), 19)
    nones = sys.getrefcount(None)
    found = columns.bytes_of(data, starts, lengths)
    assert {sys.getrefcount(item) for item in found} == {3}  # the array, `item`, the argument
    del found
    assert abs(sys.getrefcount(None) - nones) < 20
