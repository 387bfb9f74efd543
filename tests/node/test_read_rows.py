"""Rows without TensorFlow: the dataset's own order, a state at every step, nothing that changes."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from ignitetf import open_rows
from ignitetf.errors import ConfigError
from ignitetf.load.loader import load_dataset

pytestmark = pytest.mark.node
ROWS = 230


@pytest.fixture(scope="module")
def table(client):
    name = f"ROWS{os.getpid()}"
    rows = [{"A": np.int64(i * i), "S": f"s{i}" * (i % 4)} for i in range(ROWS)]
    load_dataset(rows, name, client=client, partitions=8)
    yield name
    client.sql(f'DROP TABLE IF EXISTS "{name}"')


@pytest.fixture(scope="module")
def build(client, table):
    return lambda **options: open_rows(table, client=client, **{"shard": (0, 1), **options})


def keys(batches):
    """The keys of batches whose values belong to them."""
    found = []
    for batch in batches:
        key = batch["key"].tolist()
        assert batch["val"]["A"].tolist() == [k * k for k in key]
        assert list(batch["val"]["S"]) == [f"s{k}".encode() * (k % 4) for k in key]
        found += key
    return found


def test_rows_cannot_be_pickled_and_say_what_to_do(build):
    with pytest.raises(TypeError, match="other process"):
        pickle.dumps(build())


@pytest.mark.core
@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("size", [None, 1, 7, 64, 1000])
def test_batches_of_any_size_give_one_order(build, seed, size):
    rows = build(shuffle=seed, window_bytes=2_000)
    whole = keys(rows.numpy())
    assert sorted(whole) == list(range(ROWS)) and len(rows) == ROWS
    assert keys(rows.batches(size)) == whole
    if size is not None:
        lengths = [len(b["key"]) for b in rows.batches(size)]
        assert lengths == [size] * (ROWS // size) + [ROWS % size] * bool(ROWS % size)
        assert {len(b["key"]) for b in rows.batches(size, drop_remainder=True)} <= {size}


@pytest.mark.core
def test_rows_are_those_of_the_dataset(build, table, address):
    pytest.importorskip("tensorflow")
    from ignitetf import IgniteDataset

    rows = build(shuffle=3)
    dataset = IgniteDataset(table, addresses=[address], shuffle=3, shard=(0, 1))
    for number in range(3):
        wanted = [int(key) for batch in dataset.batch(50) for key in batch["key"]]
        assert keys(rows.batches(50)) == wanted == keys(build(shuffle=3, epoch=number).numpy())
        rows = rows.next_epoch()
    again = IgniteDataset.from_rows(build(shuffle=3))
    assert [int(e["key"]) for e in again] == keys(build(shuffle=3).numpy())


def test_reading_changes_nothing(build):
    rows = build(shuffle=5, window_bytes=2_000)
    position, state = rows.position, rows.state()
    first, second = rows.batches(9), rows.batches(9)
    mixed = [[], []]
    for _ in range(10):
        mixed[0] += next(first)["key"].tolist()
        mixed[1] += next(second)["key"].tolist()
    first.close()
    assert mixed[0] == mixed[1]
    assert (rows.position, rows.state(), len(rows)) == (position, state, ROWS)
    assert keys(rows.numpy())[:90] == mixed[0]


@pytest.mark.core
@pytest.mark.parametrize("workers", [(1, 1), (1, 3), (3, 2)])
def test_every_state_goes_on_where_it_was_taken(build, workers):
    """All batches of some workers, stopped after any step, and the rest by as many or others."""
    old, new = workers
    first = [build(shuffle=5, shard=(i, old), even="pad") for i in range(old)]
    steps = -(-len(first[0]) // 20)
    for stop in range(steps + 1):
        seen, states = [], []
        for rows in first:
            batches = rows.batches(20)
            seen += [k for _ in range(stop) for k in next(batches)["key"].tolist()]
            states.append(batches.state())
            batches.close()
        assert all(state == states[0] for state in states)
        rest = [build(shuffle=5, shard=(i, new), even="pad").resume(states[0]) for i in range(new)]
        assert len({len(r) for r in rest}) == 1
        everything = seen + [k for rows in rest for k in keys(rows.batches(20))]
        assert set(everything) == set(range(ROWS))
        if workers == (1, 1):
            assert len(everything) == ROWS
            assert keys(first[0].advance(len(seen)).numpy()) == keys(rest[0].numpy())


def test_a_number_of_rows_that_is_not_known(build, table):
    rows = build(where="A < ?", where_params=[400])
    assert rows.length is None
    with pytest.raises(TypeError, match="not known"):
        len(rows)
    assert sorted(keys(rows.batches(3))) == list(range(20))


@pytest.mark.parametrize("size", [0, -1, 1.5, "3", True])
def test_sizes_that_are_none(build, size):
    with pytest.raises(ConfigError):
        build().batches(size)


PROGRAM = """
import sys

for name in ("tensorflow", "keras"):
    sys.modules[name] = None  # an import of it fails
import ignitetf.read.rows
from ignitetf import open_rows

rows = open_rows(sys.argv[1], sys.argv[2], shuffle=5)
print(sum(int(batch["key"].sum()) for batch in rows.batches(32)), len(rows))
print(sum(batch.num_rows for batch in rows.arrow()))
assert rows.resume(rows.batches(32).state()).length == len(rows)
"""


def test_an_epoch_without_tensorflow(table, address):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, table, address], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(ROWS * (ROWS - 1) // 2), str(ROWS), str(ROWS)]
