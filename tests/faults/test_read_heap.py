"""A node whose Java heap has no room for all that is asked for at once: reading goes on with less."""

import numpy as np
import pytest
from helpers.ports import free_port

from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.node import Node, start
from ignitetf.read.rows import open_rows

pytestmark = [pytest.mark.node, pytest.mark.faults]

ROWS, ROW_BYTES = 320, 1_000_000


@pytest.fixture
def client(node_home, monkeypatch):
    # A scan takes all rows of a partition here into the heap before it answers: 40 MB.
    monkeypatch.setattr(start, "heap_mib", lambda nodes: 320)
    with (
        Node.start("small", port=free_port(), memory="1g") as node,
        connect(node.address) as client,
    ):
        yield client


@pytest.mark.timeout(120)
def test_a_node_short_of_heap_is_asked_for_less(client, caplog):
    rng = np.random.default_rng(1)
    number = np.arange(ROWS)
    data = rng.integers(0, 256, (ROWS, ROW_BYTES), dtype=np.uint8)
    load_dataset({"DATA": data, "N": number}, "BIG", client=client, partitions=8)
    rows = open_rows("BIG", client=client, readers=4)
    found = []
    for batch in rows.batches(8):
        np.testing.assert_array_equal(batch["val"]["DATA"], data[batch["val"]["N"]])
        found.append(batch["val"]["N"])
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), number)
    assert "Java heap space" in caplog.text  # it did happen
