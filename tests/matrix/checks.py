"""What is checked on each version of the server: one function for each line of the matrix.

A check gets a `Cluster`, and raises if what it names does not hold. `needs` names what a server must
have; without it, the check holds if the request is refused with a hint and changes nothing.
"""

import contextlib
import datetime
import decimal
import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from ignitetf.dbapi import connect as connect_sql
from ignitetf.errors import CacheExists, ConfigError, IgniteTFError, SourceError
from ignitetf.explore.head import first_rows
from ignitetf.explore.stats import dataset_stats
from ignitetf.explore.verify import verify
from ignitetf.export.export import export_dataset
from ignitetf.fs.store import Store
from ignitetf.load.journal import read_journal
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.partitions import DEFAULT_PARTITIONS
from ignitetf.read.divide import list_splits, make_splits
from ignitetf.read.rows import open_rows
from ignitetf.tables.describe import describe, list_caches, list_tables
from ignitetf.tables.removal import drop_cache
from ignitetf.wire.codes import Feature

ROWS = 300
JAVA_ROWS = 100  # in each cache of `MatrixNode`


@dataclass
class Cluster:
    """A cluster under test.

    Attributes:
        client: A client of it.
        folder: A folder for files.
        version: Its version of Ignite.
        shut: Whether it has TLS and a login.
    """

    client: Any
    folder: Path
    version: str
    shut: bool = True
    made: set = field(default_factory=set)

    def load(self, name, start=0, if_exists="error", rows=ROWS, **options):
        data = {
            "IMAGE": np.full((rows, 4), start % 256, np.uint8),
            "LABEL": np.arange(start, start + rows),
            "TEXT": [f"text {i}" for i in range(rows)],
        }
        return load_dataset(data, name, client=self.client, if_exists=if_exists, **options)

    def loaded(self, name, **options):
        if name not in self.made:
            self.load(name, **options)
            self.made.add(name)
        return name

    def labels(self, name, column="LABEL", **options):
        rows = open_rows(name, client=self.client, shard=(0, 1), **options)
        batches = [batch["val"][column] for batch in rows.batches(64)]
        return np.concatenate(batches).tolist() if batches else []

    def has(self, feature):
        with self.client.channel() as channel:
            return feature in channel.features


CHECKS = {}


def check(name):
    def add(function):
        CHECKS[name] = function
        return function

    return add


def expect(found, wanted):
    assert found == wanted, f"{found!r} is not {wanted!r}"


def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), str(error)
        assert error.hint, f"no hint: {error}"
    else:
        raise AssertionError("it was not refused")


def numbers(start=0, rows=ROWS):
    return list(range(start, start + rows))


# Loads


def _replace_append(cluster, name, **options):
    cluster.load(name, 0, **options)
    before = sorted(c for c in cluster.client.cache_names() if c.startswith(name))
    cluster.load(name, 1000, "replace", **options)
    cluster.load(name, 2000, "append", **options)
    expect(sorted(cluster.labels(name)), numbers(1000) + numbers(2000))
    after = sorted(c for c in cluster.client.cache_names() if c.startswith(name))
    expect(after, before)
    drop_cache(cluster.client, name)
    expect([c for c in cluster.client.cache_names() if c.startswith(name)], [])


@check("load, replacement, append, removal: rows")
def _(cluster):
    _replace_append(cluster, "M_ROWS")


@check("load, replacement, append, removal: blocks")
def _(cluster):
    _replace_append(cluster, "M_BLOCKS", layout="blocks")


@check("load, replacement, append, removal: blocks with a slim table")
def _(cluster):
    _replace_append(cluster, "M_SLIM", layout="blocks", index=("LABEL",))


@check("load, replacement, append, removal: an index")
def _(cluster):
    _replace_append(cluster, "M_INDEX", index=("LABEL",))


@check("load, replacement, append, removal: no SQL")
def _(cluster):
    _replace_append(cluster, "M_PLAIN", sql=False)


@check("load, replacement, append, removal: a backup of each partition")
def _(cluster):
    _replace_append(cluster, "M_BACKUP", backups=1)


