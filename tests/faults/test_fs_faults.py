"""What the file system promises when processes die, are interrupted, race, or just end.

The counts of the acceptance run are larger: IGNITETF_FAULT_ROUNDS multiplies these.
"""

import ast
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.needs import needs_native_io
from helpers.ports import lasting_port
from helpers.stores import new_store

from ignitetf.fs.check import check
from ignitetf.fs.store import Store
from ignitetf.net.client import connect
from ignitetf.node import Node

sys.path.insert(0, str(Path(__file__).parent))
from fs_programs import is_whole

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.timeout(900)]

ROUNDS = int(os.environ.get("IGNITETF_FAULT_ROUNDS", "1"))
_PROGRAMS = Path(__file__).with_name("fs_programs.py")


@pytest.fixture
def store(client):
    with new_store(client) as made:
        yield made


def program(what, address, store, *arguments, **options):
    command = [sys.executable, str(_PROGRAMS), what, address, store.name, *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def read(store, path):
    file = store.open_read(path)
    try:
        return file.read(0, file.size)
    finally:
        file.close()


def test_a_killed_writer_leaves_the_old_file_or_the_new(address, store):
    rng = random.Random(1)
    for number in range(5 * ROUNDS):
        known = [int(read(store, "/f")[:16])] if store.exists("/f") else []
        process = program("writer", address, store, "/f", number + 1)
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        out, _ = process.communicate()
        data = read(store, "/f")
        assert is_whole(data)
        stored = [int(line) for line in out.split()]
        # What was reported as stored is there, or what came after it.
        assert int(data[:16]) >= max([*stored, (number + 1) * 1_000_000 + 1, *known])
    report = check(store, repair=True, read=True)
    assert report.ok, report
    expected = sum(store.stat("/f").contents().values())
    assert store.chunks.count() == expected


def test_processes_that_race_in_one_directory_leave_a_consistent_tree(address, store):
    store.make_directory("/race")
    seconds = 4 if ROUNDS == 1 else 30
    racers = [program("racer", address, store, seed, seconds) for seed in range(8)]
    for racer in racers:
        out, errors = racer.communicate(timeout=seconds + 120)
        assert racer.returncode == 0, errors
        assert int(out) > 0
    report = check(store, read=True)
    assert report.problems == []
    report = check(store, repair=True, read=True)
    assert report.ok, report
    assert report.repaired == []


def test_an_interrupted_save_that_returned_restores(address, store):
    needs_native_io()
    process = program("interrupted", address, store, 20 * ROUNDS)
    out, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors[-3000:]
    outcomes = ast.literal_eval(out.strip().splitlines()[-1])
    assert sum(outcomes.values()) == 20 * ROUNDS
    assert check(store, repair=True, read=True).ok


@pytest.mark.parametrize("what", ["iterator", "file", "summary", "async", "threads"])
def test_a_process_ends_with_something_open(address, store, what):
    needs_native_io()
    for _ in range(ROUNDS):
        process = program("at_exit", address, store, what)
        assert process.stdout.readline() == "end\n", process.communicate()[1][-3000:]
        begin = time.monotonic()
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors[-3000:]
        assert time.monotonic() - begin < 10
    if what == "file":
        assert read(store, "/exit/open.txt") == b"not closed"
    assert check(store, repair=True).ok


def write_and_read_in_little_memory(address, store, size):
    process = program("big", address, store, size)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    same, peak_mb, *_ = out.split()
    assert same == "True"
    assert int(peak_mb) < 256


def test_a_file_in_little_memory(address, store):
    write_and_read_in_little_memory(address, store, 64 << 20)


@pytest.mark.soak
def test_a_file_beyond_two_gigabytes_in_little_memory(node_home):
    with (
        Node.start("fs-large", port=lasting_port(), memory="4g") as node,
        connect(node.addresses) as client,
    ):
        store = Store(client, "LARGE")
        write_and_read_in_little_memory(node.addresses[0], store, 3 << 30)
        store.close()
