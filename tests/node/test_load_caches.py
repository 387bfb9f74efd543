"""Caches and tables are what was asked for, or are not there."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from pyignite import GenericObjectMeta
from pyignite.datatypes import (
    BoolArrayObject,
    BoolObject,
    ByteArrayObject,
    ByteObject,
    DateObject,
    DecimalObject,
    DoubleArrayObject,
    DoubleObject,
    FloatArrayObject,
    FloatObject,
    IntArrayObject,
    IntObject,
    LongArrayObject,
    LongObject,
    ShortArrayObject,
    ShortObject,
    String,
    StringArrayObject,
    TimeObject,
    TimestampObject,
    UUIDObject,
)

from ignitetf.errors import CacheExists, CacheNotFound, ConfigError, SqlError
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import Client, connect
from ignitetf.sql import text_of
from ignitetf.tables.caches import create_cache, create_table
from ignitetf.tables.describe import describe, find_table, list_caches, list_tables
from ignitetf.tables.removal import clear_cache, drop_cache, drop_table, remove_cache
from ignitetf.tables.spec import CacheSpec
from ignitetf.tables.statements import create_tables
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import BYTES, Field, Schema, field_for

pytestmark = pytest.mark.node

KEY = field_for("key", np.dtype("i8"))


@pytest.fixture
def name(client: Client) -> Iterator[str]:
    """A new name; what was made under it is removed."""
    prefix = f"CLI_{uuid.uuid4().hex[:8].upper()}"
    yield prefix
    for cache in client.cache_names():
        if cache.upper().startswith(prefix):
            with contextlib.suppress(CacheNotFound):
                drop_cache(client, cache)


def schema(name: str, *fields: Field) -> Schema:
    return Schema(name, KEY, fields or (field_for("IMAGE", np.dtype("u1"), (784,)),))


@pytest.mark.parametrize("partitions", [1, 2, 16, 1024])
def test_tables_have_the_wanted_partitions_and_backups(client, name, partitions):
    spec = CacheSpec(name, partitions=partitions, backups=1)
    create_table(client, schema(name), name, spec)
    row = next(r for r in list_caches(client) if r["name"] == name)
    assert (row["partitions"], row["backups"], row["mode"]) == (partitions, 1, "PARTITIONED")
    assert client.partition_count(name) == partitions
    assert describe(client, name)["partition_loss"] == "READ_WRITE_SAFE"


@pytest.mark.parametrize("partitions", [None, 8])
def test_caches_take_keys_and_values_of_every_type(client, name, partitions):
    create_cache(client, CacheSpec(name, partitions=partitions, backups=1))
    cache = client.cache(name)
    entries = {1: b"bytes", "text": 2, 2.5: "three", b"k": [1.0, 2.0]}
    for key, value in entries.items():
        cache.put(key, value)
    assert {key: cache.get(key) for key in entries} == entries
    assert client.partition_count(name) == (partitions or 1024)
    assert name not in {t["table"] for t in list_tables(client)}


@pytest.mark.parametrize("partitions", [None, 8])
def test_transactional_and_replicated(client, name, partitions):
    spec = CacheSpec(name, partitions=partitions, atomicity="TRANSACTIONAL")
    create_cache(client, spec)
    assert describe(client, name)["atomicity"] == "TRANSACTIONAL"
    create_cache(client, CacheSpec(name + "_R", mode="REPLICATED"))
    create_table(client, schema(name), name + "_T", CacheSpec(name + "_T", mode="REPLICATED"))
    for cache in (name + "_R", name + "_T"):
        assert describe(client, cache)["mode"] == "REPLICATED"


@pytest.mark.parametrize("kind", ["cache", "table"])
def test_a_missing_template_prints_the_xml_and_leaves_nothing(client, name, kind):
    before = client.cache_names()
    spec = CacheSpec(name, partitions=7)
    with pytest.raises(ConfigError) as caught:
        if kind == "cache":
            create_cache(client, spec)
        else:
            create_table(client, schema(name), name, spec)
    assert "p7*" in caught.value.message
    assert 'name="name" value="p7*"' in (caught.value.hint or "")
    assert "--template-partitions 7" in (caught.value.hint or "")
    assert client.cache_names() == before


@pytest.mark.parametrize("partitions", [0, -1, 65_001])
def test_impossible_partitions(partitions):
    with pytest.raises(ConfigError, match=str(partitions)):
        CacheSpec("X", partitions=partitions)


def test_replicated_takes_no_partitions():
    with pytest.raises(ConfigError):
        CacheSpec("X", partitions=8, mode="REPLICATED")


def test_what_exists_is_not_made_again(client, name):
    create_cache(client, CacheSpec(name, partitions=4))
    client.cache(name).put(1, 1)
    for make in (
        lambda: create_cache(client, CacheSpec(name)),
        lambda: create_cache(client, CacheSpec(name, partitions=8)),
        lambda: create_table(client, schema(name), name, CacheSpec(name)),
    ):
        with pytest.raises(CacheExists):
            make()
    assert client.partition_count(name) == 4
    assert client.cache_size(name) == 1


def test_a_table_of_another_cache_is_not_taken(client, name):
    create_table(client, schema(name), name, CacheSpec(name))
    with pytest.raises(CacheExists, match="table"):
        create_table(client, schema(name), name, CacheSpec(name + "_2", partitions=4))
    assert not client.cache_exists(name + "_2")


def test_a_wrong_index_leaves_no_table(client, name):
    with pytest.raises(SqlError):
        create_table(client, schema(name), name, CacheSpec(name), index=["IMAGE", "NO_COLUMN"])
    assert not client.cache_exists(name)


def test_names_that_cannot_stand_in_sql(client, name):
    with pytest.raises(ConfigError):
        create_table(client, schema(name), 'a"b', CacheSpec(name))
    with pytest.raises(ConfigError):
        create_table(client, schema(name, field_for("a b", np.dtype("i4"))), name, CacheSpec(name))
    assert not client.cache_exists(name)


SCALARS = [
    (TypeCode.BYTE, ByteObject, -3),
    (TypeCode.SHORT, ShortObject, 300),
    (TypeCode.INT, IntObject, 7),
    (TypeCode.LONG, LongObject, 1 << 40),
    (TypeCode.FLOAT, FloatObject, 1.5),
    (TypeCode.DOUBLE, DoubleObject, 2.5),
    (TypeCode.BOOL, BoolObject, True),
    (TypeCode.STRING, String, "häh"),
    (TypeCode.UUID, UUIDObject, uuid.UUID(int=77)),
    (TypeCode.DATE, DateObject, None),
    (TypeCode.TIMESTAMP, TimestampObject, None),
    (TypeCode.TIME, TimeObject, None),
    (TypeCode.DECIMAL, DecimalObject, None),
    (TypeCode.BYTE_ARRAY, ByteArrayObject, b"abc"),
    (TypeCode.SHORT_ARRAY, ShortArrayObject, [1, 2]),
    (TypeCode.INT_ARRAY, IntArrayObject, [1, 2]),
    (TypeCode.LONG_ARRAY, LongArrayObject, [1, 2]),
    (TypeCode.FLOAT_ARRAY, FloatArrayObject, [1.0, 2.0]),
    (TypeCode.DOUBLE_ARRAY, DoubleArrayObject, [1.0, 2.0]),
    (TypeCode.BOOL_ARRAY, BoolArrayObject, [True, False]),
    (TypeCode.STRING_ARRAY, StringArrayObject, ["a", "b"]),
]


def value_of(code: TypeCode, value: object) -> object:
    import datetime
    import decimal

    if code is TypeCode.DECIMAL:
        return decimal.Decimal("1.5")
    if code is TypeCode.TIME:
        return datetime.timedelta(seconds=5000)
    if code is TypeCode.DATE:
        return datetime.datetime(2020, 1, 2, 3, 4, 5)
    if code is TypeCode.TIMESTAMP:
        return (datetime.datetime(2020, 1, 2, 3, 4, 5), 0)
    return value


def test_sql_reads_every_type_that_pyignite_wrote(client, name):
    """One column of each type: SQL would refuse one that is not exactly the binary field's."""
    fields = tuple(Field(f"C_{code.name}", code, BYTES) for code, _, _ in SCALARS)
    create_table(client, schema(name, *fields), name, CacheSpec(name, partitions=1))
    types = OrderedDict((f"C_{code.name}", kind) for code, kind, _ in SCALARS)
    values = {f"C_{code.name}": value_of(code, value) for code, _, value in SCALARS}
    row = GenericObjectMeta(name, (), {}, schema=types)(**values)
    client.cache(name).put(5, row, key_hint=LongObject)
    with client.sql(f'SELECT * FROM "{name}"') as result:
        found = dict(zip(result.columns, next(iter(result)), strict=True))
    assert found.pop("ID") == 5
    expected = {
        column: value[0] if isinstance(value, tuple) else value for column, value in values.items()
    }
    assert found == expected


