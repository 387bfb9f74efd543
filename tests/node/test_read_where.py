"""`where=` gives the rows that SQL gives for the condition over the whole table, or refuses it."""

import datetime
import decimal
import uuid

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyignite.datatypes import prop_codes
from pyignite.datatypes.cache_config import CacheMode

from ignitetf import load_dataset
from ignitetf.errors import ConfigError, DataChanged, SqlError
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.scans import ScanReading

pytestmark = pytest.mark.node

ROWS = 40
PARTITIONS = (1, 8, 64)


def keys_of(client, cache, where, params=(), **options):
    """The keys that a reader gives for a condition, in its order."""
    options = ReadOptions(where=where, where_params=params, nulls="default", **options)
    reader = CacheReader(client, cache, options)
    every = range(reader.partition_count)
    return [
        int(key)
        for item in reader.batches(every)
        if item.batch is not None
        for key in item.batch.key.values
    ]


@pytest.fixture(scope="module")
def tables(client):
    """The same rows in 1, 8 and 64 partitions, and a smaller table to compare with."""
    names = [f"WHERE_{count}" for count in PARTITIONS]
    for name in (*names, "WHERE_O"):
        client.sql(f"DROP TABLE IF EXISTS {name}").close()
    columns = "ID BIGINT PRIMARY KEY, A INT, B DOUBLE, C VARCHAR"
    values = ", ".join(
        f"({i}, {'NULL' if i % 7 == 3 else i % 10}, {(i * 37 % 11) / 2},"
        f" {'NULL' if i % 5 == 4 else repr(f'n{i % 6}')})"
        for i in range(ROWS)
    )
    for name, count in zip(names, PARTITIONS, strict=True):
        client.sql(f'CREATE TABLE {name} ({columns}) WITH "TEMPLATE=p{count},CACHE_NAME={name}"')
        client.sql(f"INSERT INTO {name} (ID, A, B, C) VALUES {values}")
    client.sql('CREATE TABLE WHERE_O (ID INT PRIMARY KEY, X INT) WITH "TEMPLATE=p8"')
    client.sql("INSERT INTO WHERE_O VALUES (1, 1), (2, 4), (3, 4), (4, 8), (5, NULL)")
    yield names
    for name in (*names, "WHERE_O"):
        client.sql(f"DROP TABLE IF EXISTS {name}").close()


NUMBER = st.integers(-1, 11).map(str) | st.just("NULL")
TEXT = st.sampled_from(["n1", "n%", "%2", "--", "it''s", "select", "? ; )"])
OP = st.sampled_from(["<", "<=", "=", "<>", ">", ">="])
OF_A_ROW = st.one_of(
    st.builds("A {} {}".format, OP, NUMBER),
    st.builds('"A" {} {} -- A < 0\n'.format, OP, NUMBER),
    st.builds("B BETWEEN {} AND {}".format, NUMBER, NUMBER),
    st.builds("C LIKE '{}'".format, TEXT),
    st.builds("C {} '{}'".format, OP, TEXT),
    st.builds("A {} IN ({}, {})".format, st.sampled_from(["", "NOT"]), NUMBER, NUMBER),
    st.builds("{} IS {} NULL".format, st.sampled_from("ABC"), st.sampled_from(["", "NOT"])),
    st.builds("COALESCE(A, {}) {} MOD(ID, 7)".format, NUMBER, OP),
    st.builds("{{T}}.A {} CAST(B AS INT) /* (SELECT 1) */".format, OP),
)
OF_MANY = st.one_of(
    st.builds("B {} (SELECT AVG(B) FROM {{T}} S WHERE S.A < {})".format, OP, NUMBER),
    st.builds("ID = (SELECT {}(ID) FROM {{T}})".format, st.sampled_from(["MIN", "MAX"])),
    st.builds(
        "A {} IN (SELECT X FROM WHERE_O WHERE X < {})".format, st.sampled_from(["", "NOT"]), NUMBER
    ),
    st.builds("EXISTS (SELECT 1 FROM WHERE_O O WHERE O.X = {{T}}.A AND O.ID {} 3)".format, OP),
    st.builds("ID IN (SELECT S.ID FROM {{T}} S JOIN WHERE_O O ON O.X = S.A AND S.B > {})".format,
              NUMBER),
    st.just("ID IN (SELECT MAX(ID) FROM {T} GROUP BY A)"),
    st.just("ID IN (SELECT ID FROM {T} ORDER BY ID LIMIT 5)"),
)  # fmt: skip


