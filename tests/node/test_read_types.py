"""Rows of every type, written by pyignite, read back equal."""

import datetime
import decimal
import math
import uuid

import numpy as np
import pyarrow as pa
import pyignite.datatypes as t
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyignite import GenericObjectMeta

from ignitetf.errors import SchemaError
from ignitetf.explore.head import first_rows
from ignitetf.load.loader import load_dataset
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.rows import open_rows
from ignitetf.wire.columns import Dense, Struct

pytestmark = [pytest.mark.node, pytest.mark.core]

EPOCH = datetime.datetime(1970, 1, 1)


def ints(bits):
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def millis(value):
    return round((value - EPOCH).total_seconds() * 1000)


def floats(width):
    return st.floats(width=width, allow_nan=False)


texts = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12)
moments = st.datetimes(datetime.datetime(1971, 1, 1), datetime.datetime(2100, 1, 1)).map(
    lambda d: d.replace(microsecond=0)
)
decimals = st.decimals(-(10**12), 10**12, places=3, allow_nan=False)

# type of the field, values, what the reader gives for one value
KINDS = {
    "byte": (t.ByteObject, ints(8), int),
    "short": (t.ShortObject, ints(16), int),
    "int": (t.IntObject, ints(32), int),
    "long": (t.LongObject, ints(64), int),
    "float": (t.FloatObject, floats(32), float),
    "double": (t.DoubleObject, floats(64), float),
    "char": (t.CharObject, st.characters(max_codepoint=0xD7FF, min_codepoint=1), ord),
    "bool": (t.BoolObject, st.booleans(), bool),
    "string": (t.String, texts, lambda s: s.encode()),
    "uuid": (t.UUIDObject, st.uuids(), lambda u: str(u).encode()),
    "date": (t.DateObject, moments, millis),
    "timestamp": (
        t.TimestampObject,
        st.tuples(moments, st.integers(0, 999_999)),
        lambda v: millis(v[0]) * 1_000_000 + v[1],
    ),
    "decimal": (t.DecimalObject, decimals, lambda d: format(d, "f").encode()),
    "bytes": (t.ByteArrayObject, st.binary(max_size=20), bytes),
    "shorts": (t.ShortArrayObject, st.lists(ints(16), max_size=5), list),
    "ints": (t.IntArrayObject, st.lists(ints(32), max_size=5), list),
    "longs": (t.LongArrayObject, st.lists(ints(64), max_size=5), list),
    "floats": (t.FloatArrayObject, st.lists(floats(32), max_size=5), list),
    "doubles": (t.DoubleArrayObject, st.lists(floats(64), max_size=5), list),
    "bools": (t.BoolArrayObject, st.lists(st.booleans(), max_size=5), list),
    "strings": (
        t.StringArrayObject,
        st.lists(texts, max_size=4),
        lambda v: [s.encode() for s in v],
    ),
    "uuids": (
        t.UUIDArrayObject,
        st.lists(st.uuids(), max_size=3),
        lambda v: [str(u).encode() for u in v],
    ),
}


def plain(column, index):
    """One record of a column as Python values."""
    if column.valid is not None and not column.valid[index]:
        return None
    if isinstance(column, Struct):
        return {name: plain(c, index) for name, c in column.fields.items()}
    if isinstance(column, Dense):
        return column.values[index].tolist()
    first, count = int(column.starts[index]), int(column.lengths[index])
    if not isinstance(column.items, Dense) or column.items.valid is not None:
        return [plain(column.items, first + i) for i in range(count)]
    return column.values[first : first + count]


def records(client, name, **options):
    reader = CacheReader(client, name, ReadOptions(**options))
    out = {}
    for item in reader.batches(range(reader.partition_count)):
        if item.batch is None:
            continue
        for i in range(len(item.batch)):
            key = plain(item.batch.key, i)
            out[bytes(key) if isinstance(key, np.ndarray) else key] = {
                n: plain(c, i) for n, c in item.batch.columns.items()
            }
    return reader, out


def as_python(value, field):
    if isinstance(value, np.ndarray):
        return value.tobytes() if field.dtype == object else value.tolist()
    if isinstance(value, list):
        return [v.tobytes() if isinstance(v, np.ndarray) else v for v in value]
    return value


@pytest.fixture(scope="module")
def small_cache(client):
    """A cache of few partitions; each use clears it."""
    cache = client.pyignite.get_or_create_cache("p4-types")
    yield cache
    cache.destroy()


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(
    max_examples=6,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_values_of_every_type_are_read_equal(client, small_cache, kind, data):
    hint, values, expected = KINDS[kind]
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=8))
    type_name = f"Types{kind.capitalize()}"
    kind_class = GenericObjectMeta(type_name, (), {}, schema={"A": t.IntObject, "V": hint})
    small_cache.clear()
    small_cache.put_all({(k, t.LongObject): kind_class(A=k * 3, V=v) for k, v in enumerate(rows)})
    reader, found = records(client, small_cache.name, nulls="default")
    field = reader.schema["V"]
    assert set(found) == set(range(len(rows)))
    for key, value in enumerate(rows):
        assert found[key]["A"] == key * 3
        if value is None:
            continue
        got, want = as_python(found[key]["V"], field), expected(value)
        if isinstance(want, bytes) and isinstance(got, list):
            got = bytes(got)  # byte arrays of one length are uint8 of that shape
        if kind == "decimal":
            assert decimal.Decimal(got.decode()) == value
        elif isinstance(want, float):
            assert math.isclose(got, want, rel_tol=1e-7) or got == want
        else:
            assert got == want, (kind, value)


