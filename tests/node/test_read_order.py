"""Epochs: the same order for any reader, every row once, and every step of a resume."""

import functools
import itertools
import json
import os
import random

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
def build(open_dataset, table):
    return functools.partial(open_dataset, table)


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


@pytest.mark.core
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


@pytest.mark.core
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


@pytest.mark.core
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


@pytest.mark.core
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


@pytest.fixture(params=["made by others", "appended to after SQL removed rows"])
def uncounted(request, client, cache_name):
    """A cache of which no manifest has the rows of each partition, and its keys."""
    if request.param == "made by others":
        cache = client.pyignite.get_or_create_cache(cache_name)
        cache.put_all({number: number * 1.5 for number in range(90)})
    else:
        for mode, start in (("error", 0), ("append", 60)):
            rows = {"A": np.arange(start, start + 60)}
            load_dataset(rows, cache_name, client=client, partitions=8, if_exists=mode)
            client.sql(f'DELETE FROM "{cache_name}" WHERE A IN (3, 5)').close()
    entries = client.pyignite.get_cache(cache_name)
    with entries.scan() as found:
        return cache_name, sorted(key for key, _ in found)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (3, 2)])
def test_resume_on_another_number_of_workers_where_nothing_has_counted(
    open_dataset, uncounted, before, after
):
    name, wanted = uncounted
    old = [open_dataset(name, shard=(i, before)) for i in range(before)]
    taken = [key for shard in old for key in numpy_keys(shard)[:10]]
    resumed = [open_dataset(name, shard=(i, after)).resume(old[0].state(10)) for i in range(after)]
    rest = [key for shard in resumed for key in numpy_keys(shard)]
    assert sorted(taken + rest) == wanted


def test_resume_in_the_middle_of_a_resumed_epoch(build):
    first = keys(build(shuffle=5))
    once = build(shuffle=5).resume(build(shuffle=5).state(100))
    twice = build(shuffle=5).resume(once.state(57))
    assert keys(twice) == first[157:]


@pytest.mark.core
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


@pytest.mark.core
def test_states_of_other_ways_to_read(build):
    state = build(shuffle=1).state(10)
    assert len(json.dumps(state)) < 1000
    for name, other in {
        "seed": {"shuffle": 2},
        "window_bytes": {"shuffle": 1, "window_bytes": 2_000},
        "where": {"shuffle": 1, "where": "A > 3"},
        "even": {"shuffle": 1, "even": "pad"},
        "partitions": {"shuffle": 1, "part": 3},
        "drops": {"shuffle": 1, "nulls": "drop"},
    }.items():
        with pytest.raises(ConfigError, match=f"of {name} "):
            build(**other).resume(state)
        with pytest.raises(ConfigError, match=f"of {name} "):
            build(shuffle=1).resume(build(**other).state(10))
    few = build(where="A > ?", where_params=(3,)).state(10)
    with pytest.raises(ConfigError, match="where_params"):
        build(where="A > ?", where_params=(5,)).resume(few)
    with pytest.raises(ConfigError, match="cache"):
        build(shuffle=1).resume({**state, "cache": "OTHER"})
    for name, other in {"version": 99, "rows": 7, "counts": "00000000"}.items():
        with pytest.raises(DataChanged, match=name):
            build(shuffle=1).resume({**state, name: other})


NO_NUMBERS = ["3", 5.5, True, np.True_, float("nan"), None, -1, [1], b"1", 1 << 70, np.float64(3)]


def test_states_that_are_none(build):
    dataset = build(shuffle=1)
    state = dataset.state(10)
    states = [None, [], "x", 5, {}, {"epoch": 0}, {**state, "more": 1}, list(state.items())]
    states += [{k: v for k, v in state.items() if k != name} for name in state]
    states += [{**state, "epoch": value} for value in NO_NUMBERS]
    states += [{**state, "chain": [[1, value]]} for value in NO_NUMBERS]
    states += [{**state, "chain": [[value, 1]]} for value in NO_NUMBERS]
    chains = [[[1, 10**9]], [[1, ROWS + 1]], [[2, ROWS]], [[1, 200], [2, 66]], [[0, 0]], [[0, 5]],
              [[1, 5], [1, 5]], [[1]], [[1, 2, 3]], [1, 2], {"1": 2}, "", "12", None, 7, [[5000, 1]]]  # fmt: skip
    states += [{**state, "chain": chain} for chain in chains]
    for name in ("cache", "version", "rows", "counts", "window_bytes", "row_bytes", "partitions"):
        states += [{**state, name: value} for value in ({}, [1], True, float("nan"))]
    states += [{**state, "row_bytes": value} for value in (-1.0, 1e300, float("inf"), "8", None)]
    for wrong in states:
        with pytest.raises(ConfigError) as caught:
            dataset.resume(wrong)
        assert caught.value.hint, wrong
    for unknown in (build(where="A >= 0"), build(nulls="drop")):
        with pytest.raises(ConfigError, match=r"1000000000 rows, but there are at most"):
            unknown.resume(unknown.state(10**9))
    for wrong in NO_NUMBERS:
        with pytest.raises(ConfigError, match="rows_consumed"):
            dataset.state(wrong)
        if wrong is not None:
            with pytest.raises(ConfigError, match="epoch"):
                dataset.state(3, wrong)
    with pytest.raises(ConfigError, match="rows_consumed"):
        dataset.state(ROWS + 1)
    assert numpy_keys(dataset.resume(dataset.state(ROWS))) == []
    assert dataset.state(np.int32(10)) == dataset.state(tf.constant(10)) == state


