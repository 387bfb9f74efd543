"""Small partitions are read together, and give what each gives alone."""

import contextlib

import numpy as np
import pytest

from ignitetf.errors import ConnectError, SchemaError
from ignitetf.load.loader import load_dataset
from ignitetf.net.channel import Channel
from ignitetf.net.client import connect
from ignitetf.read.contents import Changes
from ignitetf.read.divide import make_splits
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.rows import open_rows
from ignitetf.wire.columns import Runs, concat

pytestmark = pytest.mark.node
ROWS, PARTITIONS = 700, 128
OPTIONS = {
    "rows": {},
    "small pages": {"page_size": 4},
    "where": {"where": "LABEL < 3"},
    "where by keys": {"where": "LABEL < (SELECT 3)"},
    "split": {"split": "some"},
    "without nulls": {"nulls": "drop"},
    "blocks": {},
}


@pytest.fixture(scope="module")
def names(client):
    rng = np.random.default_rng(3)
    columns = {
        "LABEL": rng.integers(0, 9, ROWS).astype(np.int32),
        "TEXT": [f"row {n}" * (n % 5) if n % 7 else None for n in range(ROWS)],
        "IMAGE": rng.integers(0, 256, (ROWS, 3, 4), dtype=np.uint8),
    }
    found = {}
    for layout in ("rows", "blocks"):
        name = found[layout] = f"RUNS_{layout.upper()}"
        given = dict(columns) if layout == "rows" else {**columns, "TEXT": ["a"] * ROWS}
        load_dataset(
            given, name, client=client, partitions=PARTITIONS, layout=layout, if_exists="replace"
        )
    make_splits(client, found["rows"], {"some": 0.4, "rest": 0.6}, seed=5)
    yield found
    for name in found.values():
        client.sql(f'DROP TABLE IF EXISTS "{name}"').close()


def values(batch):
    found = {}
    for name, column in {"": batch.key, **batch.columns}.items():
        if isinstance(column, Runs):
            found[name] = column.to_bytes()
        else:
            found[name] = np.asarray(column.values).tolist()
        if column.valid is not None:
            pairs = zip(found[name], column.valid.tolist(), strict=True)
            found[name] = [value if valid else None for value, valid in pairs]
    return found


@pytest.mark.parametrize("what", OPTIONS)
@pytest.mark.parametrize("readers", [1, 3])
def test_partitions_read_together_are_those_read_alone(client, names, what, readers):
    name = names["blocks" if what == "blocks" else "rows"]
    options = ReadOptions(**{"nulls": "default", **OPTIONS[what]}, readers=readers)
    reader = CacheReader(client, name, options)
    order = np.random.default_rng(readers).permutation(reader.partition_count).tolist()
    alone = {p: list(CacheReader(client, name, options).batches([p])) for p in order}
    every = list(reader.batches(order))
    for unit, partition in enumerate(order):
        own = [item for item in every if item.unit == unit]
        assert [item.batch is None for item in own] == [False] * (len(own) - 1) + [True]
        assert [values(i.batch) for i in own[:-1]] == [
            values(i.batch) for i in alone[partition][:-1]
        ]
    ends = sorted(np.random.default_rng(1).choice(len(order), 9, replace=False).tolist())
    batches, whole = [], concat([item.batch for item in every if item.batch is not None])
    marks = []
    for item in reader.batches(order, ends):
        if item.batch is None:
            marks.append((item.unit, sum(map(len, batches))))
        else:
            batches.append(item.batch)
    assert values(concat(batches)) == values(whole)
    rows = [sum(len(i.batch) for i in every if i.batch is not None and i.unit <= e) for e in ends]
    assert marks == list(zip(ends, rows, strict=True))
    if what in ("rows", "split"):
        assert len(batches) <= len(ends) + 2


def test_small_pages_beside_large_ones_and_in_other_forms(client, cache_name):
    """What the fast way does not take is read by itself, and in its place."""
    rng = np.random.default_rng(5)
    texts = ["x" * int(rng.integers(1, 40)) for _ in range(3000)]
    for n in rng.integers(0, 3000, 6).tolist():
        texts[n] = "y" * 800_000  # an answer that is not small
    columns = {"A": np.arange(3000), "TEXT": texts}
    load_dataset(columns, cache_name, client=client, partitions=256)
    nulls = sorted(rng.choice(3000, 9, replace=False).tolist())
    for n in nulls:
        client.sql(f"UPDATE {cache_name} SET A = NULL WHERE _KEY = {n}").close()
    reader = CacheReader(client, cache_name, ReadOptions(nulls="default", on_change="ignore"))
    order = rng.permutation(256).tolist()
    fast = concat([i.batch for i in reader.batches(order, ()) if i.batch is not None])
    slow = [i.batch for p in order for i in reader.batches([p]) if i.batch is not None]
    assert values(fast) == values(concat(slow))
    found = dict(zip(values(fast)[""], values(fast)["TEXT"], strict=True))
    assert found == {n: text.encode() for n, text in enumerate(texts)}


