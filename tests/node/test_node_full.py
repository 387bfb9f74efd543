"""A node whose memory is full refuses what it has no room for, from whoever, and keeps its data."""

import itertools

import numpy as np
import pyignite
import pytest
from helpers.ports import lasting_port
from pyignite.datatypes.prop_codes import PROP_CACHE_MODE, PROP_NAME

from ignitetf.errors import DataSetBusy, IgniteTFError, ServerError, ServerOverloaded
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.node import Node
from ignitetf.partitions import PAGES_PER_PARTITION
from ignitetf.settings import split_address
from ignitetf.tables.caches import create_cache
from ignitetf.tables.lease import Lease
from ignitetf.tables.removal import drop_cache
from ignitetf.tables.spec import CacheSpec

pytestmark = [pytest.mark.node, pytest.mark.timeout(240)]
TABLE = 'CREATE TABLE {} (ID BIGINT PRIMARY KEY, V VARCHAR) WITH "template=p1024,CACHE_NAME={}"'
VALUE = 4000


@pytest.fixture(
    scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)], ids="{}-members".format
)
def node(request, node_home):
    name = f"full{request.param}"
    port = lasting_port(request.param)
    with Node.start(name, port, nodes=request.param, memory="64m") as node:
        yield node


@pytest.fixture(scope="module")
def client(node):
    with connect(node.address) as client:
        yield client


@pytest.fixture(scope="module")
def foreign(node):
    """A client that is not ours, and asks nobody before it creates something."""
    client = pyignite.Client()
    with client.connect([split_address(address) for address in node.addresses]):
        yield client


def blob(key):
    return np.random.default_rng(key).bytes(VALUE)


@pytest.fixture(scope="module")
def filled(foreign):
    """A cache that has filled the memory, and how many entries it has."""
    cache = foreign.create_cache("p8-filler")
    count = fill(cache)
    with pytest.raises(pyignite.exceptions.CacheError):
        for key in range(10**6, 2 * 10**6):
            cache.put(key, blob(key))
    return cache, count


def fill(cache):
    for count in itertools.count(0, 100):
        try:
            cache.put_all({key: blob(key) for key in range(count, count + 100)})
        except pyignite.exceptions.CacheError:
            return count


def write_file(address):
    import fsspec

    with fsspec.open(f"igfs://{address}/a", "wb") as file:
        file.write(b"x")


@pytest.mark.parametrize("way", ["by name", "table"])
def test_what_a_partition_takes(node, client, foreign, way):
    if len(node.addresses) > 1:
        pytest.skip("of two members each has only some of the partitions")

    def pages():
        where = "NAME = 'io.dataregion.default.TotalUsedPages'"
        return int(client.sql(f"SELECT VALUE FROM SYS.METRICS WHERE {where}").fetchall()[0][0])

    before = pages()
    FOREIGN[way](foreign)
    assert 0 <= pages() - before - PAGES_PER_PARTITION * 1024 <= 8
    client.sql("DROP TABLE IF EXISTS T")
    if client.cache_exists("BY_NAME"):
        client.destroy_cache("BY_NAME")


FOREIGN = {
    "by name": lambda c: c.create_cache("BY_NAME"),
    "by template": lambda c: c.create_cache("p256-x"),
    "replicated": lambda c: c.create_cache({PROP_NAME: "R", PROP_CACHE_MODE: 1}),
    "table": lambda c: c.sql(TABLE.format("T", "T")),
}
OURS = {
    "cache": lambda c: create_cache(c, CacheSpec("OURS", 1024)),
    "plain": lambda c: create_cache(c, CacheSpec("OURS")),
    "load": lambda c: load_dataset({"A": np.arange(10)}, "OURS", client=c, partitions=512),
    "sql": lambda c: c.sql(TABLE.format("S", "S")),
}


def check_whole(node, client, filled, caches):
    cache, count = filled
    assert node.status().state == "running"
    assert client.cache_names() == caches
    for key in range(0, count, 97):
        assert cache.get(key) == blob(key)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_client_is_refused_and_nothing_is_lost(node, client, foreign, filled, name):
    before = client.cache_names()
    for _ in range(3):
        with pytest.raises(pyignite.exceptions.CacheError):
            FOREIGN[name](foreign)
    check_whole(node, client, filled, before)


@pytest.mark.parametrize("name", OURS)
def test_our_client_says_why_and_what_to_do(node, client, filled, name):
    before = client.cache_names()
    with pytest.raises(ServerOverloaded) as caught:
        OURS[name](client)
    assert "memory" in f"{caught.value} {caught.value.hint}" and "--memory" in caught.value.hint
    check_whole(node, client, filled, before)


def test_a_file_is_refused_for_want_of_space(node, client, filled):
    before = client.cache_names()
    with pytest.raises(OSError, match="--memory") as caught:
        write_file(node.addresses[0])
    assert caught.value.errno == 28
    check_whole(node, client, filled, before)


def test_what_makes_room_needs_none(node, client, foreign, filled, monkeypatch):
    """A data set is removed, though its lease finds no place; but not while somebody has it."""
    cache, count = filled
    cache.remove_keys(list(range(count - 4000, count)))
    load_dataset({"A": np.arange(10)}, "OURS", client=client, partitions=8)
    lease = Lease(client, "OURS", "load")
    lease.acquire()
    fill(cache)

    def no_room(*_):
        raise ServerError("no", server_message="Failed to update keys (retry update if possible).")

    monkeypatch.setattr("ignitetf.tables.texts.Texts.add", no_room)
    with pytest.raises(DataSetBusy):
        drop_cache(client, "OURS")
    assert client.cache_size("OURS") == 10
    lease.release(5)
    drop_cache(client, "OURS")
    assert not client.cache_exists("OURS")


def test_removed_data_make_room_again(node, client, foreign, filled):
    filled[0].clear()
    foreign.create_cache("BY_NAME").put(1, 2)
    foreign.sql(TABLE.format("T", "T"))
    foreign.sql("INSERT INTO T (ID, V) VALUES (1, 'x')")
    assert foreign.get_cache("BY_NAME").get(1) == 2
    report = load_dataset({"A": np.arange(10)}, "OURS", client=client, partitions=64)
    assert report.rows == client.cache_size("OURS") == 10


def test_an_index_that_finds_no_room_leaves_the_table_readable(node, client, filled):
    """Last, since a drop after it may end a node (see `guard`)."""
    for name in ("T", "OURS", "BY_NAME"):
        client.destroy_cache(name)
    fill(filled[0])
    filled[0].remove_keys(list(range(2000)))
    client.sql(TABLE.format("I", "I").replace("p1024", "p8"))
    rows = 0
    with pytest.raises(IgniteTFError):
        while True:
            places = ",".join(["(?, ?)"] * 200)
            values = [x for i in range(rows, rows + 200) for x in (i, f"{i:0900}")]
            client.sql(f"INSERT INTO I (ID, V) VALUES {places}", values)
            rows += 200
    for number in range(2):
        with pytest.raises(IgniteTFError) as caught:
            client.sql(f"CREATE INDEX IX{number} ON I (V) INLINE_SIZE 920")
        assert "--memory" in caught.value.hint, caught.value
    found = client.sql("SELECT COUNT(*), MAX(V) FROM I WHERE ID < ?", (rows,)).fetchall()
    assert found == [(rows, f"{rows - 1:0900}")]
    assert node.status().state == "running"
