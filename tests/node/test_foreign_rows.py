"""What Java programs and SQL store, of any key, field, version and affinity function, is read."""

from decimal import Decimal

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.plain_nodes import CURRENT, plain_cluster

from ignitetf import connect, open_rows
from ignitetf.errors import ConfigError, SchemaError
from ignitetf.explore.head import first_rows
from ignitetf.explore.stats import dataset_stats
from ignitetf.export.export import export_dataset
from ignitetf.tables.describe import describe, describe_table

pytestmark = [pytest.mark.node, pytest.mark.slow]

PROGRAM = ROOT / "tests" / "data" / "java" / "ForeignNode.java"
ROWS = 24
OLD = "2.8.1"  # it stores no schema for an object without fields, and tells less of columns


@pytest.fixture(scope="module", params=[CURRENT, OLD])
def foreign(request, node_home, tmp_path_factory):
    """A client of a cluster with what `ForeignNode` stores; the current one has two members."""
    folder = tmp_path_factory.mktemp("foreign")
    count = 2 if request.param == CURRENT else 1
    with (
        plain_cluster(node_home, folder, request.param, count=count, program=PROGRAM) as cluster,
        connect(cluster.addresses) as client,
    ):
        yield client


def columns(client, cache, **options):
    """All rows as (key, {field: values}), in the order in which they are read."""
    options = {"nulls": "default", **options}
    batch = next(iter(open_rows(cache, client=client, **options).batches(1 << 16)))
    return batch["key"], batch["val"]


def left(client, cache, **options):
    """The numbers of all rows, ascending."""
    return sorted(columns(client, cache, **options)[1]["left"].tolist())


KEYS = [
    "LONG", "STRING", "UUID", "TIMESTAMP", "LOCAL_DATE", "DECIMAL", "BYTES", "PAIR", "TWO_CLASSES",
    "AFFINITY", "AFFINITY_PAIR", "AFFINITY_NULL", "TUPLE", "INTS_AND_LONGS", "LONGS_AND_STRINGS",
    "EXTERNALIZABLE", "RAW", "IGNITE_UUID",
]  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_no_kind_of_key_hides_a_row(foreign, kind, tmp_path):
    cache, numbers = f"KEYS_{kind}", list(range(ROWS))
    assert left(foreign, cache) == numbers
    assert left(foreign, cache, shuffle=3) == numbers
    if kind != "TUPLE":  # which a node does not find by what it stored itself
        assert left(foreign, cache, order="global") == numbers
    rows = first_rows(foreign, cache, 2 * ROWS)
    assert sorted(row["left"] for row in rows) == numbers
    texts = {row["left"]: row["right"] for row in rows}
    assert texts == {i: None if i % 3 == 0 else f"right {i}" for i in numbers}
    found = {each.name: each for each in dataset_stats(foreign, cache).columns}
    assert found["left"].maximum == ROWS - 1
    assert {"left", "right"} <= {field["name"] for field in describe(foreign, cache)["fields"]}
    names = ["left", "right"] if kind not in ("PAIR", "TWO_CLASSES") else []  # the key's own
    report = export_dataset(cache, str(tmp_path / "rows.parquet"), client=foreign, fields=names)
    assert report.rows == ROWS


