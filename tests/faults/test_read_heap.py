"""A node whose Java heap has no room for all that is asked for at once: reading goes on with less."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.ports import free_port

from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.node import Node, start
from ignitetf.read.rows import open_rows

pytestmark = [pytest.mark.node, pytest.mark.faults]

ROWS, ROW_BYTES, PARTITIONS = 320, 1_000_000, 8


@pytest.fixture
def client(node_home, monkeypatch):
    # A scan takes all rows of a partition here into the heap before it answers: 40 MB.
    monkeypatch.setattr(start, "heap_mib", lambda nodes: 320)
    with (
        Node.start("small", port=free_port(), memory="1g") as node,
        connect(node.address) as client,
    ):
        yield client


@pytest.fixture
def data(client):
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, (ROWS, ROW_BYTES), dtype=np.uint8)
    columns = {"DATA": data, "N": np.arange(ROWS)}
    load_dataset(columns, "BIG", client=client, partitions=PARTITIONS)
    return data


def assert_all_rows(rows, data):
    found = []
    for batch in rows.batches(8):
        np.testing.assert_array_equal(batch["val"]["DATA"], data[batch["val"]["N"]])
        found.append(batch["val"]["N"])
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.arange(ROWS))


@pytest.mark.timeout(120)
def test_a_node_short_of_heap_is_asked_for_less(client, data, caplog):
    for readers in (4, 8, 12):
        assert_all_rows(open_rows("BIG", client=client, readers=readers), data)
        if "Java heap space" in caplog.text:
            break
    assert "Java heap space" in caplog.text  # it did happen


@pytest.mark.timeout(180)
def test_many_that_read_by_key_share_a_small_heap(client, data, caplog):
    def read(seed):
        with connect(settings=client.settings) as own:
            rows = open_rows("BIG", client=own, order="global", shuffle=seed, shard=(0, 1))
            assert_all_rows(rows, data)

    for readers in (12, 16, 20):
        with ThreadPoolExecutor(readers) as pool:
            list(pool.map(read, range(readers)))
        if "reading on in" in caplog.text:
            break
    # It did happen: Java says the second where it has cleaned up for too long.
    assert "Java heap space" in caplog.text or "GC overhead limit" in caplog.text
