"""Mixtures of data sets on a node: coverage, weights, global steps, states, refusals."""

import json
import os
from collections import Counter

import numpy as np
import pytest
from helpers.nodes import without_recording
from helpers.ports import free_port

from ignitetf import mix_rows, open_rows
from ignitetf.errors import ConfigError, DataChanged, SchemaError
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.net.client import connect
from ignitetf.node import Node
from ignitetf.read.scan_order import Position
from ignitetf.tables.removal import drop_cache

pytestmark = pytest.mark.node
SIZES = {"a": 61, "b": 30, "c": 7}
NAMES = list(SIZES)
WORLDS = (1, 2, 3, 4, 8)


@pytest.fixture(autouse=True)
def group_rows(request, monkeypatch):
    """With `in_groups`, rows are also read in many groups, some of which lack a component."""
    if (rows := getattr(request, "param", None)) is not None:
        monkeypatch.setattr("ignitetf.read.mixture._MOST_ROWS", rows)


in_groups = pytest.mark.parametrize("group_rows", [5, None], indirect=True)


def columns(name, count, dtype=np.int32):
    """Rows that tell which component they are of, and which row of it."""
    number = NAMES.index(name) if name in NAMES else 9
    return {
        "V": np.arange(count, dtype=dtype),
        "OF": np.full(count, number, np.int32),
        "S": [f"{name}{'x' * (i % 5)}" for i in range(count)],
        "A": np.arange(count * 6, dtype=np.float32).reshape(count, 2, 3) + number,
    }


@pytest.fixture(scope="module")
def caches(client):
    made = {name: f"MIX{os.getpid()}_{name}".upper() for name in SIZES}
    for name, cache in made.items():
        load_dataset(columns(name, SIZES[name]), cache, client=client, partitions=8)
    yield made
    for cache in made.values():
        client.sql(f'DROP TABLE IF EXISTS "{cache}"')


@pytest.fixture(scope="module")
def parts(client, caches):
    """The components, each opened once for an order."""
    known = {}

    def of(order="global", names=NAMES):
        for name in names:
            if (name, order) not in known:
                known[name, order] = open_rows(
                    caches[name], client=client, order=order, shard=(0, 1)
                )
        return {name: known[name, order] for name in names}

    return of


def pairs(batches):
    """(component, row) of every row, after checking that the rest of the row belongs to it."""
    found = []
    for batch in batches:
        source, number = batch["source"].tolist(), batch["val"]["V"].tolist()
        assert batch["source"].dtype == np.int64
        assert batch["val"]["OF"].tolist() == source
        assert batch["key"].tolist() == number
        texts = [f"{NAMES[k]}{'x' * (i % 5)}".encode() for k, i in zip(source, number, strict=True)]
        assert list(batch["val"]["S"]) == texts
        first = batch["val"]["A"].reshape(len(source), 6)[:, 0]
        assert first.tolist() == [6 * i + k for k, i in zip(source, number, strict=True)]
        found += zip(source, number, strict=True)
    return found


def uses(found, name):
    """How often each row of a component was read."""
    number = NAMES.index(name)
    counts = Counter(row for source, row in found if source == number)
    return [counts[row] for row in range(SIZES[name])]


BOTH = [{"shuffle": 5}, {}]


@pytest.mark.core
@in_groups
@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize("order", ["keys", "global"])
def test_every_row_comes_as_often_as_asked(parts, order, form):
    asked = {"repeat": {"a": 1, "b": 2.5}, "choose": {"c": 3}}
    rows = mix_rows(parts(order), **asked, **form, global_batch=16)
    assert rows.counts == {"a": 61, "b": 75, "c": 3} and len(rows) == 139
    total = Counter()
    for _ in range(7):
        found = pairs(rows.batches())
        assert uses(found, "a") == [1] * 61
        assert Counter(uses(found, "b")) == {2: 15, 3: 15}
        assert Counter(uses(found, "c")) == {0: 4, 1: 3}
        total.update(found)
        rows = rows.next_epoch()
    # After any number of epochs rows have been used equally often; after 7 of 3 in 7, exactly.
    assert {total[2, row] for row in range(7)} == {3}
    assert {total[1, row] for row in range(30)} <= {17, 18}


