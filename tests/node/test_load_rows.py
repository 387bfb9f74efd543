"""Rows that are loaded are ordinary Ignite rows: for SQL, for pyignite, in the right partition."""

import datetime as dt
import decimal
import socket
import sys
from dataclasses import replace

import numpy as np
import pytest

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.load.writer import Writer, register_types
from ignitetf.net import handshake
from ignitetf.net.client import cache_id
from ignitetf.tables.caches import create_cache
from ignitetf.tables.catalog import read_manifest
from ignitetf.tables.spec import CacheSpec
from ignitetf.wire.checksum import checksum
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.columns import Batch, Dense, Runs, Struct
from ignitetf.wire.frames import read_first_page
from ignitetf.wire.requests import scan_request
from ignitetf.wire.schema import BYTES, Field, Schema

pytestmark = pytest.mark.node


def stored_partition(client, cache, partition):
    """Number of entries that the server holds in a partition."""
    with client.channel() as channel:
        body = channel.call(OpCode.QUERY_SCAN, scan_request(cache_id(cache), 1 << 16, partition))
        _, page = read_first_page(body)
    assert not page.more
    return page.count


def whole(source):
    """All records of a source as one batch of dense columns."""
    batches = list(source.batches())
    return {
        name: np.concatenate([np.asarray(b.columns[name].values) for b in batches])
        for name in source.schema.names
    }


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels count otherwise")
def test_little_waits_in_the_kernel_for_a_node_on_this_machine(client):
    """Linux doubles what is asked for; its own buffers grow to megabytes."""
    with client.channel() as channel:
        size = channel._sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert size <= 2 * handshake._LOCAL_SEND_BYTES


@pytest.mark.parametrize("partitions", [1, 8, 1024])
def test_mnist_is_there_for_sql_and_pyignite(client, cache_name, mnist_dir, partitions):
    source = open_source("mnist", str(mnist_dir), split="test")
    report = load_dataset(source, cache_name, client=client, partitions=partitions)
    expected = whole(source)
    assert (report.rows, report.skipped) == (10_000, 0)
    assert client.partition_count(cache_name) == partitions
    counts = dict(client.sql(f"SELECT LABEL, COUNT(*) FROM {cache_name} GROUP BY LABEL"))
    assert counts == dict(enumerate(np.bincount(expected["LABEL"]).tolist()))
    cache = client.cache(cache_name)
    for key in (0, 1, 4_711, 9_999):
        row = cache.get(key)
        assert (expected["IMAGE"][key].tobytes(), expected["LABEL"][key]) == (row.IMAGE, row.LABEL)
        [(image,)] = client.sql(f"SELECT IMAGE FROM {cache_name} WHERE ID = ?", (key,))
        assert image == expected["IMAGE"][key].tobytes()


def test_the_manifest_has_the_rows_of_each_partition_as_the_server_holds_them(client, cache_name):
    arrays = {"X": np.arange(5000, dtype=np.int32)}
    load_dataset(arrays, cache_name, client=client, partitions=8)
    manifest = read_manifest(client, cache_name)
    assert sum(manifest.partition_rows) == manifest.rows == 5000
    stored = [stored_partition(client, cache_name, p) for p in range(8)]
    assert list(manifest.partition_rows) == stored