def test_null_policies_see_the_same_nulls(client, cache_name):
    cache = client.pyignite.get_or_create_cache(cache_name)
    row = GenericObjectMeta("NullRow", (), {}, schema={"A": t.IntObject, "S": t.String})
    cache.put_all({(k, t.LongObject): row(A=k, S=None if k % 3 == 0 else "x") for k in range(30)})
    with pytest.raises(SchemaError) as error:
        records(client, cache_name, nulls="error")
    assert error.value.cache == cache_name
    assert error.value.field == "S"
    assert error.value.key % 3 == 0
    assert f"partition {error.value.partition}" in str(error.value)
    reader, found = records(client, cache_name, nulls="drop")
    assert sorted(found) == [k for k in range(30) if k % 3]
    assert reader.dropped == 10
    _, found = records(client, cache_name, nulls="mask")
    assert {k for k, v in found.items() if not v["S_valid"]} == set(range(0, 30, 3))
    assert all(v["A_valid"] for v in found.values())
    _, found = records(client, cache_name, nulls="default")
    assert bytes(found[0]["S"]) == b""


def test_schema_versions_of_one_type_and_several_types(client, cache_name):
    cache = client.pyignite.get_or_create_cache(cache_name)
    old = GenericObjectMeta("Versioned", (), {}, schema={"A": t.IntObject})
    new = GenericObjectMeta("Versioned", (), {}, schema={"A": t.IntObject, "B": t.LongObject})
    other = GenericObjectMeta("Another", (), {}, schema={"A": t.IntObject, "C": t.String})
    for k in range(10):
        cache.put(k, old(A=k), key_hint=t.LongObject)
        cache.put(100 + k, new(A=k, B=k * k), key_hint=t.LongObject)
        cache.put(200 + k, other(A=k, C=str(k)), key_hint=t.LongObject)
    reader, found = records(client, cache_name, nulls="mask")
    assert reader.schema.names == ("A", "B", "C")
    for k in range(10):
        assert [found[base + k]["A"] for base in (0, 100, 200)] == [k, k, k]
        assert [found[base + k]["B_valid"] for base in (0, 100, 200)] == [False, True, False]
        assert found[100 + k]["B"] == k * k
        assert bytes(found[200 + k]["C"]) == str(k).encode()
    _, found = records(client, cache_name, fields=("A",))
    assert len(found) == 30


def test_nested_objects_collections_and_maps(client, cache_name):
    cache = client.pyignite.get_or_create_cache(cache_name)
    inner = GenericObjectMeta("Inner", (), {}, schema={"X": t.IntObject, "N": t.String})
    outer = GenericObjectMeta(
        "Outer",
        (),
        {},
        schema={"I": t.BinaryObject, "L": t.CollectionObject, "M": t.MapObject},
    )
    for k in range(6):
        cache.put(
            k,
            outer(
                I=inner(X=k, N=f"n{k}"),
                L=(1, [(k + i, t.LongObject) for i in range(k)]),
                M=(1, {f"k{i}": float(i) for i in range(k)}),
            ),
            key_hint=t.LongObject,
        )
    reader, found = records(client, cache_name)
    for k in range(6):
        assert found[k]["I"]["X"] == k
        assert bytes(found[k]["I"]["N"]) == f"n{k}".encode()
        assert list(found[k]["L"]) == [k + i for i in range(k)]
        assert [bytes(b) for b in found[k]["M"]["keys"]] == [f"k{i}".encode() for i in range(k)]
        assert list(found[k]["M"]["values"]) == [float(i) for i in range(k)]
    assert reader.schema["I"].fields[0].name == "N"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({1: "a", 2: "żółć"}, {1: b"a", 2: "żółć".encode()}),
        ({1: 5, 2: -7}, {1: 5, 2: -7}),
        ({1: b"xy", 2: b""}, {1: b"xy", 2: b""}),
        ({1: 1.5, 2: -0.25}, {1: 1.5, 2: -0.25}),
    ],
)
def test_plain_values(client, cache_name, values, expected):
    cache = client.pyignite.get_or_create_cache(cache_name)
    for key, value in values.items():
        cache.put(key, value, key_hint=t.LongObject)
    reader, found = records(client, cache_name)
    assert reader.schema.type_name is None
    field = reader.schema["val"]
    assert {k: as_python(v["val"], field) for k, v in found.items()} == expected


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        (["a", "bb", ""], t.String),
        ([1, -2, 3], t.IntObject),
        ([uuid.UUID(int=7), uuid.UUID(int=1 << 127)], t.UUIDObject),
        ([decimal.Decimal("1.5"), decimal.Decimal("-2")], t.DecimalObject),
    ],
)
def test_keys_of_other_types(client, cache_name, keys, hint):
    cache = client.pyignite.get_or_create_cache(cache_name)
    for i, key in enumerate(keys):
        cache.put(key, i, key_hint=hint, value_hint=t.IntObject)
    _, found = records(client, cache_name)
    expected = {k if hint is t.IntObject else str(k).encode(): i for i, k in enumerate(keys)}
    assert {k: v["val"] for k, v in found.items()} == expected