@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize("order", ["keys", "global"])
def test_parts_move_on_until_all_rows_have_come_up(parts, order, form):
    rows = mix_rows(parts(order), choose={"a": 9, "b": 6, "c": 2}, **form, global_batch=4)
    epochs = []
    for _ in range(7):
        epochs.append(pairs(rows.batches()))
        rows = rows.next_epoch()
    for name, needed in (("a", 7), ("b", 5), ("c", 4)):
        seen = [uses(found, name) for found in epochs]
        assert min(np.sum(seen[:needed], axis=0)) >= 1
        assert seen[0] != seen[1]


@pytest.mark.parametrize("form", BOTH)
def test_epochs_differ_and_each_covers(parts, form):
    rows = mix_rows(parts(), **form, global_batch=10)
    first, second = pairs(rows.batches()), pairs(rows.next_epoch().batches())
    assert (
        sorted(first)
        == sorted(second)
        == [(k, i) for k, name in enumerate(NAMES) for i in range(SIZES[name])]
    )
    assert first != second
    assert pairs(mix_rows(parts(), **form, global_batch=10).batches()) == first
    again = mix_rows(parts(), **form, global_batch=10, epoch=1)
    assert pairs(again.batches()) == second


@in_groups
@pytest.mark.parametrize("order", ["keys", "global"])
def test_interleaved_components_come_in_their_own_order(parts, order):
    """Step by step: the rows of a component up to any step are its own first rows."""
    components = parts(order)
    rows = mix_rows(components, repeat={"c": 3}, global_batch=8, epoch=2)
    own = {}
    for name, component in components.items():
        passes = [2] if name != "c" else [6, 7, 8]
        epochs = [component.at(Position(epoch)).batches() for epoch in passes]
        own[name] = [v for batches in epochs for b in batches for v in b["val"]["V"].tolist()]
    for batch in rows.batches():
        for number, name in enumerate(NAMES):
            found = batch["val"]["V"][batch["source"] == number].tolist()
            assert sorted(found) == sorted(own[name][: len(found)])
            del own[name][: len(found)]
    assert own == {name: [] for name in NAMES}


WEIGHTS = {"a": 0.6, "b": 1, "c": 0.1}


@pytest.mark.parametrize("step", [16, 10, 7])
def test_interleaved_steps_have_the_weights_to_within_one_row(parts, step):
    rows = mix_rows(parts(), WEIGHTS, epoch_size=500, global_batch=step)
    for name, weight in WEIGHTS.items():
        assert abs(rows.counts[name] - 500 * weight / 1.7) < 1
    for batch in rows.batches():
        size = len(batch["source"])
        for number, name in enumerate(NAMES):
            assert abs((batch["source"] == number).sum() - size * rows.counts[name] / 500) < 1


def test_shuffled_steps_have_the_weights_of_a_random_sample(parts):
    rows = mix_rows(parts(), WEIGHTS, epoch_size=6400, shuffle=3, global_batch=64)
    for number, name in enumerate(NAMES):
        share = rows.counts[name] / 6400
        sigma = (64 * share * (1 - share)) ** 0.5
        counts = [int((b["source"] == number).sum()) for b in rows.batches()]
        assert max(abs(c - 64 * share) for c in counts) < 4.5 * sigma
        assert abs(np.std(counts) - sigma) < sigma / 3


def steps(parts, world, options, state=None):
    """The rows of each global step, worker after worker, and the state after each."""
    workers = [mix_rows(parts(), **options, shard=(i, world)) for i in range(world)]
    if state is not None:
        workers = [worker.resume(json.loads(json.dumps(state))) for worker in workers]
    iterators = [worker.batches() for worker in workers]
    found, states = [], []
    while got := [batch for i in iterators if (batch := next(i, None)) is not None]:
        found.append(pairs(got))
        states.append(iterators[0].state())
    assert sum(map(len, workers)) == sum(map(len, found))
    return found, states


OPTIONS = {
    "weights": {"weights": WEIGHTS, "epoch_size": 90, "global_batch": 12},
    "shuffled": {"weights": WEIGHTS, "epoch_size": 90, "global_batch": 12, "shuffle": 1},
    "rows": {"repeat": {"c": 2.5}, "choose": {"a": 20}, "global_batch": 9, "epoch": 3},
}


