"""What listens at an address whose handshake was cut: asked once, when a first connection fails.

handshake -> **probe** -> client

An Ignite node that is talked to in the wrong way hangs up without a word: TLS or not, Ignite 2 or
3. So the other ways are tried, without a login and without a certificate, and the answer tells.
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
# A client's first words in Ignite 3: its magic, then version 3.0.0, a client's type, no features.
_IGNITE_3: Final = b"IGNI\x00\x00\x00\x07\x03\x00\x00\x02\xc4\x00\x80"


def explained(error: ConnectError, settings: Settings) -> ConnectError:
    """The error of a connection that was cut, with the cause where the other side lets it be known.

    Returns:
        A new error, or the one that was given.
    """
    address = error.fields.get("address")
    if not error.fields.get("closed") or address is None:
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
    """Whether an Ignite node answers there without TLS, be it with a refusal."""
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
    context.verify_mode = ssl.CERT_NONE  # nothing is sent; who is there is not asked
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
