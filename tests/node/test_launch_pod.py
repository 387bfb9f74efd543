"""Members of a group that no launcher started, as pods are: they meet and end together."""

import os
import signal
import subprocess
import sys
import time
import uuid

import pytest
from helpers.ports import free_port

from ignitetf.fs.store import Store
from ignitetf.jobs.logs import LogReader
from ignitetf.jobs.store import JobStore

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

SCRIPT = """
import json, os, sys, time
config = json.loads(os.environ["TF_CONFIG"])
index = config["task"]["index"]
print("member", index, "of", config["cluster"]["worker"], sys.argv[1:], flush=True)
time.sleep(float(sys.argv[1 + index]))
print("done", time.time(), flush=True)
if len(sys.argv) > 3:
    sys.exit(int(sys.argv[3]))
"""


@pytest.fixture
def pods(address, client, tmp_path):
    job = f"pods-{uuid.uuid4().hex[:6]}"
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    group = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    started = []

    def start(*arguments):
        for index in range(2):
            environment = {
                **os.environ,
                "IGNITETF_ADDRESS": address,
                "IGNITETF_JOB": job,
                "IGNITETF_GROUP": group,
                "IGNITETF_COORDINATOR": f"127.0.0.1:{free_port()}",
                "IGNITETF_PARAMETER_SERVERS": "0",
                "JOB_COMPLETION_INDEX": str(index),
            }
            words = [sys.executable, "-m", "ignitetf.launch.pod", str(script), *arguments]
            started.append(
                subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
            )
        return started

    start.job, start.group = job, group
    yield start
    for process in started:
        process.kill()
        process.communicate()
    JobStore(client).remove(job)


def test_members_end_together_and_leave_a_record(pods, client):
    processes = pods("0", "4")
    begun = time.monotonic()
    outs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert time.monotonic() - begun >= 4  # the first waited for the second
    for index, out in enumerate(outs):
        assert f"member {index} of {pods.group.split(',')} ['0', '4']" in out
    store = JobStore(client)
    job = store.get(pods.job)
    assert (job.state, job.exit_code, job.engine, job.workers) == ("ended", 0, "kubernetes", 2)
    assert [worker.state for worker in store.workers(job.id)] == ["ended", "ended"]
    lines = list(LogReader(Store(client), job.id).lines(rest=True))
    assert {worker for _, worker, _ in lines} == {"worker 0", "worker 1"} and len(lines) == 4


def test_the_exit_code_of_a_script_is_that_of_its_pod(pods, client):
    processes = pods("0", "0", "7")
    assert [process.wait(60) for process in processes] == [7, 7]
    job = JobStore(client).get(pods.job)
    assert (job.state, job.exit_code) == ("failed", 7)


def test_a_pod_that_is_asked_to_end_does(pods, client):
    processes = pods("60", "60")
    assert all("member" in process.stdout.readline() for process in processes)
    assert JobStore(client).get(pods.job).state == "running"
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(30) for process in processes] == [143, 143]
    assert JobStore(client).get(pods.job).state == "stopped"