@pytest.mark.core
@in_groups
@pytest.mark.parametrize("kind", OPTIONS)
def test_global_steps_are_equal_for_any_number_of_workers(parts, kind):
    one, states = steps(parts, 1, OPTIONS[kind])
    for world in WORLDS[1:]:
        found, theirs = steps(parts, world, OPTIONS[kind])
        assert found == one
        assert theirs == states


@in_groups
@pytest.mark.parametrize("kind", OPTIONS)
def test_from_every_step_other_workers_go_on_with_the_rest(parts, kind):
    one, states = steps(parts, 1, OPTIONS[kind])
    for number, state in enumerate(states):
        world = WORLDS[number % len(WORLDS)]
        rest, _ = steps(parts, world, OPTIONS[kind], state)
        assert rest == one[number + 1 :]


@in_groups
def test_one_worker_may_stop_anywhere(parts):
    rows = mix_rows(parts(), WEIGHTS, epoch_size=60, global_batch=12)
    whole = pairs(rows.batches())
    for consumed in range(61):
        assert pairs(rows.resume(rows.state(consumed)).batches(4)) == whole[consumed:]
        assert pairs(rows.advance(consumed).batches()) == whole[consumed:]


@in_groups
@pytest.mark.parametrize("even", ["pad", "drop"])
def test_even_gives_all_workers_the_same_number_of_rows(parts, even):
    every = set(pairs(mix_rows(parts(), global_batch=13).batches()))
    workers = [mix_rows(parts(), even=even, global_batch=13, shard=(i, 4)) for i in range(4)]
    found = [pairs(worker.batches()) for worker in workers]
    assert {len(rows) for rows in found} == {len(worker) for worker in workers}
    assert len(set(map(len, found))) == 1
    if even == "pad":
        assert set().union(*found) == every
    else:
        assert set().union(*found) < every and len(found[0]) * 4 == 12 * 7 + 4


@in_groups
def test_pages_and_batches_are_the_same_rows(parts):
    rows = mix_rows(parts(), shuffle=9)
    wanted = pairs(rows.batches())
    assert pairs(rows.batches(5)) == wanted
    assert pairs(rows.batches(5, drop_remainder=True)) == wanted[:95]
    assert [len(b["source"]) for b in rows.batches(40)] == [40, 40, 18]


@in_groups
def test_the_same_rows_may_be_two_components(parts):
    rows = parts(names=["c"])["c"]
    mixed = mix_rows({"plain": rows, "augmented": rows}, shuffle=0)
    found = [
        (k, v)
        for b in mixed.batches(3)
        for k, v in zip(b["source"].tolist(), b["val"]["V"].tolist(), strict=True)
    ]
    assert sorted(found) == [(k, v) for k in range(2) for v in range(7)]


@pytest.mark.parametrize("form", BOTH)
def test_many_rows_and_a_few_in_many_pages(client, cache_name, parts, form):
    """Each page of rows is asked for ahead, also where a component has none in it."""
    count = 60_000
    load_dataset(columns("b", count), cache_name, client=client, partitions=16)
    many = open_rows(cache_name, client=client, order="global", shard=(0, 1))
    rows = mix_rows({"c": parts(names=["c"])["c"], "many": many}, **form, global_batch=1000)
    every = rows.order.rows_at(0, np.arange(len(rows)))
    batches = [(b["source"], b["val"]["V"], b["val"]["A"][:, 0, 0]) for b in rows.batches()]
    source, number, first = (np.concatenate(part) for part in zip(*batches, strict=True))
    assert source.tolist() == every[0].tolist() and number.tolist() == every[1].tolist()
    assert first.tolist() == (6 * number + np.where(source == 0, 2, 1)).tolist()
    assert Counter(source.tolist()) == {0: 7, 1: count}
    assert len(np.unique(number[source == 1])) == count


