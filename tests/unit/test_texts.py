"""Runs of bytes as Python objects: what slices give, and nothing leaks."""

import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.errors import WireError
from ignitetf.wire import texts
from ignitetf.wire.schema import Column


@given(st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40))))
def test_runs_are_the_slices_of_the_page(page, runs):
    runs = [(min(a, len(page)), n) for a, n in runs]
    runs = [(a, min(n, len(page) - a)) for a, n in runs]
    data = np.frombuffer(page, np.uint8)
    starts, lengths = (np.array([run[i] for run in runs], np.int64) for i in (0, 1))
    expected = [page[a : a + n] for a, n in runs]
    assert texts.bytes_of(data, starts, lengths).tolist() == expected
    with patch.object(texts, "_LONG_BYTES", 0):  # filled without the GIL
        assert texts.bytes_of(data, starts, lengths).tolist() == expected
    backwards = Column(data, starts, lengths)[::-1]
    assert backwards.to_bytes() == expected[::-1]
    with patch.object(texts, "_native", lambda: None):
        assert texts.bytes_of(data, starts, lengths).tolist() == expected


@pytest.mark.parametrize("run", [(-1, 2), (3, -1), (8, 3), (2**62, 2**62), (11, 0)])
def test_runs_beyond_the_page_are_refused(run):
    if texts._native() is None:
        pytest.skip("Python's slices are shorter there; decoding has checked the runs")
    starts, lengths = np.array([[0, run[0]], [4, run[1]]], np.int64)
    with pytest.raises(WireError, match="beyond the end"):
        texts.bytes_of(np.zeros(10, np.uint8), starts, lengths)


def test_several_threads_make_large_ones_at_a_time():
    page = np.random.default_rng(1).integers(0, 256, 4 << 20, np.uint8)
    starts = np.arange(0, len(page), 4096)
    lengths = np.arange(len(starts)) * 4 % 4097  # 2 KB on average
    expected = [page[a : a + n].tobytes() for a, n in zip(starts, lengths, strict=True)]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: texts.bytes_of(page, starts, lengths).tolist(), range(32))
        assert all(each == expected for each in found)


def test_objects_live_as_long_as_they_are_held():
    data = np.frombuffer(b"some text of a page" * 50, np.uint8)
    starts = np.arange(0, 900, 19)
    lengths = np.full(len(starts), 19)
    nones = sys.getrefcount(None)
    found = texts.bytes_of(data, starts, lengths)
    assert {sys.getrefcount(item) for item in found} == {3}  # the array, `item`, the argument
    del found
    assert abs(sys.getrefcount(None) - nones) < 20
