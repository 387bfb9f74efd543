"""A node whose memory is full: the load stops with the sum, and resumes when there is room."""

import numpy as np
import pytest

from ignitetf.errors import LoadInterrupted, ServerOverloaded
from ignitetf.load import fill
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.tables.catalog import read_manifest
from ignitetf.tables.removal import drop_cache

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.slow]


@pytest.fixture
def small_node(node_home):
    import socket

    from ignitetf.node import Node

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with Node.start("small", port=port, memory="128m") as node:
        yield node


def arrays(rows, seed):
    rng = np.random.default_rng(seed)
    return {"DATA": rng.integers(0, 256, (rows, 100_000), dtype=np.uint8)}


@pytest.mark.timeout(300)
def test_memory_full_stops_with_the_sum_and_resumes(small_node, monkeypatch):
    monkeypatch.setattr(fill, "_NOTE_S", 0.0)
    monkeypatch.setattr(fill, "_NOTE_TRIPS", 0)
    with connect(small_node.address) as client:
        load_dataset(arrays(600, 1), "FILLER", client=client, partitions=8)
        with pytest.raises(LoadInterrupted) as caught:
            load_dataset(arrays(800, 2), "DATA", client=client, partitions=8)
        assert isinstance(caught.value.__cause__, ServerOverloaded)
        assert 0 < caught.value.rows < 800 and "resume" in caught.value.hint
        drop_cache(client, "FILLER")
        report = load_dataset(
            arrays(800, 2), "DATA", client=client, partitions=8, if_exists="resume"
        )
        assert report.rows == client.cache_size("DATA") == 800
        assert read_manifest(client, "DATA").rows == 800