KEYS = {
    "long": (
        Field("key", TypeCode.LONG, np.dtype("<i8")),
        Dense(np.arange(-500, 500) * 0x1_0000_0001),
    ),
    "int": (Field("key", TypeCode.INT, np.dtype("<i4")), Dense(np.arange(1000, dtype=np.int32))),
    "string": (
        Field("key", TypeCode.STRING, BYTES),
        Runs.from_bytes([f"key {i} \u00e9\U0001f600".encode() for i in range(1000)]),
    ),
    "uuid": (
        Field("key", TypeCode.UUID, np.dtype("<u8"), (2,)),
        Dense(np.random.default_rng(1).integers(0, 2**63, (1000, 2), dtype=np.uint64)),
    ),
    "double": (
        Field("key", TypeCode.DOUBLE, np.dtype("<f8")),
        Dense(np.linspace(-3, 3, 1000)),
    ),
    "object": (
        Field(
            "key",
            TypeCode.OBJECT,
            BYTES,
            (),
            False,
            (Field("A", TypeCode.INT, np.dtype("<i4")), Field("B", TypeCode.STRING, BYTES)),
        ),
        Struct(
            {
                "A": Dense(np.arange(1000, dtype=np.int32)),
                "B": Runs.from_bytes([b"x" * (i % 7) for i in range(1000)]),
            }
        ),
    ),
}


@pytest.mark.parametrize("kind", KEYS)
def test_partitions_of_keys_are_those_of_the_server(client, cache_name, kind):
    """Three partitions are no power of two, for which Ignite computes differently."""
    field, keys = KEYS[kind]
    type_name = f"{cache_name}_KEY" if kind == "object" else None
    value = Field("X", TypeCode.INT, np.dtype("<i4"))
    schema = Schema(f"{cache_name}_V", field, (value,), key_type_name=type_name)
    batch = Batch(keys, {"X": Dense(np.arange(1000, dtype=np.int32))})
    for partitions in (8, 1024):
        name = f"{cache_name}_{partitions}"
        create_cache(client, CacheSpec(name, partitions=partitions))
        register_types(client, schema)
        with Writer(client, name, schema, partitions=partitions) as writer:
            writer.write(batch)
        found = writer.totals.partition_rows
        assert found is not None and int(found.sum()) == 1000
        some = range(partitions) if partitions == 8 else range(0, 1024, 97)
        assert [stored_partition(client, name, p) for p in some] == [int(found[p]) for p in some]


@pytest.mark.core
def test_every_type_is_read_back_by_pyignite_and_sql(client, cache_name):
    moment = dt.datetime(2024, 2, 29, 12, 30, 15, 123_000)
    records = [
        {
            "n": 1, "x": 0.5, "yes": True, "name": "caf\u00e9", "blob": b"\0\xff", "day": dt.date(2020, 1, 2),
            "at": moment, "price": decimal.Decimal("12.50"), "box": [1.0, 2.0], "words": ["a", "bc"],
            "some": None,
        },
        {
            "n": 2, "x": -1.25, "yes": False, "name": "", "blob": b"", "day": dt.date(1969, 12, 31),
            "at": moment, "price": decimal.Decimal("-0.01"), "box": [3.0, 4.0], "words": [],
            "some": "here",
        },
    ]  # fmt: skip
    load_dataset(records, cache_name, client=client, partitions=4)
    cache = client.cache(cache_name)
    for key, record in enumerate(records):
        row = cache.get(key)
        assert tuple(record[k] for k in ("n", "x", "yes", "name")) == (
            row.N,
            row.X,
            row.YES,
            row.NAME,
        )
        assert (record["blob"], record["price"], record["some"]) == (row.BLOB, row.PRICE, row.SOME)
        assert (row.DAY.date(), row.AT[0]) == (record["day"], moment)
        assert (list(row.BOX), row.WORDS) == (record["box"], record["words"])
    rows = client.sql(
        f"SELECT N, X, YES, NAME, PRICE, SOME FROM {cache_name} ORDER BY N"
    ).fetchall()
    assert rows == [
        tuple(r[k] for k in ("n", "x", "yes", "name", "price", "some")) for r in records
    ]


def test_voc_fills_images_and_annotations_side_by_side(client, cache_name, voc_dir):
    report = load_dataset(open_source("voc", str(voc_dir)), cache_name, client=client, partitions=8)
    annotations = report.parts[0]
    assert (report.rows, annotations.cache) == (364, f"{cache_name}_ANNOTATIONS")
    query = f"SELECT COUNT(*) FROM {cache_name} I JOIN {annotations.cache} A ON I.ID = A.IMAGE_ID"
    assert client.sql(query).fetchall() == [(annotations.rows,)]
    files = sorted((voc_dir / "JPEGImages").glob("*.jpg"))
    image = client.cache(cache_name).get(17).IMAGE
    assert image == files[17].read_bytes()


