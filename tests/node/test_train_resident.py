"""Rows gathered on the device are those that reading would give, in the same order."""

import functools
import os

import numpy as np
import pytest

from ignitetf.errors import ConfigError
from ignitetf.load.loader import load_dataset

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node
ROWS = 330


@pytest.fixture(scope="module")
def table(client):
    name = f"RES{os.getpid()}"
    rows = [
        {
            "A": np.int64(i * i),
            "S": f"s{i}" * (i % 4),
            "V": np.arange(i % 5, dtype=np.float32),
        }
        for i in range(ROWS)
    ]
    load_dataset(rows, name, client=client, partitions=8)
    yield name
    client.sql(f'DROP TABLE IF EXISTS "{name}"')


@pytest.fixture(scope="module")
def build(open_dataset, table):
    return functools.partial(open_dataset, table)


@pytest.fixture(scope="module")
def resident():
    from ignitetf.train import device_resident

    return device_resident


def plain(batches):
    """Batches as lists that can be compared, ragged ones too."""
    found = []
    for batch in batches:
        leaves = tf.nest.flatten(batch)
        found.append([x.to_list() if hasattr(x, "to_list") else x.numpy().tolist() for x in leaves])
    return found


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window_bytes": 3000, "epoch": 2},
        {"shard": (1, 3), "even": "pad"},
        {"shard": (0, 3), "even": "drop", "fields": ["A", "S"]},
        {"where": "_KEY % 3 <> 1"},
        {"part": 5},
    ],
    ids=lambda o: "-".join(o) or "whole",
)
def test_batches_are_those_of_the_dataset(build, resident, options, seed):
    read = build(shuffle=seed, **options).batch(32)
    kept = resident(build(**options), 32, seed)
    assert kept.element_spec == read.element_spec
    assert int(kept.cardinality()) == len(plain(build(**options).batch(32)))
    for _ in range(2):
        assert plain(kept) == plain(read)
    again = resident(build(shuffle=seed, **options), 32, drop_remainder=True)
    assert plain(again) == plain(build(shuffle=seed, **options).batch(32, drop_remainder=True))


def test_a_step_of_ones_own_gathers_on_the_device(build, resident):
    kept = resident(build(fields=["A"]), 50, 3)

    @tf.function
    def step(index):
        batch = kept.gather(index)
        return tf.reduce_sum(batch["val"]["A"])

    assert sum(int(step(index)) for index in kept.indices) == sum(i * i for i in range(ROWS))
    assert kept.columns["key"].shape == (ROWS,)
    assert kept.nbytes == ROWS * 16


def test_fit_trains_as_from_the_dataset(client, address, cache_name, resident):
    from ignitetf import IgniteDataset

    rng = np.random.default_rng(1)
    arrays = {
        "IMAGE": rng.integers(0, 256, (300, 12), dtype=np.uint8),
        "LABEL": rng.integers(0, 4, 300, dtype=np.int32),
    }
    load_dataset(arrays, cache_name, client=client, partitions=4)

    def weights(batches):
        tf.keras.utils.set_random_seed(2)
        model = tf.keras.Sequential([tf.keras.Input((12,)), tf.keras.layers.Dense(4)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(1e-4), loss)
        model.fit(batches, epochs=3, verbose=0)
        return model.get_weights()

    dataset = IgniteDataset(cache_name, addresses=[address], as_supervised=True)
    shuffled = IgniteDataset(cache_name, addresses=[address], as_supervised=True, shuffle=5)
    for kept, read in zip(
        weights(resident(dataset, 32, 5)), weights(shuffled.batch(32)), strict=True
    ):
        np.testing.assert_allclose(kept, read, rtol=1e-5)


def test_what_does_not_fit(build, resident):
    with pytest.raises(ConfigError, match="the limit is 0 MB"):
        resident(build(), 32, limit_bytes=100)
    with pytest.raises(ConfigError, match="batch_size"):
        resident(build(), 0)
    with pytest.raises(ConfigError, match="rest of an epoch"):
        resident(build(shuffle=1).resume(build(shuffle=1).state(5)), 32)
    with pytest.raises(ConfigError, match="shuffle=-1"):
        resident(build(), 32, -1)
