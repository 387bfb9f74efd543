"""The embedded node, on real JVMs: start, ready, stop, and all that goes wrong around it."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from helpers.nodes import without_recording

from ignitetf.errors import NodeError
from ignitetf.home import ignitetf_home
from ignitetf.local.state import node_directory, read_state
from ignitetf.net.client import connect
from ignitetf.node import Node, running_addresses
from ignitetf.node.embedded import node_status, stop_node
from ignitetf.node.jars import IGNITE_VERSION
from ignitetf.node.ports import free_ports

pytestmark = [pytest.mark.node, pytest.mark.timeout(240)]

SMALL = "128m"
CLI = [sys.executable, "-c", "from ignitetf.cli.main import main; main()", "node"]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    """A home of our own; jars that the user has already are taken from there."""
    patch = pytest.MonkeyPatch()
    jars = ignitetf_home() / "jars" / IGNITE_VERSION
    if jars.is_dir() and "IGNITETF_JARS" not in os.environ:
        patch.setenv("IGNITETF_JARS", str(jars))
    folder = tmp_path_factory.mktemp("home ü 100%")
    patch.setenv("IGNITETF_HOME", str(folder))
    for name in ("IGNITETF_ADDRESS", "IGNITETF_PROFILE"):
        patch.delenv(name, raising=False)
    yield folder
    for directory in (folder / "nodes").glob("*/"):
        stop_node(directory.name)
    patch.undo()


@pytest.fixture
def port():
    return next(free_ports(12_300, ()))


@pytest.fixture
def name(request):
    """A node name of the test's own; whatever is left of the node ends with the test."""
    name = request.node.name.partition("[")[0].removeprefix("test_").replace("_", "-")[:40]
    yield name
    stop_node(name)


@pytest.fixture(scope="module")
def shared(home):
    """One node for the tests that only look."""
    port = next(free_ports(12_200, ()))
    with without_recording():
        node = Node.start("shared", port, memory=SMALL, template_partitions=[12])
    with node:
        yield node


