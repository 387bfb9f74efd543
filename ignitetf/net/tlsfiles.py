"""Builds the TLS context from the settings and explains which file is wrong if it cannot.

settings -> **context** -> handshake
"""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from ignitetf.errors import ConfigError
from ignitetf.settings import Settings

__all__ = ["expired", "tls_context"]

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
        # Without a callback OpenSSL would prompt on the terminal. It only asks for encrypted keys.
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
    return ConfigError(f"{option} {path}: damaged: {_said(error)}", hint="make the file anew")


def _has(path: str, kind: str) -> bool:
    """Whether a file contains a PEM block of this kind."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError:
        return False
    ending = kind.encode() + b"-----"
    return any(line.startswith(b"-----BEGIN ") and line.rstrip().endswith(ending) for line in lines)


def expired(path: str) -> bool:
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
