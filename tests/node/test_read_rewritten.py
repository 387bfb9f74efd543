"""A data set is what the cluster holds when it is opened, whatever SQL has written since its load."""

import itertools
import logging
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ignitetf.errors import DataChanged
from ignitetf.explore.epoch import verify_epoch
from ignitetf.explore.verify import verify
from ignitetf.load.loader import load_dataset
from ignitetf.read import divide
from ignitetf.read.rows import open_rows
from ignitetf.tables.describe import describe
from ignitetf.tables.removal import drop_cache

pytestmark = pytest.mark.node
ROWS = 100
_names = itertools.count()


def load(client, name, count=ROWS, partitions=8, **options):
    load_dataset({"A": np.arange(count)}, name, client=client, partitions=partitions, **options)


def insert(client, name, *keys):
    for key in keys:
        client.sql(f'INSERT INTO "{name}" (_KEY, A) VALUES (?, ?)', (key, key))


def delete(client, name, *keys):
    for key in keys:
        client.sql(f'DELETE FROM "{name}" WHERE _KEY = ?', (key,))


def stored(client, name):
    return sorted(key for (key,) in client.sql(f'SELECT ID FROM "{name}"'))


def keys(rows):
    found = [batch["key"] for batch in rows.batches(7)]
    return np.concatenate([*found, np.empty(0, np.int64)]).tolist()


WAYS = [
    {},
    {"order": "keys"},
    {"order": "global", "shuffle": 3},
    {"shuffle": 5},
    {"where": "A >= 0"},
    {"where": "A >= 0", "order": "keys"},
    {"on_change": "warn"},
    {"on_change": "warn", "shuffle": 1},
]


