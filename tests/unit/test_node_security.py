"""Certificates, passwords and profile of a secured node, without a node."""

import json
import ssl
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID

from ignitetf.errors import ConfigError, NodeError
from ignitetf.local.process import write_private
from ignitetf.local.state import node_directory
from ignitetf.net.handshake import tls_context
from ignitetf.node.certificates import CertificateFiles, expires_soon, make_certificates
from ignitetf.node.security import Security
from ignitetf.profiles import profile_path
from ignitetf.settings import Settings


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("IGNITETF_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def security():
    node_directory("n").mkdir(parents=True)
    security = Security("n", node_directory("n"))
    security.prepare()
    return security


def shake(server, client, host):
    """A TLS handshake in memory; what the server knows of the client's certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
    assert not waiting
    return ends[1].getpeercert()


def server_context(security, tmp_path):
    """What the JVM does with its stores, done by OpenSSL."""
    stores = security.stores
    key, cert, _ = pkcs12.load_key_and_certificates(
        security.files.key_store.read_bytes(), stores.key_password.encode()
    )
    from cryptography.hazmat.primitives import serialization as s

    pem = tmp_path / "server.pem"
    pem.write_bytes(
        key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
        + cert.public_bytes(s.Encoding.PEM)
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=security.files.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(pem)
    return context


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_client_and_server_trust_each_other_by_every_loopback_name(security, tmp_path, host):
    settings = security.settings(["127.0.0.1:1"])
    peer = shake(server_context(security, tmp_path), tls_context(settings), host)
    assert peer["subject"] == ((("commonName", "ignitetf client"),),)


def test_those_that_prepare_at_once_have_the_same(tmp_path):
    """As the containers do when that for the users starts together with that of the node."""
    node_directory("n").mkdir(parents=True)
    together = threading.Barrier(8)

    def prepared(_):
        security = Security("n", node_directory("n"))
        together.wait(30)
        security.prepare()
        files = security.files.directory.iterdir()
        return security, {path.name: path.read_bytes() for path in files}

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(prepared, range(8)))
    assert all(files == found[0][1] for _, files in found)
    for security, _ in found:
        client = tls_context(security.settings(["127.0.0.1:1"]))
        assert shake(server_context(security, tmp_path), client, "localhost")


@pytest.mark.parametrize("at", range(5))
def test_certificates_cut_off_while_being_renewed_are_made_again(security, monkeypatch, at):
    files, written = security.files, []

    def cut(path, content):
        if len(written) == at:
            raise KeyboardInterrupt
        written.append(path)
        write_private(path, content)

    monkeypatch.setattr("ignitetf.node.certificates.write_private", cut)
    with pytest.raises(KeyboardInterrupt):
        make_certificates(files, security.stores.key_password, security.stores.trust_password)
    assert len(written) == at and not files.complete


def test_another_name_and_another_authority_are_refused(security, tmp_path):
    server = server_context(security, tmp_path)
    client = tls_context(security.settings(["127.0.0.1:1"]))
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake(server, client, "example.org")
    node_directory("other").mkdir(parents=True)
    other = Security("other", node_directory("other"))
    other.prepare()
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, tls_context(other.settings(["127.0.0.1:1"])), "localhost")


def test_a_client_certificate_is_no_server_and_the_key_of_the_authority_is_gone(security):
    client = x509.load_pem_x509_certificate(security.files.client_cert.read_bytes())
    usage = client.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert ExtendedKeyUsageOID.SERVER_AUTH not in usage
    assert not client.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    keys = [p for p in security.files.directory.iterdir() if b"PRIVATE KEY" in p.read_bytes()]
    assert keys == [security.files.client_key]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_everything_is_for_its_owner_only(security):
    path = security.write_profile(["127.0.0.1:1"])
    for file in [path, *security.files.directory.iterdir()]:
        assert file.stat().st_mode & 0o777 == 0o600
    for folder in (path.parent, security.files.directory):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_profile_is_all_that_a_client_needs(security):
    security.write_profile(["127.0.0.1:1", "127.0.0.1:2"])
    assert Settings.resolve(profile="n") == security.settings(
        ["127.0.0.1:1", "127.0.0.1:2"]
    ).replace(profile="n")


def test_passwords_stay_and_certificates_are_renewed_in_time(security):
    files, first = security.files, security.stores
    certificate = files.client_cert.read_bytes()
    again = Security("n", node_directory("n"))
    again.prepare()
    assert again.stores == first and files.client_cert.read_bytes() == certificate
    assert not expires_soon(files)
    files.client_cert.write_text("damaged")
    assert expires_soon(files)
    again.prepare()
    assert not expires_soon(files) and files.client_cert.read_bytes() != certificate
    files.trust_store.unlink()
    again.prepare()
    assert files.complete


def test_certificates_near_their_end_are_renewed(tmp_path, monkeypatch):
    files = CertificateFiles(tmp_path)
    monkeypatch.setattr("ignitetf.node.certificates._VALID_DAYS", 30)
    make_certificates(files, "a", "b")
    assert expires_soon(files)


def test_the_profile_of_somebody_else_is_kept(security):
    security.write_profile(["127.0.0.1:1"])
    security.remove_profile()
    assert not profile_path("n").exists()
    profile_path("n").write_text(json.dumps({"address": "elsewhere:1"}))
    security.remove_profile()
    assert profile_path("n").exists()
    with pytest.raises(NodeError, match="not made by this node"):
        security.prepare()


def test_no_secret_is_shown(security):
    secrets = json.loads((security.files.directory / "secrets.json").read_text())
    shown = repr([security.stores, security.settings(["h:1"]), vars(security)])
    assert len(secrets) == 4
    assert not [value for value in secrets.values() if value in shown]
    assert all(len(value) >= 32 for value in secrets.values())


def test_lost_passwords_are_an_error_with_a_hint(home):
    with pytest.raises(NodeError, match="passwords") as caught:
        Security("n", node_directory("n")).settings(["h:1"])
    assert "--name" in caught.value.hint


@pytest.mark.parametrize("user", ["", 'a"b', "a\nb"])
def test_user_names_that_break_the_statement_are_refused(security, user):
    with pytest.raises(ConfigError, match="user name"):
        Security._run(None, "CREATE", user, "x")
