"""Random objects of every kind, written and described by Java, read equal in every way there is.

The seed is printed, and IGNITETF_TEST_SEED repeats it.
"""

import json
import os
import random
import struct
import unicodedata

import numpy as np
import pytest
from helpers.java_programs import java_command, run, secured
from helpers.paths import ROOT

from ignitetf.errors import SchemaError
from ignitetf.explore.head import first_rows
from ignitetf.explore.stats import dataset_stats
from ignitetf.read.export import Ragged
from ignitetf.tables.catalog import drop_manifest
from ignitetf.wire.codes import java_hash, java_hash_lower

tf = pytest.importorskip("tensorflow")
pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.node, pytest.mark.slow]

SOURCE = ROOT / "tests" / "data" / "java" / "JavaRandom.java"
ROWS = 12
SHADES = ("LIGHT", "DARK")
CACHES = ("whole", "nulls", "keys", "bignumbers", "lists", "foreign", "times")
# Fields that are bits of floats, and bytes, where JSON has integers.
FLOATS = {"aFloat": ("<i", "<f"), "aDouble": ("<q", "<d"), "doubles": ("<q", "<d")}
UNREADABLE = {
    "uri": "java.net.URI",
    "kind": "Foreign",
    "immutable": "Shade",
    "self": "contains it",
    "cycleList": "contains it",
    "cycleArray": "contains it",
    "cycleChild": "contains it",
}


@pytest.fixture(scope="module")
def told(node_home, address, client, tmp_path_factory):
    """What Java wrote: by cache, its rows by their keys as text; and ids of names."""
    seed = int(os.environ.get("IGNITETF_TEST_SEED", random.randrange(1 << 31)))
    print(f"IGNITETF_TEST_SEED={seed}")
    prefix = f"J{os.getpid()}_{seed}"
    folder = tmp_path_factory.mktemp("random")
    command = java_command(SOURCE, node_home, folder)
    environment = secured(client.settings, folder)
    printed = run(*command, address, prefix, ROWS, seed, environment=environment)
    found = {"prefix": prefix, "rows": {}}
    for line in printed.splitlines():
        item = json.loads(line)
        if "cache" not in item:
            found["ids"] = item
            continue
        rows = found["rows"].setdefault(item["cache"].removeprefix(prefix + "_"), {})
        rows[text_of(item["key"])] = expected(item["val"])
    assert sorted(found["rows"]) == sorted(CACHES)
    yield found
    for cache in CACHES:
        drop_manifest(client, f"{prefix}_{cache}")
        client.destroy_cache(f"{prefix}_{cache}")


def text_of(key):
    return json.dumps(key, sort_keys=True)


def expected(value, name=""):
    """What Java printed, in the form in which values are compared."""
    if isinstance(value, dict):
        return {n: expected(v, n) for n, v in value.items()}
    if isinstance(value, list):
        return columns_of([expected(v, name) for v in value])
    if value is not None and name in FLOATS:
        bits, number = FLOATS[name]
        return struct.unpack(number, struct.pack(bits, value))[0]
    if value is not None and name == "bytes":
        return value % 256
    return value


def columns_of(items):
    """Lists of objects as an object of lists, which they are in TensorFlow."""
    if items and isinstance(items[0], dict):
        return {n: columns_of([item[n] for item in items]) for n in items[0]}
    return items


def plain(value, name=""):
    """What was read, in the form in which values are compared."""
    if isinstance(value, dict):
        return {n: plain(v, n) for n, v in value.items()}
    if isinstance(value, tf.RaggedTensor):
        return plain(value.to_list(), name)
    if isinstance(value, tf.Tensor):
        value = value.numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        value = (value.astype("i8") if value.dtype.kind in "mM" else value).tolist()
    if isinstance(value, (list, tuple)):
        return columns_of([plain(v, name) for v in value])
    if isinstance(value, bytes):
        return list(value) if name == "bytes" else value.decode()
    return value


def cell(column, i):
    """One record of a column of `numpy()`."""
    if isinstance(column, dict):
        return {n: cell(c, i) for n, c in column.items()}
    if isinstance(column, Ragged):
        first, end = column.offsets[i : i + 2].tolist()
        return [cell(column.values, j) for j in range(first, end)]
    return column[i]


