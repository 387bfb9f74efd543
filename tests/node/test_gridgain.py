"""Servers that speak a later protocol than Apache Ignite's: what both sides have is used."""

import numpy as np
import pytest
from helpers.gridgain import GridGain

from ignitetf import load_dataset, open_rows
from ignitetf.errors import ConnectError
from ignitetf.net.client import connect
from ignitetf.tables.removal import remove_cache
from ignitetf.wire.codes import Feature

pytestmark = pytest.mark.node

ROWS = 500
OURS = int(sum(Feature))


@pytest.mark.parametrize("accepts", [((1, 7, 1), (1, 7, 0)), ((1, 7, 1),)])
def test_what_both_sides_have_is_used(client, cache_name, accepts):
    if client.settings.tls:
        pytest.skip("the relay has no certificate")
    with (
        GridGain(client.settings.addresses[0], accepts=accepts) as server,
        connect(server.address) as found,
    ):
        with found.channel() as channel:
            assert channel.features == Feature(OURS)
        load_dataset({"N": np.arange(ROWS)}, cache_name, client=found, partitions=8)
        rows = open_rows(cache_name, client=found, where="N < ?", where_params=(100,))
        read = np.concatenate([batch["val"]["N"] for batch in rows.batches(64)])
        assert sorted(read.tolist()) == list(range(100))
        assert found.cache(cache_name).get(7).N == 7
        remove_cache(found, cache_name)
    assert {version for version, _ in server.asked} <= {(1, 7, 0), (1, 7, 1)}
    assert all(features & ~OURS == 0 for _, features in server.asked)


def test_features_that_only_one_side_has_are_not_used(client):
    if client.settings.tls:
        pytest.skip("the relay has no certificate")
    theirs = 1 << 33 | int(Feature.CLUSTER_STATES)
    with (
        GridGain(client.settings.addresses[0], features=theirs) as server,
        connect(server.address) as found,
        found.channel() as channel,
    ):
        assert channel.features == Feature.CLUSTER_STATES


@pytest.mark.parametrize(
    ("wants", "words"),
    [
        ((1, 8, 0), "requires protocol 1.8.0, ignitetf speaks up to 1.7.0"),
        ((2, 0, 0), "requires protocol 2.0.0"),
        ((1, 1, 0), "supports only protocol 1.1.0"),
        ((1, 7, 1), "refused the handshake: Unsupported version"),
    ],
)
def test_a_version_that_is_not_common_is_refused_by_name(wants, words):
    with (
        GridGain("127.0.0.1:1", accepts=(), wants=wants) as server,
        pytest.raises(ConnectError, match=words) as caught,
    ):
        connect(server.address)
    assert caught.value.hint