def joined(inner):
    return st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]), inner) | (
        inner.map("NOT ({})".format)
    )


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.recursive(OF_A_ROW | OF_MANY, joined, max_leaves=3))
def test_any_condition_chooses_the_rows_that_sql_chooses(client, tables, condition):
    for table in tables:
        where = condition.replace("{T}", table)
        try:
            rows = client.sql(f"SELECT ID FROM {table} WHERE ({where}\n)").fetchall()
        except SqlError:
            with pytest.raises((SqlError, ConfigError)):
                keys_of(client, table, where)
            continue
        try:
            found = keys_of(client, table, where)
        except ConfigError:
            assert len(client.nodes()) > 1, "one node can evaluate all of them"
            continue
        assert sorted(found) == sorted(row[0] for row in rows), where


@pytest.mark.parametrize(
    ("where", "params", "says"),
    [
        ("A = 1) OR (1 = 1", (), "closes nothing"),
        ("(A = 1", (), "not closed"),
        ("A = 1; DROP TABLE WHERE_1", (), "';'"),
        ("C = 'x", (), "not closed"),
        ("A = 1 /* x", (), "not closed"),
        ("A = ?1", (1,), "numbers"),
        ("-- A", (), "no condition"),
        ("WHERE A = 1", (), "WHERE"),
        ("RAND() < 0.5", (), "RAND"),
        ('"RAND"() < 0.5', (), "RAND"),
        ("A < Now()", (), "Now"),
        ("CURRENT_TIMESTAMP > '2020-01-01'", (), "CURRENT_TIMESTAMP"),
        ("ROWNUM < 5", (), "ROWNUM"),
        ("@X = 5", (), "@"),
        ("ID IN (SELECT ID FROM WHERE_O LIMIT 2)", (), "ORDER BY"),
        ("A = ?", (), "takes 1"),
        ("A = ? AND C <> '?'", (1, 2), "takes 1"),
        ("A = ?", (2**70,), "64 bits"),
        ("A = ?", (float,), "type"),
        ("A = ?", ([1],), "type list"),
    ],
)
def test_what_is_no_condition_or_none_that_stays_the_same_is_refused(
    client, tables, where, params, says
):
    with pytest.raises(ConfigError, match=says) as caught:
        keys_of(client, tables[1], where, params)
    assert caught.value.hint or "64 bits" in says


def test_parameters_are_values_in_both_ways_to_evaluate(client, tables):
    table = tables[1]
    for where in ("A = ?", f"A = ? AND ID IN (SELECT ID FROM {table})"):
        expected = [i for i in range(ROWS) if i % 7 != 3 and i % 10 == 4]
        for value in (4, np.int32(4), np.uint8(4), 4.0, np.float32(4), decimal.Decimal("4.0"), "4"):
            assert sorted(keys_of(client, table, where, (value,))) == expected
        assert keys_of(client, table, where, (None,)) == []
    hostile = ("' OR 1=1 --",)
    assert keys_of(client, table, "C = ?", hostile) == []


def test_the_order_is_that_of_the_partitions_either_way(client, tables):
    table = tables[1]
    whole = keys_of(client, table, None)
    half = keys_of(client, table, f"A < 5 AND ID IN (SELECT ID FROM {table})")
    assert half == [key for key in whole if key in set(half)]
    assert len(half) > 5


