"""The copy of a replacement: whole, many partitions at a time, and ended as a whole."""

import threading
import time

import numpy as np
import pytest
from helpers.distant import Distant
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.errors import ConnectError, DataSetBusy, ServerError, ServerOverloaded
from ignitetf.explore.verify import verify
from ignitetf.load.copy import _pace, copy_entries
from ignitetf.load.loader import load_dataset
from ignitetf.net.channel import Channel
from ignitetf.net.client import connect
from ignitetf.net.exchange import Exchange
from ignitetf.net.failures import HEAP
from ignitetf.net.topology import scan_bytes
from ignitetf.read.rows import open_rows
from ignitetf.tables.catalog import drop_manifest
from ignitetf.wire.codes import OpCode

pytestmark = pytest.mark.node

CURSORS = "SELECT COUNT(*) FROM SYS.SCAN_QUERIES WHERE CACHE_NAME = ?"


def rows(count, nbytes):
    pixels = np.random.default_rng(count).integers(0, 256, (count, nbytes), dtype=np.uint8)
    return {"IMAGE": pixels, "LABEL": np.arange(count, dtype="i4"), "TEXT": list(map(str, range(count)))}  # fmt: skip


def columns(client, name):
    found = open_rows(name, client=client, shard=(0, 1)).batches()
    batches = [(b["key"], b["val"]["IMAGE"], b["val"]["TEXT"]) for b in found]
    return [np.concatenate(column) for column in zip(*batches, strict=True)]


def copied(client, source, target, **options):
    entry_bytes, entries = options.pop("size")
    options |= {"partitions": client.partition_count(source)}
    copy_entries(client, source, target, entry_bytes=entry_bytes, entries=entries, **options)


@pytest.fixture(params=["near", "far"])
def link(request, client):
    """A client that copies; over a distant link it has several connections at a time."""
    if request.param == "near":
        yield client
        return
    with (
        Distant(client.settings.addresses[0], 0.01) as proxy,
        connect(settings=client.settings.replace(addresses=(proxy.address,))) as far,
    ):
        far.cache_names()  # the first request tells the distance
        yield far


@pytest.fixture
def caches(client, cache_name):
    """A data set, and one of other rows of the same type to be overwritten."""

    def make(count, nbytes, partitions):
        source, target = f"{cache_name}_A", f"{cache_name}_B"
        given = rows(count, nbytes)
        load_dataset(given, source, client=client, partitions=partitions)
        empty = {name: values[:1] for name, values in given.items()}
        load_dataset(empty, target, client=client, partitions=partitions)
        drop_manifest(client, target)  # it knows of other rows
        return source, target

    return make