def bad_arrays():
    return {"X": np.arange(10), "Y": np.arange(9)}


def failing_records():
    yield {"a": 1}
    raise OSError("the disk is gone")


def half_wrong():
    return [{"a": i} for i in range(3000)] + [{"a": "text"}]


@pytest.mark.core
@pytest.mark.parametrize("source", [bad_arrays, failing_records, half_wrong, list])
def test_bad_input_leaves_nothing_behind(client, cache_name, source):
    before = client.cache_names()
    with pytest.raises(SourceError):
        load_dataset(source(), cache_name, client=client, partitions=2)
    assert [n for n in client.cache_names() if n not in before and "CATALOG" not in n] == []
    assert read_manifest(client, cache_name) is None
    good = load_dataset({"X": np.arange(4)}, cache_name, client=client, partitions=2)
    assert good.rows == client.cache_size(cache_name) == 4


def test_two_records_of_one_key_are_refused(client, cache_name):
    records = [{"id": i % 90, "x": i} for i in range(100)]
    with pytest.raises(
        SourceError, match="10 of 100 records share their key with another record in ID"
    ):
        load_dataset(records, cache_name, client=client, key="id")
    assert not client.cache_exists(cache_name)


def test_a_key_column_is_the_key(client, cache_name):
    records = [{"id": f"r{i}", "x": i} for i in range(50)]
    load_dataset(records, cache_name, client=client, key="id")
    assert client.cache(cache_name).get("r7").X == 7
    assert client.sql(f"SELECT X FROM {cache_name} WHERE ID = 'r9'").fetchall() == [(9,)]


def test_limit_and_index(client, cache_name):
    arrays = {"X": np.arange(5000), "LABEL": np.arange(5000) % 10}
    report = load_dataset(arrays, cache_name, client=client, limit=1234, index=("LABEL",))
    assert report.rows == client.cache_size(cache_name) == 1234
    plan = client.sql(f"EXPLAIN SELECT X FROM {cache_name} WHERE LABEL = 3").fetchall()
    assert f"{cache_name}_LABEL_IDX" in plan[0][0]
    with pytest.raises(ConfigError, match="NOTHING"):
        load_dataset(arrays, f"{cache_name}_2", client=client, index=("NOTHING",))


def test_the_checksum_is_that_of_the_source_and_of_no_other(client, cache_name):
    rng = np.random.default_rng(3)
    arrays = {"X": rng.normal(size=(2000, 3)).astype(np.float32), "Y": np.arange(2000)}
    load_dataset(arrays, cache_name, client=client)
    manifest = read_manifest(client, cache_name)
    batch = Batch(Dense(np.arange(2000)), {name: Dense(values) for name, values in arrays.items()})
    order = rng.permutation(2000)
    assert int(manifest.checksum, 16) == checksum(manifest.schema, batch[order])
    swapped = arrays["Y"].copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    other = replace(batch, columns={**batch.columns, "Y": Dense(swapped)})
    assert int(manifest.checksum, 16) != checksum(manifest.schema, other)


@pytest.mark.parametrize("nulls", [False, True])
def test_large_values_of_every_length_come_back(client, cache_name, nulls):
    """Values that are sent from where they lie, and such that are not, in requests of many parts."""
    rng = np.random.default_rng(8)
    lengths = [0, 1, 65_535, 65_536, 3_000_000, *[100_000] * 300]
    rows = [{"DATA": rng.bytes(n), "LABEL": i, "MORE": rng.bytes(n)} for i, n in enumerate(lengths)]
    if nulls:
        rows[3]["DATA"] = None
    report = load_dataset(rows, cache_name, client=client, partitions=4)
    assert report.rows == len(rows)
    cache = client.cache(cache_name)
    for key, row in enumerate(rows):
        found = cache.get(key)
        assert (row["DATA"], row["LABEL"], row["MORE"]) == (found.DATA, found.LABEL, found.MORE)


