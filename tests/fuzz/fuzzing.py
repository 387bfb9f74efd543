"""What all fuzz tests share: how many inputs, from which seed, and how bytes are damaged.

IGNITETF_FUZZ_INPUTS=5000000 is the nightly mode: so many inputs for each test, from a seed of the
clock unless IGNITETF_FUZZ_SEED gives one. Without it a few hundred inputs from a fixed seed. The
number of the input and the seed stand in every failure: they make it again.
"""

import os
import random
import resource
import time
from contextlib import contextmanager
from pathlib import Path

NIGHTLY = "IGNITETF_FUZZ_INPUTS" in os.environ
_NUMBERS = (0, 1, -1, 2, 127, 128, 255, 256, 65535, 1 << 24, (1 << 31) - 1, -(1 << 31))
# An input that takes longer, or needs more memory, is a failure.
LONGEST_S = 3.0
MEMORY_BYTES = 2 << 30


def _seed():
    if given := os.environ.get("IGNITETF_FUZZ_SEED"):
        return int(given)
    return time.time_ns() % 1_000_000_007 if NIGHTLY else 20241121


SEED = _seed()


def count(default):
    """How many inputs a test makes."""
    return int(os.environ.get("IGNITETF_FUZZ_INPUTS", default))


def chance(number):
    """The chance of one input: the same for the same seed and number."""
    return random.Random(SEED * 1_000_003 + number)


@contextmanager
def watched(name, inputs):
    """Limit the memory of this process while inputs are tried, and print what was done."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, hard))
    begin = time.monotonic()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    print(f"\n{name}: {inputs:,} inputs, seed {SEED}, {time.monotonic() - begin:.1f} s")


def attempt(number, action, errors):
    """Run one input: its result, or None where it was refused by one of the known errors."""
    begin = time.monotonic()
    try:
        return action()
    except errors:
        return None
    except BaseException as error:
        raise AssertionError(f"input {number} of seed {SEED}: {error!r}") from error
    finally:
        seconds = time.monotonic() - begin
        assert seconds < LONGEST_S, f"input {number} of seed {SEED} took {seconds:.1f} s"


def damage(rng, data, most=3):
    """The bytes with some damage: cut, flipped, overwritten, removed, doubled, put in."""
    out = bytearray(data)
    for _ in range(rng.randint(1, most)):
        size = len(out)
        kind = rng.randrange(8)
        at = rng.randrange(size + 1)
        if kind == 0:
            del out[at:]
        elif kind == 1 and size:
            out[at % size] ^= 1 << rng.randrange(8)
        elif kind == 2 and size:
            out[at % size] = rng.randrange(256)
        elif kind == 3 and size >= 4:
            at %= size - 3
            out[at : at + 4] = rng.choice(_NUMBERS).to_bytes(4, "little", signed=True)
        elif kind == 4 and size >= 4:
            at %= size - 3
            value = int.from_bytes(out[at : at + 4], "little") + rng.randint(-9, 9)
            out[at : at + 4] = (value % (1 << 32)).to_bytes(4, "little")
        elif kind == 5:
            del out[at : at + rng.randint(1, 9)]
        elif kind == 6:
            out[at:at] = rng.randbytes(rng.randint(1, 9))
        else:
            piece = out[at : at + rng.randint(1, 60)]
            to = rng.randrange(size + 1)
            out[to:to] = piece
    return bytes(out)
