"""Explains failed handshakes: picks the error, its cause and a hint, in one line each.

TLS alerts and certificates, and the first bytes of peers other than Ignite -> **errors**
"""

from __future__ import annotations

import ssl
from typing import Any, Final

from ignitetf.errors import ConnectError, TlsError
from ignitetf.net.tlsfiles import expired
from ignitetf.settings import Settings

__all__ = ["LOST", "cause", "foreign", "tls_failed", "unverified"]

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
# Alerts that state the other side's reason, as they appear at the end of OpenSSL's reasons.
_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "the node asks for a client certificate",
    "UNKNOWN_CA": "the node does not trust the authority of the client certificate",
    "CERTIFICATE_EXPIRED": "the client certificate has expired",
    "CERTIFICATE_REVOKED": "the client certificate was revoked",
    "BAD_CERTIFICATE": "the node refused the client certificate, or asks for one",
    "CERTIFICATE_UNKNOWN": "the node refused the client certificate, or asks for one",
    "UNSUPPORTED_CERTIFICATE": "the node refused the client certificate",
    "PROTOCOL_VERSION": "the node speaks another version of TLS than 1.2 and 1.3",
    "HANDSHAKE_FAILURE": "the node and this machine have no cipher in common, or it asks for a"
    " client certificate",
}
# How the answers of other servers begin.
_FOREIGN: Final = (
    (b"IGNI", "a node of Apache Ignite 3 listens there, whose protocol is another one"),
    (b"\x15\x03", "the port speaks TLS"),
    (b"HTTP", "a web server listens there"),
    (b"-ERR", "a Redis server listens there, or one that speaks like it"),
    (b"-DEN", "a Redis server listens there, or one that speaks like it"),
    (b"-NOA", "a Redis server listens there, or one that speaks like it"),
    (b"SSH-", "an SSH server listens there"),
)


def unverified(address: str, error: ssl.SSLCertVerificationError) -> TlsError:
    """Return the error for a node whose certificate failed our checks."""
    what, hint = _UNVERIFIED.get(error.verify_code, ("was refused", _TRUST_HINT))
    return TlsError(
        f"{address}: the node's certificate {what}: {error.verify_message}",
        hint=hint,
        address=address,
    )


def tls_failed(
    address: str, error: OSError, settings: Settings, *, agreed: bool = False
) -> TlsError:
    """Return the error for a failure of TLS, naming the other side's alert if it sent one.

    Args:
        address: Address of the node.
        error: What the socket raised.
        settings: The client's settings.
        agreed: Whether the failure came after the TLS handshake.
    """
    reason = str(getattr(error, "reason", None) or "")
    facts: dict[str, Any] = {"address": address, "lost": isinstance(error, LOST)}
    if not agreed and any(sign in reason for sign in _NOT_TLS):
        return TlsError(
            f"{address}: the port speaks no TLS",
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
        # Java's nodes, Ignite's among them, hang up without an alert.
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
    if expired(settings.cert):
        return f"the client certificate {settings.cert} has expired"
    return f"it may not trust the client certificate {settings.cert}"


def _client_hint(settings: Settings, agreed: bool) -> str:
    who = (
        "that the node trusts" if settings.cert is None else "that the node's authority has signed"
    )
    other = "the node may be ending" if agreed else "the port may speak no TLS (--no-tls)"
    return f"give --cert and --key of a client {who}; else {other}"


def foreign(address: str, head: bytes) -> ConnectError:
    """Return the error for a port whose answer does not begin like Ignite's."""
    for begin, what in _FOREIGN:
        if head.startswith(begin):
            hint = "the thin client port of Apache Ignite 2 is 10800 by default"
            if begin == b"IGNI":
                hint = "ignitetf needs Apache Ignite 2.8 or newer, of the versions 2"
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
