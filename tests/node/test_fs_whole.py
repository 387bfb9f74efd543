"""Only whole checkpoints are pushed, pulled and named, whatever is missing and whoever dies."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from helpers.checkpoint_files import index_of, save
from helpers.stores import new_store
from typer.testing import CliRunner

from ignitetf.cli.main import app
from ignitetf.fs import checkpoints
from ignitetf.fs.folders import LocalFolder, RemoteFolder, state_names
from ignitetf.fs.pull import pull
from ignitetf.fs.push import push, watch
from ignitetf.fs.sync import read_file
from ignitetf.fs.units import data_sizes, find_fault, units

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

ROUNDS = int(os.environ.get("IGNITETF_FAULT_ROUNDS", "1"))


@pytest.fixture
def store(client):
    with new_store(client) as made:
        yield made


def hdf5(size=3000):
    """The superblock of an HDF5 file, and what it says that follows."""
    head = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + bytes(8)
    places = [0, 2**64 - 1, size, 2**64 - 1]
    return (head + b"".join(p.to_bytes(8, "little") for p in places)).ljust(size, b"d")


def archive():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr("config.json", "{}" * 100)
        made.writestr("model.weights.h5", hdf5())
    return out.getvalue()


def saved_model():
    """SavedModel { schema_version: 1, meta_graphs { object_graph_def { nodes {} } } }."""
    graph = b"\x3a\x02\x0a\x00" + b"\x12\x50" + b"g" * 0x50
    return b"\x08\x01\x12" + bytes([len(graph)]) + graph


def all_kinds(folder):
    """A folder with every kind of checkpoint; gives the files of each, the one that leads last."""
    save(folder, 1, 2, 3, shards=2, size=2000)
    (folder / "m.keras").write_bytes(archive())
    (folder / "w.weights.h5").write_bytes(hdf5())
    shards = ["s_00000.weights.h5", "s_00001.weights.h5"]
    for name in shards:
        (folder / name).write_bytes(hdf5())
    places = {"/layers/a/vars": shards[:1], "/layers/b/vars": shards[1]}
    (folder / "s.weights.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "sm" / "variables").mkdir(parents=True)
    (folder / "sm" / "saved_model.pb").write_bytes(saved_model())
    (folder / "sm" / "variables" / "variables.index").write_bytes(index_of(900))
    (folder / "sm" / "variables" / "variables.data-00000-of-00001").write_bytes(bytes(900))
    data = [f"ckpt-3.data-{n:05}-of-00002" for n in range(2)]
    return {
        "checkpoint": [*data, "ckpt-3.index"],
        "archive": ["m.keras"],
        "hdf5": ["w.weights.h5"],
        "weights": [*shards, "s.weights.json"],
        "saved model": [
            "sm/variables/variables.data-00000-of-00001",
            "sm/variables/variables.index",
            "sm/saved_model.pb",
        ],
    }


def damages(kinds):
    """Each file of each kind missing, cut by a byte, and cut to a half."""
    for kind, files in kinds.items():
        for name in files:
            # Without the one that leads to them, the shards are files of their own.
            if len(files) > 1 and (kind == "checkpoint" or name != files[-1]):
                yield kind, name, "missing"
            yield kind, name, "cut by one"
            yield kind, name, "half"


def damage(data, how):
    return (
        None if how == "missing" else data[:-1] if how == "cut by one" else data[: len(data) // 2]
    )


def test_every_damage_to_every_file_is_seen(tmp_path):
    local = tmp_path / "run"
    kinds = all_kinds(local)
    folder = LocalFolder(local)
    assert [find_fault(folder, unit, read=True) for unit in units(folder)] == [None] * 7
    for _, name, how in damages(kinds):
        data = (local / name).read_bytes()
        changed = damage(data, how)
        (local / name).unlink()
        if changed is not None:
            (local / name).write_bytes(changed)
        folder = LocalFolder(local)
        wrong = [find_fault(folder, unit, read=True) for unit in units(folder, ["ckpt-3"])]
        assert len([fault for fault in wrong if fault is not None and name in fault]) == 1
        (local / name).write_bytes(data)


@pytest.mark.parametrize("how", ["missing", "cut by one"])
def test_one_damaged_file_of_each_kind(store, tmp_path, how):
    local, copy = tmp_path / "run", tmp_path / "copy"
    kinds = all_kinds(local)
    originals, gone = {}, set()
    for kind, files in kinds.items():
        if how != "missing" or len(files) > 1:
            originals[files[0]] = (local / files[0]).read_bytes()
            changed = damage(originals[files[0]], how)
            (local / files[0]).unlink()
            if changed is not None:
                (local / files[0]).write_bytes(changed)
            gone |= set(kinds[kind])
    report = push(store, local, "/run")
    assert len(report.incomplete) == len(originals)
    assert all(any(name in one for one in report.incomplete) for name in originals)
    there = RemoteFolder(store, "/run").sizes
    assert not gone & set(there)
    latest, every = state_names(read_file(store, "/run/checkpoint").decode())
    assert (latest, every) == ("ckpt-2", ["ckpt-1", "ckpt-2"])
    assert pull(store, "/run", copy).incomplete == []
    assert not gone & set(LocalFolder(copy).sizes)
    # Mended, it is published; what was damaged over there by others is not pulled.
    for name, data in originals.items():
        (local / name).write_bytes(data)
    assert push(store, local, "/run").incomplete == []
    assert state_names(read_file(store, "/run/checkpoint").decode())[0] == "ckpt-3"
    for name, data in originals.items():
        changed = damage(data, how)
        store.remove(f"/run/{name}")
        if changed is not None:
            with store.writing(f"/run/{name}") as file:
                file.write(memoryview(changed))
    report = pull(store, "/run", tmp_path / "other")
    assert len(report.incomplete) == len(originals)
    assert not gone & set(LocalFolder(tmp_path / "other").sizes)
    assert state_names((tmp_path / "other" / "checkpoint").read_text())[0] == "ckpt-2"
    listed = {one.name: one.complete for one in checkpoints.checkpoints(store, "/run")}
    assert listed == {"ckpt-1": True, "ckpt-2": True, "ckpt-3": False}


def test_a_damaged_copy_here_takes_nothing_from_the_whole_one_there(store, tmp_path):
    save(tmp_path, 1, 2)
    push(store, tmp_path, "/run")
    (tmp_path / "ckpt-2.data-00000-of-00001").write_bytes(b"cut")
    assert push(store, tmp_path, "/run").incomplete
    assert state_names(read_file(store, "/run/checkpoint").decode())[0] == "ckpt-2"
    assert pull(store, "/run", tmp_path / "copy").incomplete == []
    assert push(store, tmp_path, "/run", delete=True).incomplete
    assert all(one.complete for one in checkpoints.checkpoints(store, "/run"))


def test_commands_say_what_is_missing(store, address, tmp_path):
    save(tmp_path / "run", 1, 2)
    (tmp_path / "run" / "ckpt-2.data-00000-of-00001").unlink()
    (tmp_path / "run" / "notes.txt").write_text("x")
    (tmp_path / "run" / "link").symlink_to(tmp_path)
    words = ["--address", address, "--fs-name", store.name]
    result = CliRunner().invoke(app, ["checkpoint", "push", str(tmp_path / "run"), "/run", *words])
    assert result.exit_code == 1
    for said in ("ckpt-2.data-00000-of-00001 is missing", "notes.txt", "link to a directory"):
        assert said in result.stderr
    store.remove("/run/ckpt-1.data-00000-of-00001")
    result = CliRunner().invoke(app, ["checkpoint", "pull", "/run", str(tmp_path / "b"), *words])
    assert result.exit_code == 1
    assert "ckpt-1.data-00000-of-00001 is missing" in result.stderr


def test_watch_waits_until_a_checkpoint_is_whole(store, tmp_path):
    stop, reports = threading.Event(), []
    save(tmp_path, 1)
    data = tmp_path / "ckpt-2.data-00000-of-00001"
    save(tmp_path, 2)
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    options = {"interval_s": 0.1, "stopped": stop.is_set, "on_push": reports.append}
    thread = threading.Thread(target=watch, args=(store, tmp_path, "/run"), kwargs=options)
    thread.start()
    while not reports:
        time.sleep(0.05)
    assert reports[0].incomplete
    assert [one.name for one in checkpoints.checkpoints(store, "/run")] == ["ckpt-1"]
    data.write_bytes(whole)
    while len(reports) < 2:
        time.sleep(0.05)
    stop.set()
    thread.join()
    assert state_names(read_file(store, "/run/checkpoint").decode())[0] == "ckpt-2"


_TRAINER = """
import itertools, random, sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from helpers.checkpoint_files import save
from ignitetf.net.client import connect
from ignitetf.fs.checkpoints import prune
from ignitetf.fs.pull import pull
from ignitetf.fs.push import push
from ignitetf.fs.store import Store
what, address, name, _, local, seed = sys.argv[1:]
rng = random.Random(int(seed))
with connect(address) as client:
    store = Store(client, name)
    print("ready", flush=True)
    for number in itertools.count():
        if what == "push":
            # One name is replaced again and again, others come.
            save(Path(local), 0, number % 5 + 1, size=rng.randrange(1000, 300_000), shards=2)
            push(store, Path(local), "/run")
        elif what == "prune":
            prune(store, "/run", 2)
        else:
            pull(store, "/run", Path(local))
