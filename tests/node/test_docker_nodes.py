"""The entry point of the containers, run without one: nodes as the image would start them."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from helpers.paths import ROOT
from helpers.ports import free_port

from ignitetf.net.client import connect

yaml = pytest.importorskip("yaml")
pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]
if sys.platform == "win32":
    pytest.skip("the image is Linux", allow_module_level=True)

ENTRYPOINT = ROOT / "docker" / "entrypoint.py"


def entry(*words, **more):
    command = [sys.executable, str(ENTRYPOINT), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, **more)


def started(*words):
    return subprocess.Popen(
        [sys.executable, str(ENTRYPOINT), *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def ended(process):
    """The container's stop signal ends the node in good order."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (0, 143)


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def waited(port):
    """Wait for a node that listens on this port of clients."""
    until = time.monotonic() + 120
    # Most of the wait is for the port: a command for each look would take the node's processor.
    while not listens(port) and time.monotonic() < until:
        time.sleep(0.1)
    while (done := entry("listening", env=environment_for(port))).returncode:
        assert time.monotonic() < until, done.stderr


def on_this_machine(name, folder, members):
    """The committed file, but bound to the loopback interface and with ports of this run.

    `members` has the discovery port that stands for each host of the file. The result is the file
    and the port of clients.
    """
    folder.mkdir()
    text = (ROOT / "docker/config" / f"{name}.xml").read_text()
    for host, port in members.items():
        assert text.count(f"<value>{host}:47500</value>") == 1
        text = text.replace(f"{host}:47500<", f"127.0.0.1:{port}<")
    own = {10800: free_port(), 47500: members.get(name, free_port()), 47100: free_port()}
    for port, ours in own.items():
        assert text.count(f'ort" value="{port}"') == 1
        text = text.replace(f'ort" value="{port}"', f'ort" value="{ours}"')
    if not members:
        text = text.replace("<value>127.0.0.1:47500<", f"<value>127.0.0.1:{own[47500]}<")
    assert "47500" not in text
    text = text.replace("/var/lib/ignite/work", str(folder / "work"))
    head = '<bean class="org.apache.ignite.configuration.IgniteConfiguration">\n'
    assert "localHost" not in text and text.count(head) == 1
    text = text.replace(head, head + '    <property name="localHost" value="127.0.0.1"/>\n')
    (folder / "given.xml").write_text(text)
    return folder / "given.xml", own[10800]


def environment_for(*ports):
    environment = {**os.environ, "IGNITETF_ADDRESS": ",".join(f"127.0.0.1:{p}" for p in ports)}
    environment.pop("IGNITETF_PROFILE", None)
    return environment


def health_check(compose, service, environment):
    """The command of the compose file, as far as `ignitetf` and the entry point are concerned."""
    found = yaml.safe_load((ROOT / "docker" / compose).read_text())["services"][service]
    command = found["healthcheck"]["test"]
    starts = {("CMD", "ignitetf"): 2, ("CMD", "python", "/opt/ignitetf/entrypoint.py"): 3}
    (skipped,) = [n for words, n in starts.items() if tuple(command[:n]) == words]
    return entry(*command[skipped:], env=environment).returncode


def test_one_node_with_mnist_and_igfs(node_home, tmp_path, mnist_dir):
    config, port = on_this_machine("node", tmp_path / "node", {})
    environment = environment_for(port)
    assert health_check("compose.yaml", "ignite", environment) != 0
    node = started("node", config, "--directory", config.parent, "--heap-mib", "512")
    try:
        waited(port)
        assert health_check("compose.yaml", "ignite", environment) == 0
        for _ in range(2):
            done = entry("mnist", "--source", mnist_dir, env=environment)
            assert done.returncode == 0, done.stderr
            with connect(f"127.0.0.1:{port}") as client:
                for table, rows in (("MNIST_TRAIN", 60_000), ("MNIST_TEST", 10_000)):
                    found = client.sql(f"SELECT COUNT(*), MIN(ID), MAX(ID) FROM {table}")
                    assert [tuple(row) for row in found.fetchall()] == [(rows, 0, rows - 1)]
        asked = entry("fs", "ls", "igfs:///", env=environment)
        assert "checkpoints" in asked.stdout, asked.stderr
        ended(node)
    finally:
        node.kill()


def test_three_nodes_form_one_cluster(node_home, tmp_path):
    names = ("node-1", "node-2", "node-3")
    first = free_port(3)
    members = {name: first + i for i, name in enumerate(names)}
    nodes, ports = [], []
    try:
        # One after the other, as `depends_on` has it.
        for name in names:
            config, port = on_this_machine(name, tmp_path / name, members)
            nodes.append(started("node", config, "--directory", config.parent, "--heap-mib", "256"))
            ports.append(port)
            waited(port)
            assert health_check("compose.cluster.yaml", "node-1", environment_for(port)) == 0
        environment = environment_for(*ports)
        assert entry("query", "SELECT 1", env=environment).returncode != 0  # not active yet
        for _ in range(2):
            done = entry("activate", "3", env=environment)
            assert done.stdout == "active, 3 members\n", done.stderr
        assert entry("activate", "4", "--timeout", "0.5", env=environment).returncode != 0
        for node in nodes:
            ended(node)
    finally:
        for node in nodes:
            node.kill()


def test_a_secured_node_gets_its_users(node_home, tmp_path):
    ports = [free_port() for _ in range(3)]
    address = f"127.0.0.1:{ports[0]}"
    environment = environment_for(ports[0])
    node = started(
        "secure", "--directory", tmp_path, "--heap-mib", "512", "--host", "127.0.0.1",
        "--ports", *ports,
    )  # fmt: skip
    try:
        done = entry("establish", "--directory", tmp_path, "--address", address, env=environment)
        assert done.returncode == 0, done.stderr
        refused = entry("query", "SELECT 1", env=environment)
        assert refused.returncode == 1 and "error" in refused.stderr

        secure = tmp_path / "secure"
        password = (secure / "password").read_text()
        assert password and password not in done.stdout + done.stderr
        asked = entry(
            "query", "SELECT 1 AS ONE", "--output", "csv", "--address", address,
            "--username", "ignitetf", "--password-file", secure / "password",
            "--ca", secure / "ca.pem", "--cert", secure / "client.pem",
            "--key", secure / "client-key.pem", env=environment,
        )  # fmt: skip
        assert asked.stdout.split() == ["ONE", "1"], asked.stderr
        for path in (tmp_path / "secure").iterdir():
            assert path.stat().st_mode & 0o077 == 0, path
        assert (tmp_path / "node.xml").stat().st_mode & 0o077 == 0
        ended(node)
    finally:
        node.kill()