@pytest.mark.parametrize(
    ("code", "kind", "value", "table"),
    [
        (TypeCode.BYTE_ARRAY, ByteArrayObject, b"x", True),
        (TypeCode.LONG, LongObject, 4, True),
        (TypeCode.STRING, String, "s", False),
        (TypeCode.FLOAT_ARRAY, FloatArrayObject, [1.0], False),
    ],
)
def test_bare_values_are_stored_and_seen_by_sql_where_it_can(
    client, name, code, kind, value, table
):
    bare = Schema(None, KEY, (Field("val", code, BYTES),))
    create_table(client, bare, name, CacheSpec(name, partitions=4))
    client.cache(name).put(1, value, key_hint=LongObject, value_hint=kind)
    assert client.cache(name).get(1, key_hint=LongObject) == value
    assert (name in {t["table"] for t in list_tables(client)}) is table
    if table:
        assert client.sql(f'SELECT ID, VAL FROM "{name}"').fetchall() == [(1, value)]


def test_lower_case_and_reserved_names(client, name):
    fields = (field_for("label", np.dtype("i4")), Field("order", TypeCode.STRING, BYTES))
    create_table(client, schema(name, *fields), name, CacheSpec(name.lower()), index=["label"])
    kinds = OrderedDict(label=IntObject, order=String)
    row = GenericObjectMeta(name, (), {}, schema=kinds)(label=3, order="o")
    client.cache(name.lower()).put(1, row, key_hint=LongObject)
    assert client.sql(f'SELECT label, "ORDER" FROM {name}').fetchall() == [(3, "o")]
    indexes = describe(client, name.lower())["indexes"]
    assert [i["name"] for i in indexes] == [f"{name.lower()}_LABEL_IDX"]


