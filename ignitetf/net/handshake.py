"""Opens a connection (TCP, TLS and handshake) within one time limit, or reports why it failed.

settings -> **handshake** -> channel (frames), pyclient

Every connection of ignitetf is opened here, including those of pyignite (`pyclient` takes its
sockets from `open_connection`). The certificate and the host name are checked before the first
byte of the handshake is sent.

If it fails, the error names the cause in one line: an unusable TLS file, an alert or a certificate
of the peer, the first bytes of another kind of server. A node that is addressed with the wrong
protocol (TLS or not, Ignite 2 or 3) hangs up without an answer. So `explained` then tries the
other protocols once, without a login, to learn which one the peer speaks.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ignitetf.errors import (
    AuthenticationError,
    ConfigError,
    ConnectError,
    IgniteTFError,
    RequestTimeout,
    TlsError,
    WireError,
)
from ignitetf.settings import Settings, split_address
from ignitetf.wire.codes import Feature, Status
from ignitetf.wire.frames import (
    LENGTH_BYTES,
    Accepted,
    Refused,
    handshake_request,
    read_handshake,
    read_length,
)

__all__ = ["LOST", "cause", "explained", "open_connection", "tls_context"]

# On one machine the peer reads bytes at once. With the kernel's default buffers of megabytes, the
# bytes have left the processor's caches by then. This size makes loads of large values and of
# blocks a sixth faster.
_LOCAL_SEND_BYTES: Final = 128 << 10
_MAX_HANDSHAKE_BYTES: Final = 1 << 16
_ALERT_S: Final = 0.2  # for an alert that has already arrived
_VERSIONS: Final = ((1, 7, 0), (1, 6, 0), (1, 5, 0), (1, 4, 0))
_BY_FEATURES: Final = (1, 7)  # any patch release of this protocol
_OUR_FEATURES: Final = (
    Feature.CLUSTER_STATES
    | Feature.CLUSTER_GROUP_GET_NODES_ENDPOINTS
    | Feature.QUERY_PARTITIONS_BATCH_SIZE
)


@dataclass(frozen=True)
class _Peer:
    """The facts about the node from the handshake; `seconds` is how long its answer took."""

    address: str
    version: tuple[int, int, int]
    features: Feature
    node_id: uuid.UUID | None
    seconds: float


def open_connection(
    address: str, settings: Settings, features: Feature = _OUR_FEATURES
) -> tuple[socket.socket, _Peer]:
    """Connect, check the certificate and perform the handshake.

    Returns:
        The connected socket, whose time limit is the rest of `settings.connect_timeout_s`, and its
        peer.

    Raises:
        ConnectError: Nothing listens there, the peer is not an Ignite node, or it is not ready.
        TlsError: TLS failed: the certificate, the host name or the protocol was refused, or only
            one side speaks TLS.
        AuthenticationError: The user name or password was refused.
        RequestTimeout: The peer accepts connections but never answers.
    """
    deadline = time.monotonic() + settings.connect_timeout_s
    version, tried = _VERSIONS[0], set[tuple[int, int, int]]()
    while version not in tried:
        tried.add(version)
        sock = _open_socket(address, settings, deadline)
        try:
            answer = _handshake(sock, address, settings, version, features, deadline)
        except BaseException:
            sock.close()
            raise
        if isinstance(answer, _Peer):
            return sock, answer
        sock.close()
        version = _common_version(answer, address)
    raise ConnectError(
        f"{address}: the node refused each protocol version that it asked for",
        hint="look at the log of the node",
        address=address,
    )


def _common_version(wanted: tuple[int, int, int], address: str) -> tuple[int, int, int]:
    """Return the version that a node wants instead of ours; raises ConnectError if we lack it.

    From 1.7 on, nodes and clients agree on features. A release uses its additions to 1.7.x only if
    both sides announce the feature. So we accept every 1.7.x, such as GridGain's 1.7.1.
    """
    if wanted in _VERSIONS or wanted[:2] == _VERSIONS[0][:2] == _BY_FEATURES:
        return wanted
    named, newest = ".".join(map(str, wanted)), ".".join(map(str, _VERSIONS[0]))
    if wanted > _VERSIONS[0]:
        raise ConnectError(
            f"{address}: the node requires protocol {named}, ignitetf speaks up to {newest}",
            hint="a newer version of ignitetf may support this server:"
            " pip install --upgrade ignitetf",
            address=address,
        )
    raise ConnectError(
        f"{address}: the node supports only protocol {named}",
        hint="ignitetf needs Apache Ignite 2.8 or newer",
        address=address,
    )


def _seconds_left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _open_socket(address: str, settings: Settings, deadline: float) -> socket.socket:
    host, port = split_address(address)
    # First, so that a bad file is reported whether or not a node answers.
    context = tls_context(settings) if settings.tls else None
    try:
        sock = socket.create_connection((host, port), _seconds_left(deadline))
    except TimeoutError as error:
        raise ConnectError(
            f"{address}: no connection within {settings.connect_timeout_s:g} s",
            hint="check the address and the firewall",
            address=address,
        ) from error
    except socket.gaierror as error:
        raise ConnectError(
            f"{address}: {cause(error)}",
            hint="check the name of the host",
            address=address,
        ) from error
    except OSError as error:
        raise ConnectError(
            f"{address}: {cause(error)}",
            hint="start a node with 'ignitetf node start', or give --address HOST:PORT",
            address=address,
        ) from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        _limit_local_sends(sock)
        sock.settimeout(_seconds_left(deadline))
        return _wrap_tls(context, sock, host, address, settings) if context else sock
    except BaseException:
        sock.close()
        raise


def _limit_local_sends(sock: socket.socket) -> None:
    # A peer that has hung up has no name; the handshake will report that.
    with contextlib.suppress(OSError):
        if sock.getsockname()[0] == sock.getpeername()[0]:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_SEND_BYTES)


def _wrap_tls(
    context: ssl.SSLContext, sock: socket.socket, host: str, address: str, settings: Settings
) -> socket.socket:
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise _unverified(address, error) from error
    except TimeoutError as error:
        raise TlsError(
            f"{address}: no TLS answer within {settings.connect_timeout_s:g} s",
            hint="does this port speak TLS? --no-tls connects without",
            address=address,
            lost=True,
        ) from error
    except (ssl.SSLError, ConnectionError) as error:
        raise _tls_failed(address, error, settings) from error


def _handshake(
    sock: socket.socket,
    address: str,
    settings: Settings,
    version: tuple[int, int, int],
    features: Feature,
    deadline: float,
) -> _Peer | tuple[int, int, int]:
    """Try one protocol version; return the peer, or the version that the server wants instead."""
    request = handshake_request(version, features, settings.username, settings.password)
    try:
        sock.settimeout(_seconds_left(deadline))
        began = time.monotonic()
        sock.sendall(request)
        answer = _handshake_answer(sock, deadline)
        seconds = time.monotonic() - began
    except TimeoutError as error:
        raise RequestTimeout(
            f"{address}: no answer to the handshake within {settings.connect_timeout_s:g} s",
            hint="is this the thin client port (10800) of a running Ignite node, without TLS?"
            if not settings.tls
            else "is the node paused or overloaded?",
            address=address,
        ) from error
    except OSError as error:
        # A TLS 1.3 server refuses a client certificate only after the client has finished the TLS
        # handshake. So an alert or a closed connection arrives instead of the answer.
        if settings.tls:
            raise _tls_failed(address, _alert_of(sock, error), settings, agreed=True) from error
        raise ConnectError(
            f"{address}: the handshake was cut: {cause(error)}",
            hint="is this the thin client port (10800) of an Ignite node? does it need TLS (--tls),"
            " or a client certificate (--cert)?",
            address=address,
            lost=isinstance(error, LOST),
            hung_up=True,
        ) from error
    if isinstance(answer, _Foreign):
        raise _not_ignite_error(address, answer.head)
    try:
        found = read_handshake(answer, version)
    except WireError as error:
        raise error.at(address) from error
    if isinstance(found, Accepted):
        return _Peer(address, version, found.features & _OUR_FEATURES, found.node_id, seconds)
    return _wanted_version(found, address, version)


def _alert_of(sock: socket.socket, error: OSError) -> OSError:
    """Return the alert that arrived before a send failed, otherwise the error of the send."""
    if isinstance(error, ssl.SSLError) and not isinstance(error, LOST):
        return error
    try:
        sock.settimeout(_ALERT_S)
        sock.recv(1)
    except ssl.SSLError as alert:
        return alert
    except (OSError, ValueError):
        return error
    return error


@dataclass(frozen=True)
class _Foreign:
    """The first bytes of an answer that an Ignite node cannot send."""

    head: bytes


def _handshake_answer(sock: socket.socket, deadline: float) -> bytes | _Foreign:
    """Return the answer, or only its head if no Ignite node would send that length."""
    data = bytearray()
    need = LENGTH_BYTES
    while len(data) < need:
        sock.settimeout(_seconds_left(deadline))
        piece = sock.recv(need - len(data))
        if not piece:
            raise ConnectionResetError("the peer closed the connection")
        data += piece
        if need == len(data) == LENGTH_BYTES:
            length = read_length(data)
            if not 1 <= length <= _MAX_HANDSHAKE_BYTES:
                return _Foreign(bytes(data))
            need += length
    return bytes(data[LENGTH_BYTES:])


def _wanted_version(
    found: Refused, address: str, version: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Return the version that the node wants instead of ours; raises any other refusal."""
    if found.status == Status.AUTH_FAILED:
        raise AuthenticationError(
            f"{address}: the node refused the user name or the password",
            hint="check --username and --password",
            address=address,
        )
    if found.status == Status.NODE_IN_RECOVERY:
        raise ConnectError(
            f"{address}: the node is still starting",
            hint="try again in a moment",
            status=found.status,
        )
    if any(found.version) and found.version != version:
        return found.version
    raise ConnectError(
        f"{address}: the node refused the handshake: {found.message}",
        hint="is this the thin client port of a node of Apache Ignite 2, or of GridGain 8?",
        status=found.status,
    )


