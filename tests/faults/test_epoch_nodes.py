"""Epochs while nodes die, leave, join and restart: every key once, in the same order.

The default run kills three nodes during an epoch; `-m soak` kills twenty.
IGNITETF_FAULT_SEED chooses the nodes and the moments.
"""

import contextlib
import os
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from helpers.ports import lasting_port
from helpers.settled import settle
from pyignite.datatypes import prop_codes
from pyignite.datatypes.cache_config import PartitionLossPolicy

from ignitetf import open_rows
from ignitetf.errors import DataChanged, PartitionLost
from ignitetf.explore.epoch import verify_epoch
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.net.flow import Flow
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.read.usage import snapshot
from ignitetf.tables.catalog import Manifest, write_manifest
from ignitetf.tables.removal import drop_cache

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

ROWS, PARTITIONS, TABLE, BLOCKS = 60_000, 16, "EPOCHS", "EPOCHS_IN_BLOCKS"
SMALL = "EPOCHS_IN_SMALL_PARTITIONS"
SEED = int(os.environ.get("IGNITETF_FAULT_SEED", "5"))
OPTIONS = {"seed": 7, "window_bytes": 2 << 20, "page_size": 500}


class Cluster:
    """Three nodes of which any can be killed and brought back."""

    def __init__(self, name):
        from ignitetf.node import Node

        self.name = name
        self.node = Node.start(name, port=lasting_port(3), nodes=3, memory="512m")
        self.addresses = self.node.addresses

    def kill(self, number):
        """SIGKILL, and wait for its port; the address stays among those that clients try."""
        process = psutil.Process(self.node.pids[number])
        process.kill()
        psutil.wait_procs([process], timeout=30)

    def bring_back(self):
        """Start what is missing, and wait until every partition has its copies."""
        self.node = type(self.node).start(self.name)
        self.settle()

    def settle(self, nodes=3, **options):
        """Wait until so many nodes are left and every partition has its copies."""
        with connect(self.addresses) as client:
            settle(client, nodes, **options)


@pytest.fixture(scope="module")
def cluster(node_home):
    found = Cluster("epochs")
    rng = np.random.default_rng(3)
    arrays = {
        "IMAGE": rng.integers(0, 256, (ROWS, 784), dtype=np.uint8),
        "LABEL": rng.integers(0, 10, ROWS, dtype=np.int32),
    }
    with connect(found.addresses) as client:
        options = {"client": client, "partitions": PARTITIONS, "backups": 1}
        load_dataset(arrays, TABLE, **options)
        load_dataset(arrays, BLOCKS, layout="blocks", **options)
        load_dataset(arrays, SMALL, **{**options, "partitions": 512})
    yield found
    found.node.stop()


@pytest.fixture(scope="module")
def undisturbed(cluster):
    with connect(cluster.addresses) as client:
        report = verify_epoch(client, TABLE, **OPTIONS)
    assert report.ok and report.rows == ROWS
    return report.sequence


