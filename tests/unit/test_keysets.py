"""Keys that one answer named, found again in other pages."""

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.wire.frames import Page
from ignitetf.wire.keysets import KeySet
from ignitetf.wire.parameters import encode_parameter


def binary_object(content):
    head = struct.pack("<bbhiiiii", 103, 1, 0, 7, 0, 24 + len(content), 0, 0)
    return head + content


KEYS = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(encode_parameter),
    st.integers(-3, 3).map(encode_parameter),
    st.text(max_size=5).map(encode_parameter),
    st.floats(allow_nan=False).map(encode_parameter),
    st.uuids().map(encode_parameter),
    st.binary(max_size=4).map(binary_object),
)


def wrapped(key, wrap):
    """As a node may send an object: at an offset within a wrapper."""
    if not wrap or key[0] != 103:
        return key
    return struct.pack("<bi", 27, len(key)) + key + struct.pack("<i", 0)


def page(parts):
    return Page(len(parts), False, np.frombuffer(b"".join(parts), np.uint8))


@given(st.lists(KEYS, max_size=20), st.lists(KEYS, max_size=20), st.booleans(), st.booleans())
def test_the_entries_are_those_of_a_set_of_bytes(some, others, wrap_a, wrap_b):
    rows = [*some[::2], *others]
    found = KeySet()
    for part in (some[:7], some[7:]):
        found.add(page([wrapped(key, wrap_a) for key in part]))
    assert len(found) == len(set(some))
    entries = [(key, encode_parameter(n)) for n, key in enumerate(rows)]
    chosen = found.entries(page([wrapped(key, wrap_b) + value for key, value in entries]))
    expected = [wrapped(key, wrap_b) + value for key, value in entries if key in set(some)]
    assert chosen.count == len(expected)
    assert chosen.data.tobytes() == b"".join(expected)