def by_dataset(name, address, **options):
    from ignitetf import IgniteDataset

    for item in IgniteDataset(name, addresses=[address], **options):
        yield item["key"], item["val"]


def by_batch(name, address, **options):
    from ignitetf import IgniteDataset

    for batch in IgniteDataset(name, addresses=[address], **options).batch(7):
        keys, values = plain(batch["key"]), plain(batch["val"])
        for i in range(len(next(iter(keys.values())) if isinstance(keys, dict) else keys)):
            yield row_of(keys, i), row_of(values, i)


def row_of(columns, i):
    if isinstance(columns, dict):
        return {n: row_of(c, i) for n, c in columns.items()}
    return columns[i]


def by_numpy(name, address, **options):
    from ignitetf import IgniteDataset

    for page in IgniteDataset(name, addresses=[address], **options).numpy():
        keys = page["key"]
        for i in range(len(next(iter(keys.values())) if isinstance(keys, dict) else keys)):
            yield cell(keys, i), cell(page["val"], i)


def by_arrow(name, address, **options):
    from ignitetf import IgniteDataset

    for batch in IgniteDataset(name, addresses=[address], **options).arrow():
        for row in batch.to_pylist():
            key = row.pop("key")
            yield key, row["val"] if set(row) == {"val"} else row


WAYS = {"dataset": by_dataset, "batch": by_batch, "numpy": by_numpy, "arrow": by_arrow}
ways = pytest.mark.parametrize("way", WAYS)


def read(way, told, cache, address, **options):
    rows = {}
    for key, value in WAYS[way](f"{told['prefix']}_{cache}", address, **options):
        rows[text_of(plain(key))] = plain(value)
    return rows


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        if not isinstance(row, dict):
            assert found[key] == row, key
            continue
        assert found[key].keys() == row.keys()
        for name, value in row.items():
            assert found[key][name] == value, (key, name)


@ways
@pytest.mark.parametrize("cache", ["whole", "bignumbers", "lists"])
def test_rows_are_what_java_wrote(told, address, way, cache):
    assert_same(read(way, told, cache, address), told["rows"][cache])


@pytest.mark.parametrize("cache", ["whole", "nulls", "keys", "bignumbers", "lists"])
def test_head_shows_what_java_wrote(told, client, cache):
    rows = {}
    for row in first_rows(client, f"{told['prefix']}_{cache}", ROWS):
        key = row.pop("key")
        rows[text_of(plain(key))] = ordinals(plain(row["val"] if set(row) == {"val"} else row))
    assert_same(rows, told["rows"][cache])


def ordinals(value):
    """Return names of the only enum as its numbers, which Java has told."""
    if isinstance(value, dict):
        return {name: ordinals(item) for name, item in value.items()}
    if isinstance(value, list):
        return [ordinals(item) for item in value]
    return SHADES.index(value) if value in SHADES else value


def is_empty(value):
    """Whether a value is what stands for a null: zero, or nothing."""
    if isinstance(value, dict):
        return all(map(is_empty, value.values()))
    return not value


@pytest.mark.parametrize("way", ["numpy", "batch"])
def test_nulls_by_every_policy(told, address, way):
    wanted = told["rows"]["nulls"]
    policy = "mask" if way == "numpy" else "default"
    found = read(way, told, "nulls", address, nulls=policy)
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        names = row.keys() | ({f"{n}_valid" for n in row} if policy == "mask" else set())
        assert found[key].keys() == names
        for name, value in row.items():
            if value is None:
                assert is_empty(found[key][name]), (key, name)
            else:
                assert found[key][name] == value, (key, name)
            if policy == "mask":
                assert found[key][f"{name}_valid"] is (value is not None), (key, name)
    some = ["sqlDate", "anyList", "sharedListAgain", "ΜΕΓΕΘΟΣ", "İstanbul"]
    with pytest.raises(SchemaError, match="is null") as refused:
        list(by_numpy(f"{told['prefix']}_nulls", address, fields=some))
    assert wanted[text_of(refused.value.key)][refused.value.field] is None
    found = read(way, told, "nulls", address, nulls="drop", fields=some)
    whole = {k: {n: row[n] for n in some} for k, row in wanted.items()}
    assert_same(found, {k: row for k, row in whole.items() if None not in row.values()})


