"""`IgniteDataset` under the operations of tf.data: the rows are those of the plain iteration."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest

from ignitetf.load.loader import load_dataset

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node
ROWS, PARTS, BATCH = 300, 4, 32


@pytest.fixture(scope="module")
def table(client):
    name = f"TFD{os.getpid()}"
    rng = np.random.default_rng(3)
    rows = [
        {"IMAGE": rng.integers(0, 256, (2, 3), np.uint8), "LABEL": np.int32(i % 7)}
        for i in range(ROWS)
    ]
    load_dataset(rows, name, client=client, partitions=PARTS)
    yield name
    client.sql(f'DROP TABLE IF EXISTS "{name}"')


@pytest.fixture(scope="module")
def build(open_dataset, table):
    return functools.partial(open_dataset, table, page_size=20)


@pytest.fixture(scope="module")
def plain(build):
    """The rows of the plain iteration, in order."""
    return rows_of(build())


def row_of(item):
    image, label = item["val"]["IMAGE"].numpy(), item["val"]["LABEL"].numpy()
    return int(item["key"]), image.tobytes(), int(label)


def rows_of(dataset):
    return [row_of(item) for item in dataset]


def rows_of_batches(dataset):
    """The rows of batches, in order."""
    return [
        row_of(tf.nest.map_structure(lambda t, i=i: t[i], batch))
        for batch in dataset
        for i in range(len(batch["key"]))
    ]


@pytest.fixture(scope="module")
def parts(build):
    """Each partition as a dataset, and its rows."""
    datasets = [build(part=p) for p in range(PARTS)]
    return datasets, [rows_of(d) for d in datasets]


@pytest.mark.core
def test_it_is_a_dataset_that_tells_its_form(build, plain):
    dataset = build()
    assert isinstance(dataset, tf.data.Dataset)
    assert int(dataset.cardinality()) == len(plain) == ROWS
    form = {
        "key": tf.TensorSpec((), tf.int64),
        "val": {"IMAGE": tf.TensorSpec((2, 3), tf.uint8), "LABEL": tf.TensorSpec((), tf.int32)},
    }
    assert dataset.element_spec == form
    for item in dataset.take(3):
        tf.nest.assert_same_structure(form, item)
        specs = zip(tf.nest.flatten(form), tf.nest.flatten(item), strict=True)
        assert all(spec.is_compatible_with(tensor) for spec, tensor in specs)
    assert int(dataset.repeat(3).cardinality()) == 3 * ROWS
    assert int(dataset.batch(BATCH).cardinality()) == -(-ROWS // BATCH)
    assert dataset.batch(BATCH).element_spec["val"]["IMAGE"].shape.as_list() == [None, 2, 3]


def test_iterated_twice_and_two_at_a_time(build, plain):
    dataset = build()
    assert rows_of(dataset) == rows_of(dataset) == plain
    pairs = list(zip(dataset, dataset, strict=True))
    assert [row_of(a) for a, _ in pairs] == [row_of(b) for _, b in pairs] == plain


def test_abandoned_half_way(build, plain):
    dataset = build()
    iterator = iter(dataset)
    assert [row_of(next(iterator)) for _ in range(ROWS // 2)] == plain[: ROWS // 2]
    del iterator
    assert rows_of(dataset.take(ROWS // 3)) == plain[: ROWS // 3]
    assert rows_of_batches(dataset.batch(BATCH).take(2)) == plain[: 2 * BATCH]
    assert rows_of(dataset) == plain


@pytest.mark.core
def test_batches_repeats_and_maps(build, plain):
    dataset = build()
    assert rows_of_batches(dataset.batch(BATCH)) == plain
    assert rows_of_batches(dataset.repeat(2).batch(BATCH)) == plain * 2
    assert rows_of(dataset.prefetch(4)) == plain
    assert rows_of(dataset.concatenate(dataset.skip(ROWS - 5))) == plain + plain[-5:]
    assert rows_of(dataset.cache().repeat(2)) == plain * 2
    assert sorted(rows_of(dataset.shuffle(50, seed=1))) == sorted(plain)
    assert rows_of(dataset.filter(lambda x: x["val"]["LABEL"] == 3)) == [
        row for row in plain if row[2] == 3
    ]

    def inverted(item):
        return {"key": item["key"], "val": {**item["val"], "IMAGE": 255 - item["val"]["IMAGE"]}}

    back = dataset.map(inverted, num_parallel_calls=2).map(inverted).prefetch(tf.data.AUTOTUNE)
    assert rows_of(back) == plain


def test_zip(build, plain):
    dataset = build()
    zipped = list(tf.data.Dataset.zip((dataset, dataset.skip(1), tf.data.Dataset.range(ROWS))))
    assert [row_of(a) for a, _, _ in zipped] == plain[:-1]
    assert [row_of(b) for _, b, _ in zipped] == plain[1:]
    assert [int(i) for _, _, i in zipped] == list(range(ROWS - 1))


def test_partitions_interleaved(parts, plain):
    datasets, rows = parts
    assert [row for part in rows for row in part] == plain
    branches = [lambda d=d: d._variant_tensor for d in datasets]
    spec = datasets[0].element_spec

    def part(index):
        variant = tf.switch_case(tf.cast(index, tf.int32), branches)
        return tf.data.experimental.from_variant(variant, spec)

    for calls in (None, 2):
        mixed = tf.data.Dataset.range(PARTS).interleave(
            part, cycle_length=PARTS, block_length=1, num_parallel_calls=calls
        )
        assert rows_of(mixed) == dealt(rows)
    choice = tf.data.Dataset.from_tensor_slices(
        np.concatenate([np.full(len(r), i, np.int64) for i, r in enumerate(rows)])
    )
    assert rows_of(tf.data.Dataset.choose_from_datasets(datasets, choice)) == plain


def dealt(rows):
    """One row of each part in turn, until all are used up."""
    return [part[i] for i in range(max(map(len, rows))) for part in rows if i < len(part)]


def test_inside_a_function(build, plain):
    dataset = build()

    @tf.function
    def keys(batches):
        found = tf.TensorArray(tf.int64, 0, dynamic_size=True, infer_shape=False)
        for i, batch in batches.enumerate():
            found = found.write(tf.cast(i, tf.int32), batch["key"])
        return found.concat()

    for _ in range(2):
        assert keys(dataset.batch(BATCH)).numpy().tolist() == [row[0] for row in plain]
    total = dataset.reduce(np.int64(0), lambda a, x: a + x["key"])
    assert int(total) == sum(row[0] for row in plain)


@pytest.mark.core
def test_fit_sees_each_row_in_order(build, plain):
    seen = []

    class Remember(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = tf.keras.layers.Dense(7)

        def call(self, inputs):
            return self.dense(tf.reshape(tf.cast(inputs, tf.float32), [-1, 6]))

        def train_step(self, data):
            seen.extend(zip(data[0].numpy(), data[1].numpy(), strict=True))
            return super().train_step(data)

    model = Remember()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, run_eagerly=True)
    dataset = build(as_supervised=True).batch(BATCH)
    history = model.fit(dataset, epochs=2, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 2
    assert [(x.tobytes(), int(y)) for x, y in seen] == [row[1:] for row in plain] * 2


DISTRIBUTED = """
import json, sys, tempfile
import numpy as np
import tensorflow as tf
from ignitetf import IgniteDataset
from ignitetf.train import BackupAndRestore, device_resident

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
STRATEGIES = {
    "one device": tf.distribute.OneDeviceStrategy("/cpu:0"),
    "one replica": tf.distribute.MirroredStrategy(["CPU:0"]),
    "two replicas": tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
}
assert STRATEGIES["two replicas"].num_replicas_in_sync == 2
address, table, ragged, size = *sys.argv[1:4], int(sys.argv[4])

