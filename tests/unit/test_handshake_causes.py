"""What is wrong with a connection is named: by what the other side lets be known, or by all causes."""

import contextlib
import socket
import ssl
import threading

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from ignitetf.errors import ConfigError, ConnectError, IgniteTFError, TlsError
from ignitetf.net.client import Client
from ignitetf.node import certificates
from ignitetf.node.certificates import CertificateFiles, make_certificates
from ignitetf.settings import Settings

PEM = serialization.Encoding.PEM
PKCS8 = serialization.PrivateFormat.PKCS8


class Peer:
    """A server on a free port that treats each connection in one way; ends with the test."""

    def __init__(self, treat):
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.treat = treat
        self.held = []
        self.address = f"127.0.0.1:{self.sock.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.sock.accept()
                sock.settimeout(5)
                with contextlib.suppress(OSError, ValueError):
                    self.treat(self, sock)

    def close(self):
        self.sock.close()
        for sock in self.held:
            sock.close()


@pytest.fixture
def peer():
    peers = []

    def start(treat):
        peers.append(Peer(treat))
        return peers[-1].address

    yield start
    for each in peers:
        each.close()


def answering(data):
    def treat(_, sock):
        with sock:
            sock.recv(100)
            sock.sendall(data)
            sock.recv(100)

    return treat


def closing(_, sock):
    with sock:
        sock.recv(1000)


def silent(peer, sock):
    peer.held.append(sock)


def ignite_3(_, sock):
    """Hangs up on whoever does not begin with its magic, as Ignite 3 does."""
    with sock:
        if sock.recv(100).startswith(b"IGNI"):
            sock.sendall(b"IGNI\0\0\0\x01\0")
            sock.recv(100)


def failure(address, **given):
    given = {"connect_timeout_s": 1.0, **given}
    with pytest.raises(IgniteTFError) as caught:
        Client(Settings(addresses=(address,), **given))
    assert "\n" not in str(caught.value) and caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("treat", "words"),
    [
        (answering(b"IGNI\0\0\0\x05\0\0\0\0\0"), "Apache Ignite 3"),
        (ignite_3, "Apache Ignite 3"),
        (answering(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "web server"),
        (answering(b"-ERR unknown command\r\n"), "Redis"),
        (answering(b"SSH-2.0-OpenSSH_9\r\n"), "SSH"),
        (answering(b"\x15\x03\x01\x00\x02\x02\x0a"), "speaks TLS"),
        (answering(b"220 mail ready\r\n"), "not that of an Ignite node, it begins with b'220 '"),
        (closing, "handshake was cut"),
        (silent, "no answer to the handshake within 1 s"),
    ],
)
def test_who_answers_in_the_place_of_a_node_is_named(peer, treat, words):
    error = failure(peer(treat))
    assert words in str(error)
    if treat is closing:
        assert all(word in error.hint for word in ("10800", "--tls", "--cert"))


@pytest.mark.parametrize("treat", [answering(b"IGNI\0\0\0\x05\0\0\0\0\0"), ignite_3])
def test_ignite_3_is_refused_with_the_client_that_serves_it(peer, treat):
    assert "pip install pyignite_dbapi" in failure(peer(treat)).hint


@pytest.mark.parametrize("treat", [closing, silent, answering(b"HTTP/1.1 400 Bad\r\n\r\n")])
def test_tls_with_one_that_speaks_none(peer, treat):
    error = failure(peer(treat), tls=True)
    assert isinstance(error, TlsError)
    assert "TLS" in f"{error} {error.hint}"


# Certificates


def made(folder):
    folder.mkdir()
    files = CertificateFiles(folder)
    make_certificates(files, "k", "t")
    return files


@pytest.fixture
def files(tmp_path):
    return made(tmp_path / "ours")


def tls_server(files, peer, version, client_ca=None):
    """A server with the certificates; asks clients for one that `client_ca` has signed."""
    key, cert, _ = pkcs12.load_key_and_certificates(files.key_store.read_bytes(), b"k")
    pem = files.directory / "server.pem"
    plain = serialization.NoEncryption()
    pem.write_bytes(key.private_bytes(PEM, PKCS8, plain) + cert.public_bytes(PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.minimum_version = context.maximum_version = version
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED

    def treat(_, sock):
        with sock, context.wrap_socket(sock, server_side=True) as secured:
            secured.recv(100)

    return peer(treat)


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "1.3"])
def test_a_refused_client_certificate_is_named_by_the_alert(tmp_path, files, peer, version):
    address = tls_server(files, peer, version, files.ca)
    trusted = {"tls": True, "ca": str(files.ca)}
    error = failure(address, **trusted)
    assert "client certificate" in str(error) and "--cert" in error.hint
    other = made(tmp_path / "other")
    error = failure(address, **trusted, cert=str(other.client_cert), key=str(other.client_key))
    assert "does not trust the authority of the client certificate" in str(error)


@pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "1.3"])
def test_an_expired_client_certificate_is_named(tmp_path, files, peer, version, monkeypatch):
    address = tls_server(files, peer, version, files.ca)
    monkeypatch.setattr(certificates, "_BACKDATE", 9 * certificates._BACKDATE)
    monkeypatch.setattr(certificates, "_VALID_DAYS", -0.1)
    old = made(tmp_path / "old")
    error = failure(
        address, tls=True, ca=str(files.ca), cert=str(old.client_cert), key=str(old.client_key)
    )
    assert "client certificate" in str(error)
    address = peer(closing_after_tls(files))
    error = failure(
        address, tls=True, ca=str(files.ca), cert=str(old.client_cert), key=str(old.client_key)
    )
    assert f"{old.client_cert} has expired" in str(error)