def test_composite_binary_keys(client, cache_name):
    cache = client.pyignite.get_or_create_cache(cache_name)
    key = GenericObjectMeta("PairKey", (), {}, schema={"ID": t.LongObject, "N": t.IntObject})
    for i in range(12):
        cache.put(key(ID=i // 3, N=i % 3), i, value_hint=t.LongObject)
    reader = CacheReader(client, cache_name, ReadOptions())
    found = {}
    for item in reader.batches(range(reader.partition_count)):
        for i in range(item.count):
            pair = plain(item.batch.key, i)
            found[pair["ID"], pair["N"]] = plain(item.batch.columns["val"], i)
    assert found == {(i // 3, i % 3): i for i in range(12)}


def test_sql_dates(client, cache_name):
    """By INSERT a DATE is an object in Java's own serialization."""
    client.sql(
        f'CREATE TABLE "{cache_name}" (ID INT PRIMARY KEY, D DATE, TS TIMESTAMP)'
        f' WITH "CACHE_NAME={cache_name},VALUE_TYPE={cache_name}_V"'
    )
    days = ["1583-01-01", "1969-12-31", "1970-01-01", "2024-02-29", "9999-12-31"]
    for i, day in enumerate(days):
        client.sql(f"INSERT INTO \"{cache_name}\" VALUES ({i}, DATE '{day}', NULL)")
    client.sql(f'INSERT INTO "{cache_name}" VALUES (9, NULL, NULL)')
    asked = client.sql(f"SELECT ID, DATEDIFF('DAY', DATE '1970-01-01', D) FROM \"{cache_name}\"")
    expected = {key: None if n is None else n * 86_400_000 for key, n in asked.fetchall()}
    _, found = records(client, cache_name, fields=["D"], raw_nulls=True)
    offset = found[2]["D"]  # midnight of 1970 in the node's time zone
    assert found[3]["D"] - offset == 19_782 * 86_400_000
    if offset == 0:
        # Java's calendar had other leap years before 1582, and the years since are the same.
        assert {k: v["D"] for k, v in found.items()} == expected
    rows = first_rows(client, cache_name, 10)
    times = {r["key"]: None if r["D"] is None else int(r["D"].astype("i8")) for r in rows}
    assert times == {k: v["D"] for k, v in found.items()}
    assert [r["TS"] for r in rows] == [None] * 6  # a column is a field, whatever it holds


def test_days_and_times_are_what_sql_shows(client, cache_name):
    """Before 1582-10-15 Java counts by another calendar; a time of day may be any moment."""
    days = ["0001-01-01", "1457-01-01", "1582-10-04", "1582-10-15", "1969-12-31", "9999-12-31"]
    moments = [datetime.datetime.fromisoformat(f"{day} 01:02:03") for day in days]
    table = pa.table({"D": [m.date() for m in moments], "T": pa.array(moments, pa.timestamp("us"))})
    load_dataset(table, cache_name, client=client)
    shown = client.sql(f'SELECT CAST(D AS VARCHAR), CAST(T AS VARCHAR) FROM "{cache_name}"')
    assert sorted(text[:10] for row in shown for text in row) == sorted(2 * days)
    fields = {"D": "int64", "T": "datetime64[us]"}
    for way in ({}, {"order": "keys"}, {"shuffle": 1}):
        for batch in open_rows(cache_name, client=client, schema=fields, **way).batches():
            expected = np.array(moments, "M8[us]")[batch["key"]]
            assert (batch["val"]["T"].astype("M8[us]") == expected).all()
            assert (batch["val"]["D"].astype("M8[ms]") == expected.astype("M8[D]")).all()


def test_times_of_day_may_be_any_moment(client, cache_name):
    cache = client.pyignite.get_or_create_cache(cache_name)
    hours = [-1, 0, 23, 25]
    for hour in hours:
        cache.put(hour, datetime.timedelta(hours=hour), value_hint=t.TimeObject)
    _, found = records(client, cache_name)
    assert {k: v["val"] for k, v in found.items()} == {h: h % 24 * 3_600_000 for h in hours}