@check("an interrupted replacement is resumed")
def _(cluster):
    def stopping():
        for label in range(3000):
            yield {"IMAGE": bytes(4), "LABEL": label}
        raise KeyboardInterrupt

    name = "M_RESUME"
    cluster.load(name)
    with contextlib.suppress(KeyboardInterrupt):
        load_dataset(stopping(), name, client=cluster.client, if_exists="replace")
    assert read_journal(cluster.client, name) is not None
    expect(sorted(cluster.labels(name)), numbers())
    cluster.load(name, 7000, "replace")
    cluster.load(name, 7000, "resume")
    expect(sorted(cluster.labels(name)), numbers(7000))
    drop_cache(cluster.client, name)


@check("bad records leave the old rows")
def _(cluster):
    def damaged():
        yield from ({"IMAGE": bytes(4), "LABEL": label} for label in range(50))
        raise SourceError("damaged", hint="test")

    name = "M_BAD"
    cluster.load(name)
    refused(
        SourceError,
        "damaged",
        lambda: load_dataset(damaged(), name, client=cluster.client, if_exists="replace"),
    )
    expect(sorted(cluster.labels(name)), numbers())
    drop_cache(cluster.client, name)


@check("a number of partitions without a template is refused, all rows stay")
def _(cluster):
    name = "M_REFUSED"
    cluster.load(name)
    refused(ConfigError, "p16", lambda: cluster.load(name, 1, "replace", partitions=16))
    expect(sorted(cluster.labels(name)), numbers())
    expect(cluster.client.partition_count(name), DEFAULT_PARTITIONS)
    drop_cache(cluster.client, name)


@check("a cache of others is replaced only on request")
def _(cluster):
    name = "M_OTHERS"
    cluster.client.pyignite.create_cache(name).put(1, 2)
    refused(CacheExists, name, lambda: cluster.load(name, 0, "replace"))
    expect(cluster.client.cache(name).get(1), 2)
    cluster.load(name, 0, "replace-foreign")
    expect(sorted(cluster.labels(name)), numbers())
    drop_cache(cluster.client, name)


# Reads


@check("read: as stored")
def _(cluster):
    expect(sorted(cluster.labels(cluster.loaded("M_READ"))), numbers())


@check("read: shuffled, the same order for a seed")
def _(cluster):
    name = cluster.loaded("M_READ")
    first, again = (cluster.labels(name, shuffle=3) for _ in range(2))
    expect(first, again)
    expect(sorted(first), numbers())


@check("read: by key and in global order")
def _(cluster):
    name = cluster.loaded("M_READ")
    for order in ("keys", "global"):
        expect(sorted(cluster.labels(name, order=order)), numbers())


@check("read: shards, each row once")
def _(cluster):
    name = cluster.loaded("M_READ")
    parts = []
    for number in range(3):
        rows = open_rows(name, client=cluster.client, shard=(number, 3), even=None)
        parts += [int(n) for batch in rows.batches(64) for n in batch["val"]["LABEL"]]
    expect(sorted(parts), numbers())


@check("read: where=")
def _(cluster):
    name = cluster.loaded("M_READ")
    options = {"where": "LABEL < ?", "where_params": (50,)}
    if cluster.has(Feature.QUERY_PARTITIONS_BATCH_SIZE):
        expect(sorted(cluster.labels(name, **options)), numbers(rows=50))
        return None
    refused(ConfigError, "SQL by partition", lambda: cluster.labels(name, **options))
    return "refused: no SQL by partition"


@check("read: splits")
def _(cluster):
    name = cluster.loaded("M_SPLIT")
    make_splits(cluster.client, name, {"train": 0.8, "test": 0.2}, seed=1)
    listed = {split["split"]: split["rows"] for split in list_splits(cluster.client, name)}
    found = {split: cluster.labels(name, split=split) for split in ("train", "test")}
    expect({split: len(labels) for split, labels in found.items()}, listed)
    expect(sorted(found["train"] + found["test"]), numbers())


@check("read: state of an epoch, resumed")
def _(cluster):
    name = cluster.loaded("M_READ")
    rows = open_rows(name, client=cluster.client, shuffle=5)
    whole = [int(n) for batch in rows.batches(50) for n in batch["val"]["LABEL"]]
    rows = open_rows(name, client=cluster.client, shuffle=5)
    with rows.batches(50) as batches:
        begun = [int(n) for n in next(batches)["val"]["LABEL"]]
        state = batches.state()
    rows = open_rows(name, client=cluster.client, shuffle=5)
    with rows.resume(state).batches(50) as batches:
        begun += [int(n) for batch in batches for n in batch["val"]["LABEL"]]
    expect(begun, whole)


