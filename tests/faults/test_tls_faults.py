"""The bytes of a TLS stream changed, cut, held back: the documented result or error, never other data.

As `test_proxy`, on a node with TLS, client certificates and a login. The law is stronger here: a
changed byte of the stream never passes for data, so every result that comes is the right one.
"""

import random
import sys
from pathlib import Path

import pytest
from helpers.ports import lasting_port

from ignitetf.errors import ConnectError, IgniteTFError, TlsError
from ignitetf.net.client import connect

sys.path.insert(0, str(Path(__file__).parent))
from disturb import LIMITS, PATIENT, ROUNDS, SEED, WAYS, rng_for, sizes_of, under_fault, world_of
from operations import ROWS, World, is_told, keys_of, open_reader
from proxy import Fault, Proxy, at_random

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def secured(node_home):
    """Settings of a secured node."""
    from ignitetf.node import Node

    with Node.start("tlsfaults", port=lasting_port(), memory="600m", secure=True) as node:
        yield node.settings


@pytest.fixture(scope="module")
def given(secured):
    """The settings of connections that go through a proxy."""
    names = ("tls", "ca", "cert", "key", "username", "password")
    return {name: getattr(secured, name) for name in names}


@pytest.fixture(scope="module")
def world(secured, tmp_path_factory):
    with world_of(connect(settings=secured), tmp_path_factory.mktemp("world"), "PT") as found:
        yield found


@pytest.fixture(scope="module")
def address(secured):
    return secured.addresses[0]


@pytest.fixture(scope="module")
def sizes(address, world, given):
    return sizes_of(address, world, **given)


@pytest.mark.parametrize("name", World.OPERATIONS)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_every_operation_under_every_fault(address, world, sizes, given, name, way):
    direction, kind = way
    for number in range(ROUNDS * (3 if kind == "corrupt" else 1)):
        rng = rng_for(number, name, direction, f"tls {kind}")
        under_fault(world, name, address, sizes[name], way, rng, exact=True, **given)


@pytest.mark.parametrize("kind", ["corrupt", "cut", "truncate"])
def test_an_epoch_gives_each_key_once_in_one_order(address, world, given, kind):
    """Also where the fault meets the handshake of a connection that replaces a lost one."""
    rng = random.Random(SEED)
    for _ in range(4 * ROUNDS):
        with Proxy(address) as proxy, connect(proxy.address, **PATIENT, **given) as client:
            reader = open_reader(client, world.table)
            client.close_idle()
            faults = [at_random(kind, rng, 60_000) for _ in range(3)]
            if kind != "corrupt":
                faults += [at_random(kind, rng, 4_000) for _ in range(3)]
            proxy.script(None, *faults)
            try:
                found = keys_of(reader)
            except IgniteTFError as error:
                # A handshake with a changed byte looks like that of somebody else.
                assert kind == "corrupt" and isinstance(error, TlsError), error
                continue
        assert len(found) == ROWS
        assert found == world.order


def names_through(address, given, *faults):
    """The names of the caches through these faults, and the bytes that passed."""
    with Proxy(address, *faults) as proxy:
        with connect(proxy.address, **LIMITS, **given) as client:
            names = client.cache_names()
        return names, dict(proxy.passed)


@pytest.mark.parametrize("direction", ["down", "up"])
def test_a_changed_byte_anywhere_in_the_handshake_is_refused(address, given, direction):
    """No connection comes of it, or one whose first answer is whole; and in time."""
    names, passed = names_through(address, given)
    rng, told = random.Random(SEED), 0
    tries = 40 * ROUNDS
    for _ in range(tries):
        fault = Fault(
            corrupt_at=rng.randrange(passed[direction]),
            corrupt_mask=1 << rng.randrange(8),
            direction=direction,
        )
        try:
            assert names_through(address, given, fault)[0] == names
        except Exception as error:
            assert is_told(error), repr(error)
            assert isinstance(error, ConnectError) or "no answer" in str(error), error
            told += 1
    # What TLS ignores by design (a session ticket, the version of a record) changes nothing.
    assert told > 0.6 * tries


def test_a_cut_at_every_place_of_the_handshake(address, given):
    names, passed = names_through(address, given)
    refused = 0
    for at in range(0, passed["down"], 200 // ROUNDS):
        for kind in ("cut_after", "truncate_after"):
            try:
                assert names_through(address, given, Fault(**{kind: at}))[0] == names
            except ConnectError:
                refused += 1
    assert refused > 4
