"""Reading by key: order, global steps, states and random access on data of every kind of key."""

import os
import threading
import uuid
from decimal import Decimal

import numpy as np
import pytest

from ignitetf import open_rows
from ignitetf.errors import ConfigError, DataChanged, KeyNotFound, OutOfRange
from ignitetf.explore.epoch import verify_epoch
from ignitetf.load.loader import load_dataset
from ignitetf.read.access import Access
from ignitetf.read.landing import RowLayout

pytestmark = pytest.mark.node
ROWS = 403
WORLDS = (1, 2, 3, 4, 8)
# SQL type of the key, and the key of row i.
KINDS = {
    "int": ("INT", lambda i: 7 * i - 900),
    "text": ("VARCHAR", lambda i: f"ключ{i * 37 % ROWS:04d}" * (1 + i % 3)),
    "uuid": ("UUID", lambda i: uuid.UUID(int=i * 2**70 + i)),
    "decimal": ("DECIMAL", lambda i: Decimal(i) / 8 - 20),
}


def table(client, name, kind):
    sql_type, key = KINDS[kind]
    client.sql(
        f'CREATE TABLE "{name}" (K {sql_type} PRIMARY KEY, V INT, S VARCHAR) WITH "template=p8"'
    )
    insert = f'INSERT INTO "{name}" (K, V, S) VALUES (?, ?, ?)'
    for i in range(ROWS):
        client.sql(insert, (key(i), i, "x" * (i % 5)))
    return f"SQL_PUBLIC_{name}"


