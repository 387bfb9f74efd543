"""Training jobs as somebody else sees them: from other processes, while they run and afterwards."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers.interruptible import COMMAND

from ignitetf.errors import JobNotFound
from ignitetf.fs.store import Store
from ignitetf.jobs.logs import LogReader
from ignitetf.jobs.store import JobStore

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

# What a launcher does: a record, signs of life, output; it ends when somebody asks for it.
LAUNCHER = """
import sys, time
from ignitetf.jobs.logs import LogWriter
from ignitetf.jobs.record import Job, WorkerStatus
from ignitetf.jobs.store import JobStore, new_id, utc_now
from ignitetf.net.client import connect
from ignitetf.settings import Settings

with connect(sys.argv[1]) as client:
    store, job = JobStore(client), new_id("my train.py")
    store.create(Job(job, "my train.py", ("--x",), workers=2, state="running", created=utc_now()))
    logs = LogWriter(client.settings, job, 1)
    print(job, flush=True)
    for turn in range(10_000):
        store.beat(job)
        for number in (0, 1):
            logs.write(f"worker {number}", f"step {turn} \\u00e4")
            store.beat_worker(job, WorkerStatus(
                number, f"worker {number}", state="running", rows=turn, rows_per_s=10.4, wait=0.25,
                places={"host": 2_000_000},
            ))
        if store.stop_requested(job):
            logs.write("worker 0", "the last line")
            assert logs.close()
            store.update(job, state="stopped", exit_code=3, ended=utc_now())
            store.end_beat(job)
            break
        time.sleep(0.2)
"""


def command(*words, address, **options):
    return subprocess.Popen(
        [*COMMAND, *words, "--address", address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run(*words, address, code=0):
    process = command(*words, address=address)
    out, err = process.communicate(timeout=90)
    assert process.returncode == code, (out, err)
    return out, err


@pytest.fixture
def launcher(address, client):
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, address], stdout=subprocess.PIPE, text=True
    )
    job = process.stdout.readline().strip()
    assert job.startswith("my-train-")
    yield process, job
    process.kill()
    process.communicate()
    JobStore(client).remove(job)


def test_a_job_is_seen_followed_and_stopped(address, client, launcher):
    process, job = launcher
    until = time.monotonic() + 30
    reader = LogReader(Store(client), job)
    lines = []
    while len(lines) < 8:  # while it runs, what is new, each line once
        assert time.monotonic() < until
        lines += reader.lines()
        time.sleep(0.3)
    for worker in ("worker 0", "worker 1"):
        told = [line for _, name, line in lines if name == worker]
        assert told == [f"step {n} ä" for n in range(len(told))]

    attached = command("attach", job, "--output", "json", address=address)
    (row,) = (
        r for r in json.loads(run("ps", "--output", "json", address=address)[0]) if r["id"] == job
    )
    assert row["state"] == "running" and row["args"] == ["--x"] and row["seen"]
    assert job in run("ps", address=address)[0]
    told = json.loads(run("describe", job[:-1], "--output", "json", address=address)[0])
    assert [w["rows_per_s"] for w in told["workers_now"]] == [10.4, 10.4]
    assert all(w["alive"] for w in told["workers_now"])
    assert "25%" in run("describe", job, address=address)[0]
    assert "[worker 0] step 0 ä" in run("logs", job, address=address)[0]

    _, err = run("stop", job, address=address)
    assert err == f"{job}: stopped, exit code 3\n"
    process.wait(30)
    out, err = attached.communicate(timeout=30)
    assert attached.returncode == 3, err
    events = [json.loads(line) for line in out.splitlines()]
    seen = [e["line"] for event in events for e in event["lines"] if e["worker"] == "worker 0"]
    assert seen[-1] == "the last line"
    assert seen[:-1] == [f"step {n} ä" for n in range(len(seen) - 1)]
    only = run("logs", job, "--worker", "0", "--attempt", "1", address=address)[0].splitlines()
    assert only == seen
    assert run("attach", job, address=address, code=3)[0].count("[worker 0]") == len(seen)
    told = run("logs", job, "--output", "json", address=address)[0].splitlines()
    assert {"attempt": 1, "worker": "worker 0", "line": seen[0]} in map(json.loads, told)
    removed = json.loads(run("stop", job, "--remove", "--output", "json", address=address)[0])
    assert (removed["id"], removed["state"], removed["exit_code"]) == (job, "stopped", 3)
    with pytest.raises(JobNotFound):
        JobStore(client).find(job)
    assert "does not exist" in run("describe", job, address=address, code=1)[1]
    assert not Store(client).exists(f"/jobs/{job}")


def test_a_killed_launcher_is_noticed_within_15_s(address, client, launcher):
    process, job = launcher
    attached = command("attach", job, address=address)
    time.sleep(2)
    os.kill(process.pid, signal.SIGKILL)
    killed = time.monotonic()
    while JobStore(client).find(job).state != "dead":
        assert time.monotonic() - killed < 15
        time.sleep(0.5)
    out, err = attached.communicate(timeout=15)
    assert attached.returncode == 1 and "[worker 1] step 0" in out
    last = JobStore(client).find(job).seen
    assert (
        last and f"{job}: dead, last seen {last}" in err and last in run("ps", address=address)[0]
    )
    assert "silent" in run("describe", job, address=address)[0]
    assert "ended without reporting" in run("stop", job, address=address)[1]
    assert JobStore(client).find(job).state == "failed"


def test_ctrl_c_leaves_a_job_running(address, client, launcher):
    process, job = launcher
    attached = command("attach", job, address=address)
    time.sleep(3)
    attached.send_signal(signal.SIGINT)
    _, err = attached.communicate(timeout=15)
    assert attached.returncode == 130 and "Traceback" not in err
    assert process.poll() is None and JobStore(client).find(job).state == "running"