@settings(
    deadline=None, max_examples=3, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def test_every_way_reads_what_is_there(client, request, data):
    """Also where as many rows were added as removed, if the load gave out the keys."""
    name = f"REWRITTEN{os.getpid()}_{next(_names)}"
    request.addfinalizer(lambda: drop_cache(client, name))
    count, partitions = data.draw(st.sampled_from([(1, 16), (40, 8), (100, 4)]))
    load(client, name, count, partitions)
    gone = data.draw(st.sets(st.integers(0, count - 1), max_size=min(5, count - 1)))
    new = data.draw(st.sets(st.integers(count, count + 30), max_size=5))
    delete(client, name, *gone)
    insert(client, name, *new)
    there = stored(client, name)
    assert there == sorted(set(range(count)) - gone | new)
    for way in WAYS:
        rows = open_rows(name, client=client, **way)
        for each in (rows, rows.next_epoch()):
            assert rows.length in (len(there), None)
            assert sorted(keys(each)) == there
        shards = [open_rows(name, client=client, shard=(i, 2), **way) for i in range(2)]
        assert sorted(itertools.chain.from_iterable(map(keys, shards))) == there
        half = len(there) // 2
        rest = keys(open_rows(name, client=client, **way).resume(rows.state(half)))
        assert keys(rows)[:half] + rest == keys(rows)
    assert verify_epoch(client, name, seed=1, shards=2).ok
    rows = open_rows(name, client=client)
    assert rows[[0, -1]]["key"].tolist() == [there[0], there[-1]]
    assert rows.by_key(there)["val"]["A"].tolist() == there


@pytest.mark.parametrize("way", [{}, {"shuffle": 3}, {"shuffle": 3, "window_bytes": 100}])
@pytest.mark.parametrize("shards", [1, 2])
def test_rows_that_are_added_displace_none(client, cache_name, way, shards):
    """Where a change is not an error, what was there before is read, whatever comes."""
    load(client, cache_name)
    insert(client, cache_name, 200)
    rows = [
        open_rows(cache_name, client=client, on_change="warn", shard=(i, shards), **way)
        for i in range(shards)
    ]
    started = rows[0].advance(4)
    insert(client, cache_name, *range(300, 360))
    for epoch in range(2):
        found = itertools.chain.from_iterable(keys(each.next_epoch()) for each in rows)
        assert sorted(found) == stored(client, cache_name), epoch
    assert len(set(keys(started))) == len(keys(started)) > 40


def test_a_split_is_whole_or_has_changed(client, cache_name):
    """Also where a row of another split takes the place of one, in the same partition."""
    load(client, cache_name, partitions=2)
    insert(client, cache_name, *range(200, 240))
    divide.make_splits(client, cache_name, {"train": 0.5, "test": 0.5})
    train, test = (
        keys(open_rows(cache_name, client=client, split=split, part=0))
        for split in ("train", "test")
    )
    came, gone = max(test), train[0]
    delete(client, cache_name, came)
    for way in ({}, {"page_size": 3}, {"shuffle": 1}, {"order": "keys"}):
        rows = open_rows(cache_name, client=client, split="train", **way)
        delete(client, cache_name, gone)
        insert(client, cache_name, came)
        with pytest.raises(DataChanged):
            keys(rows)
        delete(client, cache_name, came)
        insert(client, cache_name, gone)


def test_a_state_tells_what_changed_since(client, cache_name):
    load(client, cache_name)
    insert(client, cache_name, 200)
    for way in WAYS:
        rows = open_rows(cache_name, client=client, **way)
        state = rows.state(10)
        insert(client, cache_name, 201)
        with pytest.raises(DataChanged, match="entries 101, this dataset has 102"):
            open_rows(cache_name, client=client, **way).resume(state)
        delete(client, cache_name, 201)
        assert len(keys(open_rows(cache_name, client=client, **way).resume(state))) == 91


@pytest.mark.parametrize("way", [way for way in WAYS if "on_change" not in way])
def test_what_changes_after_opening_is_told(client, cache_name, way):
    load(client, cache_name)
    insert(client, cache_name, 200)
    for change in (
        lambda: insert(client, cache_name, 201),
        lambda: delete(client, cache_name, 3, 201),
    ):
        rows = open_rows(cache_name, client=client, **way)
        change()
        with pytest.raises(DataChanged):
            keys(rows)


def test_as_many_rows_added_as_removed_under_keys_of_their_own(client, cache_name, caplog):
    """The sizes are those of the load: the first scan tells; opened again, it is what is there."""
    texts = [f"key {n}" for n in range(ROWS)]
    source = {"K": texts, "A": np.arange(ROWS)}
    load_dataset(source, cache_name, client=client, partitions=8, key="K")
    delete(client, cache_name, *texts[:6])
    insert_texts = [f"other {n}" for n in range(6)]
    for text in insert_texts:
        client.sql(f'INSERT INTO "{cache_name}" (_KEY, A) VALUES (?, 1)', (text,))
    lenient = open_rows(cache_name, client=client, on_change="warn", shard=(0, 1), shuffle=1)
    with caplog.at_level(logging.WARNING, "ignitetf"):
        assert sorted(k.decode() for k in keys(lenient)) == sorted(texts[6:] + insert_texts)
    assert not caplog.text
    with pytest.raises(DataChanged, match=r"entries, the load stored \d+"):
        keys(open_rows(cache_name, client=client))
    assert len(keys(open_rows(cache_name, client=client, shuffle=3))) == ROWS


def test_append_takes_its_keys_from_the_cache(client, cache_name):
    load(client, cache_name)
    insert(client, cache_name, 100, 101)
    load(client, cache_name, 5, if_exists="append")
    assert stored(client, cache_name) == list(range(107))
    assert sorted(keys(open_rows(cache_name, client=client))) == list(range(107))
    delete(client, cache_name, 3)
    insert(client, cache_name, 500)
    load(client, cache_name, 5, if_exists="append")
    there = sorted({*range(107), *range(500, 506)} - {3})
    assert stored(client, cache_name) == there
    for way in WAYS:
        assert sorted(keys(open_rows(cache_name, client=client, **way))) == there


def test_splits_count_what_is_there(client, cache_name):
    load(client, cache_name)
    parts = {"train": 0.5, "test": 0.5}
    divide.make_splits(client, cache_name, parts)
    insert(client, cache_name, *range(200, 240))
    delete(client, cache_name, *range(10))

    def read(split, **way):
        return sorted(keys(open_rows(cache_name, client=client, split=split, **way)))

    for _ in range(2):
        listed = {row["split"]: row["rows"] for row in divide.list_splits(client, cache_name)}
        assert sum(listed.values()) == 130
        for way in ({}, {"order": "keys"}, {"shuffle": 1}, {"order": "global"}):
            both = [read(split, **way) for split in parts]
            assert list(map(len, both)) == list(listed.values())
            assert sorted(itertools.chain(*both)) == stored(client, cache_name)
        divide.make_splits(client, cache_name, parts, force=True)


def test_verify_and_describe_say_what_differs_from_the_load(client, cache_name):
    load(client, cache_name)
    insert(client, cache_name, 200)
    found = verify(client, cache_name)
    assert not found.ok and found.rows == 101 and found.expected_rows == 100
    assert any("101, the load stored 100" in finding.found for finding in found.findings)
    told = describe(client, cache_name)
    assert (told["entries"], told["rows"], told["loaded_rows"]) == (101, 101, 100)


def test_sql_on_the_slim_table_of_blocks_changes_no_row(client, cache_name):
    load(client, cache_name, layout="blocks", index=("A",))
    client.sql(f'INSERT INTO "{cache_name}" (_KEY, A) VALUES (100, 1)')
    for way in ({}, {"order": "global", "shuffle": 1}):
        assert sorted(keys(open_rows(cache_name, client=client, **way))) == list(range(ROWS))
    assert [f.check for f in verify(client, cache_name).findings] == ["index"]
    load(client, cache_name, 5, layout="blocks", index=("A",), if_exists="append")
    assert sorted(keys(open_rows(cache_name, client=client))) == [*range(100), *range(101, 106)]