# SQL


@check("query")
def _(cluster):
    name = cluster.loaded("M_READ")
    query = f"SELECT COUNT(*), SUM(LABEL) FROM {name}"
    with contextlib.suppress(IgniteTFError):
        expect(cluster.client.sql(query).fetchall(), [(ROWS, sum(numbers()))])
        return None
    query = f"SELECT COUNT(*), SUM(LABEL) FROM {name}__ROWS"
    expect(cluster.client.sql(query).fetchall(), [(ROWS, sum(numbers()))])
    return f"by the name {name}__ROWS"


@check("query: each SQL type, there and back")
def _(cluster):
    columns = {
        "A_BOOL": ("BOOLEAN", True),
        "A_TINY": ("TINYINT", -5),
        "A_SMALL": ("SMALLINT", 300),
        "AN_INT": ("INT", 70_000),
        "A_BIG": ("BIGINT", 1 << 40),
        "A_REAL": ("REAL", 0.5),
        "A_DOUBLE": ("DOUBLE", 0.1),
        "A_DECIMAL": ("DECIMAL(20, 3)", decimal.Decimal("12345678901.125")),
        "A_TEXT": ("VARCHAR", "Grüße 😀"),
        "A_DATE": ("DATE", datetime.datetime(2024, 5, 6)),
        "A_TIME": ("TIME", datetime.timedelta(hours=7, minutes=8, seconds=9)),
        "A_STAMP": ("TIMESTAMP", datetime.datetime(2024, 5, 6, 7, 8, 9, 123000)),
        "A_UUID": ("UUID", uuid.UUID(int=77)),
        "SOME_BYTES": ("BINARY", b"\0\1\xff"),
    }
    defined = ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())
    places = ", ".join("?" * (len(columns) + 1))
    values = tuple(value for _, value in columns.values())
    client = cluster.client
    client.sql(f"CREATE TABLE M_TYPES (ID INT PRIMARY KEY, {defined})")
    client.sql(f"INSERT INTO M_TYPES VALUES ({places})", (1, *values))
    client.sql("INSERT INTO M_TYPES (ID) VALUES (2)")
    rows = client.sql(f"SELECT {', '.join(columns)} FROM M_TYPES ORDER BY ID").fetchall()
    expect(rows, [values, (None,) * len(values)])
    (row,) = (row for row in first_rows(client, "M_TYPES", 2) if row["key"] == 1)
    expect(row["A_TEXT"], "Grüße 😀")
    expect(row["A_DECIMAL"], "12345678901.125")
    client.sql("DROP TABLE M_TYPES")


@check("query: DB API")
def _(cluster):
    with contextlib.closing(connect_sql(settings=cluster.client.settings)) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT X FROM SYSTEM_RANGE(1, 3000)")
        expect(cursor.fetchall(), [(n,) for n in range(1, 3001)])


@check("table ls, cache ls, cache describe")
def _(cluster):
    name = cluster.loaded("M_READ")
    (table,) = (t for t in list_tables(cluster.client) if name in (t["table"], t["cache"]))
    expect(table["rows"], ROWS)
    (cache,) = (c for c in list_caches(cluster.client) if c["name"] == name)
    expect((cache["entries"], cache["partitions"]), (ROWS, DEFAULT_PARTITIONS))
    assert {"IMAGE", "LABEL", "TEXT"} <= {
        f["name"] for f in describe(cluster.client, name)["fields"]
    }


# What others stored


@check("a table that SQL made: read, append by SQL")
def _(cluster):
    client = cluster.client
    client.sql('CREATE TABLE M_CITY (ID INT, NAME VARCHAR, "mIx" DOUBLE, PRIMARY KEY (ID, NAME))')
    for number in range(20):
        client.sql("INSERT INTO M_CITY VALUES (?, ?, ?)", (number, f"city {number}", number / 4))
    found = [row["mIx"] for row in first_rows(client, "M_CITY", 50)]
    expect(sorted(found), [n / 4 for n in range(20)])
    expect(sorted(cluster.labels("M_CITY", "mIx")), [n / 4 for n in range(20)])
    client.sql("DROP TABLE M_CITY")