def build(name=table, **options):
    return IgniteDataset(name, addresses=[address], page_size=70, **options)

def resumed():
    dataset = build(shuffle=2)
    return dataset.resume(dataset.state(40))

options = tf.data.Options()
options.threading.private_threadpool_size = 1
# Each is made anew for each iteration, which would be the next epoch else.
PIPELINES = {
    "batch": lambda: build().batch(size),
    "full batches only": lambda: build().batch(size, drop_remainder=True),
    "shuffled": lambda: build(shuffle=5).batch(size),
    "resumed": lambda: resumed().batch(size),
    "a number of rows that is not known": lambda: build(where="LABEL < 5").batch(size),
    "prefetched": lambda: build().batch(size).prefetch(2),
    "with options": lambda: build().batch(size).with_options(options),
    "with a cardinality": lambda: build().batch(size).apply(
        tf.data.experimental.assert_cardinality(-(-300 // size))
    ),
    "mapped": lambda: build().batch(size).map(lambda batch: batch),
    "mapped before": lambda: build().map(lambda row: row).batch(size),
    "unbatched": lambda: build().batch(7).unbatch().batch(size),
    "repeated": lambda: build().batch(size).repeat(2),
    "ragged": lambda: build(ragged).batch(size),
    "ragged, full batches only": lambda: build(ragged).batch(size, drop_remainder=True),
    "on the device": lambda: device_resident(build(shuffle=5), size),
    "a backup's": lambda: BackupAndRestore(tempfile.mkdtemp(), build(shuffle=5), size).batches,
}

def parts_of(batch):
    leaves = tf.nest.flatten(batch, expand_composites=False)
    return [leaf.to_list() if isinstance(leaf, tf.RaggedTensor) else leaf.numpy().tolist()
            for leaf in leaves]

def whole(strategy, batch):
    # The parts of the replicas, one after the other.
    leaves = tf.nest.flatten(batch, expand_composites=False)
    shares = zip(*map(strategy.experimental_local_results, leaves), strict=True)
    shares = [parts_of(list(share)) for share in shares]
    return [sum(leaf, []) for leaf in zip(*shares, strict=True)], [len(s[0]) for s in shares]

expected = {
    what: [parts_of(batch) for batch in pipeline()] for what, pipeline in PIPELINES.items()
}
for where, strategy in STRATEGIES.items():
    replicas = strategy.num_replicas_in_sync
    for what, pipeline in PIPELINES.items():
        if where == "one device" and not what.startswith(("batch", "full", "ragged")):
            continue
        found = []
        for batch in strategy.experimental_distribute_dataset(pipeline()):
            rows, shares = whole(strategy, batch)
            assert shares[0] == -(-sum(shares) // replicas), (where, what, shares)
            found.append(rows)
        assert found == expected[what], (where, what, len(found), len(expected[what]))
    if replicas == 1:
        made = strategy.distribute_datasets_from_function(lambda context: build().batch(size))
        assert [whole(strategy, batch)[0] for batch in made] == expected["batch"], where

for where, drop in (("one replica", False), ("one device", True), ("two replicas", True)):
    with STRATEGIES[where].scope():
        model = tf.keras.Sequential([
            tf.keras.Input((2, 3)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(7),
        ])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss)
    pairs = build(as_supervised=True).batch(size, drop_remainder=drop)
    losses = model.fit(pairs, epochs=2, verbose=0).history["loss"]
    steps = 2 * (300 // size if drop else -(-300 // size))
    assert int(model.optimizer.iterations.numpy()) == steps, (where, drop)
    assert np.isfinite(losses).all(), losses
print("done")
"""


def test_batches_are_the_same_under_every_strategy(client, address, table, cache_name):
    ragged = [{"A": np.arange(n % 5, dtype=np.int16), "TEXT": "t" * n} for n in range(90)]
    load_dataset(ragged, cache_name, client=client, partitions=2)
    # In a process of its own, where the processor can still be divided.
    program = subprocess.run(
        [sys.executable, "-c", DISTRIBUTED, address, table, cache_name, str(BATCH)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert program.returncode == 0, program.stderr[-3000:]
    assert program.stdout.endswith("done\n")