@pytest.mark.parametrize("known", [True, False], ids=["counted by the load", "by an epoch"])
def test_rows_that_come_before_their_turn_are_those_read_alone(client, cache_name, known):
    """Also while rows come and go, and others have another form."""
    rng = np.random.default_rng(5)
    columns = {"A": np.arange(3000), "IMAGE": rng.integers(0, 256, (3000, 30), dtype=np.uint8)}
    load_dataset(columns, cache_name, client=client, partitions=256)
    reader = CacheReader(client, cache_name, ReadOptions(nulls="default", on_change="ignore"))
    if not known:
        reader.changes = Changes(cache_name, "ignore", 256, ())
    for change in (None, "DELETE", "UPDATE", "INSERT", None):
        for key in rng.integers(0, 3000, 9).tolist() if change else ():
            client.sql(CHANGES[change].format(cache_name, key)).close()
        alone = CacheReader(client, cache_name, ReadOptions(nulls="default", on_change="ignore"))
        slow = [i.batch for p in range(256) for i in alone.batches([p]) if i.batch is not None]
        for _ in range(3):
            fast = [i.batch for i in reader.batches(range(256), ()) if i.batch is not None]
            assert values(concat(fast)) == values(concat(slow))


CHANGES = {
    "DELETE": "DELETE FROM {} WHERE _KEY = {}",
    "UPDATE": "UPDATE {} SET A = NULL WHERE _KEY = {}",
    "INSERT": "INSERT INTO {0} (_KEY, A) VALUES (3000 + {1}, {1})",
}


@pytest.mark.parametrize("partitions", [2, 16])
def test_many_shards_read_each_row_once(client, cache_name, partitions):
    rows = 64
    images = np.random.default_rng(3).integers(0, 256, (rows, 600_000), np.uint8)
    load_dataset({"IMAGE": images}, cache_name, client=client, partitions=partitions)
    for shards in (1, 2, 5, 16):
        found = []
        for index in range(shards):
            opened = open_rows(cache_name, client=client, shard=(index, shards))
            again = open_rows(cache_name, client=client, shard=(0, 1)).of_shard((index, shards))
            assert len(again) == len(opened)
            for batch in opened.batches(7):
                np.testing.assert_array_equal(batch["val"]["IMAGE"], images[batch["key"]])
                found += batch["key"].tolist()
        assert sorted(found) == list(range(rows))


@pytest.mark.parametrize(
    ("row_bytes", "unit_bytes"),
    [(16_000, 350_000), (60_000, 350_000), (90_000, 350_000), (16_000, 900_000), (90_000, 900_000)],
)
def test_partitions_of_some_hundred_kilobytes_too(client, cache_name, row_bytes, unit_bytes):
    """Few rows in each: some partitions are small beside the mean, some too large to wait."""
    rows = 32 * unit_bytes // row_bytes
    rng = np.random.default_rng(row_bytes)
    images = rng.integers(0, 256, (rows, row_bytes), np.uint8)
    load_dataset({"IMAGE": images}, cache_name, client=client, partitions=32)
    found = {}
    for readers in (1, 2):
        reader = CacheReader(client, cache_name, ReadOptions(readers=readers))
        assert reader.unit_bytes == pytest.approx(unit_bytes, rel=0.2)
        with contextlib.closing(reader.batches(range(32))) as batches:
            found[readers] = [(b.unit, values(b.batch)) for b in batches if b.batch is not None]
    assert sum(map(len, (v[""] for _, v in found[1]))) == rows
    keyed = [
        dict(pair for _, v in found[n] for pair in zip(v[""], v["IMAGE"], strict=True))
        for n in (1, 2)
    ]
    assert [k for _, v in found[1] for k in v[""]] == [k for _, v in found[2] for k in v[""]]
    assert keyed[0] == keyed[1] == dict(enumerate(images.tolist()))


