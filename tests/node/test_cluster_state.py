"""A cluster that is read-only or inactive: what needs more says so plainly, and nothing else fails."""

import os
import subprocess
import sys

import pytest
from helpers.launches import Launches
from helpers.nodes import without_recording
from helpers.ports import free_port
from pyignite import Client as PyClient
from pyignite.datatypes.cluster_state import ClusterState
from typer.testing import CliRunner

from ignitetf import open_rows
from ignitetf.cli.main import app
from ignitetf.dbapi import OperationalError
from ignitetf.dbapi import connect as connect_dbapi
from ignitetf.errors import ClusterInactive, ClusterReadOnly
from ignitetf.node import Node

pytestmark = pytest.mark.node
SCRIPT = """
from ignitetf import open_rows
print("rows", sum(len(part["key"]) for part in open_rows("ROWS").numpy()))
"""
READS = [
    ("query", "SELECT A FROM ROWS"),
    ("head", "ROWS"),
    ("stats", "ROWS"),
    ("verify", "ROWS", "--epoch"),
    ("cache", "ls"),
    ("table", "ls"),
    ("cache", "describe", "ROWS"),
    ("export", "ROWS", "{folder}/rows.parquet", "--overwrite"),
    ("fs", "ls"),
    ("fs", "cat", "igfs:///a/b"),
    ("checkpoint", "ls", "igfs:///a"),
    ("ps",),
]
WRITES = [
    ("load", "csv", "{folder}/rows.csv", "--cache", "MORE"),
    ("load", "csv", "{folder}/rows.csv", "--cache", "ROWS", "--if-exists", "append"),
    ("load", "csv", "{folder}/rows.csv", "--cache", "ROWS", "--if-exists", "replace"),
    ("query", "INSERT INTO ROWS (ID, A) VALUES (9, 9)"),
    ("query", "CREATE TABLE MORE (ID INT PRIMARY KEY, A INT)"),
    ("cache", "create", "MORE"),
    ("cache", "clear", "ROWS", "--yes"),
    ("cache", "drop", "ROWS", "--yes"),
    ("split", "ROWS", "train=0.5", "test=0.5"),
    ("fs", "put", "{folder}/rows.csv", "igfs:///c"),
    ("fs", "rm", "igfs:///a/b"),
    ("checkpoint", "push", "{folder}", "igfs:///d"),
]


class Cluster:
    def __init__(self, address, folder):
        self.address, self.folder = address, folder
        (folder / "rows.csv").write_text("A\n1\n2\n3\n")

    def be(self, state):
        host, port = self.address.split(":")
        client = PyClient()
        with client.connect(host, int(port)):
            client.get_cluster().set_state(state)

    def run(self, *words):
        words = [word.format(folder=self.folder) for word in words]
        return CliRunner().invoke(app, words, env={"IGNITETF_ADDRESS": self.address})


@pytest.fixture(scope="module")
def cluster(node_home, tmp_path_factory):
    with without_recording(), Node.start("state", free_port(), memory="256m") as node:
        found = Cluster(node.addresses[0], tmp_path_factory.mktemp("state"))
        for words in (WRITES[0], ("fs", "put", "{folder}/rows.csv", "igfs:///a/b")):
            words = ["ROWS" if word == "MORE" else word for word in words]
            assert found.run(*words).exit_code == 0
        yield found


@pytest.fixture
def read_only(cluster):
    cluster.be(ClusterState.ACTIVE_READ_ONLY)
    yield cluster
    cluster.be(ClusterState.ACTIVE)


def test_a_read_only_cluster_is_read_and_every_change_is_refused_plainly(read_only):
    for words in READS:
        done = read_only.run(*words)
        assert done.exit_code == 0, (words, done.output)
    for words in WRITES:
        assert_refused(read_only.run(*words), words, "read-only")
    missing = read_only.run("fs", "cat", "igfs:///a/missing")
    assert "No such file" in missing.stderr
    with connect_dbapi(read_only.address) as connection, pytest.raises(OperationalError) as refused:
        connection.cursor().execute("DELETE FROM ROWS")
    assert isinstance(refused.value.__cause__, ClusterReadOnly)


def test_a_training_that_only_reads_runs_without_its_record(read_only, tmp_path):
    launches = Launches(read_only.address, tmp_path)
    script = launches.script(SCRIPT, prelude="")
    code, out, err = launches.run("--data", "ROWS", script)
    assert code == 0 and "rows 3" in out, err
    assert "read-only" in err and "without a record" in err and "'ignitetf attach" not in err
    # In the background, the record is all that leads to it.
    code, _, err = launches.run("--data", "ROWS", "--detach", script)
    assert code == 1 and "read-only" in err


def test_a_pod_that_only_reads_runs_without_its_record(read_only, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "IGNITETF_ADDRESS": read_only.address,
        "IGNITETF_JOB": "pod",
        "IGNITETF_GROUP": f"127.0.0.1:{free_port()}",
        "IGNITETF_COORDINATOR": f"127.0.0.1:{free_port()}",
        "IGNITETF_PARAMETER_SERVERS": "0",
        "JOB_COMPLETION_INDEX": "0",
    }
    words = [sys.executable, "-m", "ignitetf.launch.pod", str(script)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "rows 3\n"), done.stderr
    assert done.stderr.count("without a record") == 1


def test_an_inactive_cluster_says_so_in_every_command(cluster):
    cluster.be(ClusterState.INACTIVE)
    try:
        for words in (*READS, *WRITES, ("launch", "{folder}/rows.csv", "--data", "ROWS")):
            assert_refused(cluster.run(*words), words, "inactive")
        with pytest.raises(ClusterInactive):
            open_rows("ROWS", cluster.address)
        assert "inactive" in cluster.run("doctor").output
    finally:
        cluster.be(ClusterState.ACTIVE)


def assert_refused(done, words, state):
    """The command failed with a line about the state of the cluster and a hint, without Java's."""
    told = done.stderr
    assert done.exit_code == 1 and state in told, (words, done.output)
    assert "set-state" in told and "cacheGrp" not in told and "ClusterState." not in told, told
    assert len(told.strip().splitlines()) <= 2, told