# TLS

_PKCS12 = "openssl pkcs12 -in STORE -out client.pem writes one from a PKCS12 store"


def tls_context(settings: Settings) -> ssl.SSLContext:
    """Return the TLS context for these settings; raises ConfigError for an unusable file."""
    try:
        context = ssl.create_default_context(cafile=settings.ca)
    except (OSError, ssl.SSLError) as error:
        raise _unreadable("--ca", str(settings.ca), error, "CERTIFICATE") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.tls_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert:
        _load_client_certificate(context, settings, settings.cert)
    return context


def _load_client_certificate(context: ssl.SSLContext, settings: Settings, cert: str) -> None:
    asked = False

    def password() -> str:
        # Without a callback OpenSSL would prompt on the terminal. It calls this only if the key is
        # encrypted.
        nonlocal asked
        asked = True
        return settings.key_password or ""

    key = settings.key or cert
    try:
        context.load_cert_chain(cert, key, password)
    except (OSError, ValueError) as error:
        if asked:
            wrong = "is encrypted and no password is given"
            if settings.key_password:
                wrong = "is encrypted with another password than the one given"
            raise ConfigError(
                f"--key {key}: the key {wrong}",
                hint="give --key-password-file FILE, or set IGNITETF_KEY_PASSWORD",
            ) from error
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"--key {key}: not the key of the certificate {cert}",
                hint="give the key that the certificate was made for",
            ) from error
        for option, path, kind in (("--cert", cert, "CERTIFICATE"), ("--key", key, "PRIVATE KEY")):
            if not _has(path, kind):
                raise _unreadable(option, path, error, kind) from error
        raise ConfigError(
            f"--cert {cert}, --key {key}: damaged: {_said(error)}",
            hint="check --cert and --key; openssl x509 -in CERT -text shows what it is",
        ) from error


