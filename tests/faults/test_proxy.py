"""Every public operation through a proxy that delays, throttles, slices, cuts, truncates, stalls
and corrupts: the documented result, or a documented error within its time limit.

IGNITETF_FAULT_ROUNDS multiplies the places that are tried; IGNITETF_FAULT_SEED moves them.
"""

import random
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ignitetf.errors import ConnectError, RequestTimeout
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.read.rows import open_rows
from ignitetf.tables.removal import drop_cache

sys.path.insert(0, str(Path(__file__).parent))
from disturb import (
    LIMITS,
    PATIENT,
    ROUNDS,
    SEED,
    WAYS,
    disturbed,
    judged,
    rng_for,
    sizes_of,
    under_fault,
    world_of,
)
from operations import ROWS, World, Wrong, is_told, keys_of, open_reader
from proxy import Fault, Proxy, at_random

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def world(address, tmp_path_factory):
    with world_of(connect(address), tmp_path_factory.mktemp("world"), "PX") as found:
        yield found


@pytest.fixture(scope="module")
def sizes(address, world):
    return sizes_of(address, world)


@pytest.mark.parametrize("name", World.OPERATIONS)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_every_operation_under_every_fault(address, world, sizes, name, way):
    # A changed byte of a row's payload cannot be told from another row without TLS.
    exact = "corrupt" not in way
    for number in range(ROUNDS):
        rng = rng_for(number, name, *way)
        under_fault(world, name, address, sizes[name], way, rng, exact=exact)


@pytest.mark.parametrize("kind", ["cut", "delay", "truncate", "stall", "mixed"])
def test_an_epoch_gives_each_key_once_in_one_order(address, world, kind):
    """The faults come one connection after the other, each a little further into the data."""
    rng = random.Random(SEED)
    for _ in range(6 * ROUNDS):
        kinds = ["cut", "delay", "truncate"] if kind == "mixed" else [kind]
        count = 2 if kind == "stall" else 8
        faults = [at_random(rng.choice(kinds), rng, 60_000) for _ in range(count)]
        with Proxy(address) as proxy, connect(proxy.address, **PATIENT) as client:
            reader = open_reader(client, world.table)
            client.close_idle()
            # The connections of the epoch, not those that opened it.
            proxy.script(None, *faults)
            begin = time.monotonic()
            found = keys_of(reader)
            assert time.monotonic() - begin < 60
        assert len(found) == ROWS
        assert found == world.order


def test_a_cut_at_every_place_of_a_small_answer(address, world):
    """Each byte of a handshake and of the first answers: a whole result or a told error."""
    outcomes = set()
    for at in range(0, 400, 1 if ROUNDS > 1 else 7):
        for kind in ("cut_after", "truncate_after"):
            fault = Fault(**{kind: at})
            _, error = disturbed(world, "caches", address, [fault, fault], exact=True)
            outcomes.add(type(error))
            assert error is None or isinstance(error, ConnectError), error
    assert ConnectError in outcomes


@pytest.mark.parametrize("drip_s", [0.0, 0.2], ids=["silent", "trickles"])
@pytest.mark.parametrize("name", World.OPERATIONS)
def test_a_node_that_says_no_more_is_given_up(address, world, sizes, name, drip_s):
    """From some byte on nothing comes over any connection, or a byte now and then."""
    rng = rng_for(0, name, "down", "dry")
    for _ in range(ROUNDS):
        with Proxy(address) as proxy:
            proxy.dry_up(rng.randrange(sizes[name][0]["down"]), drip_s)
            seconds, error = judged(world, name, proxy, LIMITS, exact=True)
        assert error is not None
        # Idle for its limit, then one more try; a load looks at what it has, too.
        assert seconds < sum(LIMITS.values()) + 4, (seconds, error)


@pytest.mark.parametrize("after", [0, 30, 100])
def test_a_silent_peer_is_given_up_within_the_limit(address, world, after):
    with Proxy(address, Fault(stall_after=after), repeat=True) as proxy:
        begin = time.monotonic()
        with (
            pytest.raises((RequestTimeout, ConnectError)),
            connect(proxy.address, **LIMITS) as client,
        ):
            world.epoch(client)
        assert time.monotonic() - begin < 9


def test_each_connection_may_bring_some_rows_more(address, world):
    """One that falls silent after some rows is replaced, as long as there is progress."""
    with (
        Proxy(address, Fault(stall_after=60_000), repeat=True) as proxy,
        connect(proxy.address, **LIMITS) as client,
    ):
        try:
            assert world.epoch(client) is None
        except (RequestTimeout, ConnectError) as error:
            assert "no answer" in str(error)


def test_what_checksums_and_lengths_can_notice_is_noticed(address, world):
    """A file of igfs through a changed byte: its content, or an error; never another content."""
    told = 0
    rng = random.Random(SEED)
    for _ in range(30 * ROUNDS):
        with Proxy(address) as proxy, connect(proxy.address, **LIMITS) as client:
            store = world._store(client)
            file = store.open_read("/big")
            client.close_idle()
            proxy.script(at_random("corrupt", rng, len(world.content)))
            try:
                assert file.read(0, file.size) == world.content
            except Exception as error:
                assert is_told(error), repr(error)
                told += 1
            finally:
                file.close()
                store.close()
    assert told > 15 * ROUNDS


