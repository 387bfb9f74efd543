"""Every public operation while a node hangs (SIGSTOP) or dies (SIGKILL) on three with backups.

A node that hangs for some seconds is no failure for the cluster: an operation ends by its time
limit or goes on. A node that died is replaced by the backups. What was acknowledged is there.
"""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.ports import lasting_port
from helpers.settled import settle

from ignitetf.net.client import connect

sys.path.insert(0, str(Path(__file__).parent))
from operations import World, is_told

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

SEED = int(os.environ.get("IGNITETF_FAULT_SEED", "1"))
LIMITS = {"connect_timeout_s": 2, "request_timeout_s": 3}
PAUSE_S = 4.0
# A dead node is noticed at once, a partition exchange takes seconds, a loader waits for it.
LONGEST_S = 60.0


class Cluster:
    def __init__(self):
        from ignitetf.node import Node

        self.node = Node.start("operations", port=lasting_port(3), nodes=3, memory="400m")
        self.addresses = self.node.addresses

    def bring_back(self, client):
        self.node = type(self.node).start("operations")
        settle(client)


@pytest.fixture(scope="module")
def cluster(node_home):
    found = Cluster()
    yield found
    found.node.stop()


@pytest.fixture(scope="module")
def world(cluster, tmp_path_factory):
    pytest.importorskip("tensorflow")
    with connect(cluster.addresses) as client:
        yield World(client, tmp_path_factory.mktemp("world"), "ON", backups=1)


def run(world, name, addresses):
    """An operation within its time limit: None, or the documented error."""
    begin = time.monotonic()
    error = None
    try:
        with connect(addresses, **LIMITS) as client:
            result = world.run(name, client)
        assert result is None, result
    except AssertionError:
        raise
    except Exception as caught:
        assert is_told(caught), repr(caught)
        error = caught
    assert time.monotonic() - begin < LONGEST_S
    return error


@pytest.mark.parametrize("name", World.OPERATIONS)
def test_a_node_that_hangs_for_some_seconds(cluster, world, name):
    rng = random.Random(f"{SEED} hang {name}")
    pid = rng.choice(cluster.node.pids)
    addresses = rng.sample(cluster.addresses, 3)
    resume = threading.Timer(PAUSE_S, os.kill, (pid, signal.SIGCONT))
    os.kill(pid, signal.SIGSTOP)
    resume.start()
    try:
        run(world, name, addresses)
    finally:
        resume.join()
    settle(world.client)
    assert world.settled(name) is None
    assert run(world, name, addresses) is None
    assert world.settled(name) is None


@pytest.mark.parametrize("name", World.OPERATIONS)
def test_a_node_that_dies(cluster, world, name):
    rng = random.Random(f"{SEED} die {name}")
    pid = rng.choice(cluster.node.pids)
    kill = threading.Timer(rng.uniform(0.0, 0.3), os.kill, (pid, signal.SIGKILL))
    kill.start()
    run(world, name, rng.sample(cluster.addresses, 3))
    kill.join()
    cluster.bring_back(world.client)
    assert world.settled(name) is None
    assert run(world, name, cluster.addresses) is None
    assert world.settled(name) is None