def test_arguments_that_are_none(build):
    shards = [(2, 2), (-1, 2), (0, 0), (1.5, 3), (0, 2.0), (True, 2), ("0", "2"), "01", (0,), 1, {}]
    for shard in shards:
        with pytest.raises(ConfigError, match="shard"):
            build(shard=shard)
    for name in ("epoch", "shuffle", "window_bytes", "part", "page_size", "version"):
        for wrong in NO_NUMBERS:
            if wrong is None or f"{name} {wrong}" in ("part -1", f"shuffle {1 << 70}"):
                continue
            with pytest.raises(ConfigError, match=rf"{name}="):
                build(**{"shuffle": 1, name: wrong})
    with pytest.raises(ConfigError, match="window_bytes"):
        build(shuffle=1, window_bytes=1 << 60)
    for name in ("local", "as_supervised"):
        for wrong in ("false", 1, None):
            with pytest.raises(ConfigError, match=name):
                build(**{name: wrong})
    for wrong in [*NO_NUMBERS, 0]:
        with pytest.raises(ConfigError, match="batch_size"):
            build().batch(wrong)
    assert numpy_keys(build(shuffle=np.int64(4))) == numpy_keys(build(shuffle=4))


CHOICES = {
    "cache": ["described", "described", "undescribed"],
    "shuffle": [None, 3, 4],
    "window_bytes": [1, 2_000, 1 << 20],
    "even": [None, None, "pad", "drop"],
    "where": [None, None, ("A >= ?", (400,)), ("A >= ?", (900,)), ("A < 90000", ())],
    "nulls": ["default", "default", "drop"],
    "part": [-1, -1, -1, 2],
    "fields": [None, ["A"]],
    "page_size": [None, 7],
    "readers": [1, 2],
    "on_change": ["error", "warn"],
    "workers": [1, 1, 2, 3],
}


def of_the_order(options):
    """The options without what the order does not depend on."""
    free = {"page_size", "readers", "on_change", "workers"}
    free |= {"fields"} if options["nulls"] != "drop" else set()
    free |= {"window_bytes"} if options["shuffle"] is None else set()
    return {name: value for name, value in options.items() if name not in free}


def together(parts):
    return list(itertools.chain.from_iterable(parts))


def test_a_resume_gives_the_remaining_rows_or_refuses(client, address, cache_name):
    from ignitetf import IgniteDataset
    from ignitetf.tables.catalog import drop_manifest

    rows = [{"A": np.int64(i * i), "S": f"s{i}" * (i % 9) if i % 5 else None} for i in range(ROWS)]
    names = {"described": cache_name, "undescribed": f"{cache_name}_B"}
    for name in names.values():
        load_dataset(rows, name, client=client, partitions=8)
    drop_manifest(client, names["undescribed"])

    @functools.cache
    def opened(items, worker):
        options = dict(items)
        where, params = options.pop("where") or (None, ())
        cache, workers = names[options.pop("cache")], options.pop("workers")
        fields = options.pop("fields")
        return IgniteDataset(
            cache, addresses=[address], where=where, where_params=params,
            fields=None if fields is None else list(fields), shard=(worker, workers), **options,
        )  # fmt: skip

    @functools.cache
    def whole(items, worker):
        return numpy_keys(opened(items, worker))

    def every(options):
        items = tuple(
            (n, tuple(v) if isinstance(v, list) else v) for n, v in sorted(options.items())
        )
        return [(items, worker) for worker in range(options["workers"])]

    rng = random.Random(5)
    resumed = refused = 0
    for number in range(45):
        first = {name: rng.choice(values) for name, values in CHOICES.items()}
        second = {
            name: rng.choice(CHOICES[name]) if rng.random() < 0.15 else value
            for name, value in first.items()
        }
        try:
            before, after = every(first), every(second)
            epochs = [whole(*one) for one in before]
            consumed = rng.randrange(min(map(len, epochs)) + 1)
            state = json.loads(json.dumps(opened(*before[0]).state(consumed)))
            others = [opened(*one) for one in after]
        except ConfigError:
            continue  # not every choice can be had
        remaining = [epoch[consumed:] for epoch in epochs]
        try:
            found = [numpy_keys(dataset.resume(state)) for dataset in others]
        except ConfigError as error:
            refused += 1
            unlike_workers = first["workers"] != second["workers"]
            uncounted = unlike_workers and "not known" in str(error)
            assert uncounted or of_the_order(first) != of_the_order(second), (number, str(error))
            continue
        resumed += 1
        told = number, first, second
        if first["workers"] == second["workers"]:
            assert found == remaining, told
        elif first["even"] is None:
            assert sorted(together(found)) == sorted(together(remaining)), told
        elif first["even"] == "pad":
            assert set(together(found)) == set(together(remaining)), told
        else:
            assert set(together(found)) <= set(together(remaining)), told
    assert resumed > 8 and refused > 5, (resumed, refused)


@pytest.mark.core
def test_changed_data_are_noticed(client, address, cache_name):
    from ignitetf import IgniteDataset

    load_dataset([{"A": np.int64(i)} for i in range(50)], cache_name, client=client, partitions=4)
    dataset = IgniteDataset(cache_name, addresses=[address])
    assert len(list(dataset)) == 50
    client.sql(f'DELETE FROM "{cache_name}" WHERE _KEY = 7')
    with pytest.raises(DataChanged, match=r"49|11 entries|12 entries"):
        list(dataset)
    with pytest.raises(DataChanged):
        list(dataset.numpy())
    lenient = IgniteDataset(cache_name, addresses=[address], on_change="warn")
    assert sum(len(p["key"]) for p in lenient.numpy()) == 49
