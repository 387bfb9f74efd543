"""Data that change under a reader: told by policy, in every kind of cache."""

import logging

import numpy as np
import pytest

from ignitetf.errors import DataChanged
from ignitetf.load.loader import load_dataset
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader

pytestmark = pytest.mark.node
ROWS, PARTITIONS = 400, 4


def rows(count=ROWS):
    return {"A": np.arange(count, dtype=np.int64)}


def keys(reader):
    batches = reader.batches(list(range(reader.partition_count)))
    return [int(k) for b in batches if b.batch is not None for k in b.batch.key.values]


def opened(client, name, **options):
    return CacheReader(client, name, ReadOptions(**options))


@pytest.fixture
def table(client, cache_name):
    load_dataset(rows(), cache_name, client=client, partitions=PARTITIONS)
    return cache_name


@pytest.fixture
def undescribed(client, cache_name):
    cache = client.pyignite.create_cache(cache_name)
    cache.put_all({i: i for i in range(ROWS)})
    return cache


def insert(client, table, key):
    client.sql(f'INSERT INTO "{table}" (_KEY, A) VALUES ({key}, 1)')


def delete(client, table, key):
    client.sql(f'DELETE FROM "{table}" WHERE _KEY = {key}')


@pytest.mark.parametrize("change", [insert, delete])
def test_one_entry_more_or_less(client, table, change, caplog):
    reader, lenient = opened(client, table), opened(client, table, on_change="warn")
    assert sorted(keys(reader)) == list(range(ROWS))
    change(client, table, 1000 if change is insert else 7)
    with pytest.raises(
        DataChanged, match=r"partition \d: \d+ entries, the load stored \d+"
    ) as told:
        keys(reader)
    assert told.value.cache == table and told.value.partition in range(PARTITIONS)
    with caplog.at_level(logging.WARNING, "ignitetf"):
        assert len(keys(lenient)) == ROWS + (1 if change is insert else -1)
    assert "the load stored" in caplog.text
    quiet = opened(client, table, on_change="ignore")
    assert len(keys(quiet)) == ROWS + (1 if change is insert else -1)


def test_another_key_in_place_of_one(client, table):
    """Every count is right; the keys are not those of the epoch before."""
    reader = opened(client, table)
    keys(reader)
    place = {k: p for p in range(PARTITIONS) for k in partition_keys(client, table, p)}
    delete(client, table, 7)
    for key in range(1000, 1100):
        insert(client, table, key)
        if key in partition_keys(client, table, place[7]):
            break
        delete(client, table, key)
    with pytest.raises(DataChanged, match=f"partition {place[7]}: other keys than"):
        keys(reader)


def partition_keys(client, table, partition):
    batches = opened(client, table, on_change="ignore").batches([partition])
    return {int(k) for b in batches if b.batch is not None for k in b.batch.key.values}


def test_new_values_are_read_and_not_told(client, table):
    reader = opened(client, table)
    keys(reader)
    client.sql(f'UPDATE "{table}" SET A = 5')
    assert sorted(keys(reader)) == list(range(ROWS))


def test_a_reload_under_a_reader(client, table):
    """An open reader says that its data are gone; a new one has the new data."""
    reader = opened(client, table)
    keys(reader)
    load_dataset(rows(900), table, client=client, partitions=PARTITIONS, if_exists="replace")
    with pytest.raises(DataChanged):
        keys(reader)
    assert len(keys(opened(client, table))) == 900
    with pytest.raises(DataChanged, match="version 1 was asked for, the cache has version 2"):
        opened(client, table, version=1)


@pytest.mark.parametrize("layout", ["rows", "blocks"])
@pytest.mark.parametrize("options", [{}, {"readers": 2}, {"where": "A >= 0"}, {"fields": ["A"]}])
def test_a_replacement_of_fewer_partitions(client, cache_name, layout, options):
    """The node refuses those that there are no more, which is a change and no error of a node."""
    if layout == "blocks" and "where" in options:
        options = {"page_size": 10}
    load_dataset(rows(), cache_name, client=client, partitions=8, layout=layout)
    reader = opened(client, cache_name, **options)
    assert len(keys(reader)) == ROWS
    load_dataset(
        rows(), cache_name, client=client, partitions=2, layout=layout, if_exists="replace"
    )
    with pytest.raises(DataChanged, match="has 2 partitions instead of 8 since it was opened"):
        list(reader.batches([5, 6]))


def test_a_removal_in_the_middle_of_an_epoch(client, table):
    """The epoch is whole, where its pages were received before, or an error; never short."""
    reader = opened(client, table, page_size=10)
    batches = reader.batches(list(range(PARTITIONS)))
    found = [next(batches)]
    client.sql(f'DELETE FROM "{table}"')
    try:
        found += batches
    except DataChanged:
        pass
    else:
        assert sum(b.count for b in found) == ROWS
    with pytest.raises(DataChanged, match="0 entries, the load stored"):
        keys(reader)


def test_a_cache_that_nobody_described(client, undescribed, monkeypatch):
    """It is held against its size when the epoch began, or what a first scan counted."""
    name = undescribed.name
    reader = opened(client, name, page_size=10)
    assert sorted(keys(reader)) == list(range(ROWS))
    for key in (5000, 6000):
        undescribed.put(key, 1)
    with pytest.raises(DataChanged, match="other keys than in an earlier epoch"):
        keys(reader)
    fresh = opened(client, name)
    before = fresh.entry_count()
    for key in range(100, 300):
        undescribed.remove_key(key)
    monkeypatch.setattr(fresh, "entry_count", lambda: before)
    with pytest.raises(DataChanged, match="there were 402 when the epoch began"):
        keys(fresh)
    counted = opened(client, name)
    counted.partition_counts(list(range(counted.partition_count)))
    undescribed.remove_key(5)
    with pytest.raises(DataChanged, match="the first scan found"):
        keys(counted)
