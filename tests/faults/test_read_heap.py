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


@pytest.fixture(scope="module")
def client(node_home):
    with pytest.MonkeyPatch.context() as patch:
        # A scan takes all rows of a partition here into the heap before it answers: 40 MB.
        patch.setattr(start, "heap_mib", lambda nodes: 320)
        node = Node.start("small", port=free_port(), memory="1g")
    with node, connect(node.address) as client:
        yield client


@pytest.fixture(scope="module")
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
@pytest.mark.parametrize("readers", [1, 4, 12])
def test_a_node_short_of_heap_sends_all_rows(client, data, readers):
    assert_all_rows(open_rows("BIG", client=client, readers=readers), data)


@pytest.mark.timeout(180)
def test_many_that_read_by_key_share_a_small_heap(client, data):
    def read(seed):
        with connect(settings=client.settings) as own:
            rows = open_rows("BIG", client=own, order="global", shuffle=seed, shard=(0, 1))
            assert_all_rows(rows, data)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(read, range(12)))