@pytest.mark.parametrize(
    ("count", "nbytes", "partitions", "size"),
    [
        (3_000, 100, 256, (150, 3_000)),
        (3_000, 100, 1, (150, 3_000)),
        (40, 1 << 20, 4, (1 << 20, 40)),
        (5_000, 100, 4, (1, 1)),  # wrong guesses
        (300, 100, 4, (1 << 30, 1 << 40)),
    ],
)
def test_all_entries_arrive(client, link, caches, count, nbytes, partitions, size):
    source, target = caches(count, nbytes, partitions)
    copied(link, source, target, size=size)
    assert client.cache_size(target) == count
    # In the order of the source, since both have the same keys in the same partitions.
    for mine, theirs in zip(columns(client, target), columns(client, source), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_many_partitions_are_asked_for_at_a_time(client, caches, monkeypatch):
    source, target = caches(3_000, 100, 256)
    unanswered, under_way = [], set()
    send, receive = Channel.send, Channel.receive_any

    def sending(self, op, *buffers):
        if op == OpCode.QUERY_SCAN:
            unanswered.append(sum(channel is self for channel, _ in under_way))
        number = send(self, op, *buffers)
        under_way.add((self, number))
        return number

    def receiving(self, **options):
        number, body = receive(self, **options)
        under_way.discard((self, number))
        return number, body

    monkeypatch.setattr(Channel, "send", sending)
    monkeypatch.setattr(Channel, "receive_any", receiving)
    copied(client, source, target, size=(150, 3_000))
    assert len(unanswered) == 256 and 32 <= max(unanswered) < 128


def test_what_fails_ends_all_of_it(client, link, caches):
    source, target = caches(3_000, 1_000, 256)
    calls = []

    def lost():
        calls.append(None)
        if len(calls) > 3:
            raise DataSetBusy("taken over")

    with pytest.raises(DataSetBusy, match="taken over"):
        copied(link, source, target, size=(1_000, 3_000), check_lease=lost)
    assert not [t for t in threading.enumerate() if t.name == "ignitetf-beside"]
    assert len(calls) <= 3 + 8  # each share notices at its next request
    until = time.monotonic() + 10
    while client.sql(CURSORS, (source,)).fetchall() != [(0,)] and time.monotonic() < until:
        time.sleep(0.05)
    assert client.sql(CURSORS, (source,)).fetchall() == [(0,)]
    assert verify(client, source).ok


@pytest.mark.parametrize("lost", [False, True], ids=["no heap", "lost"])
def test_a_share_whose_answer_fails_begins_again(client, link, caches, monkeypatch, lost):
    source, target = caches(64, 1 << 18, 4)
    size, receive, text = (1 << 18, 64), Channel.receive_any, "Java heap space"
    answers, fails_at = [], set()

    def failing(self, **options):
        answers.append(self)
        place = len(answers)
        if place in fails_at and lost:
            self.abort()
        number, body = receive(self, **options)
        if place in fails_at:
            return number, ServerOverloaded(text, server_message=text)
        return number, body

    monkeypatch.setattr(Channel, "receive_any", failing)
    copied(link, source, target, size=size)
    # Every answer of a copy, those of its scans and those of its puts.
    for number in range(1, len(answers) + 1):
        fails_at.clear()
        fails_at.add(number)
        client.sql(f'DELETE FROM "{target}"')
        answers.clear()
        copied(link, source, target, size=size)
        assert client.cache_size(target) == 64
        for mine, theirs in zip(columns(client, target), columns(client, source), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("lost", [False, True], ids=["no heap", "lost"])
def test_a_copy_ends_however_often_it_fails_behind_what_is_stored(
    client, caches, monkeypatch, lost
):
    source, target = caches(64, 1 << 12, 64)
    receive, send, text = Channel.receive_any, Channel.send, "Java heap space"
    scans, scanned = {}, []

    def watched(self, op, *buffers):
        number = send(self, op, *buffers)
        if op == OpCode.QUERY_SCAN:
            scans[self, number] = len([1 for channel, _ in scans if channel is self])
            scanned.append(bytes(buffers[0]))
        return number

    def failing(self, **options):
        number, body = receive(self, **options)
        fails = scans.get((self, number)) == 7  # the eighth of a connection
        if fails and lost:
            self.close()
            raise ConnectError("lost")
        return number, ServerOverloaded(text, server_message=text) if fails else body

    monkeypatch.setattr(Channel, "send", watched)
    monkeypatch.setattr(Channel, "receive_any", failing)
    copied(client, source, target, size=(4 << 20, 64))
    # More failures than a share may have without progress; the first is not read again with each.
    assert sum(n == 7 for n in scans.values()) > HEAP.tries and scanned.count(scanned[0]) == 1
    assert client.cache_size(target) == 64
    for mine, theirs in zip(columns(client, target), columns(client, source), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("lost", [False, True], ids=["no heap", "lost"])
def test_what_always_fails_ends_the_copy(client, link, caches, monkeypatch, lost):
    source, target = caches(64, 1 << 18, 4)
    receive, text = Channel.receive_any, "Java heap space"

    def failing(self, **options):
        if lost:
            self.abort()
        number, _ = receive(self, **options)
        return number, ServerOverloaded(text, server_message=text)

    patient = link.settings.replace(idle_timeout_s=1.0)
    with connect(settings=patient) as own, monkeypatch.context() as patch:
        own.cache_names()
        own.partition_count(source)
        patch.setattr(Channel, "receive_any", failing)
        with pytest.raises(ConnectError if lost else ServerOverloaded):
            copy_entries(own, source, target, partitions=4, entry_bytes=1 << 18, entries=64)
    assert not [t for t in threading.enumerate() if t.name == "ignitetf-beside"]


@given(
    st.integers(0, 48 << 20),
    st.integers(1, 1024),
    st.integers(1, 64 << 20),
    st.integers(1, 1 << 30),
)
def test_scans_of_all_shares_fit_into_the_heap(window, partitions, entry_bytes, entries):
    pace = _pace(window, partitions, entry_bytes, entries)
    assert 1 <= pace.shares <= partitions and pace.ahead >= 1 and pace.page_entries >= 1
    together = pace.shares * pace.ahead
    assert together == 1 or together * scan_bytes(entry_bytes, entries / partitions) <= 512 << 20


@pytest.mark.parametrize("after", [0, 2])
def test_a_copy_that_fills_the_node_leaves_the_new_rows_and_room(
    client, link, cache_name, monkeypatch, after
):
    old, new = rows(500, 300), rows(4000, 300)
    full = ServerOverloaded("the node's memory is full", hint="more memory")
    load_dataset(old, cache_name, client=client, partitions=16)
    sent = []

    class Refused(Exchange):
        def send(self, *request):
            sent.append(request)
            if len(sent) > after:
                text = "Failed to update keys (retry update if possible)."
                raise ServerError(text, server_message=text)
            super().send(*request)

    with monkeypatch.context() as patch:
        patch.setattr("ignitetf.load.copy.Exchange", Refused)
        patch.setattr("ignitetf.load.copy.memory_full", lambda _: full)
        with pytest.raises(ServerOverloaded, match="memory is full") as told:
            load_dataset(new, cache_name, client=link, partitions=16, if_exists="replace")
    assert "--if-exists resume" in str(told.value.hint)
    assert cache_name not in client.cache_names()
    for _ in range(2):
        np.testing.assert_array_equal(np.sort(columns(client, cache_name)[0]), np.arange(4000))
        assert client.sql(f'SELECT COUNT(*) FROM "{cache_name}"').fetchall() == [(4000,)]
        load_dataset(new, cache_name, client=link, partitions=16, if_exists="resume")
    assert client.cache_size(cache_name) == 4000
    assert not [n for n in client.cache_names() if n.startswith(f"{cache_name}__")]
    assert verify(client, cache_name).ok