def test_composite_keys_lie_beside_their_affinity_key(client, name):
    key = Field(
        "key",
        TypeCode.OBJECT,
        BYTES,
        fields=(field_for("IMAGE_ID", np.dtype("i8")), field_for("N", np.dtype("i4"))),
    )
    label = Field("LABEL", TypeCode.STRING, BYTES)
    boxes = Schema(name, key, (label,), affinity_key="IMAGE_ID", key_type_name=f"{name}_KEY")
    create_table(client, boxes, name, CacheSpec(name, partitions=8))
    client.sql(f"INSERT INTO {name} VALUES (1, 1, 'a')").close()
    client.sql(f"INSERT INTO {name} VALUES (1, 2, 'b')").close()
    found = describe(client, name)
    assert found["affinity_key"] == "IMAGE_ID"
    assert [f["name"] for f in found["fields"] if f["key"]] == ["IMAGE_ID", "N"]
    assert [f["name"] for f in found["fields"] if f.get("affinity")] == ["IMAGE_ID"]


def test_a_key_column_gives_way_to_a_field(client, name):
    fields = (field_for("id", np.dtype("i4")), field_for("KEY", np.dtype("i4")))
    create_table(client, schema(name, *fields), name, CacheSpec(name))
    names = [f["name"] for f in describe(client, name)["fields"]]
    assert names == ["KEY_ID", "ID", "KEY"]


