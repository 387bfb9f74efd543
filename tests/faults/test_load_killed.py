"""A loader that is killed at any moment, and resumed, leaves exactly the full data set.

IGNITETF_FAULT_ROUNDS multiplies the loaders that are killed at full speed.
"""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers.ports import lasting_port
from loaders import Loaders, arrays

from ignitetf.explore.epoch import verify_epoch
from ignitetf.load.journal import read_journal
from ignitetf.load.loader import load_dataset
from ignitetf.tables.catalog import read_manifest
from ignitetf.tables.removal import drop_cache

pytestmark = [pytest.mark.node, pytest.mark.faults]
ROUNDS = int(os.environ.get("IGNITETF_FAULT_ROUNDS", "1"))
ROWS = 30_000
SEED = 20241121
BATCH_S = 0.01  # a load takes more than a second, and notes what it did all the time


@pytest.fixture(scope="module")
def loaders(address, tmp_path_factory):
    with Loaders(address, tmp_path_factory.mktemp("loaders")) as loaders:
        yield loaders


@pytest.fixture(scope="module")
def expected(client):
    """Checksum of the data set, loaded in one go."""
    name = "T_KILLED_REFERENCE"
    load_dataset(arrays(0, ROWS), name, client=client, partitions=4, if_exists="replace")
    yield read_manifest(client, name).checksum
    drop_cache(client, name)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_killed_at_random_moments_and_resumed(client, loaders, cache_name, expected, layout):
    """Twenty runs in all; each is killed up to three times before it may end."""
    chance = random.Random(SEED)
    partial = 0
    for number in range(10):
        name = f"{cache_name}_{number}"
        mode = "error"
        for _ in range(chance.randint(1, 3)):
            loader = loaders.start(name, layout, mode, 0, ROWS, BATCH_S)
            time.sleep(chance.uniform(0, 1.2))
            loader.send(signal.SIGKILL)
            loader.outcome()  # a process takes a while to die
            mode = "resume"
        journal = read_journal(client, name)
        partial += journal is not None and 0 < journal.rows < ROWS
        stored = journal.rows if journal is not None else 0
        options = {"partitions": 4, "layout": layout, "index": ("LABEL",), "if_exists": "resume"}
        report = load_dataset(arrays(0, ROWS), name, client=client, **options)
        manifest = read_manifest(client, name)
        assert (manifest.rows, manifest.checksum) == (ROWS, expected), (number, SEED)
        assert report.rows == ROWS and report.resumed_rows >= stored
        if layout == "rows":
            query = f"SELECT COUNT(*), SUM(LABEL) FROM {name}"
            assert client.sql(query).fetchall() == [(ROWS, ROWS * (ROWS - 1) // 2)]
        else:
            assert client.cache_size(name) == sum(manifest.options.blocks)
            # It looks for every row in the block that the manifest has it in.
            assert verify_epoch(client, name, order="global", shards=2).ok
        drop_cache(client, name)
    assert partial, "no run was killed in the middle"


AT_FULL_SPEED = """
import sys
import numpy as np
from ignitetf.net.client import connect
from ignitetf.load.loader import load_dataset

rows = np.zeros((3_000_000, 16), np.uint8)
with connect(sys.argv[1]) as client:
    print("begin", flush=True)
    load_dataset({"X": rows}, sys.argv[2], client=client, partitions=8, if_exists="replace")
"""


def connected(node):
    """A client of a node that is alive, if slow: it clears up what a killed loader had under way.

    For 10 s it may have no thread for a handshake, which it then ends itself; on a busy machine an
    answer waits behind all that for longer than a request may.
    """
    from ignitetf.errors import ConnectError
    from ignitetf.net.client import connect

    deadline = time.monotonic() + 30
    while True:
        try:
            wait_s = max(1, deadline - time.monotonic())
            return connect(node.address, connect_timeout_s=wait_s, request_timeout_s=90)
        except ConnectError:
            assert node.status().state not in ("crashed", "stopped")
            if time.monotonic() > deadline:
                raise


def wait_for_rows(client, cache, process):
    """The number of rows as soon as the process has stored some; the cache may not exist yet."""
    while process.poll() is None:
        if client.cache_exists(cache) and (stored := client.cache_size(cache)):
            return stored
        time.sleep(0.02)
    raise AssertionError("the loader ended before it stored a row")


@pytest.mark.timeout(300)
def test_a_loader_that_is_killed_at_full_speed_takes_no_node_along(node_home):
    """Through Ignite's data streamer, every second of these would halt the node."""
    from ignitetf.node import Node

    chance = random.Random(SEED)
    with Node.start("full-speed", port=lasting_port(), memory="1g") as node:
        for _ in range(3 * ROUNDS):
            command = [sys.executable, "-c", AT_FULL_SPEED, node.address, "KILLED"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout.readline() == "begin\n"
                with connected(node) as client:
                    stored = wait_for_rows(client, "KILLED", process)
                time.sleep(chance.uniform(0, 0.5))
                process.send_signal(signal.SIGKILL)
            assert process.returncode == -signal.SIGKILL, "the load ended before it was killed"
            time.sleep(0.5)
            with connected(node) as client:
                assert client.cache_size("KILLED") >= stored > 0
                # The next loader would replace it, and its rows would be taken for new ones.
                drop_cache(client, "KILLED")


def test_a_load_that_is_given_up_takes_no_node_along(client, cache_name):
    """Bad input after many rows, with requests under way."""
    from ignitetf.errors import SourceError
    from ignitetf.load.writer import Writer, register_types
    from ignitetf.tables.caches import create_cache
    from ignitetf.tables.removal import drop_cache
    from ignitetf.tables.spec import CacheSpec
    from ignitetf.wire.codes import TypeCode
    from ignitetf.wire.columns import Batch, Dense
    from ignitetf.wire.schema import Field, Schema

    schema = Schema(
        f"{cache_name}_V",
        Field("key", TypeCode.LONG, np.dtype("<i8")),
        (Field("X", TypeCode.LONG, np.dtype("<i8")),),
    )
    rows = Batch(Dense(np.arange(50_000)), {"X": Dense(np.arange(50_000))})
    register_types(client, schema)
    for _ in range(4):
        create_cache(client, CacheSpec(cache_name, partitions=8))
        with (
            pytest.raises(SourceError),
            Writer(client, cache_name, schema) as writer,
        ):
            for _ in range(4):
                writer.write(rows)
            raise SourceError("bad input")
        drop_cache(client, cache_name)
    assert not client.cache_exists(cache_name)