@in_groups
def test_large_rows(client, cache_name):
    """Rows that are handed over as views of what arrived."""
    count, size = 40, 100_000
    load_dataset(
        {"V": np.arange(count), "A": np.repeat(np.arange(count, dtype=np.uint8), size).reshape(count, size)},
        cache_name, client=client, partitions=8,
    )  # fmt: skip
    own = open_rows(cache_name, client=client, order="global", shard=(0, 1))
    rows = mix_rows({"x": own, "y": own}, repeat={"y": 2.5}, shuffle=1)
    found = []
    for batch in rows.batches(9):
        assert (batch["val"]["A"] == batch["val"]["V"][:, None]).all()
        found += zip(batch["source"].tolist(), batch["val"]["V"].tolist(), strict=True)
    assert [found.count((0, i)) for i in range(count)] == [1] * count
    assert Counter(found.count((1, i)) for i in range(count)) == {2: 20, 3: 20}


@pytest.mark.timeout(240)
def test_components_may_be_in_several_clusters(parts):
    with (
        without_recording(),
        Node.start("mix-other", port=free_port(1), memory="128m") as node,
        connect(node.addresses[0]) as other,
    ):
        load_dataset(columns("b", SIZES["b"]), "ELSEWHERE", client=other, partitions=4)
        there = open_rows("ELSEWHERE", client=other, order="global", shard=(0, 1))
        rows = mix_rows({**parts(names=["a"]), "b": there}, global_batch=9)
        found = pairs(rows.batches())
        assert sorted(found) == [*((0, i) for i in range(61)), *((1, i) for i in range(30))]
        # As with a component of the same rows, seed and size here.
        assert found == pairs(mix_rows(parts(names=["a", "b"]), global_batch=9).batches())


def test_conditions_and_fields_are_the_components_own(client, caches):
    parts = {
        name: open_rows(
            caches[name], client=client, order="global", shard=(0, 1), fields=["V", "OF"],
            where="V >= ?", where_params=[5],
        )
        for name in "ab"
    }  # fmt: skip
    rows = mix_rows(parts, shuffle=2)
    assert rows.counts == {"a": 56, "b": 25}
    found = [b["val"] for b in rows.batches()]
    assert sorted(found[0]) == ["OF", "V"]
    assert sorted(v for b in found for v in b["V"].tolist()) == sorted(
        [*range(5, 61), *range(5, 30)]
    )


@pytest.mark.core
def test_a_tf_dataset_has_the_batches_of_one_epoch_after_another(parts):
    pytest.importorskip("tensorflow")
    rows = mix_rows(parts(), WEIGHTS, epoch_size=50, global_batch=8, shard=(1, 3))
    dataset = rows.tf()
    assert int(dataset.cardinality()) == 7
    for epoch in (rows, rows.next_epoch()):
        found = list(dataset.as_numpy_iterator())
        assert pairs(found) == pairs(epoch.batches())
        assert list(map(len, (b["source"] for b in found))) == [3] * 6 + [1]
    rest = rows.resume(rows.state(6))
    dataset = rest.tf()
    assert int(dataset.cardinality()) < 0
    assert pairs(dataset.as_numpy_iterator()) == pairs(rest.batches())
    assert pairs(dataset.as_numpy_iterator()) == pairs(rows.next_epoch().batches())


def test_a_tf_dataset_of_lists_and_texts(client, cache_name):
    tf = pytest.importorskip("tensorflow")
    lists = [[float(i)] * (i % 4) for i in range(20)]
    records = [{"L": np.array(x, np.float32), "T": f"t{i}"} for i, x in enumerate(lists)]
    load_dataset(records, cache_name, client=client, partitions=4)
    own = open_rows(cache_name, client=client, order="global", shard=(0, 1))
    rows = mix_rows({"x": own, "y": own}, shuffle=2)
    # An iterator of TensorFlow, and a loop in Python: both have the same elements.
    there, here = list(rows.tf(7).map(lambda batch: batch)), list(rows.tf(7))
    assert len(there) == len(here) == 6
    for one, other in zip(there, here, strict=True):
        tf.nest.assert_same_structure(one, other, expand_composites=True)
        pairs_of = (tf.nest.flatten(batch, expand_composites=True) for batch in (one, other))
        for a, b in zip(*pairs_of, strict=True):
            assert (a.dtype, a.device, a.numpy().tolist()) == (
                b.dtype,
                b.device,
                b.numpy().tolist(),
            )
    found = []
    for batch in here:
        texts = batch["val"]["T"].numpy().tolist()
        for key, text, row in zip(batch["key"].numpy(), texts, batch["val"]["L"], strict=True):
            assert text == f"t{key}".encode() and row.numpy().tolist() == lists[key]
        found += batch["source"].numpy().tolist()
    assert found == [k for b in rows.batches(7) for k in b["source"].tolist()]