def test_describe_looks_at_entries_where_nothing_else_tells(client, name):
    create_cache(client, CacheSpec(name))
    assert describe(client, name)["fields"] == []
    kinds = OrderedDict(A=IntObject, B=FloatArrayObject)
    value = GenericObjectMeta(f"{name}V", (), {}, schema=kinds)(A=1, B=[1.0, 2.0])
    client.cache(name).put("k", value)
    rows = describe(client, name)["fields"]
    assert [(r["name"], r["type"], r["key"], r["shape"]) for r in rows] == [
        ("key", "STRING", True, []),
        ("A", "INT", False, []),
        ("B", "FLOAT_ARRAY", False, [2]),
    ]


def test_clear_and_drop(client, name):
    create_cache(client, CacheSpec(name, partitions=4))
    client.cache(name).put(1, 1)
    clear_cache(client, name)
    assert client.cache_size(name) == 0
    drop_cache(client, name)
    assert not client.cache_exists(name)
    for gone in (drop_cache, clear_cache, describe):
        with pytest.raises(CacheNotFound):
            gone(client, name)


@pytest.mark.parametrize("drop", [drop_cache, drop_table, remove_cache])
def test_of_two_drops_at_once_the_slower_finds_none(client, name, drop, address):
    with connect(address) as other, ThreadPoolExecutor(2) as pool:
        for delay_s in np.linspace(0, 0.006, 40):
            create_table(client, schema(name), name, CacheSpec(name, partitions=2))
            first = pool.submit(drop, client, name)
            time.sleep(delay_s)
            second = pool.submit(drop, other, name)
            failures = [first.exception(), second.exception()]
            assert {e for e in failures if not isinstance(e, CacheNotFound)} == {None}
            assert not client.cache_exists(name)


def test_tables_are_found_in_any_case_and_dropped_with_their_cache(client, name):
    create_table(client, schema(name), name, CacheSpec(name.lower(), partitions=2))
    assert find_table(client, name.lower())["cache"] == name.lower()
    with pytest.raises(CacheNotFound) as caught:
        find_table(client, name + "X")
    assert name in (caught.value.hint or "")
    drop_table(client, f"PUBLIC.{name}")
    assert not client.cache_exists(name.lower())


@pytest.mark.parametrize(
    ("statements", "tables"),
    [("mnist", ["_TEST", "_TRAIN"]), ("images", [""]), ("voc", ["_ANNOTATIONS", "_IMAGES"])],
)
def test_bundled_statements(client, name, statements, tables):
    made = create_tables(client, text_of(statements), name=name, partitions=8, backups=1)
    assert sorted(t["table"] for t in made) == [name + suffix for suffix in tables]
    for table in made:
        assert client.partition_count(table["cache"]) == 8
        assert describe(client, table["cache"])["backups"] == 1


def test_what_is_acknowledged_is_on_the_backups_too(client, name):
    """Otherwise the loss of one node loses it, in spite of the copies."""
    spec = CacheSpec(name, partitions=8, backups=1)
    create_table(client, schema(name), name, spec)
    create_cache(client, replace(spec, name=name + "_C"))
    create_cache(client, CacheSpec(name + "_D", backups=1))
    create_cache(client, CacheSpec(name + "_R", mode="REPLICATED"))
    create_tables(client, text_of("voc"), name=name, partitions=8, backups=1)
    found = client.sql(
        "SELECT CACHE_NAME, WRITE_SYNCHRONIZATION_MODE FROM SYS.CACHES"
        " WHERE CACHE_NAME = ? OR CACHE_NAME LIKE ?",
        (name, name + "\\_%"),
    ).fetchall()
    assert len(found) == 6 and {mode for _, mode in found} == {"FULL_SYNC"}, found


def test_statements_make_all_tables_or_none(client, name):
    text = (
        f'CREATE TABLE {name}_A (ID INT PRIMARY KEY, V INT) WITH "CACHE_NAME={name}_A{{options}}";'
        f'CREATE TABLE {name}_B (ID INT PRIMARY KEY, V NO_TYPE) WITH "CACHE_NAME={name}_B";'
    )
    with pytest.raises(SqlError, match="NO_TYPE"):
        create_tables(client, text, name=name, partitions=4)
    assert not [c for c in client.cache_names() if c.startswith(name)]


