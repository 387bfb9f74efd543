"""`IgniteDataset` as a citizen of tf.data: structure, pipelines, abandonment, push-down, errors."""

import contextlib
import gc
import itertools
import json
import os
import threading
import time

import numpy as np
import psutil
import pyignite.datatypes as t
import pytest
from pyignite import GenericObjectMeta

from ignitetf.errors import CacheNotFound, ConfigError, SchemaError, SqlError
from ignitetf.load.loader import load_dataset

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node
ROWS = 1000


@pytest.fixture(scope="module")
def table(client):
    """A table of 1,000 rows in 8 partitions: numbers, text, tensors, lists."""
    name = f"DS{os.getpid()}"
    rng = np.random.default_rng(5)
    rows = [
        {
            "LABEL": np.int32(i % 10),
            "NAME": f"name {i}" * (i % 3),
            "IMAGE": np.full((4, 2), i % 251, np.uint8),
            "ITEMS": rng.integers(0, 9, i % 5),
        }
        for i in range(ROWS)
    ]
    load_dataset(rows, name, client=client, partitions=8)
    yield name
    client.sql(f'DROP TABLE IF EXISTS "{name}"')


def keys_of(dataset):
    return [int(item["key"]) for item in dataset]


@pytest.mark.core
def test_elements_and_batches_have_one_structure_and_order(open_dataset, table):
    dataset = open_dataset(table)
    assert isinstance(dataset, tf.data.Dataset)
    assert dataset.element_spec == {
        "key": tf.TensorSpec((), tf.int64),
        "val": {
            "IMAGE": tf.TensorSpec((4, 2), tf.uint8),
            "ITEMS": tf.TensorSpec((None,), tf.int64),
            "LABEL": tf.TensorSpec((), tf.int32),
            "NAME": tf.TensorSpec((), tf.string),
        },
    }
    assert int(dataset.cardinality()) == ROWS
    singles = list(dataset)
    assert sorted(int(x["key"]) for x in singles) == list(range(ROWS))
    at = 0
    batches = dataset.batch(96)
    assert int(batches.cardinality()) == 11
    for batch in batches:
        for i in range(int(batch["key"].shape[0])):
            one = singles[at]
            assert int(batch["key"][i]) == int(one["key"]) == at_key(one)
            assert np.array_equal(batch["val"]["IMAGE"][i], one["val"]["IMAGE"])
            assert np.array_equal(batch["val"]["ITEMS"][i], one["val"]["ITEMS"])
            assert batch["val"]["NAME"][i] == one["val"]["NAME"]
            at += 1
    assert at == ROWS
    assert int(dataset.batch(96, drop_remainder=True).cardinality()) == 10


def at_key(one):
    """Every value tells its key."""
    key = int(one["key"])
    assert int(one["val"]["LABEL"]) == key % 10
    assert one["val"]["NAME"].numpy() == f"name {key}".encode() * (key % 3)
    assert int(one["val"]["IMAGE"][3, 1]) == key % 251
    assert len(one["val"]["ITEMS"]) == key % 5
    return key


@pytest.mark.core
@pytest.mark.parametrize("readers", [1, 2, 4])
@pytest.mark.parametrize("page_size", [1, 7, 1000])
def test_order_depends_on_neither_readers_nor_page_size(open_dataset, table, readers, page_size):
    base = keys_of(open_dataset(table, fields=["LABEL"]))
    other = open_dataset(table, fields=["LABEL"], readers=readers, page_size=page_size)
    assert keys_of(other) == base
    assert keys_of(other) == base


def test_partitions_cover_the_cache_once(open_dataset, table):
    parts = [keys_of(open_dataset(table, fields=["LABEL"], part=p)) for p in range(8)]
    assert sorted(itertools.chain(*parts)) == list(range(ROWS))
    assert list(itertools.chain(*parts)) == keys_of(open_dataset(table))
    with pytest.raises(ConfigError, match="partition 8 of 8"):
        open_dataset(table, part=8)


