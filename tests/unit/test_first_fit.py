"""First-fit packing against a second implementation with plain lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.errors import ConfigError
from ignitetf.train.first_fit import Packing, first_fit

LENGTH = 12


def plainly(sizes, length):
    """The row of each piece, found by trying one row after the other."""
    free, found = [], []
    for size in sizes:
        row = next((i for i, room in enumerate(free) if room >= size), len(free))
        if row == len(free):
            free.append(length)
        free[row] -= size
        found.append(row)
    return found


@given(st.lists(st.integers(1, LENGTH), max_size=200))
def test_a_piece_goes_into_the_first_row_with_room(sizes):
    assert first_fit(np.array(sizes, np.int64), LENGTH).tolist() == plainly(sizes, LENGTH)


@given(st.lists(st.integers(0, 40), max_size=60), st.sampled_from([None, 2]))
def test_every_token_of_a_document_is_in_one_piece(lengths, eos):
    packing = Packing("T", LENGTH, eos, 0, 100, "split")
    window = packing.pack(np.arange(len(lengths)), np.array(lengths, np.int64))
    pieces = zip(window.documents, window.starts, window.sizes, strict=True)
    tokens = sorted((d, t) for d, s, n in pieces for t in range(s, s + n))
    sizes = [n + (eos is not None and n > 0) for n in lengths]
    assert tokens == [(d, t) for d, n in enumerate(sizes) for t in range(n)]
    for row in range(len(window)):
        of = slice(window.bounds[row], window.bounds[row + 1])
        assert 0 < window.sizes[of].sum() <= LENGTH
        assert len(set(window.documents[of])) == len(window.documents[of])


def test_a_document_that_fits_without_eos_alone_is_too_long():
    packing = Packing("T", LENGTH, 2, 0, 100, "error")
    packing.pack(np.arange(1), np.array([LENGTH - 1]))
    with pytest.raises(ConfigError, match="row 7 has 12 tokens, a packed row has 12 with eos"):
        packing.pack(np.array([4, 7]), np.array([3, LENGTH]))
