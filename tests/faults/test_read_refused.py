"""What a node refuses for want of heap is asked for again, less at a time."""

import numpy as np
import pytest
from helpers.ports import free_port
from helpers.refusing import Refusing

from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.node import Node
from ignitetf.read.rows import open_rows
from ignitetf.wire.codes import OpCode

pytestmark = [pytest.mark.node, pytest.mark.faults]
ROWS = 300


@pytest.fixture(scope="module")
def client(node_home):
    """A single node, to which every request goes through the relay."""
    with (
        Node.start("refusing", port=free_port(), memory="256m") as node,
        connect(node.address) as found,
    ):
        yield found


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize(
    "options", [{}, {"shuffle": 3}, {"order": "global"}, {"where": "N >= 0"}], ids=str
)
def test_what_a_node_refuses_is_asked_again(client, times, options, caplog):
    """A window that is halved until the node has room for what it asks."""
    data = np.random.default_rng(1).integers(0, 256, (ROWS, 40_000), dtype=np.uint8)
    columns = {"DATA": data, "N": np.arange(ROWS)}
    load_dataset(columns, "REFUSED", client=client, partitions=8, if_exists="replace")
    ops = {OpCode.QUERY_SCAN, OpCode.QUERY_SCAN_PAGE, OpCode.CACHE_GET_ALL}
    rows = open_rows("REFUSED", client=client, shard=(0, 1), **options)
    if "where" in options:
        ops = {OpCode.QUERY_SQL_FIELDS, OpCode.QUERY_SQL_FIELDS_PAGE}
    with Refusing(client.settings.addresses[0], ops, times) as relay:
        settings = client.settings.replace(addresses=(relay.address,))
        rows.reader.client.close_idle()
        with pytest.MonkeyPatch.context() as patch, connect(settings=settings) as behind:
            patch.setattr(rows.reader, "client", behind)
            found = {}
            for batch in rows.batches(8):
                found |= zip(batch["val"]["N"].tolist(), batch["val"]["DATA"], strict=True)
        assert sorted(found) == list(range(ROWS))
        assert all(np.array_equal(found[n], data[n]) for n in found)
        assert relay.refused == times
    assert "Java heap space" in caplog.text