def test_a_catalog_entry_is_text_that_every_client_reads(client, cache_name):
    load_dataset({"X": np.arange(3)}, cache_name, client=client)
    text = client.cache("IGNITETF_CATALOG").get(cache_name)
    assert f'"name":"{cache_name}"' in text


@pytest.mark.core
def test_sql_writes_to_a_data_set_by_its_name(client, cache_name):
    """The name is a view; `client.sql` takes its table, also after a replacement."""
    for mode in ("error", "replace"):
        load_dataset({"X": np.arange(5)}, cache_name, client=client, if_exists=mode)
        statements = [
            f"INSERT INTO {cache_name} (ID, X) VALUES (10, 10)",
            f'update PUBLIC."{cache_name}" SET X = X + 1 WHERE _KEY < 3',
            f"DELETE FROM {cache_name} WHERE ID = 4",
            f'MERGE INTO "{cache_name}" (ID, X) VALUES (11, 11)',
            f"CREATE INDEX {cache_name}_X ON {cache_name} (X)",
            f"ALTER TABLE {cache_name} ADD COLUMN Z INT",
        ]
        for statement in statements:
            client.sql(statement).close()
        found = client.sql(f"SELECT ID, X FROM {cache_name} ORDER BY ID").fetchall()
        assert found == [(0, 1), (1, 2), (2, 3), (3, 3), (10, 10), (11, 11)]
    for statement in (f'DROP TABLE "{cache_name}"', f"DROP TABLE IF EXISTS {cache_name}"):
        client.sql(statement).close()
        assert not client.cache_exists(cache_name)
        load_dataset({"X": np.arange(5)}, cache_name, client=client)
        assert client.sql(f"SELECT COUNT(*) FROM {cache_name}").fetchall() == [(5,)]


def test_a_name_that_sql_has_already_is_refused_before_anything_is_stored(client, cache_name):
    from ignitetf.errors import CacheExists

    other = f"{cache_name}_OTHER"
    client.sql(f"CREATE TABLE {other} (ID BIGINT PRIMARY KEY, V INT)").close()
    for text in (
        f'CREATE TABLE "{cache_name}" (ID BIGINT PRIMARY KEY, V INT)',
        f'CREATE VIEW "{cache_name}" AS SELECT ID FROM {other}',
    ):
        client.sql(text).close()
        with pytest.raises(CacheExists, match=cache_name):
            load_dataset({"X": np.arange(5)}, cache_name, client=client)
        assert not client.cache_exists(cache_name)
        client.sql(f'DROP {text.split()[1]} "{cache_name}"').close()
    client.sql(f"DROP TABLE {other}").close()


def test_the_cache_of_another_beside_a_data_set_stays(client, cache_name):
    """A name that a load would give to its slim table may be somebody else's."""
    from ignitetf.errors import CacheExists
    from ignitetf.tables.caches import create_cache
    from ignitetf.tables.removal import drop_cache
    from ignitetf.tables.spec import CacheSpec

    other = f"{cache_name}_INDEX"
    create_cache(client, CacheSpec(other))
    client.cache(other).put(1, 2)
    for mode in ("error", "replace"):
        load_dataset({"X": np.arange(5)}, cache_name, client=client, if_exists=mode)
        blocks = {"layout": "blocks", "index": ("X",), "if_exists": "replace"}
        with pytest.raises(CacheExists, match=other):
            load_dataset({"X": np.arange(5)}, cache_name, client=client, **blocks)
    drop_cache(client, cache_name)
    assert client.cache(other).get(1) == 2
    client.destroy_cache(other)
