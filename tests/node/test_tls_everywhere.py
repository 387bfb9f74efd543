"""TLS and login at every way in: wrong ones are told within seconds, before anything is sent."""

import datetime
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import trustme
from helpers.needs import needs_native_io

from ignitetf.errors import AuthenticationError, ConfigError, ConnectError, IgniteTFError, TlsError
from ignitetf.net.client import connect
from ignitetf.node import Node

pytestmark = [pytest.mark.node, pytest.mark.timeout(240)]

LIMIT_S = 5
SECRET = "s3cret-of-the-test"
CLI = [sys.executable, "-c", "from ignitetf.cli.main import main; main()"]


# Servers that record what they are told


def certificates(folder, *, name="127.0.0.1", not_after=None):
    """A CA and a server certificate for an address, valid for years unless an end is given."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    own = ca.issue_cert(name, not_after=not_after)
    own.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    return folder / "ca.pem", folder / "server.pem"


@pytest.fixture
def recorder():
    """A TLS (or, without a certificate, plain) server on loopback; keeps the bytes it is sent."""
    servers = []

    def serve(pem=None):
        listener = socket.create_server(("127.0.0.1", 0))
        servers.append(listener)
        told = bytearray()

        def run():
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.settimeout(LIMIT_S)
                    try:
                        if pem is not None:
                            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                            context.load_cert_chain(pem)
                            peer = context.wrap_socket(peer, server_side=True)
                        told.extend(peer.recv(1000))
                    except OSError:
                        continue

        threading.Thread(target=run, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}", told

    yield serve
    for listener in servers:
        listener.close()


@pytest.mark.parametrize("case", ["wrong CA", "expired", "wrong name"])
def test_nothing_is_sent_to_a_server_that_is_not_verified(recorder, tmp_path, case):
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    ca, pem = certificates(
        tmp_path,
        name="127.0.0.9" if case == "wrong name" else "127.0.0.1",
        not_after=yesterday if case == "expired" else None,
    )
    if case == "wrong CA":
        other = tmp_path / "other"
        other.mkdir()
        ca, _ = certificates(other)
    address, told = recorder(pem)
    began = time.monotonic()
    with pytest.raises(TlsError) as refused:
        connect(address, ca=str(ca), username="u", password=SECRET)
    assert time.monotonic() - began < LIMIT_S
    cause = {"wrong CA": "certificate", "expired": "expired", "wrong name": "127.0.0.1"}[case]
    assert cause in str(refused.value) and SECRET not in repr(refused.value)
    time.sleep(0.2)
    assert told == b""


def test_a_verified_server_is_talked_to(recorder, tmp_path):
    """Guards the test above: with the right certificate the handshake arrives."""
    ca, pem = certificates(tmp_path)
    address, told = recorder(pem)
    with pytest.raises(IgniteTFError):
        connect(address, ca=str(ca), connect_timeout_s=2)
    assert told


def test_tls_to_a_plain_server(recorder, tmp_path):
    ca, _ = certificates(tmp_path)
    address, _ = recorder()
    began = time.monotonic()
    with pytest.raises((TlsError, ConnectError)):
        connect(address, ca=str(ca), connect_timeout_s=2)
    assert time.monotonic() - began < LIMIT_S


# A secured node


@pytest.fixture(scope="module")
def secured(node_home):
    from helpers.ports import free_port

    with Node.start("tlstest", free_port(), memory="128m", secure=True) as node:
        with connect(settings=node.settings) as client:
            client.sql('CREATE TABLE T (ID INT PRIMARY KEY, V INT) WITH "template=p8"')
            for i in range(20):
                client.sql("INSERT INTO T VALUES (?, ?)", (i, i * i))
        yield node


def changes(secured):
    good = secured.settings
    return {
        "no client certificate": good.replace(cert=None, key=None),
        "wrong password": good.replace(password=SECRET),
        "plain": good.replace(tls=False, ca=None, cert=None, key=None),
    }


def ways():
    def query(settings):
        with connect(settings=settings) as client:
            return client.sql("SELECT COUNT(*) FROM T").fetchall()[0][0]

    def dataset(settings):
        from ignitetf import IgniteDataset

        return int(IgniteDataset("SQL_PUBLIC_T", settings=settings).cardinality())

    def load(settings):
        from ignitetf.load.loader import load_dataset
        from ignitetf.net.client import Client

        with Client(settings) as client:
            rows = [{"A": i} for i in range(20)]
            return load_dataset(rows, "TLS_LOAD", client=client, if_exists="replace").rows

    def igfs(settings):
        from ignitetf.fs.filesystem import IgniteFileSystem

        fs = IgniteFileSystem(settings=settings, skip_instance_cache=True)
        fs.pipe("/tls", bytes(20))
        return fs.info("/tls")["size"]

    def bare_socket(settings):
        from ignitetf.bench.bare import Scans

        with connect(settings=settings) as client:
            scans = Scans(client, "SQL_PUBLIC_T", 30)
            assert scans.drain(scans.ahead)[0] == scans.rows
            return scans.rows

    return {
        "query": query,
        "dataset": dataset,
        "load": load,
        "igfs": igfs,
        "bare socket": bare_socket,
    }


@pytest.mark.parametrize("way", ways())
def test_every_way_in_works_with_everything_right(secured, way):
    assert ways()[way](secured.settings) == 20


@pytest.mark.parametrize("way", ways())
@pytest.mark.parametrize("case", ["no client certificate", "wrong password", "plain"])
def test_every_way_in_refuses(secured, way, case):
    settings = changes(secured)[case].replace(connect_timeout_s=4.0)
    began = time.monotonic()
    with pytest.raises((IgniteTFError, OSError)) as refused:
        ways()[way](settings)
    assert time.monotonic() - began < LIMIT_S
    error = refused.value
    while not isinstance(error, IgniteTFError):
        error = error.__cause__
        assert error is not None, "an OSError of a file system has its cause"
    expected = {
        "no client certificate": (TlsError, ConnectError),
        "wrong password": AuthenticationError,
        "plain": ConnectError,
    }[case]
    assert isinstance(error, expected)
    assert SECRET not in repr(error) + str(error.hint)


def test_an_encrypted_key(secured, tmp_path):
    from cryptography.hazmat.primitives import serialization as s

    good = secured.settings
    key = s.load_pem_private_key(Path(good.key).read_bytes(), None)
    locked = tmp_path / "locked.pem"
    form = s.BestAvailableEncryption(SECRET.encode())
    locked.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, form))
    settings = good.replace(key=str(locked), key_password=SECRET)
    with connect(settings=settings) as client:
        assert client.sql("SELECT 1").fetchall() == [(1,)]
    for wrong in ("x", None):
        with pytest.raises(ConfigError) as refused:
            connect(settings=settings.replace(key_password=wrong))
        assert SECRET not in str(refused.value)


def test_the_old_names_of_the_dataset(secured, tmp_path):
    """certfile, keyfile, cert_password, username and password are those of `tf.contrib.ignite`."""
    from ignitetf import IgniteDataset

    good, (host, port) = secured.settings, secured.address.split(":")
    dataset = IgniteDataset(
        "SQL_PUBLIC_T", host=host, port=int(port), username=good.username, password=good.password,
        certfile=good.cert, keyfile=good.key, ca_certfile=good.ca,
    )  # fmt: skip
    found = {int(x["key"]): int(x["val"]["V"]) for x in dataset}
    assert found == {i: i * i for i in range(20)}


def test_gfile_over_tls_in_a_process_of_its_own(secured):
    """TensorFlow knows one `igfs://` in a process; this one gets its settings by the profile."""
    needs_native_io()
    program = (
        "import tensorflow as tf, ignitetf.fs.gfile\n"
        "with tf.io.gfile.GFile('igfs:///gfile', 'w') as f: f.write('over TLS')\n"
        "print(tf.io.gfile.GFile('igfs:///gfile').read())"
    )
    environment = {**os.environ, "IGNITETF_PROFILE": "tlstest", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["IGNITETF_ADDRESS"] = secured.address
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=90
    )
    assert done.stdout.strip() == "over TLS", done.stderr[-2000:]


def command(*words, **environment):
    return subprocess.run(
        [*CLI, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_no_password_is_shown(secured, debug):
    good = secured.settings
    files = ["--address", secured.address, "--ca", good.ca, "--cert", good.cert, "--key", good.key]
    done = command(
        *debug, "query", "SELECT 1", *files, "--username", "ignitetf", IGNITETF_PASSWORD=SECRET
    )
    assert done.returncode == 1
    assert "password" in done.stderr and ("Traceback" in done.stderr) == bool(debug)
    assert SECRET not in done.stdout + done.stderr
    shown = command("config", "--output", "json", IGNITETF_PASSWORD=SECRET)
    assert SECRET not in shown.stdout + shown.stderr


def test_without_verification_there_is_a_warning(secured):
    good = secured.settings
    files = ["--address", secured.address, "--tls", "--cert", good.cert, "--key", good.key]
    words = ["query", "SELECT 1", *files, "--username", good.username]
    refused = command(*words, IGNITETF_PASSWORD=good.password)
    assert refused.returncode == 1 and "certificate" in refused.stderr
    done = command(*words, "--tls-insecure", IGNITETF_PASSWORD=good.password)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("warning: TLS without a check of the server's certificate")
