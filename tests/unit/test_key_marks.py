"""The checksum of keys does not depend on how they are cut into columns."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.read.changes import fingerprint, fingerprints, key_mark
from ignitetf.wire.schema import Batch, Column

KINDS = {
    "numbers": lambda keys: Column(np.array(keys, np.int64)),
    "texts": lambda keys: Column.from_bytes([b"key %d" % key * (1 + key % 3) for key in keys]),
    "objects": lambda keys: Column(
        {"A": Column(np.array(keys, np.int32)), "B": Column.from_bytes([b"%d" % k for k in keys])}
    ),
}


@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(st.integers(-9, 99), min_size=1, max_size=30),
    st.lists(st.integers(0, 30), max_size=4),
)
def test_parts_of_keys_have_the_mark_of_the_whole(kind, keys, cuts):
    whole = KINDS[kind](keys)
    places = [0, *sorted(min(cut, len(keys)) for cut in cuts), len(keys)]
    parts = [whole[a:b] for a, b in itertools.pairwise(places)]
    assert key_mark(parts) == key_mark([whole]) == fingerprint([Batch(whole)])
    counts = [len(part) for part in parts]
    assert fingerprints(Batch(whole), counts) == [key_mark([part]) for part in parts]
    if len(keys) > 1 and keys[0] != keys[-1]:
        assert key_mark([KINDS[kind](keys[::-1])]) != key_mark([whole])
