"""Splits of real data sets: one definition for every layout, order, cluster and later row."""

import json
import os
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from typer.testing import CliRunner

from ignitetf import open_rows
from ignitetf.cli.main import app
from ignitetf.errors import CacheNotFound, ConfigError, DataChanged, DataSetBusy, SchemaError
from ignitetf.load.loader import load_dataset
from ignitetf.read.divide import count_splits, list_splits, make_splits, remove_split
from ignitetf.tables.catalog import drop_manifest, read_manifest
from ignitetf.tables.describe import describe
from ignitetf.tables.lease import Lease

pytestmark = pytest.mark.node
ROWS = 3000
LABELS = 7
PARTS = {"train": 0.7, "validation": 0.1, "test": 0.2}
HOW = {
    "own1": {"partitions": 1},
    "own8": {"partitions": 8},
    "own1024": {"partitions": 1024},
    "blocks": {"partitions": 8, "layout": "blocks"},
    "text8": {"partitions": 8, "key": "K"},
    "text1024": {"partitions": 1024, "key": "K"},
    "textblocks": {"partitions": 8, "key": "K", "layout": "blocks"},
    "unnamed": {"partitions": 8, "key": "K", "sql": False},
}
# Data sets with the same keys.
ALIKE = {
    "own": ("own1", "own8", "own1024", "blocks"),
    "text": ("text8", "text1024", "textblocks", "unnamed"),
}
ROWWISE = ("own8", "text8", "unnamed")
BLOCKS = ("blocks", "textblocks")


def source(how, first=0, count=ROWS):
    number = np.arange(first, first + count)
    rows = {
        "V": number.astype(np.int32),
        "LABEL": (number * number % LABELS).astype(np.int8),
        "KIND": [f"k{n % 3}" for n in number.tolist()],
        "A": np.repeat(number.astype(np.float32), 5).reshape(count, 5),
    }
    if "key" in how:
        rows["K"] = [f"name-{n:05d}" for n in number.tolist()]
    return rows


@pytest.fixture(scope="module")
def sets(client):
    names = {kind: f"SPLIT{os.getpid()}_{kind}".upper() for kind in HOW}
    for kind, how in HOW.items():
        load_dataset(source(how), names[kind], client=client, **how)
        make_splits(client, names[kind], PARTS, seed=5)
        make_splits(client, names[kind], folds=4, seed=6)
    yield names
    for name in names.values():
        drop_manifest(client, name)
    for found in client.cache_names():
        if found.startswith(f"SPLIT{os.getpid()}"):
            client.sql(f'DROP TABLE IF EXISTS "{found}"')
            if client.cache_exists(found):
                client.destroy_cache(found)


@pytest.fixture(scope="module")
def build(client, sets):
    return lambda kind, **options: open_rows(
        sets.get(kind, kind), client=client, **{"shard": (0, 1), **options}
    )


def values(batches):
    """V of each row, after checking that the rest of the row belongs to it."""
    found = []
    for batch in batches:
        rows = batch["val"]["V"].tolist()
        assert batch["val"]["LABEL"].tolist() == [v * v % LABELS for v in rows]
        assert [k.decode() for k in batch["val"]["KIND"]] == [f"k{v % 3}" for v in rows]
        assert batch["val"]["A"][:, 2].tolist() == rows
        found += rows
    return found


def orders(kind):
    yield {}
    yield {"shuffle": 3}
    yield {"shuffle": 3, "window_bytes": 5_000}
    if kind not in BLOCKS:
        yield {"order": "keys"}
        yield {"order": "global", "shuffle": 3}