@pytest.mark.core
def test_pipelines(open_dataset, table):
    dataset = open_dataset(table, fields=["LABEL"])
    keys = keys_of(dataset)
    assert keys_of(dataset.repeat(2)) == keys * 2
    assert keys_of(dataset.concatenate(dataset).take(ROWS + 3)) == keys + keys[:3]
    zipped = tf.data.Dataset.zip((dataset, dataset.skip(1)))
    assert [(int(a["key"]), int(b["key"])) for a, b in zipped.take(3)] == [
        (keys[i], keys[i + 1]) for i in range(3)
    ]
    by_part = [open_dataset(table, fields=["LABEL"], part=p) for p in (0, 1)]
    mixed = tf.data.Dataset.from_tensor_slices([0, 1]).interleave(
        lambda i: by_part[0] if i == 0 else by_part[1], cycle_length=2
    )
    assert len(list(mixed)) > 0
    total = dataset.map(lambda x: x["val"]["LABEL"]).prefetch(2).reduce(0, lambda a, x: a + x)
    assert int(total) == sum(k % 10 for k in range(ROWS))

    @tf.function
    def add(batches):
        total = tf.constant(0, tf.int64)
        for batch in batches:
            total += tf.reduce_sum(batch["key"])
        return total

    assert int(add(dataset.batch(64))) == ROWS * (ROWS - 1) // 2