class Kills:
    """Kills nodes while epochs are read, each after the one before has its data again.

    Args:
        cluster: The nodes.
        kills: How many are killed.
        rows: Rows of all epochs together. Kills come in the first two thirds, while all are read.
        rng: Chooses nodes and moments.
    """

    def __init__(self, cluster, kills, rows, rng):
        self.cluster, self.kills, self.rng, self.killed = cluster, kills, rng, 0
        self._moments = sorted(rng.sample(range(rows * 2 // 3), kills))
        self._rows, self._back = 0, None
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1)

    def progress(self, count, nbytes):
        with self._lock:
            self._rows += count
            while self._moments and self._rows >= self._moments[0]:
                self._moments.pop(0)
                self.wait()
                self.cluster.kill(self.rng.randrange(3))
                self.killed += 1
                self._back = self._pool.submit(self._come_back, self.rng.uniform(0.0, 6.0))

    def wait(self):
        if self._back is not None:
            self._back.result(150)

    def _come_back(self, after):
        time.sleep(after)
        self.cluster.bring_back()

    def during(self, *epochs):
        """Verify epochs side by side, each `(table, options)`; return their reports."""

        def verified(epoch):
            table, options = epoch
            with connect(self.cluster.addresses) as client:
                return verify_epoch(client, table, on_progress=self.progress, **options)

        with ThreadPoolExecutor(len(epochs)) as pool, self._pool:
            reports = list(pool.map(verified, epochs))
            self.wait()
        assert self.killed == self.kills
        return reports


@pytest.mark.parametrize(
    ("kills", "shards"), [(3, 1), *(pytest.param(20, n, marks=pytest.mark.soak) for n in (1, 4))]
)
def test_killed_nodes_cost_no_row(cluster, undisturbed, kills, shards):
    """In scans, and by GET_ALL from three owners, of rows and of blocks: the same sequences."""
    by_key = {"order": "global", "seed": 7, "shards": shards, "window_bytes": 4 << 20}
    scanned = {"readers": 2, **OPTIONS}
    epochs = [(TABLE, scanned), (SMALL, scanned), (TABLE, by_key), (BLOCKS, by_key)]
    with connect(cluster.addresses) as client:
        expected = [undisturbed]
        for table, options in epochs[1:]:
            report = verify_epoch(client, table, **options)
            assert report.ok and report.rows == ROWS
            expected.append(report.sequence)
    reports = Kills(cluster, kills, len(epochs) * ROWS, random.Random(SEED)).during(*epochs)
    for report, sequence in zip(reports, expected, strict=True):
        assert report.ok and report.rows == ROWS, report
        assert report.sequence == sequence


def test_a_connection_goes_to_the_node_that_was_asked_for(cluster):
    with connect(cluster.addresses) as client:
        nodes = [node.node_id for node in client.nodes()]
        assert len(nodes) == 3
        # In the pool there is, from the first one on, an open connection to another node.
        for wanted in (*nodes, *reversed(nodes)):
            with client.channel(wanted) as channel:
                assert channel.node_id == wanted


def keys_of(batches):
    """The keys of batches, one after the other."""
    return np.concatenate([batch["key"] for batch in batches])


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_small_partitions_of_several_nodes_are_read_in_order(cluster, monkeypatch, share):
    """Also while some of the connections are lost, at any moment."""
    lost, lane, rng, sockets = [], Flow._lane, random.Random(SEED), []

    def noted(self, channel, *args):
        sockets.append(channel.socket_number)
        return lane(self, channel, *args)

    with connect(cluster.addresses) as client:
        rows = open_rows(SMALL, client=client, shard=(0, 1))
        parts = range(rows.reader.partition_count)
        every = (i.batch for p in parts for i in rows.reader.batches([p]))
        alone = [batch.key.values for batch in every if batch is not None]
        monkeypatch.setattr(Flow, "_lane", noted)
        before, retries = (
            {(one.node, one.place): one.rows for one in snapshot().nodes},
            snapshot().retries,
        )
        found = []
        for batch in rows.batches(200):
            found.append(batch["key"].copy())
            if rng.random() < share and len(lost) < 12:
                lost.append(rng.choice(sockets[-3:]))
                with contextlib.suppress(OSError):  # it may have been lost already
                    sock = socket.fromfd(lost[-1], socket.AF_INET, socket.SOCK_STREAM)
                    with sock:
                        sock.shutdown(socket.SHUT_RDWR)
        now = {(one.node, one.place): one.rows for one in snapshot().nodes}
        delivered = [rows - before.get(node, 0) for node, rows in now.items()]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(alone))
    assert bool(lost) == bool(share)
    assert sum(delivered) == ROWS
    assert (snapshot().retries > retries) == bool(lost)
    assert sum(rows > ROWS // 6 for rows in delivered) == 3


@pytest.fixture
def large_rows(cluster):
    """Rows that are asked for by key, over several nodes; more than are asked for at once."""
    rng = np.random.default_rng(4)
    arrays = {"IMAGE": rng.integers(0, 256, (300, 400_000), dtype=np.uint8)}
    with connect(cluster.addresses) as client:
        load_dataset(arrays, "EPOCHS_LARGE", client=client, partitions=16, backups=1)
        yield arrays["IMAGE"]
    with connect(cluster.addresses) as client:
        drop_cache(client, "EPOCHS_LARGE")


@pytest.mark.parametrize("kills", [0, 1])
def test_large_rows_of_several_nodes_go_to_their_places(cluster, large_rows, kills):
    """By key, in the order of the keys."""
    with connect(cluster.addresses) as client:
        rows = open_rows("EPOCHS_LARGE", client=client, shard=(0, 1), order="keys")
        before = {(one.node, one.place): one.rows for one in snapshot().nodes}
        found = []
        for number, batch in enumerate(rows.batches()):
            if number == 0 and kills:
                cluster.kill(random.Random(SEED).randrange(3))
            np.testing.assert_array_equal(batch["val"]["IMAGE"], large_rows[batch["key"]])
            found.append(batch["key"].copy())
        now = {(one.node, one.place): one.rows for one in snapshot().nodes}
        delivered = [rows - before.get(node, 0) for node, rows in now.items()]
    np.testing.assert_array_equal(np.concatenate(found), np.arange(len(large_rows)))
    if kills:
        cluster.bring_back()
    else:
        assert sum(delivered) == len(large_rows) and sum(n > 40 for n in delivered) == 3


def test_readers_and_nodes_do_not_change_the_order(cluster, undisturbed):
    with connect(cluster.addresses) as client:
        for readers in (1, 2, 4, 8):
            report = verify_epoch(client, TABLE, readers=readers, **OPTIONS)
            assert report.ok and report.sequence == undisturbed
    # Three nodes, two, one; and three again.
    cluster.settle(exact=True)
    for number in (2, 1):
        cluster.kill(number)
        cluster.settle(number)
        with connect(cluster.addresses) as client:
            assert len(client.nodes()) == number
            report = verify_epoch(client, TABLE, readers=2, **OPTIONS)
        assert report.ok and report.sequence == undisturbed
    cluster.bring_back()
    with connect(cluster.addresses) as client:
        assert len(client.nodes()) == 3
        report = verify_epoch(client, TABLE, readers=4, **OPTIONS)
    assert report.ok and report.sequence == undisturbed


def test_lost_partitions_are_never_a_short_epoch(cluster):
    """Without backups, under the policy that says nothing and under one that does."""
    silent = {prop_codes.PROP_PARTITION_LOSS_POLICY: PartitionLossPolicy.IGNORE}
    with connect(cluster.addresses) as client:
        rows = {"A": np.arange(2000, dtype=np.int64)}
        load_dataset(rows, "LOADED", client=client, partitions=PARTITIONS, backups=0)
        for name in ("DESCRIBED", "COUNTED", "SIZED"):
            cache = client.pyignite.create_cache({prop_codes.PROP_NAME: name, **silent})
            cache.put_all({i: i for i in range(2000)})
        names = ("LOADED", "DESCRIBED", "COUNTED", "SIZED")
        readers = {name: CacheReader(client, name, ReadOptions()) for name in names}
        parts = {name: list(range(r.partition_count)) for name, r in readers.items()}
        counts = tuple(readers["DESCRIBED"].partition_counts(parts["DESCRIBED"]))
        schema = readers["DESCRIBED"].schema
        write_manifest(
            client, Manifest("DESCRIBED", schema, rows=2000, partition_rows=counts, nbytes=16_000)
        )
        readers["DESCRIBED"] = CacheReader(client, "DESCRIBED", ReadOptions())
        readers["COUNTED"].partition_counts(parts["COUNTED"])
        owner = client.partition_map("LOADED").owners[0]
        address = next(n.addresses[0] for n in client.nodes() if n.node_id == owner)

        by_key = open_rows("LOADED", client=client, order="global", shard=(0, 1))
        # What nobody counted is known by its size when the epoch began: here, before the kill.
        readers["SIZED"].entry_count = lambda: 2000
        cluster.kill(cluster.addresses.index(address))
        # Before the exchange has ended the partition is empty, and not yet known to be lost: a
        # scan then is told by its count, as of the caches whose policy says nothing.
        until = time.monotonic() + 60
        lost = "SELECT COUNT(*) FROM SYS.PARTITION_STATES WHERE STATE = 'LOST'"
        while len(client.nodes()) > 2 or client.sql(lost).fetchall() == [(0,)]:
            assert time.monotonic() < until
            time.sleep(0.3)
        with pytest.raises(DataChanged, match=r"SIZED: .* entries, there were 2000"):
            list(readers["SIZED"].batches(parts["SIZED"]))
        with pytest.raises(DataChanged, match=r"partition \d+: 0 entries, the load stored"):
            list(readers["DESCRIBED"].batches(parts["DESCRIBED"]))
        with pytest.raises(DataChanged, match=r"partition \d+: 0 entries, the first scan found"):
            list(readers["COUNTED"].batches(parts["COUNTED"]))
        with pytest.raises(
            PartitionLost, match=r"LOADED: \d+ partitions have no owner: 0,"
        ) as told:
            list(readers["LOADED"].batches(parts["LOADED"]))
        assert told.value.partitions == sorted(told.value.partitions)
        # By key: some keys have no owner, and the answer to GET_ALL says so or lacks them.
        with pytest.raises((DataChanged, PartitionLost)):
            list(by_key.batches())
        # The cluster is not rebalanced again while there are lost partitions.
        for name in names:
            client.destroy_cache(name)
        cluster.bring_back()


def test_a_restart_with_persistence_keeps_the_order(node_home):
    from ignitetf.node import Node

    port = lasting_port()
    rows = {"A": np.arange(5000, dtype=np.int64)}
    sequences = set()
    for number in range(2):
        with (
            Node.start("epoch-kept", port=port, memory="256m", persist=True) as node,
            connect(node.address) as client,
        ):
            if number == 0:
                load_dataset(rows, "KEPT", client=client, partitions=8)
            report = verify_epoch(client, "KEPT", seed=7, shards=2)
            assert report.ok and report.rows == 5000
            sequences.add(report.sequence)
    assert len(sequences) == 1
