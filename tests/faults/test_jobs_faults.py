"""Training jobs whose cluster is away for a while, or that end while somebody looks."""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from helpers.ports import free_port

from ignitetf.fs.store import Store
from ignitetf.jobs.logs import MOST_BYTES, LogReader, LogWriter
from ignitetf.jobs.record import Job
from ignitetf.jobs.store import JobStore
from ignitetf.settings import Settings
from ignitetf.tables.texts import Texts

sys.path.insert(0, str(Path(__file__).parent))
from proxy import Fault, Proxy

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.timeout(120)]

_LIMITS = {"connect_timeout_s": 1.0, "request_timeout_s": 1.0, "idle_timeout_s": 1.0}


def test_output_waits_for_the_cluster_in_bounded_memory(address, client):
    """Whatever is written while the cluster is away: the first lines come, the others are told."""
    job, reads = uuid.uuid4().hex[:12], []

    def read_until(done, reader):
        until = time.monotonic() + 60
        while not done():
            assert time.monotonic() < until, [line[:60] for line in reads]
            time.sleep(0.2)
            reads.extend(line for _, _, line in reader.lines())

    with Proxy(address) as proxy:
        logs = LogWriter(Settings.resolve(address=proxy.address, **_LIMITS), job, 1)
        reader = LogReader(Store(client), job)
        logs.write("worker 0", "first")
        read_until(lambda: reads, reader)
        proxy.script(Fault(cut_after=0), repeat=True)
        proxy.cut_all()
        for number in range(80):  # 8 MB in 5 s, over several attempts to store them
            begun = time.monotonic()
            logs.write("worker 0", f"{number} " + "x" * 100_000)
            assert time.monotonic() - begun < 0.5
            time.sleep(0.06)
        proxy.script()
        read_until(lambda: "dropped" in reads[-1], reader)
        logs.write("worker 0", "last")
        read_until(lambda: reads[-1] == "last", reader)
        assert logs.close()
    Store(client).remove_directory(f"/jobs/{job}", recursive=True)
    assert sum(map(len, reads)) <= MOST_BYTES + 1000
    kept = [int(line.split()[0]) for line in reads[1:-2]]
    assert kept == list(range(len(kept))) and kept
    assert reads[-2] == f"[{80 - len(kept)} lines were dropped here: too many at once]"


def test_a_job_that_ends_while_it_is_looked_at_is_not_dead(client, monkeypatch):
    """Its record may have been read before the end, and its sign of life after it."""
    job, plain = uuid.uuid4().hex[:12], Texts.get
    store = JobStore(client)

    def ends_first(texts, name):
        if name == f"{job}#beat":
            monkeypatch.undo()
            store.update(job, state="ended", exit_code=0)
            store.end_beat(job)
        return plain(texts, name)

    for look in (store.get, lambda job: next(j for j in store.jobs() if j.id == job)):
        store.create(Job(job, "train.py", state="running"))
        try:
            monkeypatch.setattr(Texts, "get", ends_first)
            found = look(job)
        finally:
            monkeypatch.undo()
            store.remove(job)
        assert (found.state, found.exit_code) == ("ended", 0)


@pytest.mark.parametrize("seconds", [6, 2])
def test_a_pod_goes_on_while_the_cluster_is_away(address, client, tmp_path, seconds):
    """Its signs of life can wait, and so can the end of its script."""
    job, script = f"pod-{uuid.uuid4().hex[:6]}", tmp_path / "train.py"
    script.write_text(
        f"import time\nprint('begun', flush=True)\ntime.sleep({seconds})\nprint('done')\n"
    )
    with Proxy(address) as proxy:
        environment = {
            **os.environ,
            "IGNITETF_ADDRESS": proxy.address,
            "IGNITETF_CONNECT_TIMEOUT": "1",
            "IGNITETF_REQUEST_TIMEOUT": "1",
            "IGNITETF_IDLE_TIMEOUT": "8",
            "IGNITETF_JOB": job,
            "IGNITETF_GROUP": f"127.0.0.1:{free_port()}",
            "IGNITETF_COORDINATOR": f"127.0.0.1:{free_port()}",
            "IGNITETF_PARAMETER_SERVERS": "0",
            "JOB_COMPLETION_INDEX": "0",
        }
        pod = subprocess.Popen(
            [sys.executable, "-m", "ignitetf.launch.pod", str(script)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert pod.stdout.readline() == "begun\n"
            proxy.script(Fault(cut_after=0), repeat=True)
            proxy.cut_all()
            time.sleep(3)
            proxy.script()
            out, err = pod.communicate(timeout=60)
        finally:
            pod.kill()
    assert (pod.returncode, out) == (0, "done\n"), err
    store = JobStore(client)
    assert (store.get(job).state, store.workers(job)[0].state) == ("ended", "ended")
    store.remove(job)
