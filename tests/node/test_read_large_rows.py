"""Rows of 300 KB: with pages of any size they have the same order, states and errors."""

import logging

import numpy as np
import pytest

from ignitetf import open_rows
from ignitetf.errors import DataChanged, SchemaError
from ignitetf.load.loader import load_dataset

pytestmark = pytest.mark.node
ROWS, NBYTES = 61, 300_000


def source(rows=ROWS, nbytes=NBYTES):
    rng = np.random.default_rng(5)
    return {
        "IMAGE": rng.integers(0, 256, (rows, nbytes), dtype=np.uint8),
        "LABEL": np.arange(rows, dtype=np.int32) * 3,
    }


@pytest.fixture(params=[1, 4, 64])
def table(request, client, cache_name):
    load_dataset(source(), cache_name, client=client, partitions=request.param)
    return cache_name


@pytest.fixture
def small_table(client, cache_name):
    load_dataset(source(), cache_name, client=client, partitions=4)
    return cache_name


def opened(client, name, **options):
    return open_rows(name, client=client, **{"shard": (0, 1), **options})


def scanned(client, name, **options):
    """The same rows, in pages of five."""
    return opened(client, name, page_size=5, **options)


def keys(batches):
    found = []
    for batch in batches:
        expected = source()
        np.testing.assert_array_equal(batch["val"]["IMAGE"], expected["IMAGE"][batch["key"]])
        np.testing.assert_array_equal(batch["val"]["LABEL"], expected["LABEL"][batch["key"]])
        found += batch["key"].tolist()
    return found


def test_the_rows_and_their_order_do_not_depend_on_pages(client, table):
    found = keys(opened(client, table).numpy())
    assert found == keys(scanned(client, table).numpy())


def test_each_partition_is_in_the_order_of_pyignite(client, table):
    rows = opened(client, table)
    cache = client.pyignite.get_cache(table)
    expected = []
    for partition in range(rows.reader.partition_count):
        with cache.scan(page_size=7, partitions=partition) as cursor:
            expected += [key for key, _ in cursor]
    assert keys(rows.numpy()) == expected


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": 4}, {"shuffle": 4, "window_bytes": 5 * NBYTES}]
)
def test_states_and_shards_do_not_depend_on_pages(client, small_table, options):
    whole = keys(scanned(client, small_table, **options).numpy())
    for done in range(0, ROWS + 1, 6):
        state = scanned(client, small_table, **options).state(done)
        resumed = opened(client, small_table, **options).resume(state)
        assert keys(resumed.numpy()) == whole[done:], done
    for count in (2, 3):
        for index in range(count):
            shard = {"shard": (index, count), **options}
            part = keys(opened(client, small_table, **shard).numpy())
            assert part == keys(scanned(client, small_table, **shard).numpy())


@pytest.mark.parametrize("batch_size", [1, 7, 16, 100])
def test_batches_do_not_depend_on_pages(client, small_table, batch_size):
    by_scan = scanned(client, small_table).batches(batch_size)
    for found, expected in zip(
        opened(client, small_table).batches(batch_size), by_scan, strict=True
    ):
        assert found["key"].tolist() == expected["key"].tolist()
        np.testing.assert_array_equal(found["val"]["IMAGE"], expected["val"]["IMAGE"])


def test_batches_stay_as_they_are_while_others_are_read(client, table):
    batches = list(opened(client, table).numpy())
    batches += list(opened(client, table).numpy())
    assert sorted(keys(batches)) == sorted(2 * list(range(ROWS)))


@pytest.mark.parametrize("order", ["keys", "global"])
def test_orders_by_key_have_the_rows_that_their_keys_say(client, table, order):
    rows = opened(client, table, order=order, **({"shuffle": 2} if order == "global" else {}))
    for _ in range(2):
        found = keys(rows.numpy())
        assert sorted(found) == list(range(ROWS))
        assert (found == list(range(ROWS))) == (order == "keys")