@pytest.fixture(scope="module")
def caches(client):
    """A data set that gave out its keys, tables made by SQL, and one with a key of two fields."""
    made = {}
    base = f"KEYS{os.getpid()}"
    rows = {
        "V": np.arange(ROWS, dtype=np.int32),
        "S": ["x" * (i % 5) for i in range(ROWS)],
        "A": np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 2, 3),
    }
    load_dataset(rows, base, client=client, partitions=8)
    made["own"] = base
    for kind in KINDS:
        made[kind] = table(client, f"{base}_{kind}".upper(), kind)
    name = f"{base}_PAIR"
    client.sql(
        f'CREATE TABLE "{name}" (A INT, B VARCHAR, V INT, S VARCHAR, PRIMARY KEY (A, B)) WITH "template=p8"'
    )
    for i in range(ROWS):
        insert = f'INSERT INTO "{name}" (A, B, V, S) VALUES (?, ?, ?, ?)'
        client.sql(insert, (i // 20, f"b{i % 20}", i, "x" * (i % 5)))
    made["pair"] = f"SQL_PUBLIC_{name}"
    yield made
    for cache in made.values():
        client.sql(f'DROP TABLE IF EXISTS "{cache.removeprefix("SQL_PUBLIC_")}"')


@pytest.fixture(scope="module")
def build(client, caches):
    return lambda kind="own", **options: open_rows(
        caches[kind], client=client, **{"shard": (0, 1), **options}
    )


def values(batches):
    """V of each row of the batches, after checking that the rest of the row belongs to it."""
    found = []
    for batch in batches:
        rows = batch["val"]["V"].tolist()
        assert list(batch["val"]["S"]) == [b"x" * (v % 5) for v in rows]
        if "A" in batch["val"]:
            assert batch["val"]["A"].reshape(len(rows), 6).tolist() == [
                list(range(6 * v, 6 * v + 6)) for v in rows
            ]
        found += rows
    return found


EVERY = ["own", *KINDS, "pair"]
ORDERED = ["own", "int", "text"]


@pytest.mark.core
@pytest.mark.parametrize("kind", EVERY)
def test_the_global_order_has_every_row_once_and_another_order_each_epoch(build, kind):
    rows = build(kind, order="global", shuffle=3)
    first, second = values(rows.batches()), values(rows.next_epoch().batches(50))
    assert len(rows) == ROWS
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second
    assert values(build(kind, order="global", shuffle=3).batches(7)) == first
    assert values(build(kind, order="global", shuffle=4).batches()) != first


@pytest.mark.core
@pytest.mark.parametrize("kind", ORDERED)
def test_the_order_of_keys(build, kind):
    wanted = sorted(range(ROWS), key=KINDS[kind][1]) if kind in KINDS else list(range(ROWS))
    assert values(build(kind, order="keys").batches()) == wanted


@pytest.mark.parametrize("kind", sorted(set(EVERY) - set(ORDERED)))
def test_keys_without_an_order_are_refused(build, kind):
    with pytest.raises(ConfigError, match="have no order"):
        build(kind, order="keys")
    with pytest.raises(ConfigError, match="have no order"):
        build(kind)[0]


def steps(build, world, start=None, **options):
    """The rows of each global step, worker after worker; and the workers' last states."""
    rows = [build(shard=(i, world), **options) for i in range(world)]
    if start is not None:
        rows = [r.resume(start) for r in rows]
    found, states = [], []
    for iterators in [[r.batches() for r in rows]]:
        while parts := [p for i in iterators if (p := next(i, None)) is not None]:
            found.append(values(parts))
            states.append(iterators[0].state())
    return found, states


@pytest.mark.core
@pytest.mark.parametrize("kind", ["own", "text"])
@pytest.mark.parametrize("batch", [24, 37])
def test_global_steps_are_equal_for_any_number_of_workers(build, kind, batch):
    options = {"kind": kind, "order": "global", "shuffle": 5, "global_batch": batch}
    one, states = steps(build, 1, **options)
    assert [len(s) for s in one] == [batch] * (ROWS // batch) + [ROWS % batch]
    for world in WORLDS[1:]:
        found, theirs = steps(build, world, **options)
        assert found == one
        assert theirs == states


@pytest.mark.core
@pytest.mark.parametrize("before", WORLDS)
def test_any_number_of_workers_goes_on_after_any_step(build, before):
    """8 -> 4 -> 16 among them: the rest equals what one worker would have read."""
    options = {"order": "global", "shuffle": 6, "global_batch": 40}
    one, _ = steps(build, 1, **options)
    _, states = steps(build, before, **options)
    for number, state in enumerate(states, 1):
        after = (4, 16, 3)[number % 3]
        rest, more = steps(build, after, state, **options)
        assert rest == one[number:]
        if more:
            again, _ = steps(build, 16, more[0], **options)
            assert again == one[number + 1 :]


def test_without_a_global_batch_it_follows_from_batches_and_workers(build):
    one = values(build(order="global", shuffle=1).batches())
    for world, batch in ((2, 16), (4, 8)):
        parts = [build(order="global", shuffle=1, shard=(i, world)).batches(batch)
                 for i in range(world)]  # fmt: skip
        for at in range(0, ROWS - 32, 32):
            assert [v for p in parts for v in values([next(p)])] == one[at : at + 32]


@pytest.mark.parametrize("even", ["pad", "drop"])
def test_even_workers_have_the_same_steps(build, even):
    rows = [build(order="keys", even=even, shard=(i, 4), global_batch=60) for i in range(4)]
    sizes = [[len(b["key"]) for b in r.batches()] for r in rows]
    assert len({tuple(s) for s in sizes}) == 1 and {len(r) for r in rows} == {sum(sizes[0])}
    every = [v for r in rows for v in values(r.batches())]
    # 403 rows are 6 steps of 60 and one of 43, whose slices are 11 or 10.
    assert len(every) == (404 if even == "pad" else 400)
    assert set(every) == set(range(ROWS)) if even == "pad" else len(set(every)) == 400


@pytest.mark.parametrize("kind", ["own", "int", "text", "uuid"])
@pytest.mark.parametrize("where", ["V >= 100 AND V < 300", "V = 1", "V < 0"])
def test_a_filter_has_a_length_and_can_be_resumed_by_others(build, kind, where):
    rows = build(kind, order="global", shuffle=2, where=where, global_batch=30)
    wanted = [v for v in range(ROWS) if eval(where.replace("AND", "and").replace("V = ", "V == "),
                                             {"V": v})]  # fmt: skip
    assert len(rows) == len(wanted)
    found = values(rows.batches())
    assert sorted(found) == wanted
    if len(wanted) > 60:
        batches = rows.batches()
        values([next(batches), next(batches)])
        parts = [
            build(kind, order="global", shuffle=2, where=where, shard=(i, 3), global_batch=30)
            .resume(batches.state()).batches()
            for i in range(3)
        ]  # fmt: skip
        assert sorted(v for p in parts for v in values(p)) == sorted(found[60:])


def test_a_state_of_another_order_seed_or_version_is_refused(build):
    state = build(order="global", shuffle=2).state(10)
    with pytest.raises(ConfigError, match="order 'global'"):
        build(shuffle=2).resume(state)
    with pytest.raises(ConfigError, match="order 'global'"):
        build(order="keys").resume(state)
    with pytest.raises(ConfigError, match="seed"):
        build(order="global", shuffle=3).resume(state)
    old = {k: v for k, v in build(shuffle=2).state(10).items() if k not in ("format", "order")}
    with pytest.raises(ConfigError, match="another version of ignitetf"):
        build(shuffle=2).resume(old)


def test_other_rows_behind_a_filter_are_noticed_by_a_state(client, build, caches):
    name = caches["int"].removeprefix("SQL_PUBLIC_")
    state = build("int", order="keys", where="V < 50").state(10)
    client.sql(f'UPDATE "{name}" SET V = -1 WHERE V = 60')
    try:
        with pytest.raises(DataChanged):
            build("int", order="keys", where="V < 50").resume(state)
    finally:
        client.sql(f'UPDATE "{name}" SET V = 60 WHERE V = -1')


# Random access


def sql_rows(client, cache, numbers, key="_KEY"):
    name = cache.removeprefix("SQL_PUBLIC_")
    found = dict(client.sql(f'SELECT V, S FROM "{name}"').fetchall())
    return [found[n] for n in numbers]


@pytest.mark.core
@pytest.mark.parametrize("kind", ["own", "int"])
def test_rows_by_number_are_those_of_sql(client, build, caches, kind):
    numbers = np.random.default_rng(0).integers(-ROWS, ROWS, 2_000)
    found = build(kind)[numbers]
    assert values([found]) == (numbers % ROWS).tolist()
    assert [s.decode() for s in found["val"]["S"]] == sql_rows(client, caches[kind], numbers % ROWS)


def test_what_stands_in_the_brackets(build):
    rows = build(order="global", shuffle=9, shard=(1, 2))
    assert values([rows[5:20:3]]) == [5, 8, 11, 14, 17]
    assert values([rows[::-1]]) == list(range(ROWS))[::-1]
    assert values([rows[[3, 3, 1]]]) == [3, 3, 1]
    assert values([rows[np.arange(ROWS) % 100 == 7]]) == [7, 107, 207, 307]
    for nothing in ([], slice(5, 5), np.array([], int)):
        found = rows[nothing]
        assert values([found]) == [] and found["val"]["A"].shape == (0, 2, 3)
    one = rows[-1]
    assert one["key"] == ROWS - 1 and one["val"]["S"] == b"x" * ((ROWS - 1) % 5)
    assert one["val"]["A"].tolist() == [[2412, 2413, 2414], [2415, 2416, 2417]]
    assert rows[np.int32(4)]["val"]["V"] == 4
    with pytest.raises(TypeError):
        iter(rows)


@pytest.mark.parametrize("index", [ROWS, -ROWS - 1, [0, ROWS], 1 << 70])
def test_a_number_beyond_the_last_row_is_an_index_error(build, index):
    with pytest.raises((OutOfRange, ConfigError)) as caught:
        build()[index]
    assert isinstance(caught.value, IndexError) or index == 1 << 70


@pytest.mark.parametrize("index", ["a", 1.0, [1.5], [[1]], True, None, slice("a", "b")])
def test_what_is_no_number_is_refused(build, index):
    with pytest.raises(ConfigError):
        build()[index]


@pytest.mark.core
def test_samples_have_no_row_twice_and_repeat_by_seed(build):
    rows = build()
    first = values([rows.sample(100, 1)])
    assert len(set(first)) == 100 and values([rows.sample(100, 1)]) == first
    assert values([rows.sample(100, 2)]) != first
    assert sorted(values([rows.sample(ROWS, 1)])) == list(range(ROWS))
    assert values([rows.sample(0, 1)]) == []
    with pytest.raises(ConfigError, match="n=404"):
        rows.sample(ROWS + 1, 0)


@pytest.mark.core
@pytest.mark.parametrize("kind", ["own", "int", "text", "pair"])
def test_rows_by_key(build, kind):
    numbers = [5, 0, 5, 402, 77]
    if kind == "pair":
        keys = {"A": [n // 20 for n in numbers], "B": [f"b{n % 20}" for n in numbers]}
        unknown = {"A": [99, 0], "B": ["b1", "b1"]}
    else:
        key = KINDS[kind][1] if kind in KINDS else int
        keys = [key(n) for n in numbers]
        unknown = [key(1), key(1)[:-1] + "?" if kind == "text" else 10**6]
    rows = build(kind)
    assert values([rows.by_key(keys)]) == numbers
    with pytest.raises(KeyNotFound) as caught:
        rows.by_key(unknown)
    assert isinstance(caught.value, KeyError) and "no row with key" in str(caught.value)
    assert values([rows.by_key(unknown, missing="skip")]) == [1]
    filtered = build(kind, where="V < 100")
    if kind != "pair":
        assert values([filtered.by_key(keys, missing="skip")]) == [5, 0, 5, 77]


@pytest.mark.parametrize("keys", [["a"], [1.5], [2**63], "abc", [[1, 2]], None])
def test_keys_of_another_type_are_refused(build, keys):
    with pytest.raises(ConfigError):
        build().by_key(keys)


def test_single_rows_from_many_threads(build):
    rows, wrong = build(), []

    def read(seed):
        for number in np.random.default_rng(seed).integers(0, ROWS, 60).tolist():
            row = rows[number]
            if row["val"]["V"] != number or row["val"]["A"].ravel()[0] != 6 * number:
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Rows that change


@pytest.fixture
def own(client):
    """A data set of its own, to be changed."""
    name = f"KEYSCHANGE{os.getpid()}"
    load_dataset({"V": np.arange(ROWS, dtype=np.int32), "S": ["x" * (i % 5) for i in range(ROWS)]},
                 name, client=client, partitions=8, if_exists="replace")  # fmt: skip
    yield name
    client.sql(f'DROP TABLE IF EXISTS "{name}"')


def test_a_row_that_is_gone_is_never_left_out_silently(client, own, caplog):
    rows = open_rows(own, client=client, order="global", shuffle=1)
    lenient = open_rows(own, client=client, order="global", shuffle=1, on_change="warn")
    client.sql(f'DELETE FROM "{own}" WHERE V IN (17, 18)')
    for read in (lambda: values(rows.batches()), lambda: rows[[1, 17]], lambda: rows[18]):
        with pytest.raises(DataChanged):
            read()
    assert sorted(values(lenient.batches())) == sorted(set(range(ROWS)) - {17, 18})
    assert values([lenient[[1, 17, 2]]]) == [1, 2]
    assert "rows are gone" in caplog.text
    # One in, one out: the number is the same, the key is missed when its turn comes.
    client.sql(f'INSERT INTO "{own}" (_KEY, V, S) VALUES (?, ?, ?)', (ROWS, ROWS, "xxx"))
    client.sql(f'INSERT INTO "{own}" (_KEY, V, S) VALUES (?, ?, ?)', (ROWS + 1, 404, "xxxx"))
    with pytest.raises(DataChanged, match="rows are gone"):
        values(rows.batches())


def test_a_data_set_that_grew_is_noticed_when_the_epoch_begins(client, own):
    rows = open_rows(own, client=client, order="keys")
    state = rows.state(10)
    more = {
        "V": np.arange(ROWS, ROWS + 5, dtype=np.int32),
        "S": ["x" * (i % 5) for i in range(3, 8)],
    }
    load_dataset(more, own, client=client, if_exists="append")
    with pytest.raises(DataChanged, match=f"there were {ROWS} when the keys were read"):
        values(rows.batches())
    again = open_rows(own, client=client, order="keys")
    assert len(again) == ROWS + 5
    with pytest.raises(DataChanged):
        again.resume(state)


def test_a_client_that_mixes_rows_up_is_caught(build, monkeypatch):
    """Guards the guard: rows in the order in which they did not land."""
    rows = build(order="global", shuffle=1)
    true = values(rows.batches())
    batch = RowLayout.batch

    def reversed_batch(self, *args):
        found = batch(self, *args)
        return found[np.arange(len(found))[::-1]]

    monkeypatch.setattr(RowLayout, "batch", reversed_batch)
    found = values(rows.batches())
    assert found != true and sorted(found) == sorted(true)


# Others that stand on the order


@pytest.mark.parametrize("order", ["keys", "global"])
@pytest.mark.parametrize("shards", [1, 3])
def test_verify_epoch_by_key(client, caches, order, shards):
    report = verify_epoch(client, caches["own"], order=order, shards=shards, epoch=2)
    assert report.ok and report.rows == ROWS and sum(report.shard_rows) == ROWS
    other = verify_epoch(client, caches["own"], order=order, shards=shards, epoch=3)
    assert (other.sequence == report.sequence) == (order == "keys")


@pytest.mark.parametrize("options", [{"part": 1}, {"local": True}, {"nulls": "drop"}])
def test_what_cannot_be_read_by_key_is_refused(build, options):
    with pytest.raises(ConfigError):
        build(order="global", **options)


def test_arguments_that_do_not_go_together(build):
    for options in (
        {"order": "random"},
        {"order": "scan", "global_batch": 8},
        {"order": "keys", "shuffle": 1},
        {"global_batch": 0},
        {"global_batch": 3, "shard": (0, 4)},
    ):
        with pytest.raises(ConfigError):
            build(**options)
    assert build(global_batch=8).order.name == "global"


@pytest.mark.parametrize("count", [0, 1])
def test_no_row_and_one_row(client, count):
    name = f"KEYSFEW{os.getpid()}_{count}"
    client.sql(f'CREATE TABLE "{name}" (K INT PRIMARY KEY, V INT) WITH "template=p8"')
    try:
        if count:
            client.sql(f'INSERT INTO "{name}" (K, V) VALUES (5, 50)')
        for order in ("keys", "global"):
            rows = open_rows(f"SQL_PUBLIC_{name}", client=client, order=order, schema={"V": "int32"},
                             shard=(0, 1))  # fmt: skip
            assert len(rows) == count
            assert [b["val"]["V"].tolist() for b in rows.batches(4)] == [[50]] * count
            assert rows[:]["val"]["V"].tolist() == [50] * count
            with pytest.raises(OutOfRange):
                rows[count]
    finally:
        client.sql(f'DROP TABLE IF EXISTS "{name}"')


def test_keys_are_refused_beyond_the_limit(client, caches):
    from ignitetf.read.access import read_keys
    from ignitetf.read.options import ReadOptions
    from ignitetf.read.reader import CacheReader

    for kind in ("int", "text"):
        reader = CacheReader(client, caches[kind], ReadOptions())
        keys = read_keys(reader, "global", most_bytes=1 << 20)
        assert Access(reader, keys).keys.nbytes < 1 << 20
        with pytest.raises(ConfigError, match="of memory"):
            read_keys(reader, "global", most_bytes=1_000)


def test_a_cache_without_a_table_is_scanned_for_its_keys(client):
    name = f"KEYSBARE{os.getpid()}"
    cache = client.pyignite.get_or_create_cache(name)
    cache.put_all({f"k{i:03d}": i for i in range(200)})
    try:
        rows = open_rows(name, client=client, order="keys", shard=(0, 1))
        (batch,) = rows.batches()
        assert batch["val"].tolist() == list(range(200))
        assert rows.by_key(["k007"])["val"].tolist() == [7]
    finally:
        client.destroy_cache(name)


@pytest.mark.core
@pytest.mark.parametrize("order", ["keys", "global"])
def test_a_tensorflow_dataset_has_the_same_batches(client, caches, build, address, order):
    pytest.importorskip("tensorflow")
    from ignitetf import IgniteDataset

    options = {"order": order, "shuffle": 3 if order == "global" else None}
    dataset = IgniteDataset(caches["own"], addresses=[address], shard=(0, 1), **options)
    rows = build(**options)
    for _ in range(2):
        wanted = [b["key"].tolist() for b in rows.batches(32)]
        assert [b["key"].numpy().tolist() for b in dataset.batch(32)] == wanted
        rows = rows.next_epoch()
    assert len(dataset.batch(32)) == -(-ROWS // 32) and len(dataset) == ROWS
    single = IgniteDataset(caches["own"], addresses=[address], shard=(0, 1), **options)
    every = [int(element["key"]) for element in single]
    assert every == [k for b in build(**options).batches() for k in b["key"].tolist()]
    state = single.state(100)
    assert [int(e["key"]) for e in single.resume(state)] == every[100:]


@pytest.mark.parametrize(("step", "batch"), [(40, 20), (41, 21), (40, 10)])
def test_tensorflow_batches_of_global_steps(caches, build, address, step, batch):
    """Also of slices that differ by a row, and of several batches to a slice."""
    pytest.importorskip("tensorflow")
    from ignitetf import IgniteDataset

    one = [b["key"].tolist() for b in build(order="global", global_batch=step).batches()]
    found = [[] for _ in one]
    for i in range(2):
        dataset = IgniteDataset(
            caches["own"], addresses=[address], shard=(i, 2), order="global", global_batch=step,
            fields=["V"],
        )  # fmt: skip
        batches = [b["key"].numpy().tolist() for b in dataset.batch(batch)]
        assert len(dataset.batch(batch)) == len(batches)
        per_step = -(-step // 2) // batch
        for number in range(len(one)):
            for part in batches[number * per_step : (number + 1) * per_step]:
                found[number] += part
    assert found == one


@pytest.mark.parametrize("shard", [(0, 1), (1, 3)])
def test_device_resident_has_the_order_of_the_dataset(caches, address, shard):
    pytest.importorskip("tensorflow")
    from ignitetf import IgniteDataset
    from ignitetf.train import device_resident

    dataset = IgniteDataset(
        caches["own"], addresses=[address], shard=shard, order="global", shuffle=2, fields=["V"]
    )
    resident = device_resident(dataset, 16)
    for _ in range(2):
        wanted = [b["key"].numpy().tolist() for b in dataset.batch(16)]
        assert [b["key"].numpy().tolist() for b in resident] == wanted
    # In each epoch a worker has other rows, so all of them are here.
    assert resident.columns["key"].shape[0] == ROWS


@pytest.mark.parametrize("order", ["scan", "global"])
def test_an_arrow_stream_has_the_rows_in_their_order(build, order):
    pa = pytest.importorskip("pyarrow")
    rows = build(order=order)
    table = pa.table(rows)
    assert table.column("V").to_pylist() == values(rows.batches())
    assert pa.table(build("int", order="global", where="V < 0")).num_rows == 0
