"""The entry point of the containers, run without one: nodes as the image would start them."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import ROOT, free_port

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


def waited(environment):
    for _ in range(120):
        done = entry("listening", env=environment)
        if done.returncode == 0:
            return
    pytest.fail(done.stderr)


@pytest.mark.parametrize("name", ["node", "node-1"])
def test_a_node_of_the_configurations(node_home, tmp_path, name):
    ports = {10800: free_port(), 47500: free_port(), 47100: free_port()}
    text = (ROOT / "docker/config" / f"{name}.xml").read_text()
    # On this machine a node is alone and bound to the loopback interface.
    text = text.replace("node-1:47500", "127.0.0.1:47500")
    for other in ("node-2", "node-3"):
        text = text.replace(f"                <value>{other}:47500</value>\n", "")
    text = text.replace("/var/lib/ignite/work", str(tmp_path / "work"))
    for port, own in ports.items():
        text = text.replace(f":{port}<", f":{own}<").replace(f'"{port}"', f'"{own}"')
    head = '<bean class="org.apache.ignite.configuration.IgniteConfiguration">\n'
    assert "localHost" not in text and text.count(head) == 1
    text = text.replace(head, head + '    <property name="localHost" value="127.0.0.1"/>\n')
    config = tmp_path / "given.xml"
    config.write_text(text)
    environment = {**os.environ, "IGNITETF_ADDRESS": f"127.0.0.1:{ports[10800]}"}
    environment.pop("IGNITETF_PROFILE", None)
    node = started("node", config, "--directory", tmp_path, "--heap-mib", "512")
    try:
        waited(environment)
        if name == "node-1":
            assert "active, 1 members" in entry("activate", "1", env=environment).stdout
        # The health check of the compose file, and any other command.
        asked = entry("query", "SELECT 1 AS ONE", "--output", "csv", env=environment)
        assert asked.stdout.split() == ["ONE", "1"], asked.stderr
        ended(node)
    finally:
        node.kill()


def test_a_secured_node_gets_its_users(node_home, tmp_path):
    ports = [free_port() for _ in range(3)]
    address = f"127.0.0.1:{ports[0]}"
    environment = {**os.environ, "IGNITETF_ADDRESS": address}
    environment.pop("IGNITETF_PROFILE", None)
    node = started(
        "secure", "--directory", tmp_path, "--heap-mib", "512", "--host", "127.0.0.1",
        "--ports", *ports,
    )  # fmt: skip
    try:
        done = entry("establish", "--directory", tmp_path, "--address", address, env=environment)
        assert done.returncode == 0, done.stderr
        refused = entry("query", "SELECT 1", env=environment)
        assert refused.returncode == 1 and "error" in refused.stderr

        from ignitetf.client import Client
        from ignitetf.node.security import Security

        security = Security("secured", tmp_path)
        security.prepare()
        with Client(security.settings([address])) as client:
            assert client.sql("SELECT 1").fetchall() == [(1,)]
        for path in (tmp_path / "secure").iterdir():
            assert path.stat().st_mode & 0o077 == 0, path
        assert (tmp_path / "node.xml").stat().st_mode & 0o077 == 0
        ended(node)
    finally:
        node.kill()
