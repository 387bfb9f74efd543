"""Jobs on Ray: two of its nodes on the loopback interface, told apart by labels."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from ignitetf.jobs.store import JobStore

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]
pytest.importorskip("ray", reason="needs Ray: pip install 'ignitetf[ray]'")

ONE_MACHINE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}

# A server of its own port, reading its rows, and its place told.
SCRIPT = """
import json, os, socket, sys, time
import ray_neighbour
from ignitetf import open_rows
config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
host, port = config["cluster"]["worker"][index].split(":")
server = socket.create_server((host, int(port)))
rows = sum(len(b["key"]) for b in open_rows(os.environ["IGNITE_DATASET_CACHE_NAME"]).batches())
print("worker", index, "pid", os.getpid(), "rows", rows, sys.argv[1:], "raylet", os.environ["RAY_RAYLET_PID"], flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def ray_cluster(address):
    os.environ.update(ONE_MACHINE)
    from ray.cluster_utils import Cluster

    options = {
        "num_cpus": 2,
        "node_ip_address": "127.0.0.1",
        "object_store_memory": 80_000_000,
    }
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    owner = cluster.add_node(**options, labels={"ignitetf/owner": address.replace(":", "_")})
    cluster.owner_pid = owner.all_processes["raylet"][0].process.pid
    yield cluster
    cluster.shutdown()


@pytest.fixture
def script(tmp_path):
    (tmp_path / "ray_neighbour.py").write_text("")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def launch(address, ray_address, *words):
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "ignitetf", "launch", "--address", address, "--engine", "ray"),
            *("-o", "json", "-n", "2", *words),
        ],
        env={**os.environ, **ONE_MACHINE, "RAY_ADDRESS": ray_address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers_told(lines):
    return {
        int(w[1]): (int(w[3]), int(w[5]))
        for w in (line.split("] ", 1)[1].split() for line in lines if "rows" in line)
    }


def test_workers_run_beside_the_owner_of_their_rows(
    address, ray_cluster, script, mnist_parts, client
):
    name, _ = mnist_parts
    process = launch(address, ray_cluster.address, "--data", name, script, "0.5", "--x")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    job = json.loads(out)
    told = workers_told(err.splitlines())
    assert sorted(told) == [0, 1] and sum(rows for _, rows in told.values()) == 3_000
    # Both nodes have room for both workers; one of them is beside the owner.
    assert err.count(f"['0.5', '--x'] raylet {ray_cluster.owner_pid}") == 2
    assert job["state"] == "ended" and job["engine"] == "ray"
    statuses = JobStore(client).workers(job["id"])
    assert [status.state for status in statuses] == ["ended", "ended"]
    assert sum(status.rows for status in statuses) == 3_000


def test_a_killed_worker_is_started_again_and_nothing_is_left(
    address, ray_cluster, script, mnist_parts
):
    name, _ = mnist_parts
    process = launch(address, ray_cluster.address, "--data", name, "--restarts", "1", script, "4")
    lines, first = [], {}
    for line in process.stderr:
        lines.append(line)
        first = workers_told(lines)
        if len(first) == 2:
            break
    os.kill(first[1][0], signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    again = workers_told(err.splitlines())
    assert sorted(again) == [0, 1] and again != first
    assert json.loads(out)["attempt"] == 2
    time.sleep(1)
    assert not any(psutil.pid_exists(pid) for pid, _ in (*first.values(), *again.values()))


def test_a_job_is_stopped_from_another_process(address, ray_cluster, script, mnist_parts):
    name, _ = mnist_parts
    process = launch(address, ray_cluster.address, "--data", name, script, "100")
    lines = []
    for line in process.stderr:
        lines.append(line)
        if len(workers_told(lines)) == 2:
            break
    job = next(line.split()[1].rstrip(":") for line in lines if line.startswith("job "))
    words = [sys.executable, "-m", "ignitetf", "stop", job, "--address", address]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0 and "stopped" in done.stderr, done.stderr
    process.communicate(timeout=30)
    assert not any(psutil.pid_exists(pid) for pid, _ in workers_told(lines).values())


def test_a_detached_job_outlives_its_launcher(address, ray_cluster, script, mnist_parts, client):
    """Submitted, left alone, and followed from another process to its end."""
    name, _ = mnist_parts
    process = launch(address, ray_cluster.address, "--data", name, "--detach", script, "6")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    job = json.loads(out)["id"]
    assert JobStore(client).get(job).state in ("starting", "running")
    words = [sys.executable, "-m", "ignitetf", "attach", job, "--address", address]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = workers_told(done.stdout.splitlines())
    assert sum(rows for _, rows in told.values()) == 3_000
    assert JobStore(client).get(job).state == "ended"
