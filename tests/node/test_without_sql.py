"""Nodes of Ignite's core alone, which have no SQL engine; of 2.18.0 no more is published.

They are served all the same: loads without SQL, reads, checks, removal. What needs SQL says so, and
leaves nothing behind.
"""

import contextlib

import numpy as np
import pyignite
import pytest
from helpers.java_programs import jar, java_command
from helpers.plain_nodes import API, SOURCE, PlainCluster

from ignitetf.errors import ConfigError, SqlUnavailable
from ignitetf.explore.verify import verify
from ignitetf.fs.store import Store
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.read.rows import open_rows
from ignitetf.tables.catalog import CATALOG_CACHE
from ignitetf.tables.describe import describe, list_caches, list_tables
from ignitetf.tables.removal import drop_cache

pytestmark = [pytest.mark.node, pytest.mark.slow]

CORE_218 = {
    "ignite-core": "f12296bc612ac53a318d89aa8eebd45433b845a1eaedb651548c307e3200b03b",
    "ignite-commons": "daf592b18a476677a07db0c7b5ee3ad102dcaed30a10b984f3cf34641537c2dc",
    "ignite-binary-api": "388c77689a1bd75a7e6cd30de693de9ee71d6918efee3cc519c74a77be2350e3",
    "ignite-binary-impl": "a766b0388817ddb53f92955503f4d07e35bd7c78d145592d6922f165157c8f7d",
    "ignite-grid-unsafe": "0102be8425d5b8a2ea187e7fae567f015cc266993e0509674831c87ab0ffb319",
}
ROWS = 3_000


def core_jars(version, home, folder):
    """The jars of Ignite's core, and what it needs."""
    if version == "2.18.0":
        places = {
            f"org/apache/ignite/{n}/{version}/{n}-{version}.jar": CORE_218[n] for n in CORE_218
        }
        return [jar(place, sha256, folder) for place, sha256 in (*places.items(), API)]
    from ignitetf.node.jars import ensure_jars

    return [
        path for path in ensure_jars(home) if path.name.startswith(("ignite-core", "cache-api"))
    ]


@contextlib.contextmanager
def core_node(version, home, folder):
    """Start a node, and yield its address; it ends with the block."""
    command = java_command(SOURCE, home, folder, core_jars(version, home, folder))
    cluster = PlainCluster(command, folder, 1, ("UTC",), persistent=False)
    try:
        yield cluster.addresses[0]
    finally:
        cluster.stop()


@pytest.fixture(scope="module", params=["2.17.0", "2.18.0"])
def core(request, node_home, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"core-{request.param}")
    with core_node(request.param, node_home, folder) as address, connect(address) as client:
        yield client


def columns(seed):
    rng = np.random.default_rng(seed)
    return {
        "image": rng.integers(0, 255, (ROWS, 6, 5), np.uint8),
        "label": rng.integers(0, 10, ROWS, np.int32),
        "name": [f"name {n} é" for n in rng.integers(0, 1 << 40, ROWS).tolist()],
    }


def rows_of(client, name, **options):
    """The rows by key, which are as many as the batches have."""
    found, count = {}, 0
    for batch in open_rows(name, client=client, **options).batches():
        value = batch["val"]
        count += len(batch["key"])
        for key, *row in zip(
            batch["key"].tolist(), value["IMAGE"], value["LABEL"], value["NAME"], strict=True
        ):
            found[key] = (row[0].tobytes(), int(row[1]), bytes(row[2]))
    assert len(found) == count
    return found


def expected(*loaded):
    parts = [
        zip(
            map(bytes, one["image"]),
            one["label"].tolist(),
            map(str.encode, one["name"]),
            strict=True,
        )
        for one in loaded
    ]
    return dict(enumerate(row for part in parts for row in part))


@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_what_is_loaded_is_read(core, cache_name, layout):
    first, second = columns(1), columns(2)
    how = {"client": core, "layout": layout, "sql": False}
    load_dataset(first, cache_name, **how)
    assert rows_of(core, cache_name) == expected(first)
    assert rows_of(core, cache_name, shuffle=500) == expected(first)
    load_dataset(second, cache_name, if_exists="replace", **how)
    assert rows_of(core, cache_name) == expected(second)
    load_dataset(first, cache_name, if_exists="append", **how)
    assert rows_of(core, cache_name) == expected(second, first)
    if layout == "rows":
        assert verify(core, cache_name).rows == 2 * ROWS
    facts = describe(core, cache_name)
    assert (facts["rows"], facts["layout"], facts["mode"]) == (2 * ROWS, layout, None)
    assert facts["name"] in [cache["name"] for cache in list_caches(core)]
    assert list_tables(core) == []
    before = set(core.cache_names())
    drop_cache(core, cache_name)
    assert before - set(core.cache_names()) == {facts["name"]}


def test_rows_by_key_are_those_of_a_scan(core, cache_name):
    load_dataset(columns(3), cache_name, client=core, sql=False)
    rows = open_rows(cache_name, client=core)
    scanned = rows_of(core, cache_name)
    assert rows_of(core, cache_name, order="global", shuffle=ROWS) == scanned
    found = rows[5:9]
    assert found["val"]["NAME"].tolist() == [scanned[key][2] for key in found["key"].tolist()]


def test_what_pyignite_wrote_is_read(core, cache_name):
    address = core.settings.addresses[0].rpartition(":")
    other = pyignite.Client()
    with other.connect(address[0], int(address[2])):
        cache = other.create_cache(cache_name)
        cache.put_all({n: f"text {n}" for n in range(ROWS)})
        with cache.scan() as cursor:
            scanned = dict(cursor)
    found = {}
    for batch in open_rows(cache_name, client=core).batches():
        texts = [text.decode() for text in batch["val"].tolist()]
        found |= dict(zip(batch["key"].tolist(), texts, strict=True))
    assert found == scanned


def test_what_needs_sql_says_so_and_leaves_nothing(core, cache_name):
    load_dataset({"label": np.arange(4)}, f"{cache_name}_A", client=core, sql=False)
    before = set(core.cache_names())
    for options in ({}, {"layout": "blocks", "index": ["LABEL"]}):
        data = {"label": np.arange(9), "other": np.arange(9)}
        with pytest.raises(SqlUnavailable):
            load_dataset(data, cache_name, client=core, **options)
        assert set(core.cache_names()) == before
    with pytest.raises(ConfigError, match="16 partitions"):
        load_dataset({"label": np.arange(9)}, cache_name, client=core, sql=False, partitions=16)
    with pytest.raises(OSError, match="no SQL engine"):
        Store(core)
    with pytest.raises(SqlUnavailable, match="no SQL engine"):
        open_rows(f"{cache_name}_A", client=core, where="VAL < 2")
    with pytest.raises(SqlUnavailable):
        core.sql("SELECT 1")
    assert set(core.cache_names()) == before >= {CATALOG_CACHE}