def _unreadable(option: str, path: str, error: Exception, kind: str) -> ConfigError:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return ConfigError(f"{option} {path}: {_said(error)}", hint="check the path and its rights")
    if not _has(path, kind):
        what = "certificate" if kind == "CERTIFICATE" else "private key"
        return ConfigError(
            f"{option} {path}: the file has no {what} in PEM form"
            f" (a line -----BEGIN ... {kind}-----)",
            hint=_PKCS12 if option != "--ca" else "give the certificate of the authority as PEM",
        )
    return ConfigError(f"{option} {path}: damaged: {_said(error)}", hint="create the file again")


def _has(path: str, kind: str) -> bool:
    """Return True if a file contains a PEM block of this kind."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError:
        return False
    ending = kind.encode() + b"-----"
    return any(line.startswith(b"-----BEGIN ") and line.rstrip().endswith(ending) for line in lines)


def _expired(path: str) -> bool:
    """Return whether a certificate has expired; False if the package cryptography is missing."""
    try:
        from cryptography import x509

        ends = x509.load_pem_x509_certificate(Path(path).read_bytes()).not_valid_after_utc
    except (ImportError, OSError, ValueError):
        return False
    return ends < datetime.datetime.now(datetime.UTC)


def _said(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).replace("_", " ").lower()


# Failures, explained

# The handshake was cut short and may succeed another time.
LOST: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
_TRUST_HINT: Final = "give the file of the authority that signed it with --ca"
_CLOCK_HINT: Final = "renew the node's certificate; is the clock of this machine right?"
_NAME_HINT: Final = "give an address that the certificate names (--address), or issue one for it"
# OpenSSL's codes for certificates that cannot be verified.
_UNVERIFIED: Final = {
    9: ("is not valid yet", _CLOCK_HINT),
    10: ("has expired", _CLOCK_HINT),
    18: ("is not trusted here", _TRUST_HINT),
    19: ("is not trusted here", _TRUST_HINT),
    20: ("is not trusted here", _TRUST_HINT),
    21: ("is not trusted here", _TRUST_HINT),
    62: ("is for another host", _NAME_HINT),
    64: ("is for another host", _NAME_HINT),
}
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH", "RECORD_LAYER_FAILURE")
# TLS alerts of the peer, as they appear at the end of OpenSSL's reasons.
_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "the node asks for a client certificate",
    "UNKNOWN_CA": "the node does not trust the authority of the client certificate",
    "CERTIFICATE_EXPIRED": "the client certificate has expired",
    "CERTIFICATE_REVOKED": "the client certificate was revoked",
    "BAD_CERTIFICATE": "the node refused the client certificate, or asks for one",
    "CERTIFICATE_UNKNOWN": "the node refused the client certificate, or asks for one",
    "UNSUPPORTED_CERTIFICATE": "the node refused the client certificate",
    "PROTOCOL_VERSION": "the node speaks another version of TLS than 1.2 and 1.3",
    "HANDSHAKE_FAILURE": "the node and this machine share no cipher, or it asks for a"
    " client certificate",
}
# The first bytes of the answers of other servers.
_FOREIGN: Final = (
    (b"IGNI", "a node of Apache Ignite 3 listens on this port, with another protocol"),
    (b"\x15\x03", "the port speaks TLS"),
    (b"HTTP", "a web server listens on this port"),
    (b"-ERR", "a Redis server, or a similar one, listens on this port"),
    (b"-DEN", "a Redis server, or a similar one, listens on this port"),
    (b"-NOA", "a Redis server, or a similar one, listens on this port"),
    (b"SSH-", "an SSH server listens on this port"),
)


def _unverified(address: str, error: ssl.SSLCertVerificationError) -> TlsError:
    """Return the error for a node whose certificate failed our checks."""
    what, hint = _UNVERIFIED.get(error.verify_code, ("was refused", _TRUST_HINT))
    return TlsError(
        f"{address}: the node's certificate {what}: {error.verify_message}",
        hint=hint,
        address=address,
    )


def _tls_failed(
    address: str, error: OSError, settings: Settings, *, agreed: bool = False
) -> TlsError:
    """Return the error for a failure of TLS; it names the peer's alert if there was one.

    Args:
        address: Address of the node.
        error: The error of the socket.
        settings: The client's settings.
        agreed: True if the failure came after the TLS handshake.
    """
    reason = str(getattr(error, "reason", None) or "")
    facts: dict[str, Any] = {"address": address, "lost": isinstance(error, LOST)}
    if not agreed and any(sign in reason for sign in _NOT_TLS):
        return TlsError(
            f"{address}: the port does not speak TLS",
            hint="--no-tls connects without; is it the port of an Ignite node?",
            **facts,
        )
    if alert := next((alert for alert in _ALERTS if alert in reason), None):
        return TlsError(
            f"{address}: {_ALERTS[alert]} ({reason.replace('_', ' ').lower()})",
            hint=_client_hint(settings, agreed),
            **facts,
        )
    if facts["lost"]:
        # Servers in Java, such as Ignite's nodes, hang up without an alert.
        return TlsError(
            f"{address}: the handshake was cut {'after' if agreed else 'during'} TLS:"
            f" {_client_state(settings)}",
            hint=_client_hint(settings, agreed),
            hung_up=True,
            **facts,
        )
    return TlsError(
        f"{address}: TLS failed: {reason or cause(error)}",
        hint=_client_hint(settings, agreed),
        **facts,
    )


def _client_state(settings: Settings) -> str:
    if settings.cert is None:
        return "it may ask for a client certificate, and none was given"
    if _expired(settings.cert):
        return f"the client certificate {settings.cert} has expired"
    return f"it may not trust the client certificate {settings.cert}"


def _client_hint(settings: Settings, agreed: bool) -> str:
    who = (
        "that the node trusts" if settings.cert is None else "that the node's authority has signed"
    )
    other = "the node may be stopping" if agreed else "the port may not use TLS (--no-tls)"
    return f"give --cert and --key of a client {who}; otherwise {other}"


def _not_ignite_error(address: str, head: bytes) -> ConnectError:
    """Return the error for a port whose answer does not begin like that of an Ignite node."""
    for begin, what in _FOREIGN:
        if head.startswith(begin):
            hint = "the thin client port of Apache Ignite 2 is 10800 by default"
            if begin == b"IGNI":
                hint = (
                    "ignitetf needs Apache Ignite 2 (2.8 or newer); the Python client of Ignite 3"
                    " is pyignite_dbapi (pip install pyignite_dbapi)"
                )
            if begin.startswith(b"\x15"):
                hint = "give --tls, and --ca with the file of the node's authority"
            return ConnectError(f"{address}: {what}", hint=hint, address=address)
    return ConnectError(
        f"{address}: the answer is not that of an Ignite node, it begins with {head!r}",
        hint="the thin client port is 10800 by default",
        address=address,
    )


def cause(error: BaseException) -> str:
    """Return an error's text in lower case, for the middle of a sentence."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