@pytest.mark.parametrize("way", ["numpy", "batch"])
def test_nulls_within_composite_keys(told, address, way):
    wanted = [json.loads(key) for key in told["rows"]["keys"]]
    with pytest.raises(SchemaError, match=r"'key\.(name|number)' is null"):
        list(by_numpy(f"{told['prefix']}_keys", address))
    found = [json.loads(k) for k in read(way, told, "keys", address, nulls="drop")]
    assert {k["id"] for k in found} == {k["id"] for k in wanted if None not in k.values()}
    found = [json.loads(k) for k in read(way, told, "keys", address, nulls="default")]
    filled = [{**k, "name": k["name"] or "", "number": k["number"] or 0} for k in wanted]
    assert sorted(map(text_of, found)) == sorted(map(text_of, filled))
    found = [json.loads(k) for k in read(way, told, "keys", address, nulls="mask")]
    for key, plain_key in zip(wanted, filled, strict=True):
        valid = {f"{n}_valid": v is not None for n, v in key.items()}
        assert {**plain_key, **valid} in found


@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_what_nobody_can_read_is_named(told, address, name):
    cache = f"{told['prefix']}_foreign"
    with pytest.raises(SchemaError, match=name) as error:
        list(by_numpy(cache, address, fields=["number", name]))
    assert UNREADABLE[name] in str(error.value)
    assert cache in str(error.value)
    assert error.value.field == name
    assert "key" in error.value.fields
    assert "fields=" in error.value.hint


def test_what_cannot_be_read_does_not_hide_the_rest(told, client, address):
    cache = f"{told['prefix']}_foreign"
    wanted = {
        k: {n: v for n, v in row.items() if n in ("number", "text")}
        for k, row in told["rows"]["foreign"].items()
    }
    assert_same(read("numpy", told, "foreign", address, fields=["number", "text"]), wanted)
    left_out = {}
    rows = first_rows(client, cache, ROWS, on_left_out=left_out.__setitem__)
    assert {text_of(r["key"]): {n: r[n] for n in ("number", "text")} for r in rows} == wanted
    assert all(r["cycleChild"] == {"number": 5} for r in rows)
    assert {name.partition(".")[0] for name in left_out} == set(UNREADABLE)
    stats = dataset_stats(client, cache)
    assert stats.rows == ROWS
    assert stats.left_out == left_out
    assert {c.name for c in stats.columns} == {"key", "number", "text", "cycleChild"}


@pytest.mark.parametrize("way", ["batch", "arrow"])
def test_times_beyond_nanoseconds(told, address, way):
    wanted = told["rows"]["times"]
    for name, coarser in (("timestamp", "ms"), ("localDateTime", "us")):
        with pytest.raises(SchemaError, match="beyond what int64 holds in ns") as error:
            list(by_numpy(f"{told['prefix']}_times", address, fields=[name]))
        assert "datetime64" in error.value.hint
        row = wanted[text_of(error.value.key)]
        assert not -(1 << 63) <= row[name] < 1 << 63
        schema = {"number": "int32", name: f"datetime64[{coarser}]"}
        found = read(way, told, "times", address, schema=schema)
        unit = {"ms": 1_000_000, "us": 1_000}[coarser]
        for key, row in wanted.items():
            assert found[key] == {"number": row["number"], name: row[name] // unit}


def test_names_have_the_ids_that_ignite_gives_them(told):
    ids = told["ids"]
    for word, number in ids["words"].items():
        assert java_hash_lower(word) == number, word
    for unit, number in enumerate(ids["ids"], 1):
        letter = chr(unit)
        if java_hash_lower(letter) != number:
            # One of the two has a newer Unicode, and lowers a letter that the other does not know.
            newer = unicodedata.category(letter) == "Cn" or number == java_hash(letter)
            assert newer, hex(unit)
