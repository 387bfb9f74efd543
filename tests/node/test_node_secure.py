"""A secured node on a real JVM: who gets in, who does not, and what is left to read."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time

import psutil
import pytest

from ignitetf.errors import AuthenticationError, ConfigError, ConnectError, NodeError, TlsError
from ignitetf.home import ignitetf_home
from ignitetf.local.state import node_directory, read_state
from ignitetf.net.client import connect
from ignitetf.node import Node
from ignitetf.node.embedded import node_status, stop_node
from ignitetf.node.jars import IGNITE_VERSION
from ignitetf.node.ports import free_ports
from ignitetf.node.security import Security
from ignitetf.profiles import profile_path
from ignitetf.settings import Settings

pytestmark = [pytest.mark.node, pytest.mark.timeout(240)]

SMALL = "128m"
CLI = [sys.executable, "-c", "from ignitetf.cli.main import main; main()"]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    jars = ignitetf_home() / "jars" / IGNITE_VERSION
    if jars.is_dir() and "IGNITETF_JARS" not in os.environ:
        patch.setenv("IGNITETF_JARS", str(jars))
    patch.setenv("IGNITETF_HOME", str(tmp_path_factory.mktemp("home")))
    patch.setenv("IGNITETF_AOT", "off")
    for name in [n for n in os.environ if n.startswith("IGNITETF_") and n not in KEPT]:
        patch.delenv(name)
    yield
    patch.undo()


KEPT = (
    "IGNITETF_HOME",
    "IGNITETF_JARS",
    "IGNITETF_JVM_OPTIONS",
    "IGNITETF_AOT",
    "IGNITETF_JAVA",
    "IGNITETF_MAVEN_MIRROR",
)


@pytest.fixture(scope="module")
def node(home):
    with Node.start("default", next(free_ports(12_500, ())), memory=SMALL, secure=True) as node:
        yield node


@pytest.fixture
def settings(node):
    return node.settings.replace(connect_timeout_s=4.0)


def command(*arguments, **more):
    return subprocess.run(
        [*CLI, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        **more,
    )


def refused(settings, kind, **changed):
    """The error of a connection that must not succeed, and soon."""
    began = time.monotonic()
    with pytest.raises(kind) as caught, connect(settings=settings.replace(**changed)):
        pass
    assert time.monotonic() - began < 5
    return str(caught.value)


def test_every_later_command_just_works(node):
    assert connect().sql("SELECT 1").fetchall() == [(1,)]
    done = command("query", "SELECT 1 AS ONE", "--output", "json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [{"ONE": 1}])
    status = json.loads(command("node", "status", "--output", "json").stdout)
    assert (status["state"], status["secure"], status["persist"]) == ("running", True, True)


def test_both_tls_versions_are_spoken_and_none_older(node, settings):
    host, _, port = node.address.partition(":")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context(cafile=settings.ca)
        context.load_cert_chain(settings.cert, settings.key)
        context.minimum_version = context.maximum_version = version
        with (
            socket.create_connection((host, int(port)), 5) as plain,
            context.wrap_socket(plain, server_hostname=host) as sock,
        ):
            assert sock.version() == version.name.replace("_", ".")


def test_who_lacks_anything_is_refused_soon(node, settings, tmp_path):
    refused(settings, TlsError, cert=None, key=None)
    other = Security("other", tmp_path)
    other.prepare()
    files = other.files
    assert "certificate" in refused(settings, TlsError, ca=str(files.ca))
    refused(settings, TlsError, cert=str(files.client_cert), key=str(files.client_key))
    refused(settings, ConnectError, tls=False, ca=None, cert=None, key=None)
    refused(settings, AuthenticationError, password="wrong")
    refused(settings, AuthenticationError, username="nobody")
    refused(settings, AuthenticationError, username=None, password=None)


def test_the_password_that_everybody_knows_is_gone(settings):
    refused(settings, AuthenticationError, username="ignite", password="ignite")


def test_only_the_administrator_makes_users(settings):
    from ignitetf.errors import IgniteTFError

    with connect(settings=settings) as client, pytest.raises(IgniteTFError, match="not allowed"):
        client.sql("CREATE USER \"mallory\" WITH PASSWORD 'x'")


def test_users_come_and_go(settings, tmp_path):
    file = tmp_path / "password"
    file.write_text("pä\"s's wörd\n")
    login = {"username": "reader 1", "password": "pä\"s's wörd"}
    assert command("node", "user", "add", "reader 1", "--password-file", file).returncode == 0
    with connect(settings=settings.replace(**login)) as client:
        assert client.sql("SELECT 1").fetchall() == [(1,)]
    again = command("node", "user", "add", "reader 1", "--password-file", file)
    assert again.returncode == 1 and "already exists" in again.stderr
    file.write_text("other")
    assert command("node", "user", "password", "reader 1", "--password-file", file).returncode == 0
    refused(settings, AuthenticationError, **login)
    connect(settings=settings.replace(**{**login, "password": "other"})).close()
    assert command("node", "user", "drop", "reader 1").returncode == 0
    refused(settings, AuthenticationError, **{**login, "password": "other"})
    gone = command("node", "user", "drop", "reader 1")
    assert gone.returncode == 1 and "doesn't exist" in gone.stderr
    assert command("node", "user", "drop", "ignitetf").returncode == 1
    assert "terminal" in command("node", "user", "add", "x", stdin=subprocess.DEVNULL).stderr


def test_our_own_users_keep_working_under_a_new_password(node):
    node.security.change_password(node.addresses, "ignite", "new admin")
    node.security.change_password(node.addresses, "ignitetf", "new user")
    assert connect().sql("SELECT 1").fetchall() == [(1,)]
    node.security.add_user(node.addresses, "u", "p")
    node.security.drop_user(node.addresses, "u")


def test_no_password_can_be_read_by_users_or_from_logs(node, settings):
    node.security.add_user(node.addresses, "u", "p-of-u-1234")
    with connect(settings=Settings.resolve()) as client:
        for view in ("SQL_QUERIES_HISTORY", "SQL_QUERIES"):
            texts = client.sql(f"SELECT SQL FROM SYS.{view}").fetchall()
            assert not [text for (text,) in texts if "PASSWORD" in text.upper()]
    node.security.drop_user(node.addresses, "u")
    secrets = json.loads((node_directory("default") / "secure" / "secrets.json").read_text())
    logs = [p for p in node_directory("default").rglob("*") if ".log" in p.name and p.is_file()]
    assert logs
    for secret in [*secrets.values(), "p-of-u-1234"]:
        assert not [path for path in logs if secret.encode() in path.read_bytes()]
    command_line = " ".join(psutil.Process(node.pids[0]).cmdline())
    assert not [secret for secret in secrets.values() if secret in command_line]


def test_no_view_shows_a_secret_to_users(node):
    """Neither as it is, nor as a list of characters, as SYS.CONFIGURATION shows it, nor as bytes."""
    secrets = json.loads((node_directory("default") / "secure" / "secrets.json").read_text())
    with connect(settings=Settings.resolve()) as client:
        names = client.sql("SELECT NAME FROM SYS.VIEWS WHERE SCHEMA = 'SYS'").fetchall()
        shown = {
            name: str(client.sql(f'SELECT * FROM SYS."{name}"').fetchall()) for (name,) in names
        }
    assert "server.p12" not in shown["CONFIGURATION"]
    assert "SslContextFactory" in shown["CONFIGURATION"]
    for which, secret in secrets.items():
        data = secret.encode()
        forms = (secret, ", ".join(secret), data.hex(), str(list(data))[1:-1])
        assert not [
            (view, which)
            for view, text in shown.items()
            for f in forms
            if f in text.lower() or f in text
        ]


def test_a_plain_node_has_no_users(home):
    name = "plain"
    with Node.start(name, next(free_ports(12_600, ())), memory=SMALL) as node:
        with pytest.raises(NodeError, match="without --secure"):
            _ = node.security
        refused(Settings(addresses=node.addresses, tls=True, connect_timeout_s=4), TlsError)


def test_secure_without_persistence_is_refused(home):
    with pytest.raises(ConfigError, match="disk"):
        Node.start("x", secure=True, persist=False)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_first_start_that_was_killed_can_be_repeated(home):
    """Whether the passwords were changed before or after the kill, the next start finds out."""
    name, port = "killed", next(free_ports(12_700, ()))
    arguments = ["node", "start", "--secure", "--name", name, "--port", str(port)]
    try:
        for wait_s in (2.0, 3.5):
            starter = subprocess.Popen([*CLI, *arguments], stderr=subprocess.DEVNULL)
            time.sleep(wait_s)
            starter.kill()
            starter.wait()
            if state := read_state(name):
                os.kill(state.members[0].process.pid, signal.SIGKILL)
        node = Node.start(name, port, secure=True)
        with connect(settings=node.settings) as client:
            assert client.sql("SELECT 1").fetchall() == [(1,)]
        refused(node.settings, AuthenticationError, username="ignite", password="ignite")
    finally:
        stop_node(name)


def test_data_users_and_profile_come_back_and_kinds_do_not_mix(home):
    name, port = "kept", next(free_ports(12_800, ()))
    with Node.start(name, port, memory=SMALL, secure=True) as node:
        assert profile_path(name).exists()
        node.security.add_user(node.addresses, "u", "p")
        with connect(profile=name) as client:
            client.sql("CREATE TABLE T (ID BIGINT PRIMARY KEY, V INT)")
            client.sql("INSERT INTO T (ID, V) VALUES (1, 2)")
    assert not profile_path(name).exists()
    assert node_status(name).secure
    with pytest.raises(NodeError, match="with --secure"):
        Node.start(name, port, memory=SMALL, persist=True)
    with Node.start(name, port, memory=SMALL, secure=True) as node:
        login = node.settings.replace(username="u", password="p")
        with connect(settings=login) as client:
            assert client.sql("SELECT V FROM T").fetchall() == [(2,)]


def test_three_members_trust_each_other_and_nobody_else(home):
    name, port = "three", next(free_ports(12_820, ()))
    with Node.start(name, port, nodes=3, memory=SMALL, secure=True) as node:
        for address in node.addresses:
            with connect(settings=node.settings.replace(addresses=(address,))) as client:
                assert client.sql("SELECT COUNT(*) FROM SYS.NODES").fetchall() == [(3,)]
        state = read_state(name)
        with (
            socket.create_connection(("127.0.0.1", state.members[0].discovery_port), 5) as plain,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            context = ssl.create_default_context(cafile=node.settings.ca)
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as sock:
                sock.sendall(b"\0" * 64)
                assert sock.recv(1) == b"", "a member talked to a stranger"
                raise ConnectionError("closed")