def command(*arguments, **more):
    return subprocess.run(
        [*CLI, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        **more,
    )


def listening_ports(pid):
    found = psutil.Process(pid).net_connections("tcp")
    return {c.laddr for c in found if c.status == psutil.CONN_LISTEN}


def jvms(home):
    """Processes whose command line names this home."""
    return [
        process.info["pid"]
        for process in psutil.process_iter(["pid", "cmdline"])
        if any(f"@{home}" in part for part in process.info["cmdline"] or ())
    ]


def wait_for(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)
    return value


# Start, status, stop


@pytest.mark.core
def test_a_started_node_answers_and_listens_on_loopback_only(shared):
    with connect(shared.address) as client:
        assert client.sql("SELECT 1 + 1").fetchall() == [(2,)]
    ports = listening_ports(shared.pids[0])
    assert {address.ip for address in ports} == {"127.0.0.1"}
    assert len(ports) == 3
    assert running_addresses("shared") == shared.addresses
    assert shared.version == IGNITE_VERSION


@pytest.mark.core
def test_status_of_a_running_and_of_an_unknown_node(shared):
    status = json.loads(command("status", "--name", "shared", "--output", "json").stdout)
    assert status["state"] == "running"
    assert status["address"] == shared.address
    assert status["pids"] == shared.pids
    assert (status["nodes"], status["version"]) == (1, IGNITE_VERSION)
    stopped = json.loads(command("status", "--name", "nobody", "--output", "json").stdout)
    assert (stopped["state"], stopped["pids"], stopped["address"]) == ("stopped", [], None)


@pytest.mark.core
def test_a_second_start_gives_the_running_node(shared):
    again = Node.start("shared")
    assert again.already_running and again.pids == shared.pids
    with again:
        pass  # a node that was there before stays
    assert node_status("shared").state == "running"
    done = command("start", "--name", "shared", "--memory", SMALL)
    assert done.returncode == 0 and "already runs" in done.stderr
    assert shared.address in done.stdout


@pytest.mark.parametrize(
    "option", [["--port", 12_999], ["--nodes", 2], ["--memory", "256m"], ["--persist"]]
)
def test_a_second_start_with_another_option_is_refused(shared, option):
    done = command("start", "--name", "shared", *option)
    assert done.returncode == 1
    assert "already runs" in done.stderr and option[0] in done.stderr
    assert node_status("shared").pids == shared.pids


def test_a_second_start_for_templates_that_are_missing_is_refused(shared):
    assert Node.start("shared", template_partitions=[12, 64]).already_running
    with pytest.raises(NodeError, match="--template-partitions"):
        Node.start("shared", template_partitions=[13])


@pytest.mark.core
def test_config_prints_the_xml_in_use(shared):
    done = command("config", "--name", "shared")
    assert done.returncode == 0
    assert f'value="{shared.address.partition(":")[2]}"' in done.stdout
    assert '"p12*"' in done.stdout
    assert command("config", "--name", "nobody").returncode == 1


def test_logs_show_the_end_and_follow(shared):
    done = command("logs", "--name", "shared", "-n", 500)
    assert "Topology snapshot" in done.stdout
    assert len(command("logs", "--name", "shared", "-n", 3).stdout.splitlines()) == 3
    assert "never started" in command("logs", "--name", "nobody").stderr


@pytest.mark.core
def test_stop_of_what_does_not_run_is_a_clear_line():
    done = command("stop", "--name", "nobody")
    assert (done.returncode, done.stderr.strip()) == (0, "node 'nobody' does not run")


# Templates: the findings in the docstring of ignitetf/node/config.py


@pytest.mark.parametrize(
    ("cache", "partitions"),
    [("p1-x", 1), ("p16-x", 16), ("p16X", 16), ("p12-x", 12), ("p1024-x", 1024), ("P16X", 1024)],
)
def test_a_cache_takes_the_longest_template_its_name_begins_with(shared, cache, partitions):
    with connect(shared.address) as client:
        client.pyignite.create_cache(cache)
        assert client.partition_count(cache) == partitions
        client.destroy_cache(cache)


def test_a_table_takes_a_template_and_any_cache_name(shared):
    with connect(shared.address) as client:
        client.sql(
            "CREATE TABLE T (ID BIGINT PRIMARY KEY, V INT) WITH "
            '"template=p16,CACHE_NAME=ANY_NAME,VALUE_TYPE=ANY,backups=1,atomicity=transactional"'
        )
        facts = client.sql(
            "SELECT BACKUPS, PARTITION_LOSS_POLICY, ATOMICITY_MODE FROM SYS.CACHES"
            " WHERE CACHE_NAME = 'ANY_NAME'"
        ).fetchall()
        assert client.partition_count("ANY_NAME") == 16
        assert facts == [(1, "READ_WRITE_SAFE", "TRANSACTIONAL")]
        client.sql("DROP TABLE T")


# What goes wrong


def test_a_taken_port_is_refused_before_a_jvm_starts(name, port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        done = command("start", "--name", name, "--port", port)
    assert done.returncode == 1
    assert f"port {port} (--port {port}) is taken" in done.stderr
    assert read_state(name) is None


def test_too_little_memory_is_refused(name, port):
    done = command("start", "--name", name, "--port", port, "--memory", "1000t")
    assert done.returncode == 1 and "too little memory" in done.stderr
    done = command("start", "--name", name, "--port", port, "--memory", "10m")
    assert done.returncode == 1 and "--memory" in done.stderr


def test_a_jvm_that_dies_during_the_start_leaves_its_log_in_the_error(name, port):
    def kill_it():
        state = wait_for(lambda: read_state(name))
        log = Path(state.members[0].directory) / "out.log"
        wait_for(lambda: log.read_bytes())
        os.kill(state.members[0].process.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill_it)
    thread.start()
    with pytest.raises(NodeError, match="ended while it started") as caught:
        Node.start(name, port, memory=SMALL)
    thread.join()
    assert "Ignite" in caught.value.log_tail
    assert read_state(name) is None


def test_a_start_that_takes_too_long_leaves_nothing(name, port, home):
    with pytest.raises(NodeError, match="not ready in time"):
        Node.start(name, port, memory=SMALL, persist=True, timeout_s=0.5)
    assert read_state(name) is None
    assert not list(node_directory(name).glob("*/store"))
    assert not jvms(node_directory(name))


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing(name, port, number):
    # A test run in the background of a shell ignores Ctrl-C, and its children would inherit that.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program = [CLI[0], CLI[1], heed + CLI[2], *CLI[3:]]
    for _ in range(3):
        starter = subprocess.Popen(
            [*program, "start", "--name", name, "--port", str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        wait_for(lambda: read_state(name))
        starter.send_signal(number)
        starter.communicate(timeout=20)
        if starter.returncode != 0:
            break
        Node.attach(name).stop()  # it was ready before the signal came
    assert starter.returncode == 128 + number
    assert read_state(name) is None
    assert not jvms(node_directory(name))


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_killed_start_is_cleaned_by_the_next_one(name, port):
    starter = subprocess.Popen(
        [*CLI, "start", "--name", name, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    first = wait_for(lambda: read_state(name)).members[0].process.pid
    starter.kill()
    starter.wait()
    assert running_addresses(name) == ()
    lines = []
    with Node.start(name, port, memory=SMALL, note=lines.append) as node:
        assert node.pids != [first]
        assert jvms(node_directory(name)) == node.pids
    assert "interrupted start" in lines[0]


def test_a_killed_node_is_seen_and_cleaned_up(name, port):
    node = Node.start(name, port, memory=SMALL)
    os.kill(node.pids[0], signal.SIGKILL)
    wait_for(lambda: not running_addresses(name))
    assert node.status().state == "crashed"
    done = command("stop", "--name", name)
    assert done.returncode == 0 and f"process {node.pids[0]}" in done.stderr
    assert node_status(name).state == "stopped"
    node = Node.start(name, port, memory=SMALL)
    os.kill(node.pids[0], signal.SIGKILL)
    wait_for(lambda: not running_addresses(name))
    lines = []
    with Node.start(name, port, memory=SMALL, note=lines.append) as again:
        assert again.status().state == "running"
    assert "an ended node" in lines[0]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_paused_node_is_not_responding_and_can_be_stopped(name, port):
    node = Node.start(name, port, memory=SMALL)
    os.kill(node.pids[0], signal.SIGSTOP)
    assert node.status().state == "not responding"
    lines = []
    assert stop_node(name, timeout_s=1, note=lines.append)
    assert any("killed" in line for line in lines)
    assert not jvms(node_directory(name))


def test_a_damaged_start_cache_does_no_harm(name, port, home):
    node = Node.start(name, port, memory=SMALL)
    node.stop()
    caches = list((home / "aot").glob("*.aot"))
    if not caches:
        pytest.skip("this Java has no start-up cache")
    whole = caches[0].read_bytes()
    caches[0].write_bytes(whole[: len(whole) // 2])
    with Node.start(name, port, memory=SMALL) as node:
        assert node.status().state == "running"
    caches[0].write_bytes(b"\0" * 5000)
    with Node.start(name, port, memory=SMALL) as node:
        assert node.status().state == "running"
    caches[0].write_bytes(whole)


def test_starts_at_the_same_time_make_one_node(name, port):
    nodes = []
    threads = [
        threading.Thread(target=lambda: nodes.append(Node.start(name, port, memory=SMALL)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(node.already_running for node in nodes) == [False, True]
    assert nodes[0].pids == nodes[1].pids


# Data on disk, clusters


def test_data_on_disk_come_back_even_after_a_kill(name, port):
    rows = [(key, key * key) for key in range(100)]
    with Node.start(name, port, memory=SMALL, persist=True) as node, connect(node.address) as c:
        c.sql('CREATE TABLE T (ID BIGINT PRIMARY KEY, V BIGINT) WITH "template=p8"')
        for row in rows[:50]:
            c.sql("INSERT INTO T (ID, V) VALUES (?, ?)", row)
    node = Node.start(name, port, memory=SMALL, persist=True)
    with connect(node.address) as c:
        for row in rows[50:]:
            c.sql("INSERT INTO T (ID, V) VALUES (?, ?)", row)
    os.kill(node.pids[0], signal.SIGKILL)
    wait_for(lambda: not running_addresses(name))
    with Node.start(name, port, memory=SMALL, persist=True) as node, connect(node.address) as c:
        assert c.sql("SELECT ID, V FROM T ORDER BY ID").fetchall() == rows
        assert c.partition_count("SQL_PUBLIC_T") == 8
    with pytest.raises(NodeError, match="data of 1 member on disk"):
        Node.start(name, port, memory=SMALL, persist=True, nodes=2)
    with pytest.raises(NodeError, match="keeps data on disk") as told:
        Node.start(name, port, memory=SMALL)
    assert "--persist" in str(told.value.hint)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_start_right_after_a_kill_makes_what_is_missing(name, port, nodes):
    """A process takes a while to die, and must not pass for a running node meanwhile."""
    node = Node.start(name, port, nodes=nodes, memory=SMALL)
    for _ in range(3):
        killed = node.pids[-1]
        os.kill(killed, signal.SIGKILL)
        node = Node.start(name, port, nodes=nodes, memory=SMALL)
        assert len(node.pids) == nodes and killed not in node.pids
        assert node.already_running == (nodes > 1)
        for address in node.addresses:
            with connect(address) as client:
                wait_for(lambda client=client: len(client.nodes()) == nodes)


@pytest.mark.parametrize("persist", [False, True])
def test_three_members_form_a_cluster_that_survives_one(name, port, persist):
    with Node.start(name, port, nodes=3, memory=SMALL, persist=persist) as node:
        assert node.addresses == tuple(f"127.0.0.1:{port + i}" for i in range(3))
        rows = [(key, key + 1) for key in range(200)]
        with connect(node.addresses[0]) as client:
            assert len(client.nodes()) == 3
            client.sql(
                'CREATE TABLE T (ID BIGINT PRIMARY KEY, V BIGINT) WITH "template=p16,backups=1"'
            )
            for row in rows:
                client.sql("INSERT INTO T (ID, V) VALUES (?, ?)", row)
            owners = client.partition_map("SQL_PUBLIC_T").owners
            assert len(set(owners.values())) == 3
        os.kill(node.pids[1], signal.SIGKILL)
        wait_for(lambda: node.status().state == "incomplete")
        assert len(running_addresses(name)) == 2
        with connect(node.addresses[2]) as client:
            assert client.sql("SELECT ID, V FROM T ORDER BY ID").fetchall() == rows
        healed = Node.start(name)
        assert node.status().state == "running" and len(node.status().pids) == 3
        with connect(healed.addresses[1]) as client:
            assert len(client.nodes()) == 3
            assert client.sql("SELECT ID, V FROM T ORDER BY ID").fetchall() == rows
    assert not jvms(node_directory(name))
