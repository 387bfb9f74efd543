"""How the tests disturb an operation through the proxy, and judge what came of it.

IGNITETF_FAULT_ROUNDS multiplies the places that are tried; IGNITETF_FAULT_SEED moves them.
"""

import contextlib
import os
import random
import time
import zlib

import pytest
from operations import World, is_told
from proxy import Fault, Proxy, at_random

from ignitetf.net.client import connect
from ignitetf.tables import lease

ROUNDS = int(os.environ.get("IGNITETF_FAULT_ROUNDS", "1"))
SEED = int(os.environ.get("IGNITETF_FAULT_SEED", "1"))
LIMITS = {"connect_timeout_s": 1.5, "request_timeout_s": 1.5, "idle_timeout_s": 4}
PATIENT = {**LIMITS, "idle_timeout_s": 60}
# A few tries of the limits above, each with what a loader waits between them.
LONGEST_S = 25.0
DOWN = ("delay", "slice", "throttle", "cut", "truncate", "stall", "corrupt")
UP = ("cut", "truncate", "stall", "corrupt")
WAYS = [("down", kind) for kind in DOWN] + [("up", kind) for kind in UP]
# What only takes longer.
HARMLESS = ("delay", "slice", "throttle")


@contextlib.contextmanager
def world_of(client, folder, prefix):
    """Data in the cluster of an undisturbed client; in the end it is removed, the client closed.

    Meanwhile a lease that nobody renews expires sooner, for whoever looks at what a disturbed load
    has left.
    """
    with client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "EXPIRES_S", 6.0)
        patch.setattr(lease, "TRUSTED_S", 3.0)
        pytest.importorskip("tensorflow")
        world = World(client, folder, f"{prefix}{os.getpid()}")
        yield world
        world.close()


def sizes_of(address, world, **settings):
    """Bytes that each operation passes in each direction, and over how many connections."""
    found = {}
    for name in World.OPERATIONS:
        with Proxy(address) as proxy:
            with connect(proxy.address, **settings) as client:
                assert world.run(name, client) is None
            assert world.settled(name) is None
            found[name] = dict(proxy.passed), proxy.connections
    return found


def judged(world, name, proxy, settings, *, exact):
    """Run an operation through the proxy as it is, and judge it; gives the seconds and the error.

    Args:
        world: The data.
        name: The operation.
        proxy: What stands between.
        settings: Of the connection.
        exact: Whether the result must be the documented one where no error came.
    """
    error = result = None
    begin = time.monotonic()
    try:
        with connect(proxy.address, **settings) as client:
            result = world.run(name, client)
    except Exception as caught:
        error = caught
    seconds = time.monotonic() - begin
    proxy.close()
    assert error is None or is_told(error), repr(error)
    assert seconds < LONGEST_S, (seconds, error)
    if exact:
        assert result is None, result
        assert world.settled(name) is None
    else:
        world.forget(name)
    return seconds, error


def disturbed(world, name, address, faults, *, exact, **settings):
    """Run an operation through these faults, and judge it; gives the seconds and the error."""
    with Proxy(address, *faults) as proxy:
        return judged(world, name, proxy, {**LIMITS, **settings}, exact=exact)


def under_fault(world, name, address, passed, way, rng, *, exact, **settings):
    """Run an operation under a fault somewhere; one that only takes longer gives no error.

    Args:
        world: The data.
        name: The operation.
        address: Of the node.
        passed: What the operation passes, from `sizes_of`.
        way: The direction and the kind of the fault, one of `WAYS`.
        rng: Says where.
        exact: As for `judged`.
        **settings: Of the connection.
    """
    direction, kind = way
    faults = faults_for(kind, direction, passed, rng)
    _, error = disturbed(world, name, address, faults, exact=exact, **settings)
    if kind in HARMLESS:
        assert error is None, error


def rng_for(number, name, direction, kind):
    """All chance of one try."""
    return random.Random(zlib.crc32(f"{SEED} {number} {name} {direction} {kind}".encode()))


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
