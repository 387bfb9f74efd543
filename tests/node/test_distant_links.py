"""Over a distant link the same bytes arrive, and more of them are on their way at once."""

import contextlib
import errno
import functools
import os
import time

import numpy as np
import pytest
from helpers.distant import Distant
from helpers.round_trips import counted

from ignitetf.errors import CacheExists
from ignitetf.explore.verify import verify
from ignitetf.fs.records import decode, lease_key
from ignitetf.fs.store import Store
from ignitetf.load.loader import load_dataset
from ignitetf.load.run import Load
from ignitetf.net.client import connect
from ignitetf.net.results import Result
from ignitetf.read.rows import open_rows
from ignitetf.tables.removal import remove_cache

pytestmark = pytest.mark.node

DELAY_S = 0.05
RUNNING = "SELECT SQL FROM SYS.SQL_QUERIES WHERE SQL = ?"


@pytest.fixture(scope="module")
def distant(client):
    with Distant(client.settings.addresses[0], DELAY_S) as proxy:
        yield proxy


@pytest.fixture
def far(client, distant):
    settings = client.settings.replace(addresses=(distant.address,))
    with connect(settings=settings) as found:
        found.cache_names()  # the first request tells the distance
        yield found


@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_a_load_is_complete(client, far, cache_name, layout):
    rows = {"IMAGE": np.arange(4 << 20, dtype=np.uint8).reshape(-1, 1 << 14)}
    load_dataset(rows, cache_name, client=far, partitions=8, layout=layout)
    report = verify(client, cache_name)
    assert report.ok, report


@pytest.mark.parametrize("if_exists", ["error", "replace"])
def test_a_first_load_takes_few_round_trips(client, far, monkeypatch, cache_name, if_exists):
    # Looked for and leased, with its names and room; its journal; its caches; their partitions; its
    # rows, over connections that are opened meanwhile; counted; recorded; and without its journal
    # and its lease.
    counts = []
    for number in range(4):  # a busy machine holds up threads for longer than the delay
        with counted(monkeypatch) as trips:
            name = f"{cache_name}_{number}"
            load_dataset({"X": np.arange(100)}, name, client=far, partitions=8, if_exists=if_exists)
        counts.append(trips.count)
        remove_cache(client, name)
    assert min(counts) == 9


@pytest.mark.parametrize("if_exists", ["error", "replace"])
@pytest.mark.parametrize("gone", [False, True])
def test_what_others_load_after_a_load_has_looked(
    client, far, monkeypatch, cache_name, if_exists, gone
):
    """The look at what is there goes on while the lease is taken, which others may have had."""

    original = Load.acquire_lease

    def look_first(self, leases):
        found = self._collect_facts()
        assert found is not None
        with monkeypatch.context() as patch:
            patch.setattr(Load, "acquire_lease", original)
            load_dataset({"X": np.arange(7)}, cache_name, client=client, partitions=8)
        if gone:
            client.sql(f'DROP VIEW "{cache_name}"')
            client.destroy_cache(cache_name)  # its manifest stays
        leases.enter_context(self.lease)
        self._facts = found

    monkeypatch.setattr(Load, "acquire_lease", look_first)
    load = functools.partial(load_dataset, {"X": np.arange(9)}, cache_name, client=far)
    if if_exists == "error" and not gone:
        with pytest.raises(CacheExists):
            load(if_exists=if_exists)
        assert verify(client, cache_name).ok and client.cache_size(cache_name) == 7
    else:
        load(if_exists=if_exists)
        assert verify(client, cache_name).ok and client.cache_size(cache_name) == 9
        assert client.partition_count(cache_name) == (16 if gone else 8)


