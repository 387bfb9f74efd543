"""A training that is killed at any batch and started again ends as the undisturbed one.

IGNITETF_FAULT_ROUNDS multiplies the number of kills; IGNITETF_FAULT_SEED chooses the batches.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.launches import Launches
from helpers.needs import needs_native_io

from ignitetf.jobs.store import JobStore
from ignitetf.load.loader import load_dataset

pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("train_programs.py")
ROUNDS = int(os.environ.get("IGNITETF_FAULT_ROUNDS", "1"))
ROWS, EPOCHS, BATCH = 1000, 3, 32
STEPS = -(-ROWS // BATCH)


@pytest.fixture(scope="module")
def table(client):
    rng = np.random.default_rng(5)
    arrays = {
        "IMAGE": rng.integers(0, 256, (ROWS, 16), dtype=np.uint8),
        "LABEL": rng.integers(0, 10, ROWS, dtype=np.int32),
    }
    name = f"TRAIN{os.getpid()}"
    load_dataset(arrays, name, client=client, partitions=8)
    yield name
    client.sql(f'DROP TABLE IF EXISTS "{name}"')


class Training:
    """Runs the program on one table, to its end or until a batch."""

    def __init__(self, address, table, directory, result, save_freq):
        self.arguments = [address, table, directory, str(result), str(save_freq)]
        self.result = result
        self.resumed = []

    def run(self, kill_at=None):
        """Kill the program when that many batches are done; whether it came to its end."""
        program = subprocess.Popen(
            [sys.executable, str(PROGRAM), *self.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TF_DETERMINISTIC_OPS": "1"},
        )
        first = None
        for line in program.stdout:
            word, _, rest = line.partition(" ")
            if word == "resumed":
                self.resumed.append(json.loads(rest))
            elif word == "batch":
                first = int(rest) if first is None else first
                if kill_at is not None and int(rest) >= kill_at:
                    program.kill()
                    break
        _, errors = program.communicate(timeout=120)
        assert kill_at is not None or program.returncode == 0, errors[-3000:]
        return first

    def values(self):
        with np.load(self.result) as found:
            arrays = {name: found[name] for name in found.files}
        return arrays.pop("history").item(), arrays


@pytest.fixture(scope="module")
def undisturbed(address, table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    training = Training(address, table, str(folder / "backup"), folder / "result.npz", "epoch")
    assert training.run() == 1
    assert not (folder / "backup").exists()
    return training.values()


def same(training, undisturbed):
    history, values = training.values()
    wanted_history, wanted = undisturbed
    assert values.keys() == wanted.keys()
    for name, array in wanted.items():
        assert values[name].dtype == array.dtype
        assert values[name].tobytes() == array.tobytes(), name
    found, full = json.loads(history), json.loads(wanted_history)
    first = found["epoch"][0]
    assert found == {name: series[first:] for name, series in full.items()}
    return first


# As TensorFlow leaves them when it is killed while it writes, merges and records a checkpoint.
LEFTOVERS = (
    "checkpoint.tmp0123456789abcdef0123456789abcdef",
    "ckpt-1000001_temp/part-00000-of-00001.data-00000-of-00001",
    "ckpt-1000002.index",
    "ckpt-1000002.data-00000-of-00001",
    "ckpt-1000003.index.tempstate1234567890",
)


def leave(directory):
    for name in LEFTOVERS:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_killed_at_random_batches(address, table, tmp_path, undisturbed):
    rng = random.Random(os.environ.get("IGNITETF_FAULT_SEED", "9"))
    training = Training(address, table, str(tmp_path / "b"), tmp_path / "result.npz", 1)
    kills = sorted(rng.sample(range(2, EPOCHS * STEPS), 2 * ROUNDS))
    firsts = [training.run(kill_at=at) for at in kills]
    firsts.append(training.run())
    # What was not saved yet when the kill came is trained again, never more than that.
    assert firsts[0] == 1
    assert all(1 < first <= at + 2 for first, at in zip(firsts[1:], kills, strict=True)), firsts
    assert same(training, undisturbed) == (firsts[-1] - 1) // STEPS
    assert not (tmp_path / "b").exists()


def test_killed_between_backups_of_epochs(address, table, tmp_path, undisturbed):
    directory = tmp_path / "b"
    training = Training(address, table, str(directory), tmp_path / "result.npz", "epoch")
    leave(directory)
    assert training.run(kill_at=2 * STEPS + 9) == 1
    left = {path.name for path in directory.iterdir()}
    assert not left & {name.partition("/")[0] for name in LEFTOVERS}
    leave(directory)
    (directory / "notes.txt").write_text("of somebody else")
    assert training.run() in (STEPS + 1, 2 * STEPS + 1)
    assert same(training, undisturbed) >= 1
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]


def test_killed_with_the_backup_in_the_cluster(address, table, tmp_path, undisturbed):
    needs_native_io()
    directory = f"igfs:///backup{os.getpid()}"
    training = Training(address, table, directory, tmp_path / "result.npz", 5)
    assert training.run(kill_at=STEPS + 15) == 1
    assert training.run() > 5
    same(training, undisturbed)


def test_two_workers_of_a_job_are_killed(address, client, table, tmp_path):
    needs_native_io()
    found = []
    for name, kills in ("undisturbed", ""), ("killed", "1:20,0:50"):
        folder = tmp_path / name
        folder.mkdir()
        launches = Launches(address, folder)
        launches.environment |= {"ORDER": "global", "KILLS": kills, "TF_DETERMINISTIC_OPS": "1"}
        directory = f"igfs:///backup{os.getpid()}{name}"
        program = [PROGRAM, address, table, directory, "result{worker}.npz", 1]
        options = ("-n", 2, "--restarts", 2, "-o", "json")
        code, out, errors = launches.run(*options, *program, timeout=240)
        assert code == 0, errors[-3000:]
        assert errors.count("resumed {") == (2 if kills else 0)
        jobs, job = JobStore(client), json.loads(out)["id"]
        steps = [[w.step for w in jobs.workers(job, attempt)] for attempt in (1, 2, 3)]
        found += [Training(*[""] * 3, folder / f"result{i}.npz", 1) for i in (0, 1)]
    # Workers tell their steps each second; the last ones are those of a whole training.
    assert steps[2] == [EPOCHS * -(-ROWS // BATCH)] * 2
    assert len(steps[0]) == len(steps[1]) == 2
    weights = [training.values()[1] for training in found]
    for other in weights[1:]:
        for key, array in weights[0].items():
            assert other[key].tobytes() == array.tobytes(), key
