"""Data in blocks: read as from rows, seen by any client, with a slim table where one is wanted."""

import numpy as np
import pytest

from ignitetf.errors import ConfigError
from ignitetf.explore.verify import verify
from ignitetf.load import blocks
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.tables.catalog import read_manifest
from ignitetf.tables.removal import drop_cache
from ignitetf.wire.blocks import BlockKeys
from ignitetf.wire.checksum import checksum
from ignitetf.wire.columns import Batch, Dense

pytestmark = pytest.mark.node


def batches(client, name, **options):
    reader = CacheReader(client, name, ReadOptions(**options))
    found = reader.batches(range(reader.partition_count))
    return reader, [item.batch for item in found if item.batch is not None]


@pytest.mark.parametrize("partitions", [1, 8, 1024])
def test_mnist_in_blocks_is_mnist(client, cache_name, mnist_dir, partitions):
    source = open_source("mnist", str(mnist_dir), split="test")
    load_dataset(source, cache_name, client=client, partitions=partitions, layout="blocks")
    read = list(source.batches())
    images = np.concatenate([np.asarray(b.columns["IMAGE"].values) for b in read])
    labels = np.concatenate([np.asarray(b.columns["LABEL"].values) for b in read])
    reader, found = batches(client, cache_name)
    keys = np.concatenate([b.key.values for b in found])
    order = np.argsort(keys)
    assert keys[order].tolist() == list(range(10_000))
    stored = np.concatenate([b.columns["IMAGE"].values for b in found])[order]
    assert np.array_equal(stored, images)
    stored = np.concatenate([b.columns["LABEL"].values for b in found])[order]
    assert np.array_equal(stored, labels)
    assert reader.row_count(range(partitions)) == 10_000
    assert len(reader.schema.fields) == 2


def test_pyignite_reads_a_block(client, cache_name):
    arrays = {"X": np.arange(100, dtype=np.float32).reshape(50, 2)}
    load_dataset(arrays, cache_name, client=client, partitions=1, layout="blocks")
    block = client.cache(cache_name).get(0)
    assert list(range(50)) == block.KEYS
    assert list(map(float, range(100))) == block.X


@pytest.mark.core
def test_every_type_comes_back_from_blocks_as_from_rows(client, cache_name, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 600)
    records = [
        {
            "n": i, "yes": i % 3 == 0, "name": f"n{i}" if i % 5 else None, "blob": b"b" * (i % 7),
            "box": [float(i), 0.5], "words": ["w"] * (i % 3), "more": list(range(i % 4 + 1)),
        }
        for i in range(200)
    ]  # fmt: skip
    sums = []
    for layout in ("rows", "blocks"):
        name = f"{cache_name}_{layout.upper()}"
        load_dataset(records, name, client=client, partitions=4, layout=layout)
        reader, found = batches(client, name, raw_nulls=True)
        total = sum(checksum(reader.schema, b) for b in found) % (1 << 64)
        manifest = read_manifest(client, name)
        assert sum(len(b) for b in found) == 200
        sums += [manifest.checksum, f"{total:016x}"]
    assert client.cache_size(f"{cache_name}_BLOCKS") > 8
    assert len(set(sums)) == 1


def test_the_slim_table_has_keys_and_indexed_fields(client, cache_name):
    arrays = {"IMAGE": np.zeros((1000, 50), np.uint8), "LABEL": np.arange(1000) % 7}
    options = {"partitions": 4, "layout": "blocks", "index": ("LABEL",)}
    load_dataset(arrays, cache_name, client=client, **options)
    manifest = read_manifest(client, cache_name)
    assert manifest.index == f"{cache_name}_INDEX"
    query = f"SELECT COUNT(*), MAX(ID) FROM {manifest.index} WHERE LABEL = 3"
    assert client.sql(query).fetchall() == [(143, 997)]
    arrays["LABEL"] = arrays["LABEL"] + 100
    load_dataset(arrays, cache_name, client=client, if_exists="replace", **options)
    query = f"SELECT COUNT(*), MIN(LABEL) FROM {manifest.index}"
    assert client.sql(query).fetchall() == [(1000, 100)]
    drop_cache(client, cache_name)
    assert [n for n in client.cache_names() if n.startswith(cache_name)] == []
    assert read_manifest(client, cache_name) is None


def test_conditions_on_the_node_are_refused_with_the_reason(client, cache_name):
    arrays = {"LABEL": np.arange(100)}
    load_dataset(arrays, cache_name, client=client, layout="blocks", partitions=2)
    with pytest.raises(ConfigError, match="block layout"):
        batches(client, cache_name, where="LABEL = 3")