# Which server answers instead of a node

_PROBE_S: Final = 1.0
_MAGIC: Final = b"IGNI"
# The first bytes of an Ignite 3 client: the magic, version 3.0.0, the client type, no features.
_IGNITE_3: Final = _MAGIC + b"\x00\x00\x00\x07\x03\x00\x00\x02\xc4\x00\x80"


def explained(error: ConnectError, settings: Settings) -> ConnectError:
    """Return the error of a connection that was cut, with its cause if a probe finds it.

    Returns:
        A new error, or `error` itself.
    """
    address = error.fields.get("address")
    if not error.fields.get("hung_up") or address is None:
        return error
    if settings.tls:
        if _answers_without_tls(address):
            return TlsError(
                f"{address}: the node does not speak TLS",
                hint="--no-tls connects without",
                address=address,
            )
        if (head := _head_of_ignite_3(address, settings)) == _MAGIC:
            return _not_ignite_error(address, head)
    elif _speaks_tls(address):
        return ConnectError(
            f"{address}: the port speaks TLS",
            hint="give --tls, and --ca with the file of the node's authority; a node may ask for"
            " --cert and --key as well",
            address=address,
        )
    elif (head := _head_of_ignite_3(address, settings)) == _MAGIC:
        return _not_ignite_error(address, head)
    return error