def test_errors_in_a_tf_dataset_are_ours(client, cache_name):
    pytest.importorskip("tensorflow")
    load_dataset(columns("b", 20), cache_name, client=client, partitions=4)
    own = open_rows(cache_name, client=client, order="global", shard=(0, 1))
    dataset = mix_rows({"own": own}, shuffle=1).tf(4)
    client.sql(f'DELETE FROM "{cache_name}" WHERE V = 7')
    with pytest.raises(DataChanged):
        list(dataset)


# Refusals


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"weights": {"a": 1, "b": -1}}, "finite number"),
        ({"weights": {"a": 1, "b": float("nan")}}, "finite number"),
        ({"weights": {"a": 1, "b": float("inf")}}, "finite number"),
        ({"weights": {"a": 1, "b": True}}, "finite number"),
        ({"weights": {"a": 1, "b": "1"}}, "finite number"),
        ({"weights": {"a": 0, "b": 0}}, "all weights are zero"),
        ({"weights": {"a": 1}}, "no weight for b"),
        ({"weights": {"a": 1, "b": 1, "d": 1}}, "weights for 'd'"),
        ({"weights": [1, 1]}, "names of components"),
        (
            {"weights": {"a": 1, "b": 1}, "repeat": {"a": 1}},
            "weights= cannot be combined with repeat",
        ),
        ({"weights": {"a": 1, "b": 1}, "epoch_size": 0}, "epoch_size=0"),
        ({"epoch_size": 10}, "epoch_size= needs weights="),
        ({"repeat": {"a": -1}}, "finite number"),
        ({"repeat": {"a": 0, "b": 0}}, "an epoch of 0 rows"),
        ({"repeat": {"a": 1e30}}, "rows"),
        ({"choose": {"a": -1}}, "choose"),
        ({"choose": {"a": 1.5}}, "whole number"),
        ({"choose": {"a": 1}, "repeat": {"a": 1}}, "both name a"),
        ({"shuffle": None}, "global_batch="),
        ({"shuffle": -1}, "shuffle=-1"),
        ({"global_batch": 0}, "global_batch=0"),
        ({"shard": (0, 3), "global_batch": 2}, "for 3 workers"),
        ({"epoch": -1}, "epoch=-1"),
        ({"keys": "no"}, "keys='no'"),
        ({"even": "odd"}, "even='odd'"),
    ],
)
def test_unusable_arguments_are_refused(parts, options, says):
    with pytest.raises(ConfigError) as error:
        mix_rows(parts(names=["a", "b"]), **{"shuffle": 1, **options})
    assert says in f"{error.value} ({error.value.hint})"


def test_unusable_components_are_refused(client, caches, parts):
    def opened(**options):
        return open_rows(
            caches["a"], client=client, **{"shard": (0, 1), "order": "global", **options}
        )

    b = parts(names=["b"])["b"]
    for wrong, says in [
        (opened(order="scan"), "order='global'"),
        (opened(epoch=1), "without epoch="),
        (opened().advance(3), "without epoch="),
        (opened(global_batch=4), "the mixture takes them"),
        (opened(even="pad"), "the mixture takes them"),
        (opened(shard=(1, 2)), "shard= belongs to the mixture"),
        (opened(on_change="warn"), "on_change='error'"),
        ("MNIST", "rows by name"),
    ]:
        with pytest.raises(ConfigError) as error:
            mix_rows({"wrong": wrong, "b": b}, shuffle=1)
        assert says in f"{error.value} ({error.value.hint})"
    for none in ({}, [b], None):
        with pytest.raises(ConfigError, match="rows by name"):
            mix_rows(none, shuffle=1)