"""


def faults_of(folder, text):
    """What a state names and is not whole, or of two moments."""
    wrong = []
    for name in state_names(text)[1]:
        with folder.open(f"{name}.index") as file:
            sizes = data_sizes(file.read())
        found = [
            folder.sizes.get(f"{name}.data-{n:05}-of-{len(sizes):05}") for n in range(len(sizes))
        ]
        if found != sizes:
            wrong.append((name, sizes, found))
    return wrong


def test_whoever_is_killed_leaves_only_whole_checkpoints(store, address, tmp_path):
    """A pusher, a pruner and a puller on one directory, each killed at random moments."""
    rng, running = random.Random(1), {}
    tests = str(Path(__file__).parents[1])

    def start(what):
        local = str(tmp_path / what)
        Path(local).mkdir(exist_ok=True)
        words = [what, address, store.name, tests, local, str(rng.randrange(1000))]
        process = subprocess.Popen(
            [sys.executable, "-c", _TRAINER, *words], stdout=subprocess.PIPE, text=True
        )
        process.stdout.readline()
        return process

    save(tmp_path / "push", 0, 1, size=1000, shards=2)
    push(store, tmp_path / "push", "/run")
    pull(store, "/run", tmp_path / "pull")
    try:
        for what in ("push", "prune", "pull"):
            running[what] = start(what)
        for _ in range(3 * ROUNDS):
            time.sleep(rng.uniform(0.1, 0.6))
            what = rng.choice(["push", "push", "prune", "pull"])
            running[what].send_signal(signal.SIGKILL)
            running[what].communicate()
            if what == "pull":
                copied = LocalFolder(tmp_path / "pull")
                state = (tmp_path / "pull" / "checkpoint").read_text()
                named = [n for n in state_names(state)[1] if f"{n}.index" in copied.sizes]
                assert all(
                    find_fault(copied, u) is None
                    for u in units(copied, named)
                    if u.kind == "checkpoint" and f"{u.name}.index" in u.files
                )
            running[what] = start(what)
    finally:
        for process in running.values():
            process.kill()
            process.communicate()
    there = RemoteFolder(store, "/run")
    assert faults_of(there, read_file(store, "/run/checkpoint").decode()) == []
    assert all(one.complete for one in checkpoints.checkpoints(store, "/run"))
    report = pull(store, "/run", tmp_path / "last")
    assert report.incomplete == []
    last = LocalFolder(tmp_path / "last")
    assert faults_of(last, (tmp_path / "last" / "checkpoint").read_text()) == []