def test_the_judge_sees_what_is_wrong(world):
    """The guard itself: rows that are missing or doubled are called wrong."""
    order = world.order
    try:
        world.order = order[1:]
        assert isinstance(world.epoch(world.client), Wrong)
        world.order = [order[0], *order]
        assert isinstance(world.epoch(world.client), Wrong)
    finally:
        world.order = order
    assert not is_told(ValueError("foreign")) and not is_told(OSError("no errno"))


@pytest.mark.parametrize("page_size", [None, 7])
@pytest.mark.parametrize("kind", ["cut", "truncate", "delay"])
def test_partitions_of_one_page_through_connections_that_are_lost(address, kind, page_size):
    """Many of them are asked for, and some have come, when the connection goes."""
    rng, rows = rng_for(0, "one page", "down", kind), 256 * 12
    name = f"PX_SMALL_{kind}_{page_size}".upper()
    with connect(address) as direct:
        load_dataset(
            {"A": np.arange(rows * 20).reshape(rows, 20)}, name, client=direct, partitions=256
        )
        try:
            expected = values_of(direct, name)
            assert sorted(expected[0].tolist()) == list(range(rows))
            for _ in range(3 * ROUNDS):
                faults = [at_random(kind, rng, 500_000) for _ in range(6)]
                with Proxy(address) as proxy, connect(proxy.address, **PATIENT) as client:
                    client.close_idle()
                    proxy.script(None, *faults)
                    found = values_of(client, name, page_size=page_size)
                for one, other in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(one, other)
        finally:
            drop_cache(direct, name)


@pytest.mark.parametrize("kind", ["cut", "truncate", "delay"])
def test_large_rows_through_connections_that_are_lost(address, kind):
    """A row that has arrived in part is received again, into the same place."""
    rng, rows, name = rng_for(0, "large", "down", kind), 40, f"PX_LARGE_{kind}".upper()
    values = np.random.default_rng(3).integers(0, 256, (rows, 300_000), dtype=np.uint8)
    with connect(address) as direct:
        load_dataset({"A": values}, name, client=direct, partitions=4)
        try:
            expected = keys_of(open_reader(direct, name))
            for _ in range(3 * ROUNDS):
                faults = [at_random(kind, rng, 6_000_000) for _ in range(4)]
                with Proxy(address) as proxy, connect(proxy.address, **PATIENT) as client:
                    found = open_rows(name, client=client, shard=(0, 1))
                    client.close_idle()
                    proxy.script(None, *faults)
                    batches = list(found.batches())
                assert np.concatenate([batch["key"] for batch in batches]).tolist() == expected
                for batch in batches:
                    np.testing.assert_array_equal(batch["val"]["A"], values[batch["key"]])
        finally:
            drop_cache(direct, name)


@pytest.mark.parametrize("kind", ["cut", "truncate"])
def test_a_handshake_that_is_cut_is_made_again(address, world, kind):
    """An epoch's connection meets a node that is just ending, at any byte of its greeting."""
    for place in range(0, 60, 1 if ROUNDS > 1 else 7):
        with Proxy(address) as proxy, connect(proxy.address, **PATIENT) as client:
            reader = open_reader(client, world.table)
            client.close_idle()
            proxy.script(*[Fault(**{f"{kind}_after": place})] * 2)
            assert keys_of(reader) == world.order, place


def values_of(client, name, **options):
    batches = list(open_rows(name, client=client, shard=(0, 1), **options).batches())
    return [
        np.concatenate([batch["key"] for batch in batches]),
        np.concatenate([batch["val"]["A"] for batch in batches]),
    ]


@pytest.mark.parametrize("kind", ["cut", "truncate"])
@pytest.mark.parametrize("what", ["rows", "blocks", "where", "sql"])
def test_a_connection_lost_anywhere_from_the_opening_on_is_not_noticed(address, what, kind):
    """As when a node dies then; what was connected goes on over another connection."""
    name = f"PX_OPEN_{what}_{kind}".upper()
    options = {"where": "A < 90"} if what == "where" else {}
    layout = "blocks" if what == "blocks" else "rows"

    def opened(client):
        if what == "sql":
            return [list(client.sql(f"SELECT A FROM {name} ORDER BY A")), client.cache_names()]
        return [column.tolist() for column in values_of(client, name, **options)]

    with connect(address) as direct:
        load_dataset({"A": np.arange(100)}, name, client=direct, partitions=4, layout=layout)
        try:
            expected = opened(direct)
            with Proxy(address) as proxy, connect(proxy.address, **LIMITS) as client:
                # Counted a moment after it has passed.
                time.sleep(0.2)
                first = proxy.passed["down"]
                opened(client)
                time.sleep(0.2)
                most = proxy.passed["down"] - first
            assert most > 100
            reconnected = []
            for place in range(0, most, 1 if ROUNDS > 1 else 61):
                fault = Fault(skip=first, **{f"{kind}_after": place})
                with Proxy(address, fault) as proxy, connect(proxy.address, **LIMITS) as client:
                    assert opened(client) == expected, place
                    reconnected.append(proxy.connections > 1)
            assert any(reconnected)
        finally:
            drop_cache(direct, name)
