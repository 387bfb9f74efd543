"""Finds out what listens at an address that cut the handshake, once, after a first failure.

handshake -> **probe** -> pool

An Ignite node addressed with the wrong protocol (TLS or not, Ignite 2 or 3) hangs up without a
word. So the other protocols are tried, without a login or a certificate, to learn which one the
peer speaks.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Final

from ignitetf.errors import AuthenticationError, ConnectError, IgniteTFError, TlsError
from ignitetf.net.handshake import open_connection
from ignitetf.net.refusals import foreign
from ignitetf.settings import Settings, split_address

__all__ = ["explained"]

_LIMIT_S: Final = 1.0
# How an Ignite 3 client begins: the magic, version 3.0.0, the client type, no features.
_IGNITE_3: Final = b"IGNI\x00\x00\x00\x07\x03\x00\x00\x02\xc4\x00\x80"


def explained(error: ConnectError, settings: Settings) -> ConnectError:
    """Return the error of a connection that was cut, with its cause if that can be found out.

    Returns:
        A new error, or `error` itself.
    """
    address = error.fields.get("address")
    if not error.fields.get("hung_up") or address is None:
        return error
    if settings.tls:
        if _answers_plainly(address):
            return TlsError(
                f"{address}: the node speaks no TLS",
                hint="--no-tls connects without",
                address=address,
            )
    elif _speaks_tls(address):
        return ConnectError(
            f"{address}: the port speaks TLS",
            hint="give --tls, and --ca with the file of the node's authority; a node may ask for"
            " --cert and --key as well",
            address=address,
        )
    elif (head := _head_of_ignite_3(address)) == b"IGNI":
        return foreign(address, head)
    return error


def _connected(address: str) -> socket.socket:
    return socket.create_connection(split_address(address), _LIMIT_S)


def _answers_plainly(address: str) -> bool:
    """Whether an Ignite node answers there without TLS, even if it refuses the login."""
    plain = Settings(addresses=(address,), connect_timeout_s=_LIMIT_S)
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


def _head_of_ignite_3(address: str) -> bytes:
    with contextlib.suppress(OSError), _connected(address) as sock:
        sock.sendall(_IGNITE_3)
        return sock.recv(4)
    return b""