def test_components_of_one_worker_need_the_mixture_of_that_worker(client, caches, parts):
    """As when `TF_CONFIG` names the worker, which both take it from."""
    rows = open_rows(caches["a"], client=client, order="global", shard=(1, 2))
    found = pairs(mix_rows({"a": rows}, shuffle=1, shard=(1, 2)).batches())
    assert found == pairs(mix_rows(parts(names=["a"]), shuffle=1, shard=(1, 2)).batches())
    assert len(found) == 30


def test_an_empty_component(client, cache_name, parts):
    load_dataset(columns("a", 3), cache_name, client=client, partitions=4)
    client.sql(f'DELETE FROM "{cache_name}"')
    options = {"order": "global", "shard": (0, 1), "where": "V >= 0"}
    components = {**parts(names=["a"]), "empty": open_rows(cache_name, client=client, **options)}
    for rows in (
        mix_rows(components, shuffle=1),
        mix_rows(components, {"a": 1, "empty": 0}, global_batch=7),
        mix_rows(components, repeat={"empty": 3}, global_batch=7),
        mix_rows(components, choose={"empty": 0}, shuffle=1),
    ):
        assert rows.counts == {"a": 61, "empty": 0}
        assert sorted(pairs(rows.batches())) == [(0, i) for i in range(61)]
    with pytest.raises(ConfigError, match="no rows"):
        mix_rows(components, {"a": 1, "empty": 0.1}, shuffle=1)
    with pytest.raises(ConfigError, match="no rows"):
        mix_rows(components, choose={"empty": 1}, shuffle=1)
    with pytest.raises(ConfigError, match="an epoch of 0 rows"):
        mix_rows({"empty": components["empty"]}, shuffle=1)


def test_fields_that_differ_are_named_with_their_components(client, cache_name, caches, parts):
    a = parts(names=["a"])["a"]
    wide = columns("b", 9, np.int64)
    wide["EXTRA"] = np.zeros(9, np.int8)
    load_dataset(wide, cache_name, client=client, partitions=4)

    def other(**options):
        return open_rows(cache_name, client=client, order="global", shard=(0, 1), **options)

    with pytest.raises(SchemaError, match="'other' has the field 'EXTRA', 'a' does not") as error:
        mix_rows({"a": a, "other": other()}, shuffle=1)
    assert "fields=['A', 'OF', 'S']" in error.value.hint
    with pytest.raises(SchemaError, match=r"field 'V' is int of int32 in component 'a', long of"):
        mix_rows({"a": a, "other": other(fields=["A", "OF", "S", "V"])}, shuffle=1)
    shared = {
        "a": open_rows(
            caches["a"], client=client, order="keys", fields=["A", "OF", "S"], shard=(0, 1)
        ),
        "other": other(fields=["A", "OF", "S"]),
    }
    rows = mix_rows(shared, shuffle=1)
    assert Counter(k for b in rows.batches(8) for k in b["source"].tolist()) == {0: 61, 1: 9}


@in_groups
def test_keys_of_other_types_are_refused_or_left_out(client, cache_name, parts):
    table = cache_name.replace("_", "")
    client.sql(
        f"CREATE TABLE {table} (K VARCHAR PRIMARY KEY, V INT) WITH"
        f' "template=p4,cache_name={cache_name}"'
    )
    for i in range(5):
        client.sql(f"INSERT INTO {table} (K, V) VALUES (?, ?)", (f"k{i}", i))
    texts = open_rows(cache_name, client=client, order="keys", shard=(0, 1))
    numbers = open_rows(
        parts(names=["a"])["a"].reader.name, client=client, order="keys", fields=["V"], shard=(0, 1)
    )
    with pytest.raises(
        SchemaError, match="keys are long of int64 in component 'a', string"
    ) as error:
        mix_rows({"a": numbers, "texts": texts}, shuffle=1)
    assert error.value.hint.startswith("keys=False")
    rows = mix_rows({"a": numbers, "texts": texts}, shuffle=1, keys=False)
    batches = list(rows.batches(20))
    assert all(set(batch) == {"val", "source"} for batch in batches)
    found = [
        (k, v)
        for b in batches
        for k, v in zip(b["source"].tolist(), b["val"]["V"].tolist(), strict=True)
    ]
    assert sorted(found) == [*((0, i) for i in range(61)), *((1, i) for i in range(5))]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"weights": {"a": 1, "b": 1, "c": 2}}, "component 'a': the state is of share 32"),
        ({"epoch_size": 91}, "share"),
        ({"global_batch": 13}, "step"),
        ({"shuffle": 4}, "seed"),
        ({"even": "pad"}, "even"),
    ],
)
def test_a_state_of_another_mixture_is_refused(parts, other, says):
    options = OPTIONS["weights"]
    state = mix_rows(parts(), **options).state(12)
    with pytest.raises(ConfigError, match=says):
        mix_rows(parts(), **{**options, **other}).resume(state)


