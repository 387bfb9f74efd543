"""Grain: rows by number, its worker processes, and its own checkpoints."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from helpers.typed_rows import ROWS, record

from ignitetf import load_dataset, open_rows
from ignitetf.errors import ConfigError, DataChanged
from ignitetf.grain import Source

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def grain():
    found = pytest.importorskip("grain", reason="needs Grain: pip install 'ignitetf[grain]'")
    from absl import flags

    # Grain asks flags in its worker processes, which absl wants to be parsed first.
    flags.FLAGS.mark_as_parsed()
    return found


def same(row, number):
    wanted = record(number)
    assert row["val"]["S"] == wanted["S"].encode()
    assert row["val"]["V"].tolist() == wanted["V"].tolist()
    numbers = {name: row["val"][name] for name in ("A", "U2", "U4", "LABEL")}
    assert all(numbers[name] == wanted[name] for name in numbers)
    return row["key"] == number


def test_a_source_needs_neither_grain_nor_tensorflow(address, typed_rows):
    code = (
        "import sys; sys.modules.update(grain=None, tensorflow=None)\n"
        "from ignitetf.grain import Source\n"
        f"print(len(Source({typed_rows!r}, {address!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == str(ROWS), done.stderr


def test_each_row_is_what_was_loaded(address, typed_rows):
    source = Source(typed_rows, address)
    assert len(source) == ROWS
    copy = pickle.loads(pickle.dumps(source))
    for number in (0, 1, 7, ROWS - 1):
        assert same(source[number], number) and same(copy[np.int64(number)], number)
    for wrong in (ROWS, -ROWS - 1):
        with pytest.raises(IndexError):
            source[wrong]
    with pytest.raises(ConfigError, match="shuffle"):
        Source(typed_rows, address, shuffle=3)


def test_the_repr_says_which_rows_have_which_number(address, client, cache_name):
    def load(count):
        rows = [record(i) for i in range(count)]
        load_dataset(rows, cache_name, client=client, partitions=4, if_exists="replace")

    load(20)
    first = Source(cache_name, address)
    assert repr(first) == repr(Source(open_rows(cache_name, client=client, shuffle=5)))
    assert repr(first) == repr(pickle.loads(pickle.dumps(first)))
    assert address not in repr(first)
    others = [
        Source(cache_name, address, fields=["A"]),
        Source(cache_name, address, where="A < 9"),
        Source(cache_name, address, where="A < ?", where_params=(9,)),
        Source(cache_name, address, where="A < ?", where_params=(4,)),
        Source(cache_name, address, as_supervised=True),
    ]
    load(20)
    others.append(Source(cache_name, address))
    assert len({repr(source) for source in (first, *others)}) == 1 + len(others)
    with pytest.raises(DataChanged):
        pickle.loads(pickle.dumps(first))[0]


def loader(grain, name, address, workers):
    return grain.DataLoader(
        data_source=Source(name, address, as_supervised=True),
        sampler=grain.samplers.IndexSampler(500, shuffle=True, seed=3, num_epochs=2),
        operations=[grain.transforms.Batch(50)],
        worker_count=workers,
    )


def as_lists(batches):
    return [(int(x.sum()), y.tolist()) for x, y in batches]


def test_a_loader_resumes_from_its_checkpoint(grain, address, mnist_parts):
    made = loader(grain, mnist_parts[1], address, 0)
    whole = as_lists(made)
    labels = open_rows(mnist_parts[1], address)[:]["val"]["LABEL"].tolist()
    for epoch in (whole[:10], whole[10:]):
        assert sorted(label for _, batch in epoch for label in batch) == sorted(labels)
    batches = iter(made)
    for stop in range(len(whole)):
        state = batches.get_state()
        if stop % 4 == 0:
            again = iter(loader(grain, mnist_parts[1], address, 0))
            again.set_state(state)
            assert as_lists(again) == whole[stop:]
        next(batches)
    with pytest.raises(ValueError):
        iter(loader(grain, mnist_parts[0], address, 0)).set_state(state)


def test_worker_processes_read_each_row_once(grain, address, mnist_parts):
    alone, found = (as_lists(loader(grain, mnist_parts[1], address, n)) for n in (0, 2))
    count = [sorted(label for _, batch in rows for label in batch) for rows in (alone, found)]
    assert count[0] == count[1]
    batches = iter(loader(grain, mnist_parts[1], address, 2))
    first = as_lists(next(batches) for _ in range(7))
    again = iter(loader(grain, mnist_parts[1], address, 2))
    again.set_state(batches.get_state())
    assert first + as_lists(again) == found


def test_training_mnist_goes_on_from_a_checkpoint(grain, address, mnist_parts):
    """Linear regression in NumPy: batches of a pipeline, half of them after a restart."""

    def pipeline():
        rows = grain.MapDataset.source(Source(mnist_parts[0], address, as_supervised=True))
        return iter(rows.seed(7).shuffle().repeat(2).batch(100).to_iter_dataset())

    weights = np.zeros((784, 10), np.float32)

    def train(batches, steps):
        for _ in range(steps):
            images, labels = next(batches)
            x = images.reshape(len(images), -1).astype(np.float32) / 255
            scores = np.exp(x @ weights - (x @ weights).max(1, keepdims=True))
            wanted = np.eye(10, dtype=np.float32)[labels]
            weights[...] -= 0.5 * x.T @ (scores / scores.sum(1, keepdims=True) - wanted) / len(x)

    batches = pipeline()
    train(batches, 30)
    state = json.loads(json.dumps(batches.get_state()))
    upto = weights.copy()
    train(batches, 30)
    undisturbed = weights.copy()
    weights[...] = upto
    again = pipeline()
    again.set_state(state)
    train(again, 30)
    assert np.array_equal(weights, undisturbed)
    test = open_rows(mnist_parts[1], address)[:]["val"]
    x = test["IMAGE"].reshape(len(test["LABEL"]), -1) / 255
    assert float(np.mean((x @ weights).argmax(1) == test["LABEL"])) > 0.8
