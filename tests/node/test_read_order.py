"""Epochs: the same order for any reader, every row once, and every step of a resume."""

import itertools
import json
import os

import numpy as np
import pytest

from ignitetf.errors import ConfigError, DataChanged
from ignitetf.load.loader import load_dataset

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node
ROWS = 330


@pytest.fixture(scope="module")
def table(client):
    name = f"ORD{os.getpid()}"
    rows = [{"A": np.int64(i * i), "S": f"s{i}" * (i % 4)} for i in range(ROWS)]
    load_dataset(rows, name, client=client, partitions=8)
    yield name
    client.sql(f'DROP TABLE IF EXISTS "{name}"')


# Each row takes a minute and a half in all; a step of 7 meets every place of a page and a window.
EVERY = pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])


@pytest.fixture(scope="module")
def build(address, table):
    from ignitetf import IgniteDataset

    def open_dataset(**options):
        return IgniteDataset(table, addresses=[address], **options)

    return open_dataset


def keys(dataset):
    found = []
    for item in dataset:
        key = int(item["key"])
        assert int(item["val"]["A"]) == key * key
        assert item["val"]["S"].numpy() == f"s{key}".encode() * (key % 4)
        found.append(key)
    return found


def numpy_keys(dataset):
    """The keys of the first epoch; without TensorFlow, and so often enough for every row."""
    return [key for columns in dataset.numpy() for key in columns["key"].tolist()]


@pytest.mark.parametrize("window_bytes", [1, 2_000, 1 << 20])
def test_a_shuffle_depends_on_seed_and_epoch_only(build, window_bytes):
    first = build(shuffle=7, window_bytes=window_bytes)
    epochs = [keys(first), keys(first), keys(first)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(ROWS))
    assert len({tuple(e) for e in epochs}) == 3
    for readers, page_size in ((1, 5), (2, 1000), (4, 17), (8, 64)):
        again = build(shuffle=7, window_bytes=window_bytes, readers=readers, page_size=page_size)
        assert keys(again) == epochs[0]
        assert keys(again) == epochs[1]
    assert keys(build(shuffle=7, window_bytes=window_bytes, epoch=2)) == epochs[2]
    assert keys(build(shuffle=8, window_bytes=window_bytes)) != epochs[0]


@pytest.mark.parametrize("window_bytes", [2_000, 1 << 20])
def test_both_ways_to_fill_a_window_give_one_order(build, window_bytes):
    """Rows put in place as they come, and rows collected and permuted where counts may differ."""
    options = {"shuffle": 7, "window_bytes": window_bytes}
    placed, collected = build(**options), build(**options, on_change="warn")
    for _ in range(2):
        assert keys(placed) == keys(collected)
    found = [b["key"].numpy().tolist() for b in placed.batch(50)]
    assert found == [b["key"].numpy().tolist() for b in collected.batch(50)]


def test_a_set_within_the_window_is_permuted_whole(build):
    order = np.array(keys(build(shuffle=3)))
    partition_of = {k: p for p in range(8) for k in keys(build(part=p))}
    changes = sum(partition_of[a] != partition_of[b] for a, b in itertools.pairwise(order))
    assert changes > ROWS // 2


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", [None, 4])
def test_every_row_is_in_exactly_one_shard(build, count, seed):
    shards = [keys(build(shard=(i, count), shuffle=seed)) for i in range(count)]
    assert sorted(k for s in shards for k in s) == list(range(ROWS))
    padded = [build(shard=(i, count), shuffle=seed, even="pad") for i in range(count)]
    dropped = [build(shard=(i, count), shuffle=seed, even="drop") for i in range(count)]
    assert {int(d.cardinality()) for d in padded} == {max(map(len, shards))}
    assert {int(d.cardinality()) for d in dropped} == {min(map(len, shards))}
    for own, more, fewer in zip(shards, padded, dropped, strict=True):
        assert keys(fewer) == own[: min(map(len, shards))]
        found = keys(more)
        assert found[: len(own)] == own
        assert set(found) == set(own)


