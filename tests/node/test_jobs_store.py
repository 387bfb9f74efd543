"""The records of training jobs: changed by several at once, and alive as long as somebody says so."""

import threading
import time
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignitetf.errors import ConfigError, JobNotFound
from ignitetf.jobs.record import Job, WorkerStatus
from ignitetf.jobs.store import JobStore, new_id
from ignitetf.net.client import connect
from ignitetf.tables.texts import Texts

pytestmark = pytest.mark.node


@pytest.fixture
def store(client):
    store = JobStore(client)
    made = []

    def add(**fields):
        made.append(Job(id=f"{uuid.uuid4().hex[:12]}", script="train.py", **fields))
        store.create(made[-1])
        return made[-1]

    store.add = add
    yield store
    for job in made:
        store.remove(job.id)


def test_a_record_comes_back_as_it_was(store):
    job = store.add(args=("--a", "ä"), elastic=(1, 4), data="D", state="running", created="2026")
    found = store.get(job.id)
    assert found.seen and Job.from_json({**found.to_json(), "seen": "", "new": 1}) == job
    with pytest.raises(ConfigError, match="already"):
        store.create(job)


def test_changes_of_two_clients_at_once_are_all_made(store, address):
    job = store.add()

    def change(field, values):
        with connect(address) as mine:
            for value in values:
                JobStore(mine).update(job.id, **{field: value})

    threads = [
        threading.Thread(target=change, args=(field, range(1, 41)))
        for field in ("restarts", "attempt", "running")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.get(job.id)
    assert (found.restarts, found.attempt, found.running) == (40, 40, 40)


def test_ids_and_their_starts(store):
    jobs = [store.add(created=str(n)) for n in range(3)]
    for job in jobs:
        assert store.find(job.id[:8]).id == store.find(job.id).id == job.id
    assert [j.id for j in store.jobs() if j.id in {x.id for x in jobs}] == [
        j.id for j in reversed(jobs)
    ]
    with pytest.raises(JobNotFound, match="does not exist") as caught:
        store.find(jobs[0].id[:-1] + "%")
    assert jobs[0].id in caught.value.hint
    with pytest.raises(JobNotFound):
        store.find("")
    with pytest.raises(JobNotFound):
        store.update("nobody", state="ended")


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_new_ids_are_short_words(script):
    found = new_id(script)
    assert len(found) <= 29 and set(found) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not found.startswith("-") and "--" not in found


def test_a_launcher_that_says_nothing_is_dead(store, monkeypatch):
    monkeypatch.setattr("ignitetf.jobs.store.ALIVE_S", 0.6)
    job = store.add(state="running")
    assert store.get(job.id).state == "running"
    time.sleep(0.3)
    store.beat(job.id)
    time.sleep(0.4)
    assert store.get(job.id).state == "running"  # 0.7 s after the first beat
    status = WorkerStatus(1, name="worker 1", epochs=({"epoch": 0, "rows": 5},), places={"host": 3})
    store.beat_worker(job.id, status)
    assert store.workers(job.id) == [status] and store.living_workers(job.id, range(3)) == {1}
    time.sleep(0.8)
    assert store.get(job.id).state == store.find(job.id).state == "dead"
    assert store.workers(job.id) == [status] and store.living_workers(job.id, range(3)) == set()
    store.update(job.id, state="failed")
    assert store.get(job.id).state == "failed"


def test_every_process_of_a_group_is_listed_in_its_order(store):
    job = store.add(workers=2, ps=2, elastic=(1, 12))
    told = [WorkerStatus(number, name=str(number)) for number in range(1 + 12 + 2)]
    for status in reversed(told):
        store.beat_worker(job.id, status)
    assert store.workers(job.id) == told
    with pytest.raises(JobNotFound):
        store.workers("nobody")


def test_the_end_of_an_attempt_and_the_wish_to_stop(store):
    job = store.add()
    store.arrive(job.id, 1, 0)
    store.arrive(job.id, 1, 10)
    store.arrive(job.id, 2, 1)
    assert store.arrived(job.id, 1, range(12)) == {0, 10}
    assert store.arrived(job.id, 2, range(12)) == {1}
    assert store.stop_requested(job.id) is None
    store.request_stop(job.id, "me")
    store.request_stop(job.id, "you")
    assert store.stop_requested(job.id) == "me"


def test_a_removed_job_leaves_nothing(store, client):
    job = store.add()
    store.beat_worker(job.id, WorkerStatus(0))
    store.arrive(job.id, 1, 0)
    store.remove(job.id)
    assert not [name for name in Texts(client, "IGNITETF_JOBS").all() if name.startswith(job.id)]
