"""The checksum of keys does not depend on how they are cut into columns."""

import itertools
import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.read.changes import KeyMark
from ignitetf.wire.schema import Column

KINDS = {
    "numbers": lambda keys: Column(np.array(keys, np.int64)),
    "texts": lambda keys: Column.from_bytes([b"key %d" % key * (1 + key % 3) for key in keys]),
    "objects": lambda keys: Column(
        {"A": Column(np.array(keys, np.int32)), "B": Column.from_bytes([b"%d" % k for k in keys])}
    ),
}


def mark(parts):
    found = KeyMark()
    for part in parts:
        found.add(part)
    assert found.rows == sum(map(len, parts))
    return found.value


@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(st.integers(-9, 99), max_size=30),
    st.lists(st.integers(0, 30), max_size=4),
)
def test_parts_of_keys_have_the_mark_of_the_whole(kind, keys, cuts):
    whole = KINDS[kind](keys)
    places = [0, *sorted(min(cut, len(keys)) for cut in cuts), len(keys)]
    parts = [whole[a:b] for a, b in itertools.pairwise(places)]
    assert mark(parts) == mark([whole])
    if not keys:
        assert mark(parts) == mark([]) == 0
    elif kind == "numbers":  # as units of a single page have it, in C
        assert mark(parts) == zlib.crc32(np.array(keys, np.int64).tobytes())
    if len(keys) > 1 and keys[0] != keys[-1]:
        assert mark([KINDS[kind](keys[::-1])]) != mark([whole])