def test_count_beside_a_distinct_aggregate_is_explained(client, cache_name):
    """Apache Ignite fails on it, whoever made the table."""
    ids = np.arange(10)
    load_dataset({"ID": ids, "LABEL": ids % 3}, cache_name, client=client, key="ID", partitions=4)
    with pytest.raises(SqlError, match="out of bounds") as caught:
        client.sql(f"SELECT COUNT(*), COUNT(DISTINCT LABEL) FROM {cache_name}")
    assert "COUNT(1)" in caught.value.hint
    rows = client.sql(f"SELECT COUNT(1), COUNT(DISTINCT LABEL) FROM {cache_name}").fetchall()
    assert [tuple(row) for row in rows] == [(10, 3)]


def test_statements_leave_older_tables_alone(client, name):
    create_tables(client, text_of("images"), name=name)
    text = f"{text_of('voc')};{text_of('images')}"
    with pytest.raises(CacheExists):
        create_tables(client, text, name=name)
    assert [c for c in client.cache_names() if c.startswith(name)] == [name]


def test_bundled_tables_have_the_columns_that_the_loader_makes(
    client, name, voc_dir, mnist_dir, tmp_path
):
    from PIL import Image

    from ignitetf.load.sources.idx import idx
    from ignitetf.load.sources.images import images
    from ignitetf.load.sources.voc import voc

    (tmp_path / "cat").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "cat" / "a.png")
    parts = voc(str(voc_dir)).parts
    files = [str(mnist_dir / f"t10k-{part}-ubyte.gz") for part in ("images-idx3", "labels-idx1")]
    digits = idx(*files)
    cases = [
        ("mnist", "_TEST", digits.schema),
        ("images", "", images(str(tmp_path)).schema),
        ("voc", "_IMAGES", parts["images"].schema),
        ("voc", "_ANNOTATIONS", parts["annotations"].schema),
    ]
    for statements in ("mnist", "images", "voc"):
        create_tables(client, text_of(statements), name=name + statements.upper())
    for statements, suffix, records in cases:
        bundled = f"{name}{statements.upper()}{suffix}"
        loaded = f"{name}_LOADED_{statements.upper()}{suffix}"
        create_table(client, records, loaded, CacheSpec(loaded))
        assert describe(client, bundled)["fields"] == describe(client, loaded)["fields"]


@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_a_cluster_without_the_fitting_template_takes_its_own(client, name, monkeypatch, layout):
    monkeypatch.setattr("ignitetf.load.loader.partitions_for", lambda *_: 12)
    report = load_dataset([{"X": i} for i in range(50)], name, client=client, layout=layout)
    assert (report.rows, client.partition_count(name)) == (50, 1024)
    with pytest.raises(ConfigError, match="no cache template p12"):
        load_dataset([{"X": 1}], f"{name}_B", client=client, partitions=12, layout=layout)
    assert not client.cache_exists(f"{name}_B")


@pytest.mark.parametrize("listed", [list_caches, list_tables])
def test_what_others_drop_during_a_listing_is_not_listed(client, cache_name, monkeypatch, listed):
    kept, dropped = f"{cache_name}_A", f"{cache_name}_B"
    for name in (kept, dropped):
        load_dataset({"X": np.arange(3)}, name, client=client, partitions=4)
    # Caches are listed with their entries, tables with their rows.
    method, sign = ("cache_size", "") if listed is list_caches else ("sql", "COUNT(")
    ask, begun = getattr(Client, method), []

    def counted(self, text, *args, **kw):
        if sign in text and not begun:
            begun.append(text)
            remove_cache(client, dropped)
        return ask(self, text, *args, **kw)

    monkeypatch.setattr(Client, method, counted)
    found = {row.get("table", row.get("name")) for row in listed(client)}
    assert kept in found and dropped not in found