def test_values_of_every_kind_that_a_column_can_have(client, cache_name):
    moment = datetime.datetime(2020, 2, 29, 1, 2, 3, 456789)
    values = {
        "U UUID": uuid.uuid4(),
        "D DECIMAL(40, 20)": decimal.Decimal("-12345678901234567890.12345678901234567890"),
        "T TIMESTAMP": moment,
        "H TIME": datetime.time(1, 2, 3),
        "R VARBINARY": b"\0\xff",
        "S VARCHAR": "ß 'q' \U0001f600",
        "L BIGINT": -(2**63),
        "F DOUBLE": 1e300,
        "O BOOLEAN": True,
    }
    columns = ", ".join(values)
    client.sql(
        f"CREATE TABLE {cache_name} (ID BIGINT PRIMARY KEY, {columns})"
        f' WITH "TEMPLATE=p8,CACHE_NAME={cache_name}"'
    )
    marks = ", ".join("?" for _ in values)
    client.sql(f"INSERT INTO {cache_name} VALUES (0, {marks})", list(values.values()))
    client.sql(f"INSERT INTO {cache_name} (ID) VALUES (1)")
    for column, value in values.items():
        name = column.split()[0]
        rows = client.sql(f"SELECT {name} FROM {cache_name} WHERE {name} = ?", (value,)).fetchall()
        shown = value
        if isinstance(value, datetime.time):
            shown = datetime.timedelta(hours=1, minutes=2, seconds=3)
        assert rows == [(shown,)], column
        found = keys_of(client, cache_name, f"{name} = ?", (value,), fields=["L"])
        assert found == [0], column
    zoned = moment.replace(tzinfo=datetime.UTC)
    east = datetime.timezone(datetime.timedelta(hours=3))
    for same in (zoned, zoned.astimezone(east), np.datetime64(moment)):
        assert keys_of(client, cache_name, "T = ?", (same,), fields=["L"]) == [0]