def test_a_state_of_other_components_is_refused(parts):
    options = {"shuffle": 3}
    state = mix_rows(parts(), **options).state(5)
    with pytest.raises(ConfigError, match="of the components a, b, c"):
        mix_rows(parts(names=["b", "a", "c"]), **options).resume(state)
    with pytest.raises(ConfigError, match="of the components a, b, c"):
        mix_rows(parts(names=["a", "b"]), **options).resume(state)
    with pytest.raises(ConfigError, match="component 'a': the state is of order 'global'"):
        mix_rows(parts("keys"), **options).resume(state)
    with pytest.raises(ConfigError, match="state is of order 'mix'"):
        parts()["a"].resume(state)
    with pytest.raises(ConfigError, match="state is of order 'global'"):
        mix_rows(parts(), **options).resume(parts()["a"].state(5))
    for damage in (
        {"components": None}, {"components": [1, 2, 3]}, {"chain": [[1, 99]]}, {"chain": [[2, 4]]},
        {"more": 1}, {"format": 1}, {"epoch": "1"},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            mix_rows(parts(), **options).resume({**state, **damage})
    for name in state:
        with pytest.raises(ConfigError):
            mix_rows(parts(), **options).resume({k: v for k, v in state.items() if k != name})


def test_weights_of_the_same_rows_are_the_same_mixture(parts):
    """The order depends on the rows that weights make, not on their unit."""
    options = {"epoch_size": 90, "global_batch": 9}
    state = mix_rows(parts(), {"a": 3, "b": 2, "c": 1}, **options).state(18)
    rows = mix_rows(parts(), {"a": 0.75, "b": 0.5, "c": 0.25}, **options).resume(state)
    assert len(rows) == 72


def test_data_that_changed_end_a_resume_and_an_epoch(client, cache_name, parts):
    load_dataset(columns("b", 20), cache_name, client=client, partitions=4)

    def mixed():
        own = open_rows(cache_name, client=client, order="global", shard=(0, 1))
        return mix_rows({**parts(names=["a"]), "own": own}, shuffle=1)

    before = mixed()
    state = before.state(10)
    load_dataset(columns("b", 21), cache_name, client=client, partitions=4, if_exists="replace")
    with pytest.raises(DataChanged, match="component 'own'"):
        mixed().resume(state)
    rows = mixed()
    client.sql(f'DELETE FROM "{cache_name}" WHERE V = 7')
    with pytest.raises(DataChanged):
        list(rows.batches())


def test_a_label_that_means_different_classes_is_told(client, cache_name):
    rows = {}
    for names in ("cat dog", "ant dog", "cat dog bee"):
        labels = {"LABEL": np.arange(2, dtype=np.int32)}
        source = open_source("records", labels, class_names=names.split())
        name = f"{cache_name}_{names.replace(' ', '_')}"
        load_dataset(source, name, client=client, partitions=2)
        rows[names] = open_rows(name, client=client, order="global")
    with pytest.warns(UserWarning, match="LABEL 0 is 'cat' in component 'a', 'ant' in 'b'"):
        mix_rows({"a": rows["cat dog"], "b": rows["ant dog"]}, global_batch=2)
    # One list may go on where the other ends.
    mix_rows({"a": rows["cat dog"], "b": rows["cat dog bee"]}, global_batch=2)
    for one in rows.values():
        drop_cache(client, one.reader.cache)
