"""Gives runs at any bounds to the functions of the core: `core_runs.py SEED COUNT`, for a process alone.

Runs inside their page become its bytes, and all others are refused. That no memory is touched that is
not theirs is what `test_fuzz_core.py` has watched.
"""

import random
import sys

import numpy as np

from ignitetf._core import _native

FAR = (-1, 2**63 - 1, -(2**63), 2**31 - 1, 2**32)


def near(rng, size):
    if rng.randrange(24) == 0:
        return rng.choice(FAR)
    return rng.randrange(size + 1) if rng.randrange(8) else size - 2 + rng.randrange(5)


def attempt(function, *words):
    try:
        function(*words)
    except ValueError:
        return False
    return True


def runs(rng):
    """A page, which ends where its memory ends, and runs that are inside or not."""
    size, count = rng.randrange(rng.choice((40, 3000, 20_000))), rng.randrange(7)
    page = np.frombuffer(rng.randbytes(size), np.uint8).copy()
    few = rng.randrange(2)
    starts = [near(rng, size) for _ in range(count)]
    lengths = [rng.randrange(40) if few else near(rng, size) for _ in range(count)]
    inside = all(p >= 0 and n >= 0 and p + n <= size for p, n in zip(starts, lengths, strict=True))
    return page, np.array(starts, np.int64), np.array(lengths, np.int64), inside


def one(rng):
    page, starts, lengths, inside = runs(rng)
    short = rng.randrange(16) == 0  # an array that does not fit
    size = max(0, len(starts) - short)
    fits = inside and size == len(starts)
    objects = np.empty(size, object)
    assert attempt(_native.bytes_of, page, starts, lengths, objects) == fits
    if fits:
        ends = starts + lengths
        assert objects.tolist() == [page[p:q].tobytes() for p, q in zip(starts, ends, strict=True)]
    places = np.cumsum(lengths) - lengths
    room = (
        np.empty(max(0, int(lengths.sum()) - short), np.uint8) if inside else np.empty(9, np.uint8)
    )
    copied = attempt(_native.copy_runs, room, places, page, starts, lengths)
    if inside:
        assert copied == (int(lengths.sum()) <= len(room))
        each = [page[p : p + n] for p, n in zip(starts, lengths, strict=True)]
        assert not copied or room.tobytes() == b"".join(part.tobytes() for part in each)
    else:
        assert not copied
    aside = places + rng.choice((-1, 1)) * (1 << rng.choice((40, 62)))
    assert not len(places) or not attempt(_native.copy_runs, room[:9], aside, page, starts, lengths)
    for function, kind in ((_native.hash_runs, np.uint32), (_native.row_hash_runs, np.uint64)):
        assert attempt(function, page, starts, lengths, np.empty(size, kind)) == fits
    height = rng.randrange(1, 5)
    rows = page[: len(page) // height * height].reshape(height, -1)
    rows = rows[:: rng.choice((1, 2, -1)), rng.randrange(3) :]
    codes, hashes = np.empty(len(rows), np.uint32), np.empty(len(rows), np.uint64)
    assert attempt(_native.both_hashes, rows, codes, hashes)
    again = np.empty(len(rows), np.uint32)
    _native.hash_rows(rows, again)
    assert (codes == again).all()


def main(seed, count):
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        _native.hash_as(rng.randrange(3))
        try:
            one(rng)
        except BaseException:
            print(f"input {number} of seed {seed}", file=sys.stderr)
            raise
    print(f"{count} inputs of seed {seed}")