@check("a cache of POJOs with indexed types: read, query, describe, stats")
def _(cluster):
    client = cluster.client
    expect(sorted(cluster.labels("Person", "age", fields=["age"])), numbers(rows=JAVA_ROWS))
    rows = {row["age"]: row for row in first_rows(client, "Person", JAVA_ROWS)}
    expect(len(rows), JAVA_ROWS)
    expect(rows[7]["name"], "name 7")
    expect(rows[10]["name"], None)
    expect(rows[7]["salary"], "7.25")
    expect(rows[7]["rank"], "MAJOR")
    query = 'SELECT COUNT(*), SUM(age) FROM "Person".Person WHERE name IS NOT NULL'
    named = [n for n in range(JAVA_ROWS) if n % 10]
    expect(client.sql(query).fetchall(), [(len(named), sum(named))])
    query = 'SELECT salary, rank FROM "Person".Person WHERE age = 7'
    expect(client.sql(query).fetchall(), [(decimal.Decimal("7.25"), "MAJOR")])
    found = describe(client, "Person")
    expect((found["partitions"], found["backups"]), (16, 1))
    stats = {each.name: each for each in dataset_stats(client, "Person").columns}
    expect(stats["age"].maximum, JAVA_ROWS - 1)
    (table,) = (t for t in list_tables(client) if t["schema"] == "Person")
    expect(table["rows"], JAVA_ROWS)


@check("replicated, transactional and grouped caches: read")
def _(cluster):
    for name in ("Everywhere", "Accounts"):
        expect(sorted(cluster.labels(name, slice(None)) or []), numbers(rows=JAVA_ROWS))


@check("keys of class AffinityKey: read")
def _(cluster):
    expect(sorted(cluster.labels("Visits", "age", fields=["age"])), numbers(rows=JAVA_ROWS))
    keys = {row["key"]["key"] for row in first_rows(cluster.client, "Visits", JAVA_ROWS)}
    expect(sorted(keys), numbers(rows=JAVA_ROWS))


@check("a cache of POJOs is copied into a data set")
def _(cluster):
    rows = open_rows("Person", client=cluster.client, fields=["age", "name"], nulls="default")
    load_dataset(rows, "M_COPY", client=cluster.client)
    found = {field["name"] for field in describe(cluster.client, "M_COPY")["fields"]}
    (age,) = (name for name in found if name.lower() == "age")
    expect(sorted(cluster.labels("M_COPY", age)), numbers(rows=JAVA_ROWS))
    drop_cache(cluster.client, "M_COPY")


# The rest


@check("igfs://: write, list, read, rename, remove")
def _(cluster):
    with contextlib.closing(Store(cluster.client, "MATRIX")) as store:
        content = bytes(range(256)) * 5000
        with store.writing("/a") as writer:
            writer.write(memoryview(content))
        store.rename("/a", "/b")
        with contextlib.closing(store.open_read("/b")) as reader:
            found = bytearray(len(content))
            expect(reader.read_into(0, memoryview(found)), len(content))
        assert found == content
        store.remove("/b")


@check("verify")
def _(cluster):
    for name in (cluster.loaded("M_READ"), cluster.loaded("M_BLOCK_READ", layout="blocks")):
        assert verify(cluster.client, name).ok


@check("export to Parquet")
def _(cluster):
    path = cluster.folder / "rows.parquet"
    export_dataset(cluster.loaded("M_READ"), str(path), client=cluster.client)
    expect(sorted(pq.read_table(path)["LABEL"].to_pylist()), numbers())


@check("stats, head")
def _(cluster):
    name = cluster.loaded("M_READ")
    stats = {each.name: each for each in dataset_stats(cluster.client, name).columns}
    expect((stats["LABEL"].minimum, stats["LABEL"].maximum), (0, ROWS - 1))
    expect(len(first_rows(cluster.client, name, 5)), 5)


@check("a manifest is readable JSON after another client connects")
def _(cluster):
    with connect(settings=cluster.client.settings) as other:
        expect(describe(other, cluster.loaded("M_READ"))["rows"], ROWS)
        json.dumps(describe(other, "M_READ"), default=str)


@check("a wrong password and a missing certificate are refused by name")
def _(cluster):
    if not cluster.shut:
        return "no login"
    settings = cluster.client.settings
    refused(IgniteTFError, "password", lambda: connect(settings=settings.replace(password="no")))
    bare = settings.replace(cert=None, key=None)
    refused(IgniteTFError, "client certificate", lambda: connect(settings=bare))
    return None