@pytest.mark.parametrize("seed", [None, 11])
def test_resume_at_every_step(build, seed):
    batch = 66
    whole = build(shuffle=seed)
    first, second = keys(whole), keys(whole)
    for step in range(ROWS // batch + 1):
        state = json.loads(json.dumps(build(shuffle=seed).state(step * batch)))
        assert len(json.dumps(state)) < 1024
        resumed = build(shuffle=seed).resume(state)
        batches = resumed.batch(batch).prefetch(2)
        assert [k for b in batches for k in b["key"].numpy().tolist()] == first[step * batch :]
        assert keys(resumed) == second


@EVERY
@pytest.mark.parametrize("options", [{}, {"shuffle": 11}, {"shuffle": 11, "window_bytes": 2_000}])
def test_resume_at_a_row(build, options, every):
    whole = build(**options)
    first = keys(whole)
    for row in range(0, ROWS + 1, every):
        state = json.loads(json.dumps(whole.state(row)))
        assert numpy_keys(whole.resume(state)) == first[row:]


@EVERY
@pytest.mark.parametrize("seed", [None, 6])
def test_resume_two_shards_as_three(build, seed, every):
    def shards(count):
        return [build(shard=(i, count), shuffle=seed, even="drop") for i in range(count)]

    two, three = shards(2), shards(3)
    old = [numpy_keys(shard) for shard in two]
    for consumed in range(0, len(old[0]) + 1, every):
        state = json.loads(json.dumps(two[0].state(consumed)))
        assert state == two[1].state(consumed)
        rest = [key for own in old for key in own[consumed:]]
        each = len(rest) // 3
        found = [numpy_keys(shard.resume(state)) for shard in three]
        assert found == [rest[i * each : (i + 1) * each] for i in range(3)]


@pytest.mark.parametrize("seed", [None, 11])
def test_resume_where_only_reading_tells_the_number_of_rows(build, seed):
    options = {"shuffle": seed, "where": "_KEY % 3 <> 1"}
    whole = keys(build(**options))
    assert len(whole) == 220
    for step in (0, 1, 113, 218, 219, 220):
        resumed = build(**options).resume(build(**options).state(step))
        assert keys(resumed) == whole[step:]


def test_resume_in_the_middle_of_a_resumed_epoch(build):
    first = keys(build(shuffle=5))
    once = build(shuffle=5).resume(build(shuffle=5).state(100))
    twice = build(shuffle=5).resume(once.state(57))
    assert keys(twice) == first[157:]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 4), (4, 1)])
@pytest.mark.parametrize("seed", [None, 6])
def test_resume_on_another_number_of_workers(build, before, after, seed):
    old = [keys(build(shard=(i, before), shuffle=seed, even="drop")) for i in range(before)]
    for consumed in (0, 10, 50):
        state = build(shard=(0, before), shuffle=seed, even="drop").state(consumed)
        assert len(json.dumps(state)) < 1024
        seen = [k for own in old for k in own[:consumed]]
        rest = [k for own in old for k in own[consumed:]]
        new = [
            keys(build(shard=(i, after), shuffle=seed, even="drop").resume(state))
            for i in range(after)
        ]
        found = [k for own in new for k in own]
        assert len({len(own) for own in new}) == 1
        assert found == [
            k for i in range(after) for k in rest[i * (len(rest) // after) :][: len(rest) // after]
        ]
        assert not set(found) & set(seen)


def test_shards_from_tf_config_and_input_context(build, monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    found = []
    for kind, index in (("chief", 0), ("worker", 0), ("worker", 1)):
        config = {"cluster": cluster, "task": {"type": kind, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        found += keys(build())
        assert len(keys(build(shard=(0, 1)))) == ROWS
    assert sorted(found) == list(range(ROWS))
    monkeypatch.delenv("TF_CONFIG")
    contexts = [tf.distribute.InputContext(2, i, 2) for i in range(2)]
    assert sorted(k for c in contexts for k in keys(build(shard=c))) == list(range(ROWS))


def test_states_and_shards_that_do_not_fit(build):
    state = build(shuffle=1).state(10)
    with pytest.raises(ConfigError, match="seed"):
        build(shuffle=2).resume(state)
    with pytest.raises(ConfigError, match="cache"):
        build(shuffle=1).resume({**state, "cache": "OTHER"})
    with pytest.raises(DataChanged, match="version"):
        build(shuffle=1).resume({**state, "version": 99})
    with pytest.raises(ConfigError, match="not a state"):
        build(shuffle=1).resume({"epoch": 0})
    with pytest.raises(ConfigError, match="rows_consumed"):
        build().state(ROWS + 1)
    for shard in ((2, 2), (-1, 2), (0, 0), "x"):
        with pytest.raises(ConfigError, match="shard"):
            build(shard=shard)
    with pytest.raises(ConfigError, match="window_bytes"):
        build(shuffle=1, window_bytes=1 << 60)


def test_changed_data_are_noticed(client, address, cache_name):
    from ignitetf import IgniteDataset

    load_dataset([{"A": np.int64(i)} for i in range(50)], cache_name, client=client, partitions=4)
    dataset = IgniteDataset(cache_name, addresses=[address])
    assert len(list(dataset)) == 50
    client.sql(f'DELETE FROM "{cache_name}" WHERE _KEY = 7')
    with pytest.raises(tf.errors.OpError, match=r"49|11 entries|12 entries|DataChanged"):
        list(dataset)
    with pytest.raises(DataChanged):
        list(dataset.numpy())
    lenient = IgniteDataset(cache_name, addresses=[address], on_change="warn")
    assert sum(len(p["key"]) for p in lenient.numpy()) == 49