# Ignite can use no schema with a double quote in it, and then no other new one either.
ODD_NAMES = ["lower", "a.b.C", "it's; --", "Größe 表"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_of_every_kind(client, name):
    """Schema of a cache that another program configured; table and columns made by SQL."""
    cache = client.pyignite.create_cache(odd_config(name, [("T", "ÄÜ")]))
    column = name.replace(".", "-")  # a dot would lead into an object
    client.sql(
        f'CREATE TABLE "{name} 2" ("id" BIGINT PRIMARY KEY, "{column}" INT)'
        f' WITH "CACHE_NAME=ODD_SQL,TEMPLATE=p8"'
    )
    try:
        for table, field, of in (
            (f'"{name}".T', "ÄÜ", name),
            (f'PUBLIC."{name} 2"', column, "ODD_SQL"),
        ):
            for key in range(12):
                client.sql(f'INSERT INTO {table} (_KEY, "{field}") VALUES (?, ?)', (key, key % 3))
            assert sorted(keys_of(client, of, f'"{field}" = ?', (1,))) == [1, 4, 7, 10]
            assert keys_of(client, of, f"_KEY = (SELECT MAX(_KEY) FROM {table})") == [11]
    finally:
        cache.destroy()
        client.sql(f'DROP TABLE "{name} 2"').close()


def odd_config(name, tables):
    return {
        prop_codes.PROP_NAME: name,
        prop_codes.PROP_CACHE_MODE: CacheMode.PARTITIONED,
        prop_codes.PROP_QUERY_ENTITIES: [
            {
                "table_name": table,
                "key_field_name": None,
                "key_type_name": "java.lang.Long",
                "field_name_aliases": [],
                "query_fields": [
                    {"name": field, "type_name": "java.lang.Integer", "is_key_field": False,
                     "is_notnull_constraint_field": False}
                ],
                "query_indexes": [],
                "value_type_name": f"Odd{number}",
                "value_field_name": None,
            }
            for number, (table, field) in enumerate(tables)
        ],
    }  # fmt: skip


def test_a_cache_with_two_tables_asks_which_one_is_meant(client, cache_name):
    cache = client.pyignite.create_cache(odd_config(cache_name, [("CATS", "A"), ("DOGS", "B")]))
    for key in range(20):
        table, field = ("CATS", "A") if key % 2 else ("DOGS", "B")
        client.sql(
            f'INSERT INTO "{cache_name}".{table} (_KEY, {field}) VALUES (?, ?)', (key, key % 4)
        )
    with pytest.raises(ConfigError, match="has 2 SQL tables") as caught:
        keys_of(client, cache_name, "_KEY >= 0")
    assert "CATS" in caught.value.hint
    assert "table=" in caught.value.hint
    for table in ("CATS", "cats", f"{cache_name}.CATS", f'"{cache_name}"."CATS"'):
        assert sorted(keys_of(client, cache_name, "A = 3", table=table)) == [3, 7, 11, 15, 19]
    assert sorted(keys_of(client, cache_name, None, table="DOGS")) == list(range(0, 20, 2))
    whole = "B = (SELECT MAX(B) FROM DOGS)"
    assert sorted(keys_of(client, cache_name, whole, table="DOGS")) == [2, 6, 10, 14, 18]
    with pytest.raises(ConfigError, match="no table 'COWS'") as caught:
        keys_of(client, cache_name, "A = 3", table="COWS")
    assert "DOGS" in caught.value.hint
    cache.destroy()


def test_keys_of_every_kind_are_found_again(client, cache_name):
    """The whole-table way compares keys by their bytes."""
    for number, kind in enumerate(["VARCHAR", "UUID", "INT", "DECIMAL", "TIMESTAMP"]):
        name = f"{cache_name}_{number}"
        client.sql(f'CREATE TABLE {name} (K {kind} PRIMARY KEY, A INT)'
                   f' WITH "TEMPLATE=p8,CACHE_NAME={name}"')  # fmt: skip
        for a in range(9):
            key = {"VARCHAR": "k" * a, "UUID": uuid.UUID(int=a), "INT": a, "DECIMAL":
                   decimal.Decimal(10) ** a, "TIMESTAMP": datetime.datetime(2020, 1, 1 + a)}[kind]  # fmt: skip
            client.sql(f"INSERT INTO {name} VALUES (?, ?)", (key, a))
        assert values_of(client, name, f"A >= (SELECT AVG(A) FROM {name})") == list(range(4, 9))
    name = f"{cache_name}_C"
    client.sql(f"CREATE TABLE {name} (P VARCHAR, Q INT, A INT, PRIMARY KEY (P, Q))"
               f' WITH "TEMPLATE=p8,CACHE_NAME={name},AFFINITY_KEY=P"')  # fmt: skip
    for a in range(9):
        client.sql(f"INSERT INTO {name} VALUES (?, ?, ?)", ("p" * (a % 4), a, a))
    assert values_of(client, name, f"A >= (SELECT AVG(A) FROM {name})") == list(range(4, 9))


def values_of(client, cache, where):
    reader = CacheReader(client, cache, ReadOptions(where=where))
    batches = [b.batch for b in reader.batches(range(reader.partition_count)) if b.batch]
    return sorted(int(v) for batch in batches for v in batch.columns["A"].values)


def test_a_condition_calls_the_table_by_the_name_of_the_data_set(client, cache_name):
    """A data set keeps its name when another cache, with a table of another name, holds it."""
    for version in range(3):
        load_dataset({"A": np.arange(20) + version}, cache_name, client=client, partitions=8,
                     if_exists="replace")  # fmt: skip
        name = f'"{cache_name}"'
        assert len(keys_of(client, cache_name, f"{cache_name}.A > 10")) == 9 + version
        whole = f"{name}.A = (SELECT MAX(S.A) FROM {name} S WHERE S.A <= {name}.A + 100)"
        assert len(keys_of(client, cache_name, whole)) == 1
        assert len(keys_of(client, cache_name, "A > 10", table=cache_name)) == 9 + version


def test_rows_that_go_away_between_the_keys_and_the_rows_are_told(client, cache_name, monkeypatch):
    load_dataset({"A": np.arange(50)}, cache_name, client=client, partitions=8)
    reader = CacheReader(client, cache_name, ReadOptions(
        where=f"A >= (SELECT MIN(A) FROM {cache_name})"))  # fmt: skip
    wanted = ScanReading._wanted_keys

    def removed_after(self, selection):
        found = wanted(self, selection)
        client.sql(f"DELETE FROM {cache_name} WHERE A = 7")
        return found

    monkeypatch.setattr(ScanReading, "_wanted_keys", removed_after)
    with pytest.raises(DataChanged, match="49 entries"):
        list(reader.batches(range(reader.partition_count)))