def _connected(address: str) -> socket.socket:
    return socket.create_connection(split_address(address), _PROBE_S)


def _answers_without_tls(address: str) -> bool:
    """Return True if an Ignite node answers there without TLS, even if it refuses the login."""
    plain = Settings(addresses=(address,), connect_timeout_s=_PROBE_S)
    try:
        sock, _ = open_connection(address, plain)
    except IgniteTFError as error:
        return isinstance(error, AuthenticationError)
    sock.close()
    return True


def _speaks_tls(address: str) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent, so the peer's identity is irrelevant
    host = split_address(address)[0]
    with contextlib.suppress(OSError), _connected(address) as sock:
        try:
            context.wrap_socket(sock, server_hostname=host).close()
        except ssl.SSLError as error:
            return "ALERT" in str(error.reason)
        return True
    return False


def _head_of_ignite_3(address: str, settings: Settings) -> bytes:
    """Return the first bytes of the answer to an Ignite 3 client; empty if there is none."""
    probe = settings.replace(connect_timeout_s=_PROBE_S)
    with (
        contextlib.suppress(OSError, IgniteTFError),
        _open_socket(address, probe, time.monotonic() + _PROBE_S) as sock,
    ):
        sock.sendall(_IGNITE_3)
        return sock.recv(len(_MAGIC))
    return b""