@pytest.mark.core
def test_supervised_pairs(open_dataset, table):
    dataset = open_dataset(table, fields=["IMAGE", "LABEL"], as_supervised=True)
    assert dataset.element_spec == (
        tf.TensorSpec((4, 2), tf.uint8),
        tf.TensorSpec((), tf.int32),
    )
    with pytest.raises(ConfigError, match="LABEL"):
        open_dataset(table, fields=["IMAGE"], as_supervised=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "times",
    [120, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
)
def test_abandoned_iterators_leave_nothing_behind(open_dataset, client, cache_name, times):
    rows, table = 20_000, cache_name  # more than is asked for at once
    images = np.random.default_rng(1).integers(0, 256, (rows, 2000), np.uint8)
    load_dataset({"IMAGE": images}, table, client=client, partitions=64)
    dataset = open_dataset(table, page_size=100)
    process = psutil.Process()

    def abandon(times):
        for _ in range(times):
            for _item in dataset.take(1):
                break
        gc.collect()

    def readers():
        # Not those of TensorFlow, which Python enlists for good where they ran some of its code.
        return [t for t in threading.enumerate() if t.name.startswith("ignitetf")]

    def cursors():
        found = client.sql("SELECT COUNT(*) FROM SYS.SCAN_QUERIES WHERE CACHE_NAME = ?", [table])
        return next(iter(found))[0]

    abandon(20)
    files = process.num_fds()
    with contextlib.closing(dataset.numpy()) as pages:
        next(pages)
        # A node tells of its own cursors only.
        assert cursors() > 0 or len(client.nodes()) > 1
    abandon(times)
    # TensorFlow lets go of an iterator in a thread of its own.
    until = time.monotonic() + 30
    while (readers() or cursors()) and time.monotonic() < until:
        time.sleep(0.1)
    assert readers() == []
    assert cursors() == 0
    assert process.num_fds() <= files + 2
    assert len(keys_of(dataset)) == rows


@pytest.mark.core
def test_push_down(open_dataset, table):
    few = open_dataset(table, where="LABEL < ? AND NAME <> ''", where_params=(3,))
    expected = {k for k in range(ROWS) if k % 10 < 3 and k % 3}
    assert set(keys_of(few)) == expected
    assert len(keys_of(few)) == len(expected)
    assert few.element_spec == open_dataset(table).element_spec
    batched = [b["key"].numpy() for b in few.batch(50)]
    assert set(np.concatenate(batched).tolist()) == expected
    hostile = open_dataset(table, where="NAME = ?", where_params=("' OR 1=1 --",))
    assert keys_of(hostile) == []


@pytest.mark.core
def test_numpy_and_arrow_have_the_same_columns(open_dataset, table):
    dataset = open_dataset(table)
    keys = keys_of(dataset)
    pages = list(dataset.numpy())
    assert np.concatenate([p["key"] for p in pages]).tolist() == keys
    items = [
        page["val"]["ITEMS"].values[p:q].tolist()
        for page in pages
        for p, q in zip(
            page["val"]["ITEMS"].offsets[:-1], page["val"]["ITEMS"].offsets[1:], strict=True
        )
    ]
    assert [len(i) for i in items] == [k % 5 for k in keys]
    pa = pytest.importorskip("pyarrow")
    table_ = pa.Table.from_batches(list(dataset.arrow()))
    assert table_["key"].to_pylist() == keys
    assert table_["NAME"].to_pylist() == [f"name {k}".encode() * (k % 3) for k in keys]
    assert table_["ITEMS"].to_pylist() == items
    assert table_["IMAGE"].to_pylist()[5] == [[keys[5] % 251] * 2] * 4


def test_the_examples_of_the_old_bridge(client, address, monkeypatch):
    """The structure that tensorflow-io's IgniteDataset gave for its documented example."""
    from ignitetf import IgniteDataset

    cache = client.pyignite.get_or_create_cache("KITTEN_CACHE")
    kitten = GenericObjectMeta("Kitten", (), {}, schema={"NAME": t.String})
    for key, name in enumerate(["WARM KITTY", "SOFT KITTY", "LITTLE BALL OF FUR"], 1):
        cache.put(key, kitten(NAME=name), key_hint=t.LongObject)
    host, _, port = address.rpartition(":")
    monkeypatch.setenv("IGNITE_DATASET_CACHE_NAME", "KITTEN_CACHE")
    monkeypatch.setenv("IGNITE_DATASET_PORT", port)
    dataset = IgniteDataset("ANOTHER", host=host, port=1)
    found = {int(x["key"]): x["val"]["NAME"].numpy() for x in dataset}
    assert found == {1: b"WARM KITTY", 2: b"SOFT KITTY", 3: b"LITTLE BALL OF FUR"}
    assert list(dataset.element_spec) == ["key", "val"]
    cache.destroy()


@pytest.mark.core
def test_empty_caches(client, open_dataset, cache_name):
    client.pyignite.get_or_create_cache(cache_name)
    with pytest.raises(SchemaError, match="is empty") as error:
        open_dataset(cache_name)
    assert "schema=" in error.value.hint
    declared = {"IMAGE": tf.TensorSpec([28, 28, 1], tf.uint8), "LABEL": "int32"}
    dataset = open_dataset(cache_name, schema=declared)
    assert dataset.element_spec["val"]["IMAGE"] == declared["IMAGE"]
    assert list(dataset) == []
    assert list(dataset.batch(8)) == []


@pytest.mark.core
def test_errors_say_what_to_do(client, open_dataset, table):
    with pytest.raises(CacheNotFound, match="no cache") as error:
        open_dataset(f"{table}X")
    assert table in error.value.hint
    with pytest.raises(SchemaError, match="no field 'LABLE'") as error:
        open_dataset(table, fields=["LABLE"])
    assert "LABEL" in error.value.hint
    with pytest.raises(SchemaError, match="schema= says"):
        open_dataset(table, schema={"LABEL": "float32"})
    with pytest.raises(ConfigError, match="list of names"):
        open_dataset(table, fields="LABEL")
    with pytest.raises(ConfigError, match="nulls="):
        open_dataset(table, nulls="skip")
    with pytest.raises(ConfigError, match="page_size"):
        open_dataset(table, page_size=-1)
    with pytest.raises(SqlError):
        open_dataset(table, where="LABEL <<>> 3")
    with pytest.raises(ValueError, match="batch_size"):
        open_dataset(table).batch(0)


def test_the_manifest_is_json_that_any_client_can_read(client, table):
    entry = client.cache("IGNITETF_CATALOG").get(table)
    manifest = json.loads(entry)
    assert manifest["rows"] == ROWS
    assert sum(manifest["partition_rows"]) == ROWS