def test_keys_that_cannot_be_read_are_the_bytes_that_are_stored(foreign):
    for kind in ("INTS_AND_LONGS", "LONGS_AND_STRINGS", "EXTERNALIZABLE", "RAW", "IGNITE_UUID"):
        keys, _ = columns(foreign, f"KEYS_{kind}")
        assert len({bytes(key) for key in keys}) == ROWS
    keys, values = columns(foreign, "KEYS_INTS_AND_LONGS")
    for key, number in zip(keys, values["left"].tolist(), strict=True):
        size, code = (4, 3) if number % 2 == 0 else (8, 4)
        assert bytes(key) == bytes([code]) + (number // 2).to_bytes(size, "little")


def test_objects_that_ignite_writes_without_registering_them_are_read(foreign):
    keys, values = columns(foreign, "KEYS_AFFINITY")
    assert keys["key"].tolist() == values["left"].tolist()
    assert keys["affKey"].tolist() == [f"group {i % 3}".encode() for i in values["left"]]
    keys, values = columns(foreign, "KEYS_AFFINITY_PAIR")
    assert keys["key"]["left"].tolist() == keys["affKey"].tolist() == values["left"].tolist()
    keys, values = columns(foreign, "KEYS_TUPLE")
    assert keys["val1"].tolist() == values["left"].tolist()


def test_any_key_is_read_as_stored_where_that_is_asked_for(foreign):
    keys, values = columns(foreign, "KEYS_LONG", schema={"key": "stored", "val": None})
    assert [bytes(k) for k in keys] == [
        b"\4" + number.to_bytes(8, "little") for number in values["left"].tolist()
    ]
    assert sorted(values) == ["left", "right"]


def test_an_object_without_fields_hides_no_other(foreign):
    assert left(foreign, "VALUES_SOME_NO_FIELDS") == [0] * (ROWS // 2) + list(range(0, ROWS, 2))
    keys, values = columns(foreign, "VALUES_NO_FIELDS")
    assert sorted(keys.tolist()) == list(range(ROWS))
    assert values == {}


def test_a_field_that_cannot_be_read_hides_no_other_and_its_hint_leads_out(foreign):
    rows = first_rows(foreign, "VALUES_ODD_FIELDS", ROWS)
    assert [row["pair"]["key"] for row in rows] == [row["left"] for row in rows]
    with pytest.raises(SchemaError) as caught:
        columns(foreign, "VALUES_ODD_FIELDS")
    assert "fields=[...]" in caught.value.hint
    assert left(foreign, "VALUES_ODD_FIELDS", fields=["left", "pair"]) == list(range(ROWS))


@pytest.mark.parametrize("cache", ["VALUES_PLAIN_OF_TWO", "VALUES_SOME_RAW"])
def test_values_that_cannot_be_read_hide_no_key(foreign, cache):
    assert sorted(row["key"] for row in first_rows(foreign, cache, ROWS)) == list(range(ROWS))
    with pytest.raises(SchemaError) as caught:
        columns(foreign, cache)
    assert caught.value.hint == "fields=[] reads the keys alone"
    assert sorted(columns(foreign, cache, fields=[])[0].tolist()) == list(range(ROWS))


def test_a_field_that_is_null_everywhere_has_its_registered_type(foreign):
    _, values = columns(foreign, "VALUES_NULL_FIELD", schema={"left": "int32", "right": str})
    assert values["right"].tolist() == [b""] * ROWS
    assert columns(foreign, "VALUES_NULL_FIELD")[1]["right"].tolist() == [b""] * ROWS
    assert {row["right"] for row in first_rows(foreign, "VALUES_NULL_FIELD", ROWS)} == {None}


@pytest.mark.parametrize(("cache", "partitions"), [("OWN_AFFINITY", 7), ("OWN_AFFINITY_TEXTS", 32)])
def test_no_affinity_function_hides_a_row(foreign, cache, partitions):
    numbers = list(range(ROWS))
    assert foreign.partition_count(cache) == describe(foreign, cache)["partitions"] == partitions
    for options in ({}, {"shuffle": 1}, {"order": "keys"}, {"order": "global"}, {"readers": 3}):
        assert left(foreign, cache, **options) == numbers
    shards = [left(foreign, cache, shard=(i, 3), even=None) for i in range(3)]
    assert sorted(np.concatenate(shards).tolist()) == numbers
    with pytest.raises(ConfigError, match="does not report which partitions a node owns"):
        open_rows(cache, client=foreign, local=True)


def test_a_description_has_the_fields_that_readers_have(foreign):
    """Also those that are not columns of the table of the class."""
    names = {field["name"] for field in describe(foreign, "People")["fields"]}
    assert names == set(columns(foreign, "People")[1])
    assert {"inner", "hidden"} <= names
    assert {field["name"] for field in describe_table(foreign, "HUMAN")["fields"]} == {
        name.upper() for name in names - {"inner", "hidden"}
    }


def test_values_of_a_class_are_the_same_in_rows_and_in_sql(foreign):
    (row,) = (row for row in first_rows(foreign, "People", ROWS) if row["age"] == 7)
    query = 'SELECT {} FROM "People".HUMAN WHERE age = 7'
    ((salary, rank, pair, years),) = foreign.sql(query.format("salary, rank, pair, years"))
    ((value,),) = foreign.sql(query.format("_val"))
    assert (row["rank"], row["inner"]) == (rank, value["inner"]) == ("MAJOR", "MAJOR")
    assert (row["pair"], row["years"]) == (pair, years) == ({"left": 7, "right": "right 7"}, [7])
    assert Decimal(row["salary"]) == salary == value["salary"] == Decimal("7.25")
    stats = {each.name: each for each in dataset_stats(foreign, "People").columns}
    assert (stats["salary"].minimum, stats["salary"].maximum) == (Decimal("0.25"), Decimal("23.25"))


# SQL tables


@pytest.fixture
def table(foreign):
    """Makes the table T of these columns."""

    def make(columns, rows=(), options=""):
        foreign.sql(f"CREATE TABLE T ({columns}) {options}")
        for row in rows:
            foreign.sql(f"INSERT INTO T {row}")
        return foreign

    yield make
    foreign.sql("DROP TABLE IF EXISTS T")


def test_a_row_of_nothing_but_its_key_is_read(table):
    client = table("ID BIGINT PRIMARY KEY, A INT", ["(ID, A) VALUES (1, 5)", "(ID) VALUES (2)"])
    keys, values = columns(client, "T", order="keys", nulls="mask")
    assert keys.tolist() == [1, 2]
    assert values["A"].tolist() == [5, 0]
    assert values["A_valid"].tolist() == [True, False]


def test_a_dropped_column_is_gone(table):
    client = table(
        "ID BIGINT PRIMARY KEY, A INT, OLD VARCHAR",
        ["(ID, A, OLD) VALUES (1, 5, 'old')", "(ID, A, OLD) VALUES (2, 6, 'old')"],
    )
    client.sql("ALTER TABLE T DROP COLUMN OLD")
    client.sql("INSERT INTO T (ID, A) VALUES (3, 7)")
    _, values = columns(client, "T", nulls="error")
    assert sorted(values["A"].tolist()) == [5, 6, 7]
    assert sorted(values) == ["A"]
    for options in ({"fields": ["OLD"]}, {"schema": {"OLD": str}}):
        with pytest.raises(SchemaError, match="no field 'OLD'"):
            columns(client, "T", **options)


def test_fields_of_a_class_that_are_no_columns_are_read_by_name(table):
    client = table(
        "ID BIGINT PRIMARY KEY, A INT, OTHER INT",
        ["(ID, A, OTHER) VALUES (1, 5, 6)"],
        'WITH "VALUE_TYPE=OfAProgram"',
    )
    client.sql("ALTER TABLE T DROP COLUMN OTHER")  # leaves a field that is no column
    assert sorted(columns(client, "T")[1]) == ["A"]
    assert columns(client, "T", fields=["OTHER"])[1]["OTHER"].tolist() == [6]
    with pytest.raises(SchemaError, match="no field 'ANOTHER'"):
        columns(client, "T", fields=["ANOTHER"])


def test_a_column_without_a_value_is_a_field(table):
    client = table(
        'ID BIGINT PRIMARY KEY, A INT, B VARCHAR, "mIx" DOUBLE', ["(ID, A) VALUES (1, 5)"]
    )
    client.sql("ALTER TABLE T ADD COLUMN LATER TIMESTAMP")
    (row,) = first_rows(client, "T")
    assert row == {"key": 1, "A": 5, "B": None, "LATER": None, "mIx": None}
    declared = {"A": "int32", "B": str, "mIx": "float64", "LATER": "datetime64[ms]"}
    for options in ({}, {"schema": declared}, {"fields": list(declared)}):
        _, values = columns(client, "T", **options)
        assert values["mIx"].dtype == np.float64
        assert values["B"].tolist() == [b""]
        assert sorted(values) == sorted(declared)
    with pytest.raises(SchemaError, match="stored as STRING"):
        columns(client, "T", schema={"B": "int64"})


def test_a_composite_key_has_its_columns_and_the_value_the_others(table):
    client = table(
        "X BIGINT, Y VARCHAR, A INT, B INT, PRIMARY KEY (X, Y)", ["(X, Y, A) VALUES (1, 'y', 5)"]
    )
    assert first_rows(client, "T") == [{"key": {"X": 1, "Y": "y"}, "A": 5, "B": None}]


def test_a_table_without_rows_has_its_columns(table):
    client = table('ID INT PRIMARY KEY, A INT, "b" VARCHAR')
    assert first_rows(client, "T") == []
    assert list(open_rows("T", client=client).batches(4)) == []
    with pytest.raises(SchemaError, match="no field 'C'"):
        open_rows("T", client=client, fields=["C"])


def test_a_key_of_another_type_far_behind_the_first_rows_hides_nothing(client, cache_name):
    client.pyignite.create_cache(cache_name)
    cache = client.cache(cache_name)
    cache.put_all({number: number for number in range(9_000)})
    cache.put("far", -1)
    with pytest.raises(SchemaError, match="field 'key' is") as caught:
        list(open_rows(cache_name, client=client).batches(1_000))
    assert "schema={'key': 'stored', 'val': None}" in caught.value.hint
    keys, values = columns(client, cache_name, schema={"key": "stored", "val": None})
    assert len({bytes(key) for key in keys}) == 9_001
    assert sorted(values.tolist()) == list(range(-1, 9_000))
    reasons = {}
    rows = first_rows(client, cache_name, 10_000, on_left_out=reasons.__setitem__)
    assert sorted(row["val"] for row in rows) == list(range(-1, 9_000))
    assert list(reasons) == ["key"]
