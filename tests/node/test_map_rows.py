"""`map_rows` on a node: what a row on which the function fails leads to."""

import json
import logging
import os
from collections import Counter

import numpy as np
import pytest
from helpers.workers import steps_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ignitetf import load_dataset, open_rows
from ignitetf.errors import ConfigError, ConnectError
from ignitetf.read.usage import snapshot
from ignitetf.train import map_rows

pytestmark = pytest.mark.node
WORLDS = (1, 2, 3, 4, 8)
COUNT = 203
SEED = 5


@pytest.fixture(scope="module")
def data(client):
    name = f"MAPPED{os.getpid()}"
    numbers = np.arange(COUNT, dtype=np.int32)
    load_dataset({"V": numbers, "S": [f"s{i}" for i in numbers]}, name, client=client, partitions=8)
    yield name
    client.sql(f'DROP TABLE IF EXISTS "{name}"')


def opened(client, data, shard=(0, 1), **options):
    options = {"order": "global", "shuffle": SEED, "global_batch": 24, **options}
    return open_rows(data, client=client, shard=shard, **options)


def result(number):
    return {"X": [number, number / 2], "IN": {"S": f"<s{number}>", "N": number}}


def kind_of(number, seed=0):
    """The error that the function makes of a row; None for most rows."""
    return {0: "ValueError", 1: "KeyError", 2: "TypeError"}.get((number * 7 + seed) % 23)


def function(seed=0):
    """Fails on some rows in three ways: an error of its own, a wrong key, another form."""

    def mapped(row):
        number = int(row["val"]["V"])
        assert row["key"] == number and row["val"]["S"] == f"s{number}".encode()
        kind, found = kind_of(number, seed), result(number)
        if kind == "ValueError":
            found["X"] = [1.0]
        elif kind == "KeyError":
            return {}["missing"]
        elif kind == "TypeError":
            return found["X"]
        return found

    return mapped


def failing(numbers, seed=0):
    return Counter(kind_of(n, seed) for n in numbers if kind_of(n, seed))


def global_steps(workers, most=None):
    """Key, weight and result of each row of each step, and the iterators."""
    iterators = [worker.batches() for worker in workers]
    steps = []
    for parts in steps_of(iterators, most):
        step = []
        for part in parts:
            val, inner = part["val"], part["val"]["IN"]
            columns = part["key"], part["weight"], val["X"], inner["S"], inner["N"]
            assert part["weight"].dtype == np.float32 and inner["S"].dtype == object
            step += [
                (int(k), float(w), *x.tolist(), s, int(n))
                for k, w, x, s, n in zip(*columns, strict=True)
            ]
        steps.append(step)
    return steps, iterators


def row_of(key, filler, seed):
    """Key, weight and result of a row in a batch."""
    shown = filler if kind_of(key, seed) else key
    return key, float(key == shown), float(shown), shown / 2, f"<s{shown}>".encode(), shown


@pytest.mark.core
@settings(max_examples=6)
@given(
    seed=st.integers(0, 22),
    at=st.integers(0, 8),
    order=st.sampled_from(["keys", "global"]),
    worlds=st.permutations(WORLDS),
)
def test_left_out_rows_keep_steps_shapes_and_counts(client, data, seed, at, order, worlds):
    form = {"order": order, "shuffle": SEED if order == "global" else None}
    rows = opened(client, data, **form)
    plain = [batch["key"].tolist() for batch in rows.batches()]
    every = [key for step in plain for key in step]
    # The first row in the form of most rows fills the places of the others.
    filler = next(key for key in sorted(every) if kind_of(key, seed) is None)
    expected = [[row_of(key, filler, seed) for key in step] for step in plain]
    for before, after in zip(worlds, [*worlds[1:], worlds[0]], strict=True):

        def mapped(count):
            return [
                map_rows(opened(client, data, (i, count), **form), function(seed), on_error="skip")
                for i in range(count)
            ]

        begun, iterators = global_steps(mapped(before), at)
        assert begun == expected[:at]
        states = json.loads(json.dumps([one.state() for one in iterators]))
        skipped = [row for one in iterators for row in one.skipped]
        rest, iterators = global_steps([one.resume(states) for one in mapped(after)])
        assert begun + rest == expected
        skipped += [row for one in iterators for row in one.skipped]
        assert sum((one.counts for one in iterators), Counter()) == failing(every, seed)
        assert sorted(row.key for row in skipped) == sorted(k for k in every if kind_of(k, seed))
        assert all(row.error == kind_of(row.key, seed) for row in skipped)


@pytest.mark.parametrize("options", [{"order": "scan", "global_batch": None, "even": "pad"}, {}])
@pytest.mark.parametrize("size", [None, 4])
def test_batches_are_those_of_the_rows(client, data, options, size):
    for index in range(3):
        rows = opened(client, data, (index, 3), **options)
        expected = [batch["key"].tolist() for batch in rows.batches(size)]
        mapped = map_rows(rows, function(), on_error="skip")
        found = [batch["key"].tolist() for batch in mapped.batches(size)]
        assert found == expected


