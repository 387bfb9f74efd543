"""Every public operation through a proxy that delays, throttles, slices, cuts, truncates, stalls
and corrupts: the documented result, or a documented error within its time limit.

IGNITETF_FAULT_ROUNDS multiplies the places that are tried; IGNITETF_FAULT_SEED moves them.
"""

import os
import random
import sys
import time
import zlib
from pathlib import Path

import pytest

from ignitetf.client import connect
from ignitetf.errors import ConnectError, RequestTimeout

sys.path.insert(0, str(Path(__file__).parent))
from operations import ROWS, World, Wrong, is_told, keys_of, open_reader
from proxy import Fault, Proxy, at_random

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]

ROUNDS = int(os.environ.get("IGNITETF_FAULT_ROUNDS", "1"))
SEED = int(os.environ.get("IGNITETF_FAULT_SEED", "1"))
LIMITS = {"connect_timeout_s": 1.5, "request_timeout_s": 1.5, "idle_timeout_s": 4}
PATIENT = {**LIMITS, "idle_timeout_s": 60}
# A few tries of the limits above, each with what a loader waits between them.
LONGEST_S = 25.0
DOWN = ("delay", "slice", "throttle", "cut", "truncate", "stall", "corrupt")
UP = ("cut", "truncate", "stall", "corrupt")


@pytest.fixture(scope="module")
def world(address, tmp_path_factory):
    pytest.importorskip("tensorflow")
    with connect(address) as client:
        found = World(client, tmp_path_factory.mktemp("world"), f"PX{os.getpid()}")
        yield found
        found.close()


@pytest.fixture(scope="module")
def sizes(address, world):
    """Bytes that each operation passes in each direction, and over how many connections."""
    found = {}
    for name in World.OPERATIONS:
        with Proxy(address) as proxy:
            with connect(proxy.address) as client:
                assert world.run(name, client) is None
            assert world.settled(name) is None
            found[name] = dict(proxy.passed), proxy.connections
    return found


def disturbed(world, name, address, faults, *, exact):
    """Run an operation through these faults, and judge it; gives the seconds and the error."""
    error = result = None
    begin = time.monotonic()
    with Proxy(address, *faults) as proxy:
        try:
            with connect(proxy.address, **LIMITS) as client:
                result = world.run(name, client)
        except Exception as caught:
            error = caught
        seconds = time.monotonic() - begin
    assert error is None or is_told(error), repr(error)
    assert seconds < LONGEST_S, (seconds, error)
    if exact:
        assert result is None, result
        assert world.settled(name) is None
    elif name.startswith("load_"):
        world.client.sql(f'DROP TABLE IF EXISTS "{world.loading[0]}"')
    return seconds, error


def faults_for(kind, direction, sizes, rng):
    """A fault somewhere in one of the connections that the operation makes."""
    passed, connections = sizes
    each = max(100, int(1.2 * passed[direction] / connections))
    most = rng.choice([200, each, passed[direction]])
    if kind == "throttle":
        fault = Fault(bytes_per_s=400_000, direction=direction)
    else:
        fault = at_random(kind, rng, most)
        fault = Fault(**{**vars(fault), "direction": direction})
    return [None] * rng.randrange(connections) + [fault] * rng.choice([1, 1, 2])


@pytest.mark.parametrize("name", World.OPERATIONS)
@pytest.mark.parametrize(
    ("direction", "kind"), [("down", k) for k in DOWN] + [("up", k) for k in UP]
)
def test_every_operation_under_every_fault(address, world, sizes, name, direction, kind):
    for number in range(ROUNDS):
        seed = zlib.crc32(f"{SEED} {number} {name} {direction} {kind}".encode())
        faults = faults_for(kind, direction, sizes[name], random.Random(seed))
        # A changed byte of a row's payload cannot be told from another row without TLS.
        exact = kind != "corrupt"
        _, error = disturbed(world, name, address, faults, exact=exact)
        if kind in ("delay", "slice", "throttle"):
            assert error is None, error


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


def test_a_silent_peer_is_given_up_within_the_limit(address, world):
    for after in (0, 30, 100, 2000):
        with Proxy(address, Fault(stall_after=after), repeat=True) as proxy:
            begin = time.monotonic()
            with (
                pytest.raises((RequestTimeout, ConnectError)),
                connect(proxy.address, **LIMITS) as client,
            ):
                world.epoch(client)
            assert time.monotonic() - begin < 9, after


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
