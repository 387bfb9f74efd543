"""Over a distant link the same bytes arrive, and more of them are on their way at once."""

import contextlib

import numpy as np
import pytest
from helpers.distant import Distant

from ignitetf.explore.verify import verify
from ignitetf.fs.store import Store
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect

pytestmark = pytest.mark.node

DELAY_S = 0.05


@pytest.fixture(scope="module")
def distant(client):
    with Distant(client.settings.addresses[0], DELAY_S) as proxy:
        yield proxy


@pytest.fixture
def far(client, distant):
    settings = client.settings.replace(addresses=(distant.address,))
    with connect(settings=settings) as found:
        found.cache_names()  # the first request tells the distance
        distant.forget()
        yield found


@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_a_load_is_complete_and_uses_more_connections(client, far, distant, cache_name, layout):
    rows = {"IMAGE": np.arange(48 << 20, dtype=np.uint8).reshape(-1, 1 << 14)}
    before = distant.connections
    load_dataset(rows, cache_name, client=far, partitions=8, layout=layout)
    assert distant.connections - before > 6
    report = verify(client, cache_name)
    assert report.ok, report


@pytest.mark.parametrize("ahead_bytes", [0, 128 << 20])
def test_a_file_has_many_chunks_on_their_way_but_within_the_limit(far, distant, ahead_bytes):
    settings = far.settings.replace(ahead_bytes=ahead_bytes)
    with connect(settings=settings) as other, contextlib.closing(Store(other, "DISTANT")) as store:
        data = np.random.default_rng(0).bytes(40 << 20)
        store.found("/")
        distant.forget()
        with store.writing("/file") as writer:
            writer.write(memoryview(data))
        with contextlib.closing(store.open_read("/file")) as reader:
            found = bytearray(len(data))
            for at in range(0, len(data), 1 << 20):
                reader.read_into(at, memoryview(found)[at : at + (1 << 20)])
        store.remove("/file")
    assert found == data
    near = 8 << 20  # a few chunks
    for most in distant.most.values():
        assert most > 2 * near if ahead_bytes else most <= near