@pytest.mark.core
@pytest.mark.parametrize("group", ALIKE)
def test_the_splits_are_the_same_rows_in_every_layout_and_order(build, group):
    wanted = {}
    for kind in ALIKE[group]:
        for options in orders(kind):
            for split in (*PARTS, "fold0", "fold3"):
                rows = build(kind, split=split, **options)
                read = values(rows.batches())
                assert len(read) == len(set(read)) == len(rows)
                assert wanted.setdefault(split, sorted(read)) == sorted(read), (kind, options)
    assert sorted(chain.from_iterable(wanted[split] for split in PARTS)) == list(range(ROWS))
    for split, share in PARTS.items():
        assert abs(len(wanted[split]) - share * ROWS) < 4 * (ROWS * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("kind", ["own8", "text8", "blocks"])
def test_folds_and_their_complements(build, kind):
    folds = [values(build(kind, split=f"fold{i}").batches()) for i in range(4)]
    assert sorted(chain.from_iterable(folds)) == list(range(ROWS))
    for i, fold in enumerate(folds):
        rest = values(build(kind, split=f"-fold{i}", shuffle=1).batches())
        assert sorted(rest) == sorted(set(range(ROWS)) - set(fold))


@pytest.mark.parametrize("kind", ["own8", "text8", "blocks", "textblocks"])
def test_a_split_is_the_order_of_all_rows_without_the_others(build, kind):
    """The plain order of all rows is the second implementation."""
    for options in [{}, *({"order": "keys"} for _ in range(kind not in BLOCKS))]:
        test = set(values(build(kind, split="test").batches()))
        every = values(build(kind, **options).batches())
        assert values(build(kind, split="test", **options).batches()) == [
            v for v in every if v in test
        ]


def test_rows_written_by_sql_are_in_the_split_of_their_key(client, build, cache_name):
    load_dataset(source({}), cache_name, client=client, partitions=8, index=())
    make_splits(client, cache_name, PARTS, seed=5)
    wanted = values(build(cache_name, split="test").batches())
    client.sql(f'DELETE FROM "{cache_name}"').close()
    key, *names = client.sql(f'SELECT * FROM "{cache_name}"').columns
    assert set(names) == {"V", "LABEL", "KIND", "A"}
    insert = f'INSERT INTO "{cache_name}" ("{key}", V, LABEL, KIND) VALUES (?, ?, ?, ?)'
    for n in range(0, ROWS, 10):
        client.sql(insert, (n, n, n * n % LABELS, f"k{n % 3}")).close()
    left = [v for v in wanted if v % 10 == 0]
    fields = ["V", "LABEL", "KIND"]
    for options in ({}, {"order": "keys"}, {"order": "global"}):
        rows = open_rows(
            cache_name, client=client, fields=fields, where="V >= 0", split="test", **options
        )
        found = [v for batch in rows.batches() for v in batch["val"]["V"].tolist()]
        assert sorted(found) == sorted(left), options


@pytest.mark.parametrize("kind", ["own8", "text8", "blocks"])
def test_rows_keep_their_split_when_others_are_appended(client, build, cache_name, kind):
    how = HOW[kind]
    load_dataset(source(how), cache_name, client=client, **how)
    make_splits(client, cache_name, PARTS, seed=5)
    make_splits(client, cache_name, folds=3, by="LABEL")
    names = (*PARTS, "fold0", "fold1", "fold2")
    before = {s: set(values(build(cache_name, split=s).batches())) for s in names}
    assert before["test"] == set(values(build(kind, split="test").batches()))
    load_dataset(source(how, ROWS, 500), cache_name, client=client, if_exists="append", **how)
    read = {}
    for options in orders(kind):
        for split in names:
            rows = build(cache_name, split=split, **options)
            read[split] = values(rows.batches())
            assert len(read[split]) == len(rows)
            assert {v for v in read[split] if v < ROWS} == before[split]
    assert sorted(chain.from_iterable(read[s] for s in PARTS)) == list(range(ROWS + 500))
    assert describe(client, cache_name)["splits"] == dict.fromkeys(names)
    listed = list_splits(client, cache_name)
    assert [row["rows"] for row in listed] == [len(read[split]) for split in names]
    assert count_splits(client, cache_name) == listed
    assert describe(client, cache_name)["splits"] == {s: len(read[s]) for s in names}


def test_a_replacement_keeps_the_splits(client, build, cache_name):
    load_dataset(source({}), cache_name, client=client, partitions=8)
    make_splits(client, cache_name, PARTS, seed=5)
    make_splits(client, cache_name, folds=2, by="LABEL")
    wanted = {s: sorted(values(build(cache_name, split=s).batches())) for s in (*PARTS, "fold0")}
    load_dataset(source({}), cache_name, client=client, if_exists="replace", layout="blocks")
    for split, rows in wanted.items():
        assert sorted(values(build(cache_name, split=split, shuffle=1).batches())) == rows
    # Without the field that it was balanced by, a division is gone, and the others are not.
    load_dataset({"V": np.arange(50)}, cache_name, client=client, if_exists="replace")
    assert [row["split"] for row in list_splits(client, cache_name)] == list(PARTS)
    assert sum(row["rows"] for row in list_splits(client, cache_name)) == 50


@pytest.mark.parametrize("by", ["LABEL", "KIND"])
@pytest.mark.parametrize("kind", ["own8", "textblocks", "unnamed"])
def test_balanced_splits_are_exact(client, build, sets, kind, by):
    make_splits(client, sets[kind], {"a": "1/3", "b": 0.5, "c": "1/6"}, by=by, force=True)
    value = (lambda v: v * v % LABELS) if by == "LABEL" else (lambda v: v % 3)
    total = Counter(map(value, range(ROWS)))
    seen = []
    for split, share in {"a": 1 / 3, "b": 1 / 2, "c": 1 / 6}.items():
        read = [values(build(kind, split=split, **o).batches()) for o in orders(kind)]
        assert all(sorted(r) == sorted(read[0]) for r in read)
        seen += read[0]
        for which, count in Counter(map(value, read[0])).items():
            assert abs(count - share * total[which]) < 1
        # The field decides also where it is not read, and with a condition.
        rows = build(kind, split=split, fields=["V"])
        assert sorted(v for b in rows.batches() for v in b["val"]["V"].tolist()) == sorted(read[0])
        assert list(next(rows.batches())["val"]) == ["V"]
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.parametrize("kind", ["own8", "text8"])
def test_where_and_split_both_apply(build, kind):
    test = set(values(build(kind, split="test").batches()))
    for options in orders(kind):
        rows = build(kind, split="test", where="V < ?", where_params=[400], **options)
        assert set(values(rows.batches())) == {v for v in test if v < 400}


@pytest.mark.parametrize("kind", ROWWISE)
def test_steps_of_a_split_are_the_same_for_any_number_of_workers(build, kind):
    def steps(workers):
        shards = [
            build(
                kind, split="test", order="global", shuffle=2, shard=(i, workers), global_batch=40
            )
            for i in range(workers)
        ]
        batches = [[b["val"]["V"].tolist() for b in s.batches()] for s in shards]
        return [list(chain.from_iterable(parts)) for parts in zip(*batches, strict=True)]

    assert steps(1) == steps(4) == steps(5)


@pytest.mark.parametrize("kind", ["own8", "blocks", "text8"])
def test_every_state_goes_on_where_it_was_taken(build, kind):
    for options in orders(kind):
        rows = build(kind, split="validation", **options)
        whole = values(rows.batches(40))
        batches, done = rows.batches(40), 0
        while done < len(whole):
            rest = build(kind, split="validation", **options).resume(batches.state())
            assert len(rest) == len(whole) - done
            assert values(rest.batches(40)) == whole[done:]
            done += len(next(batches)["key"])


@pytest.mark.parametrize("kind", ["own8", "blocks"])
def test_shards_of_a_split_and_even_ones(build, kind):
    test = sorted(values(build(kind, split="test").batches()))
    for options in orders(kind):
        parts = [build(kind, split="test", shard=(i, 3), **options) for i in range(3)]
        read = [values(rows.batches()) for rows in parts]
        assert [len(r) for r in read] == [len(rows) for rows in parts]
        assert sorted(chain.from_iterable(read)) == test
        if options.get("order", "scan") == "scan":
            parts = [build(kind, split="test", part=p, **options) for p in range(8)]
            read = [values(rows.batches()) for rows in parts]
            assert [len(r) for r in read] == [len(rows) for rows in parts]
            assert sorted(chain.from_iterable(read)) == test
        padded = [build(kind, split="test", shard=(i, 3), even="pad", **options) for i in range(3)]
        assert len({len(rows) for rows in padded}) == 1
        assert set(chain.from_iterable(values(rows.batches()) for rows in padded)) == set(test)


def test_a_state_of_another_split_is_refused(client, build, sets):
    for options in orders("own8"):
        state = build("own8", split="train", **options).state(5)
        build("own8", split="train", **options).resume(state)
        for other in ("test", "-train", None):
            with pytest.raises(ConfigError, match="split"):
                build("own8", split=other, **options).resume(state)
    make_splits(client, sets["own8"], {"again": 0.5, "other": 0.5}, force=True)
    state = build("own8", split="again").state()
    make_splits(client, sets["own8"], {"again": 0.5, "other": 0.5}, seed=1, force=True)
    with pytest.raises(ConfigError, match="split"):
        build("own8", split="again").resume(state)


@pytest.mark.parametrize("kind", ROWWISE)
def test_rows_are_numbered_within_the_split(build, kind):
    rows = build(kind, split="test", order="keys")
    wanted = values(rows.batches())
    assert rows[:]["val"]["V"].tolist() == wanted
    assert rows[[5, -1, 0]]["val"]["V"].tolist() == [wanted[5], wanted[-1], wanted[0]]
    assert set(rows.sample(50, 1)["val"]["V"].tolist()) <= set(wanted)
    with pytest.raises(IndexError):
        rows[len(wanted)]
    other = build(kind, split="train", order="keys")[0]["key"]
    own = rows[3]["key"]
    assert rows.by_key([own, other], missing="skip")["val"]["V"].tolist() == [wanted[3]]
    with pytest.raises(KeyError):
        rows.by_key([other])


@pytest.mark.core
def test_a_dataset_reads_a_split(build, sets, address):
    pytest.importorskip("tensorflow")
    from ignitetf import IgniteDataset
    from ignitetf.train import device_resident

    for options in orders("own8"):
        dataset = IgniteDataset(
            sets["own8"], addresses=[address], split="test", shard=(0, 1), **options
        )
        wanted = values(build("own8", split="test", **options).batches())
        assert [int(v) for b in dataset.batch(64) for v in b["val"]["V"]] == wanted
        assert int(dataset.cardinality()) == len(wanted)
        if options.get("shuffle"):
            resident = device_resident(dataset, 64, options["shuffle"])
            assert [int(v) for b in resident for v in b["val"]["V"]] == wanted


def test_rows_that_go_after_opening_are_noticed(client, build, cache_name):
    """Opened again, the splits are those of the rows that are left."""
    load_dataset(source({}), cache_name, client=client, partitions=8)
    make_splits(client, cache_name, PARTS)
    before = {split: values(build(cache_name, split=split).batches()) for split in PARTS}
    gone = before["test"][3]
    opened = [
        (build(cache_name, split=split, **options), split, options)
        for options in orders("own8")
        for split in PARTS
    ]
    client.sql(f'DELETE FROM "{cache_name}" WHERE V = {gone}').close()
    for rows, split, options in opened:
        with pytest.raises(DataChanged):
            values(rows.batches())
        again = build(cache_name, split=split, **options)
        left = sorted(set(before[split]) - {gone})
        assert sorted(values(again.batches())) == left and len(again) == len(left)
    counts = {row["split"]: row["rows"] for row in make_splits(client, cache_name, folds=2)}
    assert sum(counts.values()) == 2 * (sum(map(len, before.values())) - 1)


@pytest.mark.parametrize("count", [0, 1])
def test_splits_of_no_rows_and_of_one(client, build, cache_name, count):
    load_dataset(source({}, 0, 1), cache_name, client=client, partitions=8, limit=count or None)
    if not count:
        client.sql(f'DELETE FROM "{cache_name}"').close()
        load_dataset({"V": np.zeros(0, np.int32), "LABEL": np.zeros(0, np.int8)}, cache_name,
                     client=client, if_exists="replace")  # fmt: skip
    make_splits(client, cache_name, PARTS)
    make_splits(client, cache_name, folds=2, by="LABEL")
    read = Counter()
    for split in (*PARTS, "fold0", "fold1"):
        for options in orders("own8"):
            rows = build(cache_name, split=split, fields=["V"], **options)
            found = [v for b in rows.batches() for v in b["val"]["V"].tolist()]
            assert len(rows) == len(found)
            read[repr(options)] += len(found)
    assert set(read.values()) <= {2 * count}


def test_what_is_refused(client, build, sets, cache_name):
    name = sets["own8"]
    with pytest.raises(ConfigError, match="no split 'trian'") as caught:
        build("own8", split="trian")
    assert "train" in caught.value.hint
    with pytest.raises(ConfigError, match="already"):
        make_splits(client, name, {"train": 1})
    with pytest.raises(ConfigError, match="balanced by A"):
        make_splits(client, name, {"x": 1}, by="A")
    with pytest.raises(SchemaError, match="LABLE"):
        make_splits(client, name, {"x": 1}, by="LABLE")
    with pytest.raises(ConfigError, match="fractions, or"):
        make_splits(client, name)
    with pytest.raises(ConfigError):
        make_splits(client, name, {"x": 1}, folds=3)
    with pytest.raises(ConfigError, match="no split 'x'"):
        remove_split(client, name, "x")
    with pytest.raises(CacheNotFound):
        make_splits(client, cache_name, {"x": 1})
    with Lease(client, name, "load"), pytest.raises(DataSetBusy, match="load"):
        make_splits(client, name, {"x": 1})
    client.sql(f'CREATE TABLE "{cache_name}" (K INT PRIMARY KEY, V INT)').close()
    client.sql(f'INSERT INTO "{cache_name}" VALUES (1, 1)').close()
    other = f"SQL_PUBLIC_{cache_name}"
    with pytest.raises(ConfigError, match="manifest"):
        make_splits(client, other, {"x": 1})
    with pytest.raises(ConfigError, match="manifest"):
        build(other, split="train")
    client.sql(f'DROP TABLE "{cache_name}"').close()
    assert {row["split"] for row in list_splits(client, name)} >= set(PARTS)


def test_the_command(client, cache_name, address):
    load_dataset(source({}), cache_name, client=client, partitions=8)

    def run(*words):
        done = CliRunner().invoke(app, ["split", cache_name, *words, "--address", address])
        return done.exit_code, done.output

    def listed(*words):
        code, out = run(*words, "--output", "json")
        assert code == 0, out
        return json.loads(out)

    assert "no splits" in run()[1]
    made = listed("train=0.8", "test=1/5", "--by", "LABEL", "--seed", "3")
    assert [(row["split"], row["rows"], row["seed"], row["by"]) for row in made] == [
        ("train", 2400, 3, "LABEL"), ("test", 600, 3, "LABEL")
    ]  # fmt: skip
    assert listed() == made == listed("--recount")
    assert [row["split"] for row in listed("--folds", "2")] == ["train", "test", "fold0", "fold1"]
    assert listed("train=0.5", "rest=0.5", "--force")[-1]["split"] == "rest"
    assert [row["split"] for row in listed("--remove", "fold1")] == ["train", "rest"]
    for words in (["a=0.5"], ["a=1", "a=1"], ["a"], ["a=1", "--folds", "2"], ["--seed", "1"],
                  ["--remove", "zzz"], ["train=1"]):  # fmt: skip
        assert run(*words)[0] != 0, words
    manifest = read_manifest(client, cache_name)
    assert [each.names for each in manifest.splits] == [("train", "rest")]
