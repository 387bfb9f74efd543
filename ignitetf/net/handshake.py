"""Opens a connection: TCP, TLS and handshake within one time limit.

settings -> **handshake** -> channel (frames), pyclient

Every connection of ignitetf is opened here, including those of pyignite (`pyclient` takes its
sockets from `open_connection`). The certificate and the host name are checked before the first
byte of the handshake is sent.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
import uuid
from dataclasses import dataclass
from typing import Final

from ignitetf.errors import (
    AuthenticationError,
    ConnectError,
    RequestTimeout,
    TlsError,
    WireError,
)
from ignitetf.net.refusals import LOST, cause, foreign, tls_failed, unverified
from ignitetf.net.tlsfiles import tls_context
from ignitetf.settings import Settings, split_address
from ignitetf.wire.codes import Feature, Status
from ignitetf.wire.frames import LENGTH_BYTES, read_length
from ignitetf.wire.handshake import Accepted, Refused, handshake_request, read_handshake

__all__ = ["Peer", "open_connection"]

# On one machine the peer reads bytes at once. With the kernel's default buffers of megabytes they
# have left the processor's caches by then; this size makes loads of large values and of blocks a
# sixth faster.
_LOCAL_SEND_BYTES: Final = 128 << 10
_MAX_HANDSHAKE_BYTES: Final = 1 << 16
_ALERT_S: Final = 0.2  # for an alert that has already arrived
_VERSIONS: Final = ((1, 7, 0), (1, 6, 0), (1, 5, 0), (1, 4, 0))
_OUR_FEATURES: Final = (
    Feature.CLUSTER_STATES
    | Feature.CLUSTER_GROUP_GET_NODES_ENDPOINTS
    | Feature.QUERY_PARTITIONS_BATCH_SIZE
)


@dataclass(frozen=True)
class Peer:
    """What the handshake revealed about the other side; its answer took so many seconds."""

    address: str
    version: tuple[int, int, int]
    features: Feature
    node_id: uuid.UUID | None
    seconds: float


def open_connection(
    address: str, settings: Settings, features: Feature = _OUR_FEATURES
) -> tuple[socket.socket, Peer]:
    """Connect, check the certificate and perform the handshake.

    Returns:
        The connected socket, with what is left of `settings.connect_timeout_s` as its time limit,
        and its peer.

    Raises:
        ConnectError: Nothing listens there, it is not an Ignite node, or it is not ready.
        TlsError: TLS failed because of the certificate, the name or the protocol, or because only
            one side speaks it.
        AuthenticationError: The user name or password was refused.
        RequestTimeout: The peer accepts connections but never answers.
    """
    deadline = time.monotonic() + settings.connect_timeout_s
    for version in _VERSIONS:
        sock = _open_socket(address, settings, deadline)
        try:
            answer = _handshake(sock, address, settings, version, features, deadline)
        except BaseException:
            sock.close()
            raise
        if isinstance(answer, Peer):
            return sock, answer
        sock.close()
        if answer not in _VERSIONS:
            raise ConnectError(
                f"{address}: the node speaks protocol {'.'.join(map(str, answer))} only",
                hint="ignitetf needs Apache Ignite 2.8 or newer",
            )
    raise ConnectError(f"{address}: no common protocol version")


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _open_socket(address: str, settings: Settings, deadline: float) -> socket.socket:
    host, port = split_address(address)
    # First, so that a bad file is reported whether or not a node answers.
    context = tls_context(settings) if settings.tls else None
    try:
        sock = socket.create_connection((host, port), _left(deadline))
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
        sock.settimeout(_left(deadline))
        return _wrap_tls(context, sock, host, address, settings) if context else sock
    except BaseException:
        sock.close()
        raise


def _limit_local_sends(sock: socket.socket) -> None:
    # A peer that is already gone has no name; the handshake will report that.
    with contextlib.suppress(OSError):
        if sock.getsockname()[0] == sock.getpeername()[0]:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOCAL_SEND_BYTES)


def _wrap_tls(
    context: ssl.SSLContext, sock: socket.socket, host: str, address: str, settings: Settings
) -> socket.socket:
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise unverified(address, error) from error
    except TimeoutError as error:
        raise TlsError(
            f"{address}: no TLS answer within {settings.connect_timeout_s:g} s",
            hint="does this port speak TLS? --no-tls connects without",
            address=address,
            lost=True,
        ) from error
    except (ssl.SSLError, ConnectionError) as error:
        raise tls_failed(address, error, settings) from error


def _handshake(
    sock: socket.socket,
    address: str,
    settings: Settings,
    version: tuple[int, int, int],
    features: Feature,
    deadline: float,
) -> Peer | tuple[int, int, int]:
    """Try one version and return the peer, or the version the server wants instead."""
    request = handshake_request(version, features, settings.username, settings.password)
    try:
        sock.settimeout(_left(deadline))
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
        # A TLS 1.3 server refuses a client certificate only after the client has finished its
        # side, so its alert or a closed connection takes the place of the answer.
        if settings.tls:
            raise tls_failed(address, _alert_of(sock, error), settings, agreed=True) from error
        raise ConnectError(
            f"{address}: the handshake was cut: {cause(error)}",
            hint="is this the thin client port (10800) of an Ignite node? does it need TLS (--tls),"
            " or a client certificate (--cert)?",
            address=address,
            lost=isinstance(error, LOST),
            hung_up=True,
        ) from error
    if isinstance(answer, _Foreign):
        raise foreign(address, answer.head)
    try:
        found = read_handshake(answer, version)
    except WireError as error:
        raise error.at(address) from error
    if isinstance(found, Accepted):
        return Peer(address, version, found.features & _OUR_FEATURES, found.node_id, seconds)
    return _wanted_version(found, address, version)


def _alert_of(sock: socket.socket, error: OSError) -> OSError:
    """Return the alert that arrived before a send failed, or else the error of the send."""
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
    """The first bytes of an answer that cannot come from an Ignite node."""

    head: bytes


def _handshake_answer(sock: socket.socket, deadline: float) -> bytes | _Foreign:
    """Receive the answer, or only its head if no Ignite node would send that length."""
    data = bytearray()
    need = LENGTH_BYTES
    while len(data) < need:
        sock.settimeout(_left(deadline))
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
    """Return the version that a node wants which refused ours; raises other refusals as errors."""
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
        f"{address}: the node refused the handshake: {found.message}", status=found.status
    )