def test_ignite_3_over_tls_is_named(files, peer):
    pem = files.directory / "server.pem"
    tls_server(files, peer, ssl.TLSVersion.TLSv1_3)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    address = peer(lambda each, sock: ignite_3(each, context.wrap_socket(sock, server_side=True)))
    error = failure(address, tls=True, ca=str(files.ca))
    assert "Apache Ignite 3" in str(error) and "pyignite_dbapi" in error.hint


def closing_after_tls(files):
    """Hangs up without an alert once TLS is agreed upon, as Ignite does."""
    pem = files.directory / "server.pem"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    def treat(_, sock):
        secured = context.wrap_socket(sock, server_side=True)
        secured.recv(100)
        secured.close()

    return treat


@pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "1.3"])
def test_a_node_that_hangs_up_without_an_alert_has_its_causes_told(tmp_path, files, peer, version):
    tls_server(files, peer, version)
    address = peer(closing_after_tls(files))
    trusted = {"tls": True, "ca": str(files.ca)}
    error = failure(address, **trusted)
    assert "may ask for a client certificate, and none was given" in str(error)
    other = made(tmp_path / "other")
    error = failure(address, **trusted, cert=str(other.client_cert), key=str(other.client_key))
    assert f"may not trust the client certificate {other.client_cert}" in str(error)


def test_a_plain_client_on_a_port_with_tls_is_told_so(files, peer):
    error = failure(tls_server(files, peer, VERSIONS[1]))
    assert "the port speaks TLS" in str(error) and "--tls" in error.hint


@pytest.mark.parametrize(
    ("changed", "words", "hint"),
    [
        ({}, "not trusted here", "--ca"),
        ({"_BACKDATE": 9 * certificates._BACKDATE, "_VALID_DAYS": -0.1}, "has expired", "clock"),
        ({"_BACKDATE": -2 * certificates._BACKDATE}, "is not valid yet", "clock"),
        ({"_HOST_NAMES": ("a",), "_HOST_ADDRESSES": ()}, "is for another host", "--address"),
    ],
    ids=["authority", "expired", "early", "host"],
)
def test_what_is_wrong_with_the_certificate_of_a_node(
    tmp_path, files, peer, monkeypatch, changed, words, hint
):
    for name, value in changed.items():
        monkeypatch.setattr(certificates, name, value)
    server = made(tmp_path / "server")
    address = tls_server(server, peer, VERSIONS[1])
    ca = server.ca if changed else files.ca
    error = failure(address, tls=True, ca=str(ca))
    assert isinstance(error, TlsError)
    assert words in str(error) and hint in error.hint


# Files


def encrypted(files, tmp_path, form=PKCS8):
    key = serialization.load_pem_private_key(files.client_key.read_bytes(), None)
    path = tmp_path / "encrypted.pem"
    path.write_bytes(
        key.private_bytes(PEM, form, serialization.BestAvailableEncryption(b"open sesame"))
    )
    return str(path)


@pytest.mark.parametrize("form", [PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
def test_the_password_of_a_key(files, peer, tmp_path, form):
    address = tls_server(files, peer, VERSIONS[1], files.ca)
    given = {"tls": True, "ca": str(files.ca), "cert": str(files.client_cert)}
    given["key"] = encrypted(files, tmp_path, form)
    assert "no password is given" in str(failure(address, **given))
    for wrong in ("wrong", "open sesam", "x" * 2000):
        error = failure(address, **given, key_password=wrong)
        assert isinstance(error, ConfigError) and "another password" in str(error)
        assert wrong not in str(error) and "--key-password-file" in error.hint
    # The right one gets as far as the server, which is no Ignite node.
    assert isinstance(failure(address, **given, key_password="open sesame"), ConnectError)


def test_what_is_wrong_with_a_file(files, tmp_path):
    other = made(tmp_path / "other")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    good = {"ca": files.ca, "cert": files.client_cert, "key": files.client_key}
    wrong = [
        ({"key": other.client_key}, f"--key {other.client_key}: not the key of the certificate"),
        ({"cert": text}, f"--cert {text}: the file has no certificate in PEM form"),
        ({"cert": files.key_store}, f"--cert {files.key_store}: the file has no certificate"),
        ({"key": files.ca}, f"--key {files.ca}: the file has no private key in PEM form"),
        ({"key": None}, f"--key {files.client_cert}: the file has no private key in PEM form"),
        ({"ca": text}, f"--ca {text}: the file has no certificate in PEM form"),
        ({"ca": damaged}, f"--ca {damaged}: damaged"),
        ({"cert": damaged}, f"--cert {damaged}"),
    ]
    for changed, words in wrong:
        given = {k: str(v) if v else None for k, v in {**good, **changed}.items()}
        error = failure("127.0.0.1:1", tls=True, **given)
        assert isinstance(error, ConfigError) and words in str(error), error
    for option in good:
        with pytest.raises(ConfigError, match=f"--{option}: no file"):
            Settings.resolve(**{k: str(v) for k, v in good.items()} | {option: "/nowhere.pem"})