def test_what_others_added_is_told_by_a_scan(client, small_table):
    rows = opened(client, small_table)
    insert = f'INSERT INTO "{small_table}" (_KEY, IMAGE, LABEL) VALUES (1000, ?, 1)'
    client.sql(insert, (bytes(NBYTES),))
    with pytest.raises(DataChanged, match=r"partition \d: \d+ entries, the load stored \d+"):
        list(rows.numpy())
    found, expected = (
        [key for batch in one.numpy() for key in batch["key"].tolist()]
        for one in (opened(client, small_table), scanned(client, small_table))
    )
    assert found == expected and sorted(found) == [*range(ROWS), 1000]


def test_a_row_that_goes_away_before_or_during_an_epoch(client, small_table, caplog):
    name = small_table
    rows = opened(client, name)
    lenient = opened(client, name, on_change="warn")
    silent = opened(client, name, on_change="ignore")
    client.sql(f'DELETE FROM "{name}" WHERE _KEY = 7')
    left = [key for key in range(ROWS) if key != 7]
    with pytest.raises(DataChanged, match=r"partition \d: \d+ entries, the load stored \d+"):
        keys(rows.numpy())
    assert sorted(keys(opened(client, name).numpy())) == left
    # As if it went away just after the entries were counted.
    with pytest.MonkeyPatch.context() as patch:
        for one in (rows, lenient, silent):
            patch.setattr(one.reader, "entry_count", lambda: ROWS)
        with pytest.raises(DataChanged, match=r"partition \d: \d+ entries, the load stored \d+"):
            keys(rows.numpy())
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert sorted(keys(lenient.numpy())) == left
        assert "the load stored" in caplog.text
        assert sorted(keys(silent.numpy())) == left


def test_a_row_in_another_form_is_read_or_told_as_by_a_scan(client, small_table):
    """SQL writes the fields of a row in the order of the table, and one of them may be longer."""
    name = small_table
    image = source()["IMAGE"]
    client.sql(f'UPDATE "{name}" SET LABEL = 99 WHERE _KEY = 9')
    expected = source()["LABEL"]
    expected[9] = 99
    for way in (opened, scanned):
        for batch in way(client, name).numpy():
            np.testing.assert_array_equal(batch["val"]["IMAGE"], image[batch["key"]])
            np.testing.assert_array_equal(batch["val"]["LABEL"], expected[batch["key"]])
    client.sql(f'UPDATE "{name}" SET IMAGE = ? WHERE _KEY = 11', (bytes(NBYTES + 1),))
    for way in (opened, scanned):
        with pytest.raises(SchemaError, match="11"):
            list(way(client, name).numpy())


def test_only_some_fields_and_rows_of_the_smallest_size(client, cache_name):
    data = {**source(20), "MORE": np.arange(40.0).reshape(20, 2)}
    load_dataset(data, cache_name, client=client, partitions=4)
    for fields in (["LABEL"], ["IMAGE", "MORE"], ["MORE"]):
        for batch in opened(client, cache_name, fields=fields).numpy():
            found = batch["val"] if isinstance(batch["val"], dict) else {fields[0]: batch["val"]}
            assert list(found) == fields
            for field, values in found.items():
                np.testing.assert_array_equal(values, data[field][batch["key"]])


@pytest.mark.parametrize("nbytes", [100_000, 5 << 20])
def test_smaller_and_much_larger_rows(client, cache_name, nbytes):
    load_dataset(source(4, nbytes), cache_name, client=client, partitions=2)
    assert sum(len(batch["key"]) for batch in opened(client, cache_name).numpy()) == 4


def test_rows_that_may_be_null_or_of_any_length(client, cache_name):
    rng = np.random.default_rng(1)
    texts = [rng.bytes(260_000 + 1000 * i) for i in range(12)]
    load_dataset({"B": texts, "N": np.arange(12)}, cache_name, client=client, partitions=2)
    for batch in opened(client, cache_name).numpy():
        assert [texts[key] for key in batch["key"]] == list(batch["val"]["B"])
    found = opened(client, cache_name, order="keys")
    assert [bytes(text) for batch in found.numpy() for text in batch["val"]["B"]] == texts