@pytest.mark.core
def test_a_few_fields_are_read_alone(client, cache_name):
    arrays = {"IMAGE": np.zeros((300, 9), np.uint8), "LABEL": np.arange(300)}
    load_dataset(arrays, cache_name, client=client, layout="blocks", partitions=2)
    _, found = batches(client, cache_name, fields=("LABEL",))
    assert {tuple(b.columns) for b in found} == {("LABEL",)}
    assert sorted(np.concatenate([b.columns["LABEL"].values for b in found])) == list(range(300))


def test_blocks_removed_by_a_trim_are_those_beyond_the_last_note(client, cache_name):
    arrays = {"LABEL": np.arange(400)}
    load_dataset(arrays, cache_name, client=client, layout="blocks", partitions=4)
    manifest = read_manifest(client, cache_name)
    used = manifest.options.blocks
    cache = client.cache(cache_name)
    stray = BlockKeys(4, used)
    for partition in range(4):
        for key in stray.reserve(partition, 3 + partition).tolist():
            cache.put(key, "stray")
    blocks.trim(client, cache_name, BlockKeys(4, used))
    assert client.cache_size(cache_name) == sum(used)
    _, found = batches(client, cache_name)
    total = sum(checksum(manifest.schema, b) for b in found) % (1 << 64)
    whole = Batch(Dense(np.arange(400)), {"LABEL": Dense(arrays["LABEL"])})
    assert total == checksum(manifest.schema, whole) == int(manifest.checksum, 16)


def test_two_tables_with_composite_keys_and_their_slim_tables(client, cache_name, voc_dir):
    """VOC in blocks is VOC in rows; the annotations' key has two fields."""
    sums = []
    for layout in ("rows", "blocks"):
        name = f"{cache_name}_{layout.upper()}"
        options = {"partitions": 4, "layout": layout, "limit": 30, "index": ("LABEL", "CLASS")}
        load_dataset(open_source("voc", str(voc_dir)), name, client=client, **options)
        for table in (name, f"{name}_ANNOTATIONS"):
            assert verify(client, table).findings == []
            sums.append(read_manifest(client, table).checksum)
    assert sums[:2] == sums[2:]
    name = f"{cache_name}_BLOCKS_ANNOTATIONS"
    slim, rows = f"{name}_INDEX", f"{cache_name}_ROWS_ANNOTATIONS"
    query = "SELECT IMAGE_ID, N, LABEL, CLASS FROM {} ORDER BY IMAGE_ID, N"
    expected = client.sql(query.format(rows)).fetchall()
    assert client.sql(query.format(slim)).fetchall() == expected
    block = next(entry for _, entry in client.cache(name).scan())
    keys = zip(block.KEYS_IMAGE_ID, block.KEYS_N, strict=True)
    assert set(keys) <= {(image, number) for image, number, _, _ in expected}


def test_string_keys_lie_where_the_server_would_put_them(client, cache_name):
    records = [{"id": f"key {i} \u00e9", "x": i} for i in range(300)]
    load_dataset(records, cache_name, client=client, partitions=8, layout="blocks", key="id")
    assert verify(client, cache_name).findings == []
    _, found = batches(client, cache_name)
    keys = [key.decode() for b in found for key in b.key.to_bytes()]
    values = np.concatenate([b.columns["X"].values for b in found]).tolist()
    assert dict(zip(keys, values, strict=True)) == {r["id"]: r["x"] for r in records}


@pytest.mark.parametrize("partitions", [None, 4])
@pytest.mark.parametrize("index", [(), ("X",)])
def test_sql_counts_the_rows_of_blocks_or_says_that_it_cannot(
    client, cache_name, partitions, index
):
    """Never 0, nor the number of blocks."""
    from ignitetf.errors import SqlError

    rows = {"X": np.arange(500), "Y": np.arange(500)}
    options = {"client": client, "partitions": partitions, "layout": "blocks", "index": index}
    load_dataset(rows, cache_name, **options)
    query = f"SELECT COUNT(*) FROM {cache_name}"
    if index:
        assert client.sql(query).fetchall() == [(500,)]
        load_dataset(rows, cache_name, if_exists="append", **options)
        assert client.sql(query).fetchall() == [(1000,)]
        return
    with pytest.raises(SqlError) as caught:
        client.sql(query)
    assert "blocks" in caught.value.hint and "--index" in caught.value.hint


def test_sql_does_not_say_that_a_cache_without_a_table_is_empty(client, cache_name):
    from ignitetf.errors import SqlError
    from ignitetf.tables.caches import create_cache
    from ignitetf.tables.spec import CacheSpec

    create_cache(client, CacheSpec(cache_name, partitions=4))
    client.cache(cache_name).put(1, 2)
    with pytest.raises(SqlError, match="not found"):
        client.sql(f"SELECT COUNT(*) FROM {cache_name}")
