"""How the tests disturb an operation through the proxy, and judge what came of it.

IGNITETF_FAULT_ROUNDS multiplies the places that are tried; IGNITETF_FAULT_SEED moves them.
"""

import os
import random
import time
import zlib

from operations import World, is_told
from proxy import Fault, Proxy, at_random

from ignitetf.client import connect

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
