"""The clock of a machine jumps while files are written and read: whole files, or a told error.

Leases are the only place where the time of day decides something; the jump is made in their clock.
"""

import random
import time

import pytest
from helpers.stores import new_store

from ignitetf.fs import leases, reclaim
from ignitetf.fs.check import check

pytestmark = [pytest.mark.node, pytest.mark.faults]
HOUR_MS = 3_600_000


@pytest.fixture
def store(client):
    with new_store(client, 16384) as made:
        yield made


@pytest.fixture
def jump(monkeypatch):
    """Set the clock of leases and of garbage by so many milliseconds."""

    def by(milliseconds):
        def clock():
            return time.time_ns() // 1_000_000 + milliseconds

        for module in (leases, reclaim):
            monkeypatch.setattr(module, "now_ms", clock)

    return by


def read(store, path):
    file = store.open_read(path)
    try:
        return file.read(0, file.size)
    finally:
        file.close()


@pytest.mark.parametrize("milliseconds", [HOUR_MS, -HOUR_MS, 60_000, -60_000])
def test_a_writer_over_a_jump_of_the_clock(store, jump, milliseconds):
    rng = random.Random(1)
    old, new = rng.randbytes(70_000), rng.randbytes(90_000)
    with store.writing("/f") as file:
        file.write(memoryview(old))
    told = None
    try:
        with store.writing("/f") as file:
            file.write(memoryview(new[:50_000]))
            jump(milliseconds)
            store.reclaimer.run(grace_s=0.0)
            file.write(memoryview(new[50_000:]))
    except OSError as error:
        told = error
        assert error.errno
    # A clock that went back makes nobody look dead.
    assert told is None or milliseconds > 0
    assert read(store, "/f") == (new if told is None else old)
    jump(0)
    with store.writing("/f") as file:
        file.write(memoryview(new))
    assert read(store, "/f") == new
    report = check(store, repair=True, read=True)
    assert report.ok, report


@pytest.mark.parametrize("milliseconds", [HOUR_MS, -HOUR_MS])
def test_a_reader_over_a_jump_of_the_clock(store, jump, milliseconds):
    """Content replaced under a reader is read to its end, or the reader is told that it is gone."""
    rng = random.Random(2)
    old, new = rng.randbytes(70_000), rng.randbytes(90_000)
    with store.writing("/f") as file:
        file.write(memoryview(old))
    reader = store.open_read("/f")
    assert reader.read(0, 1000) == old[:1000]
    with store.writing("/f") as file:
        file.write(memoryview(new))
    jump(milliseconds)
    store.reclaimer.run()
    try:
        assert reader.read(0, len(old)) == old
    except OSError as error:
        assert error.errno
        assert milliseconds > 0
    reader.close()
    jump(0)  # until the clock is right again, garbage only stays longer
    assert read(store, "/f") == new
    assert check(store, repair=True, read=True).ok
