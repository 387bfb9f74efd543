"""A node that dies and comes back in the middle of a load: the loader goes on by itself."""

import socket
import threading
import time

import numpy as np
import psutil
import pytest

from ignitetf.errors import ConnectError, LoadInterrupted
from ignitetf.load import fill
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import base
from ignitetf.load.sources.records import records
from ignitetf.net.client import connect
from ignitetf.tables import lease
from ignitetf.tables.catalog import read_manifest
from ignitetf.wire.checksum import checksum
from ignitetf.wire.columns import Batch, Dense

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.slow]
ROWS = 40_000


def arrays():
    rng = np.random.default_rng(11)
    return {
        "IMAGE": rng.integers(0, 256, (ROWS, 100), dtype=np.uint8),
        "LABEL": np.arange(ROWS, dtype=np.int32),
    }


def expected_checksum(schema):
    columns = {name: Dense(values) for name, values in arrays().items()}
    return f"{checksum(schema, Batch(Dense(np.arange(ROWS)), columns)):016x}"


@pytest.fixture
def persistent(node_home):
    """A function that starts the persistent node, again after it was killed."""
    from ignitetf.node import Node

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    started = []

    def start():
        started.append(Node.start("restarted", port=port, memory="256m", persist=True))
        return started[-1]

    yield start
    if started:
        started[-1].stop()


def kill(node):
    """Kill the node's processes, and wait until they are gone."""
    processes = [psutil.Process(pid) for pid in node.pids]
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=30)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_a_persistent_node_killed_and_restarted_in_the_middle(persistent, layout, monkeypatch):
    monkeypatch.setattr(fill, "_NOTE_S", 0.2)
    monkeypatch.setattr(fill, "_NOTE_TRIPS", 0)
    monkeypatch.setattr(base, "BATCH_BYTES", 200_000)
    node = persistent()
    middle = threading.Event()
    name = f"RESTARTED_{layout.upper()}"

    def slowly(rows, nbytes):
        middle.set()
        time.sleep(0.1)

    def restart():
        middle.wait(60)
        time.sleep(0.7)
        kill(node)
        persistent()

    thread = threading.Thread(target=restart)
    thread.start()
    with connect(node.address, request_timeout_s=10) as client:
        report = load_dataset(
            records(arrays()), name, client=client, partitions=8, layout=layout, on_progress=slowly
        )
        thread.join(120)
        manifest = read_manifest(client, name)
        assert report.rows == manifest.rows == ROWS
        assert manifest.checksum == expected_checksum(manifest.schema)
        entries = ROWS if layout == "rows" else sum(manifest.options.blocks)
        assert client.cache_size(name) == entries


@pytest.mark.timeout(300)
def test_a_node_that_stays_away_is_told_with_the_sum(persistent, monkeypatch):
    monkeypatch.setattr(fill, "_NOTE_S", 0.2)
    monkeypatch.setattr(fill, "_NOTE_TRIPS", 0)
    # However far the node seems on a busy machine.
    monkeypatch.setattr(fill, "_NOTE_TRIPS", 0)
    monkeypatch.setattr(base, "BATCH_BYTES", 200_000)
    node = persistent()
    noted = threading.Event()
    write_journal = fill.write_journal

    def note(*args):
        write_journal(*args)
        noted.set()

    monkeypatch.setattr(fill, "write_journal", note)

    def slowly(rows, nbytes):
        time.sleep(0.1)
        if noted.is_set() and psutil.pid_exists(node.pids[0]):
            kill(node)

    with connect(node.address, idle_timeout_s=2) as client:
        with pytest.raises(LoadInterrupted) as caught:
            load_dataset(arrays(), "AWAY", client=client, partitions=8, on_progress=slowly)
        assert isinstance(caught.value.__cause__, ConnectError)
        assert 0 < caught.value.rows < ROWS and "--if-exists resume" in caught.value.hint
        persistent()
        # That load could not give its lease back.
        monkeypatch.setattr(lease, "EXPIRES_S", 3.0)
        report = load_dataset(arrays(), "AWAY", client=client, partitions=8, if_exists="resume")
        manifest = read_manifest(client, "AWAY")
    # The node may have died between the rows and the note of them.
    assert report.rows == ROWS and 0 < report.resumed_rows <= caught.value.rows
    assert manifest.checksum == expected_checksum(manifest.schema)