@pytest.mark.parametrize("ahead_bytes", [0, 20 << 20, 128 << 20])
def test_a_file_has_its_content_whatever_may_be_under_way(far, ahead_bytes):
    settings = far.settings.replace(ahead_bytes=ahead_bytes)
    size = (32 if ahead_bytes else 4) << 20
    with connect(settings=settings) as other, contextlib.closing(Store(other, "DISTANT")) as store:
        data = np.random.default_rng(0).bytes(size)
        with store.writing("/file") as writer:
            writer.write(memoryview(data))
        with contextlib.closing(store.open_read("/file")) as reader:
            found = bytearray(len(data))
            for at in range(0, len(data), 1 << 20):
                reader.read_into(at, memoryview(found)[at : at + (1 << 20)])
            assert reader.read(size // 2 - 5, 10) == data[size // 2 - 5 : size // 2 + 5]
        store.remove("/file")
    assert found == data


def test_a_small_file_takes_few_round_trips(far, monkeypatch):
    with contextlib.closing(Store(far, "DISTANT")) as store:
        counts = []
        for _ in range(3):  # from the second on the connections are open
            with counted(monkeypatch) as trips, store.writing("/small") as writer:
                writer.write(memoryview(b"content"))
            counts.append(trips.count)
        # Where it is to be and its lease, its chunk and the begin of a transaction, its locks, its
        # entry, the end of the transaction; and seldom what the node took too early.
        assert min(counts[1:]) == 5
        with (
            counted(monkeypatch) as trips,
            contextlib.closing(store.open_read("/small")) as reader,
        ):
            assert reader.read(0, 10) == b"content"
        assert trips.count == 2
        store.remove("/small")


def leases(store):
    return {key: decode(value)["k"] for key, value in store.meta.range("+", ",")}


def test_an_early_lease_is_that_of_the_file(client, far):
    """It is taken for the directory that is remembered, which may have another name by now."""
    with (
        contextlib.closing(Store(far, "DISTANT")) as store,
        contextlib.closing(Store(client, "DISTANT")) as near,
    ):
        for name in ("/d/first", "/d/second"):
            with store.writing(name) as writer:
                writer.write(memoryview(b"old"))
        near.rename("/d", "/e")
        near.make_directory("/d")
        writer = store.open_write("/d/first")
        assert leases(near) == {
            lease_key(writer._content.content_id): near.tree.lookup(("d", "first")).key
        }
        writer.write(memoryview(b"new"))
        writer.close()
        assert [name for name, _ in near.list("/d")] == ["first"]
        for name, content in (("/e/first", b"old"), ("/d/first", b"new")):
            with contextlib.closing(near.open_read(name)) as reader:
                assert reader.read(0, 9) == content
        for name, mode, code in (
            ("/d", "w", errno.EISDIR),
            ("/d/first", "x", errno.EEXIST),
            ("/d/first/below", "w", errno.ENOTDIR),
        ):
            with pytest.raises(OSError) as told:
                store.open_write(name, mode)
            assert told.value.errno == code
        store.open_write("/d/never").discard()
        assert leases(near) == {} and not near.exists("/d/never")
        near.remove_directory("/d", recursive=True)
        near.remove_directory("/e", recursive=True)


@pytest.mark.parametrize("link", ["near", "far"])
def test_opening_takes_one_round_trip(client, far, monkeypatch, cache_name, link):
    load_dataset({"A": np.arange(1_000)}, cache_name, client=client, partitions=8)
    settings = (client if link == "near" else far).settings
    with connect(settings=settings) as other:
        with counted(monkeypatch) as trips:
            rows = open_rows(cache_name, client=other, shard=(0, 1))
        assert trips.count == 1
        for _ in range(2):
            assert sum(len(batch["key"]) for batch in rows.batches()) == 1_000


@pytest.mark.parametrize("partitions", [4, 256])
def test_an_epoch_has_the_same_rows_whatever_the_delay(client, cache_name, partitions):
    """Also where it changes between two epochs."""
    load_dataset({"A": np.arange(20_000)}, cache_name, client=client, partitions=partitions)
    near = open_rows(cache_name, client=client)
    expected = np.concatenate([batch["key"] for batch in near.batches()])
    with (
        Distant(client.settings.addresses[0], 0.01) as proxy,
        connect(proxy.address) as other,
    ):
        rows = open_rows(cache_name, client=other)
        for delay_s in (0.01, 0.0, 0.03, 0.0, 0.002):
            proxy.delay_s = delay_s
            found = np.concatenate([batch["key"] for batch in rows.batches()])
            np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module")
def numbers(client):
    name = f"DISTANT_{os.getpid()}"
    rows = {"A": np.arange(100_000), "B": np.arange(100_000) / 7}
    load_dataset(rows, name, client=client, partitions=8)
    yield f"SELECT A, B FROM {name}"
    remove_cache(client, name)


def test_a_query_has_the_same_rows_in_few_pages(far, numbers):
    assert sorted(far.sql(numbers).fetchall()) == [(n, n / 7) for n in range(100_000)]
    with far.sql(numbers) as result:
        found = [len(page[0].to_python()) for page in result.pages()]
    assert sum(found) == 100_000 and len(found) < 100_000 / 1024 / 4


def test_a_distant_result_that_is_given_up_leaves_nothing_on_the_node(client, far, numbers):
    for give_up in (Result.close, Result.__del__):
        pages = (result := far.sql(numbers, page_size=500)).pages()
        for _ in range(2):
            next(pages)
        give_up(result)
    deadline = time.monotonic() + 10
    while client.sql(RUNNING, (numbers,)).fetchall() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert client.sql(RUNNING, (numbers,)).fetchall() == []
