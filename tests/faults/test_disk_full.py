"""A full disk under a node that keeps its data: the load is interrupted, nothing acknowledged is lost.

The disk is a tmpfs of a few hundred megabytes over the node's folder, which takes the right to
mount one; elsewhere the test skips and says so.
"""

import subprocess

import numpy as np
import pytest
from helpers.ports import lasting_port

from ignitetf.errors import IgniteTFError
from ignitetf.load import fill
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.tables import lease
from ignitetf.tables.catalog import read_manifest

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(400)]
NAME, ROWS = "diskfull", 3000


def arrays(rows, seed):
    rng = np.random.default_rng(seed)
    return {"DATA": rng.integers(0, 256, (rows, 100_000), dtype=np.uint8)}


def mount(*words):
    try:
        return subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command on this machine")


@pytest.fixture
def small_disk(node_home):
    """The node's folder on a disk of 280 MB; gives a function that makes it larger."""
    folder = node_home / "nodes" / NAME
    folder.mkdir(parents=True)
    done = mount("-t", "tmpfs", "-o", "size=280m", "tmpfs", str(folder))
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    yield lambda: mount("-o", "remount,size=4g", str(folder))
    from ignitetf.node.embedded import stop_node

    stop_node(NAME, timeout_s=0.5)  # nobody needs its data any more
    subprocess.run(["umount", "-l", str(folder)], check=False)


def keys_of(client, name):
    reader = CacheReader(client, name, ReadOptions())
    parts = [i.batch.key.values for i in reader.batches(range(reader.partition_count)) if i.batch]
    return np.sort(np.concatenate(parts))


def test_a_full_disk_interrupts_and_what_was_acknowledged_is_there(small_disk, monkeypatch):
    from ignitetf.node import Node
    from ignitetf.node.embedded import node_status, stop_node

    monkeypatch.setattr(fill, "_NOTE_S", 0.5)
    monkeypatch.setattr(fill, "_NOTE_TRIPS", 0)
    port = lasting_port()
    node = Node.start(NAME, port=port, memory="1g", persist=True)
    with connect(node.addresses, request_timeout_s=15, idle_timeout_s=5) as client:
        load_dataset(arrays(300, 1), "BEFORE", client=client, partitions=8)
        with pytest.raises(IgniteTFError) as caught:
            load_dataset(arrays(ROWS, 2), "DATA", client=client, partitions=8)
    # Whether the node had ended by then or not.
    told = str(caught.value) + str(node_status(NAME).cause)
    assert "disk" in told and "full" in told, told
    assert node_status(NAME).state in ("crashed", "running", "not responding")
    stored = int(caught.value.fields.get("rows", 0))
    assert small_disk().returncode == 0
    # That load could not give its lease back.
    monkeypatch.setattr(lease, "EXPIRES_S", 3.0)
    # By its disk the node ends itself, some time between now and a minute from now.
    stop_node(NAME, timeout_s=2)
    node = Node.start(NAME, port=port, memory="1g", persist=True)
    with connect(node.addresses, request_timeout_s=60) as client:
        assert read_manifest(client, "BEFORE").rows == 300
        assert np.array_equal(keys_of(client, "BEFORE"), np.arange(300))
        report = load_dataset(
            arrays(ROWS, 2), "DATA", client=client, partitions=8, if_exists="resume"
        )
        assert report.rows == ROWS and report.resumed_rows >= stored
        assert np.array_equal(keys_of(client, "DATA"), np.arange(ROWS))