def test_an_error_is_raised_with_the_key_of_its_row(client, data):
    rows = opened(client, data, order="keys", shuffle=None)
    first = min(n for n in range(COUNT) if kind_of(n) == "KeyError")

    def fails(row):
        return {}["missing"] if row["key"] == first else row["val"]["V"]

    with pytest.raises(KeyError) as raised:
        list(map_rows(rows, fails).batches())
    assert raised.value.__notes__ == [f"{data}, key {first}: the function of map_rows failed"]


@pytest.mark.parametrize("error", [MemoryError(), ConnectError("no node")])
def test_what_is_not_about_a_row_is_always_raised(client, data, error):
    def fails(row):
        if row["key"] == 100:
            raise error
        return row["val"]["V"]

    with pytest.raises(type(error)):
        list(map_rows(opened(client, data), fails, on_error="skip").batches())


def test_a_function_that_always_fails_is_told(client, data):
    def fails(row):
        raise ValueError("never")

    with pytest.raises(ValueError, match="never") as raised:
        list(map_rows(opened(client, data), fails, on_error="skip").batches())
    assert raised.value.__notes__ == [
        f"{data}: the function fails on each of the first {COUNT} rows"
    ]


def test_the_process_counts_rows_by_data_set_and_error(client, data):
    def counts():
        found = next((one for one in snapshot().data_sets if one.name == data), None)
        return Counter({} if found is None else {one.error: one.rows for one in found.skipped})

    before = counts()
    list(map_rows(opened(client, data), function(), on_error="skip").batches())
    assert counts() - before == failing(range(COUNT))


def test_metrics_have_the_rows_that_were_left_out(client, data):
    pytest.importorskip("prometheus_client")
    from ignitetf.metrics import prometheus_text

    list(map_rows(opened(client, data), function(), on_error="skip").batches())
    found = next(one for one in snapshot().data_sets if one.name == data)
    assert {one.error for one in found.skipped} == set(failing(range(COUNT)))
    for one in found.skipped:
        labels = f'{{data_set="{data}",error="{one.error}"}}'
        assert f"ignitetf_skipped_rows_total{labels} {float(one.rows)}" in prometheus_text()


def test_warn_logs_the_first_rows_and_a_sum(client, data, caplog):
    numbers = [n for n in range(COUNT) if kind_of(n)]
    rows = opened(client, data, order="keys", shuffle=None)
    with caplog.at_level(logging.INFO, "ignitetf"):
        list(map_rows(rows, function(), on_error="warn").batches())
    lines = [
        record.getMessage() for record in caplog.records if record.name.startswith("ignitetf.train")
    ]
    for line, number in zip(lines[:-1], numbers[:5], strict=True):
        assert line.startswith(f"{data}, key {number}: the row is left out: {kind_of(number)}: ")
    sums = ", ".join(f"{kind} {n}" for kind, n in sorted(failing(range(COUNT)).items()))
    assert lines[-1] == f"{data}, epoch 0: {len(numbers)} rows left out: {sums}"


def test_results_take_the_type_of_most_rows(client, data):
    rows = opened(client, data, order="keys", shuffle=None)
    batches = list(map_rows(rows, lambda row: row["val"]["V"] * 0.5).batches())
    assert np.concatenate([batch["val"] for batch in batches]).tolist() == [
        n / 2 for n in range(COUNT)
    ]
    with pytest.raises(TypeError, match="float64, but that of another row is int64"):
        list(map_rows(rows, lambda row: 0.5 if row["key"] else 1).batches())


def test_wrong_arguments_are_refused(client, data):
    rows = opened(client, data)
    for call in (
        lambda: map_rows(rows, function(), on_error="ignore"),
        lambda: map_rows(rows, 3),
        lambda: map_rows(rows.batches(), function()),
        lambda: map_rows(rows, function()).resume(rows.state()),
        lambda: map_rows(rows, function()).resume({**rows.state(), "skipped": {"X": "many"}}),
        lambda: map_rows(rows, function()).resume(
            [{**rows.state(n), "skipped": {}} for n in (0, 24)]
        ),
    ):
        with pytest.raises(ConfigError):
            call()


def test_a_dataset_has_the_batches_epoch_after_epoch(client, data):
    tf = pytest.importorskip("tensorflow")
    first = map_rows(opened(client, data, (1, 3)), function(), on_error="skip")
    dataset = first.tf()
    for one in (first, first.next_epoch()):
        for mine, theirs in zip(one.batches(), dataset.as_numpy_iterator(), strict=True):
            tf.nest.assert_same_structure(mine, theirs)
            flat = zip(tf.nest.flatten(mine), tf.nest.flatten(theirs), strict=True)
            assert all(np.array_equal(a, b) for a, b in flat)
