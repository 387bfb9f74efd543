"""Random operations against a model: no row is lost, doubled or overlooked; nothing is left.

A few runs in the suite. More, also on three nodes of which one is killed now and then:

    IGNITETF_MODEL_RUNS=2000 IGNITETF_MODEL_SEED=1 pytest -s tests/model

`python tests/model/checker.py ADDRESS` runs it on any cluster.
"""

import contextlib
import functools
import itertools
import os
import signal
import threading

import pytest
from checker import Api, Run, Violation, check
from helpers.ports import lasting_port
from helpers.settled import settle
from killable import Loaders

from ignitetf.net.client import connect

RUNS = int(os.environ.get("IGNITETF_MODEL_RUNS", "6"))
SEED = int(os.environ.get("IGNITETF_MODEL_SEED", "20240"))
LONG = "IGNITETF_MODEL_RUNS" in os.environ
pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.timeout(0 if LONG else 300)]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def loaders():
    with Loaders() as found:
        yield found


def prefix():
    return f"MODEL{os.getpid()}N{next(_numbers)}"


def test_random_operations(address, loaders):
    for seed in range(SEED, SEED + RUNS):
        if LONG:
            print("seed", seed, flush=True)
        check(lambda: Run([address], loaders, prefix()), seed, 25 if LONG else 15)


class Cluster:
    """Three nodes, of which one is killed at some moment of a block, and back at its end."""

    def __init__(self):
        from ignitetf.node import Node

        self.node = Node.start("model", port=lasting_port(3), nodes=3, memory="400m")

    @contextlib.contextmanager
    def one_killed(self, choice):
        pid = choice.choice(self.node.pids)
        kill = threading.Timer(choice.uniform(0.0, 0.5), os.kill, (pid, signal.SIGKILL))
        kill.start()
        try:
            yield
        finally:
            kill.join()
            self.node = type(self.node).start("model")
            with connect(self.node.addresses) as client:
                settle(client)


@pytest.mark.skipif(not LONG, reason="a node that is killed takes half a minute to come back")
def test_random_operations_while_nodes_are_killed(node_home, loaders):
    cluster = Cluster()
    try:
        for seed in range(SEED, SEED + RUNS):
            print("seed", seed, flush=True)
            name = prefix()
            make = functools.partial(
                Run, cluster.node.addresses, loaders, name, backups=1, nodes=cluster
            )
            check(make, seed, shrink=False)
    finally:
        cluster.node.stop()


class LosesARow(Api):
    """A reader that leaves the last row of the third batch out."""

    def read(self, rows, batch):
        for number, (found, state) in enumerate(super().read(rows, batch)):
            yield (found[:-1] if number == 2 else found), state


class DoublesARow(Api):
    def read(self, rows, batch):
        for number, (found, state) in enumerate(super().read(rows, batch)):
            yield (found[:1] + found if number == 2 else found), state


class LoadsOneLess(Api):
    """A load that acknowledges a row that it has not stored."""

    def load(self, source, name, **options):
        report = super().load(source, name, **options)
        if report.rows > 100 and options["layout"] == "rows":
            options["client"].sql(f"DELETE FROM {name} WHERE N = ?", (source.arrays["N"][7],))
        return report


class ChangesAValue(Api):
    def read(self, rows, batch):
        for found, state in super().read(rows, batch):
            yield (
                [(k, (n, "t0", g) if n % 97 == 13 else (n, t, g)) for k, (n, t, g) in found],
                state,
            )


class LeavesTheIndex(Api):
    def drop(self, client, name):
        super().drop(client, name)
        client.pyignite.get_or_create_cache(f"{name}_INDEX")


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (LosesARow, "[1-9] lost|other rows|[0-9] rows (of|by)"),
        (DoublesARow, "[1-9] doubled|keys are doubled|other rows than loaded"),
        (LoadsOneLess, "other rows than loaded|the load stored"),
        (ChangesAValue, r"other values|other rows|unknown rows|is \("),
        (LeavesTheIndex, "left of"),
    ],
)
def test_a_broken_client_is_found(address, loaders, broken, told):
    """A guard of the guard: what a wrong client does is seen within a few runs."""

    def make():
        return Run([address], loaders, prefix(), api=broken())

    with pytest.raises(Violation, match=told) as caught:
        for seed in range(SEED, SEED + 20):
            check(make, seed, 12, shrink=False)
    assert f"seed {seed}" in str(caught.value)
