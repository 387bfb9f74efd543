"""Workers read the copies near to them, the same rows as from any others, and say from where."""

import os
import time
from collections import Counter

import numpy as np
import psutil
import pytest
from helpers.nodes import without_recording
from helpers.ports import lasting_port

from ignitetf import open_rows
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.net.topology import nearest_nodes
from ignitetf.read import usage

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]

NAME = f"NEAR{os.getpid()}"
ROWS, CENTERS = 16_000, ["west", "east", "east"]
ORDERS = ({}, {"shuffle": 3, "window_bytes": 4 << 20}, {"order": "global", "shuffle": 3})


@pytest.fixture(scope="module")
def cluster(node_home):
    from ignitetf.node import Node

    with without_recording():
        node = Node.start("near", port=lasting_port(3), nodes=3, memory="512m", data_center=CENTERS)
    rng = np.random.default_rng(3)
    arrays = {
        "IMAGE": rng.integers(0, 256, (ROWS, 784), dtype=np.uint8),
        "LABEL": rng.integers(0, 10, ROWS, dtype=np.int32),
    }
    with connect(node.addresses) as client:
        for backups in (0, 1, 2):
            load_dataset(arrays, f"B{backups}", client=client, partitions=16, backups=backups)
    yield node
    Node.attach("near").stop()


class Reading:
    """The keys of rows, the nodes that they came from, and the iteration that was counted."""

    def __init__(self, rows, meanwhile=None):
        before = {(n.node, n.place): n.rows for n in usage.snapshot().nodes}
        parts = []
        with rows.batches(500) as batches:
            for batch in batches:
                parts.append(batch["key"])
                if meanwhile is not None and len(parts) == 3:
                    meanwhile()
        found = usage.snapshot()
        new = {(n.node, n.place): n.rows - before.get((n.node, n.place), 0) for n in found.nodes}
        self.keys = np.concatenate(parts)
        self.nodes = {at: rows for at, rows in new.items() if rows}
        self.iteration = found.iterations[-1]

    @property
    def places(self):
        return {place for _, place in self.nodes}


def near(center, addresses):
    return connect(addresses, data_center=center)


def test_the_near_copies_are_read_in_the_same_order(cluster, monkeypatch):
    monkeypatch.setenv("IGNITETF_JOB", "near")
    addresses = cluster.addresses
    west = {(addresses[0], "host")}
    east = {(address, "host") for address in addresses[1:]}
    with connect(addresses) as any_, near("west", addresses) as one, near("east", addresses) as two:
        for options in ORDERS:
            plain = Reading(open_rows("B2", client=any_, **options))
            assert len(plain.nodes) == 3 and plain.places == {"host"}
            by_one = Reading(open_rows("B2", client=one, **options))
            assert by_one.nodes == {next(iter(west)): ROWS}
            by_two = Reading(open_rows("B1", client=two, **options))
            # Each partition has a copy on one of the two at least.
            assert set(by_two.nodes) == east and sum(by_two.nodes.values()) == ROWS
            for other in (by_one, by_two):
                assert (other.keys == plain.keys).all()
                assert other.iteration.checksum == plain.iteration.checksum
            # Without copies the rows come from where they are.
            alone = Reading(open_rows("B0", client=one, **options))
            assert alone.places == {"host", "elsewhere"} and sum(alone.nodes.values()) == ROWS
            assert (alone.keys == plain.keys).all()
            shards = [
                Reading(open_rows("B2", client=one, shard=(i, 3), **options)).iteration
                for i in range(3)
            ]
            assert all(each.ended for each in shards)
            assert sum(each.rows for each in shards) == ROWS
            total = sum(each.checksum for each in shards) % 2**64
            assert total == plain.iteration.checksum


def test_equally_near_nodes_are_read_from_evenly(cluster):
    with connect(cluster.addresses) as client:
        nodes, loads = client.nodes(), {}
        for name in ("B0", "B1", "B2"):
            chosen, is_settled = nearest_nodes(client, name, nodes, client.partition_map(name))
            again = nearest_nodes(client, name, nodes, client.partition_map(name))
            assert again == (chosen, True) and is_settled
            assert set(chosen.items()) <= set(client.copies(name)[0])
            loads[name] = sorted(Counter(chosen.values()).values())
        primaries = client.partition_map("B0").owners
        assert loads["B0"] == sorted(Counter(primaries.values()).values())
        assert loads["B2"] == [5, 5, 6]
        assert max(loads["B1"]) == 6
        # A write that waits for the primary copy alone may be missing in the others.
        cache = f"{NAME}_PRIMARY"
        client.sql(
            f"CREATE TABLE {cache} (K INT PRIMARY KEY, V INT) WITH"
            f' "template=partitioned, backups=1, write_synchronization_mode=PRIMARY_SYNC,'
            f'cache_name={cache}"'
        )
        chosen, _ = nearest_nodes(client, cache, nodes, client.partition_map(cache))
        assert chosen == client.partition_map(cache).owners


def test_a_near_node_that_dies_and_comes_back_costs_no_row(cluster):
    addresses = cluster.addresses
    with near("west", addresses) as client:
        undisturbed = Reading(open_rows("B2", client=client)).keys

        def kill():
            process = psutil.Process(cluster.pids[0])
            process.kill()
            psutil.wait_procs([process], timeout=30)

        rows = open_rows("B2", client=client, page_size=500, readers=1)
        disturbed = Reading(rows, kill)
        assert (disturbed.keys == undisturbed).all()
        # A slow consumer may find that all rows had been received before the node died.
        assert {"host"} <= disturbed.places <= {"host", "elsewhere"}
        assert sum(disturbed.nodes.values()) == ROWS
        by_key = {"order": "global", "shuffle": 3}
        expected = Reading(open_rows("B2", client=client, **by_key))
        assert expected.places == {"elsewhere"}

        # While its copies are filled again, no row is missing; then it is the one that is read.
        type(cluster).start("near")
        until = time.monotonic() + 60
        while True:
            by_scan = Reading(open_rows("B2", client=client))
            assert (by_scan.keys == undisturbed).all()
            again = Reading(open_rows("B2", client=client, **by_key))
            assert (again.keys == expected.keys).all()
            if by_scan.nodes == again.nodes == {(addresses[0], "host"): ROWS}:
                break
            assert time.monotonic() < until, by_scan.nodes