def test_where_python_receives_the_rows_are_the_same(client, cache_name, monkeypatch):
    """As for TLS, some bytes at a time."""
    monkeypatch.setattr(Channel, "socket_number", property(lambda self: -1))
    receive = Channel.receive_some
    monkeypatch.setattr(Channel, "receive_some", lambda self, view: receive(self, view[:16384]))
    images = np.random.default_rng(2).integers(0, 256, (20_000, 784), np.uint8)
    load_dataset({"IMAGE": images}, cache_name, client=client, partitions=256)
    reader = CacheReader(client, cache_name, ReadOptions(readers=1))
    found = concat([i.batch for i in reader.batches(range(256), ()) if i.batch is not None])
    assert np.array_equal(np.sort(found.key.values), np.arange(20_000))
    assert np.array_equal(found.columns["IMAGE"].values, images[found.key.values])


def test_one_partition_that_is_large_among_small_ones(client, cache_name):
    blobs = [bytes([n % 256]) * 2_000 for n in range(400)]
    blobs[123] *= 4_000
    columns = {"BLOB": blobs, "LABEL": np.arange(400)}
    load_dataset(columns, cache_name, client=client, partitions=64)
    rows = open_rows(cache_name, client=client, readers=1)
    found = {}
    for batch in rows.batches():
        found |= zip(batch["key"].tolist(), batch["val"]["BLOB"].tolist(), strict=True)
    assert found == dict(enumerate(blobs))


@pytest.mark.parametrize("readers", [1, 2])
def test_what_a_partition_has_is_the_mean_of_those_with_rows(client, cache_name, readers):
    """Else far more would be asked for at a time than a page."""
    images = np.random.default_rng(4).integers(0, 256, (20, 1_000_000), np.uint8)
    load_dataset({"IMAGE": images}, cache_name, client=client, partitions=128)
    reader = CacheReader(client, cache_name, ReadOptions(readers=readers))
    used = np.count_nonzero(reader.partition_counts(range(128)))
    assert reader.unit_bytes == pytest.approx(20 / used * reader.entry_bytes)
    batches = [i.batch for i in reader.batches(range(128), ()) if i.batch is not None]
    found = concat(batches)
    order = np.argsort(found.key.values)
    assert np.array_equal(np.asarray(found.columns["IMAGE"].values)[order], images)


@pytest.mark.parametrize("name", ["rows", "blocks"])
def test_a_closed_client_ends_an_epoch_at_once(client, names, name, caplog):
    """Nobody tries for a minute to reach a cluster that was let go."""
    with connect(settings=client.settings) as own:
        rows = open_rows(names[name], client=own, nulls="default")
    with pytest.raises(ConnectError, match="the client is closed"):
        list(rows.batches())
    assert not caplog.records


@pytest.mark.parametrize("nulls", ["error", "default"])
def test_an_error_names_the_partition_and_the_key(client, cache_name, nulls):
    columns = {"A": np.zeros((300, 3), np.uint8), "B": ["x"] * 300}
    load_dataset(columns, cache_name, client=client, partitions=128)
    change = "B = NULL" if nulls == "error" else "A = X'0102'"
    client.sql(f"UPDATE {cache_name} SET {change} WHERE _KEY = 123").close()
    reader = CacheReader(client, cache_name, ReadOptions(nulls=nulls))
    with pytest.raises(SchemaError) as caught:
        list(reader.batches(list(range(128)), ()))
    assert caught.value.fields["key"] == 123
    partition = caught.value.fields["partition"]
    with pytest.raises(SchemaError):
        list(reader.batches([partition]))
    others = [p for p in range(128) if p != partition]
    with pytest.raises(SchemaError) as caught:  # in the last one, no others are left to read
        list(reader.batches([*others, partition], ()))
    assert (caught.value.fields["key"], caught.value.fields["partition"]) == (123, partition)
    assert sum(i.count for i in reader.batches(others, ())) == 300 - sum_of(reader, partition)


def sum_of(reader, partition):
    return reader.partition_counts([partition])[0]


@pytest.mark.parametrize("readers", [1, 2, 3])
def test_units_of_every_size_are_read_by_several_readers(client, cache_name, readers):
    """Of those that are received whole, some are taken as they arrive."""
    rows = [{"BLOB": bytes([n % 251]) * (n * 997), "NUMBER": np.int64(n)} for n in range(160)]
    load_dataset(rows, cache_name, client=client, partitions=64)
    found = {}
    for batch in open_rows(cache_name, client=client, readers=readers).numpy():
        columns = batch["val"]
        found |= zip(columns["NUMBER"].tolist(), columns["BLOB"], strict=True)
    assert found == {n: row["BLOB"] for n, row in enumerate(rows)}
