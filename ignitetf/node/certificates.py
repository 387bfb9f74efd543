"""Create a private certificate authority with one server and one client certificate for a node.

The authority signs these two and is then discarded. Its key is never written, so no one can issue
another certificate that the node would trust. Java reads PKCS12, Python reads PEM.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ignitetf.errors import MissingExtra
from ignitetf.local.process import write_private

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["CertificateFiles", "expires_soon", "make_certificates"]

_VALID_DAYS = 825
_RENEW_DAYS = 60
_BACKDATE = datetime.timedelta(hours=1)  # clocks of other machines may be slow
_HOST_NAMES = ("localhost",)
_HOST_ADDRESSES = ("127.0.0.1", "::1")


@dataclass(frozen=True)
class CertificateFiles:
    """Paths of the certificates of a node."""

    directory: Path

    @property
    def ca(self) -> Path:
        """The authority's certificate, PEM."""
        return self.directory / "ca.pem"

    @property
    def client_cert(self) -> Path:
        """The client's certificate, PEM."""
        return self.directory / "client.pem"

    @property
    def client_key(self) -> Path:
        """The client's key, PEM, not encrypted."""
        return self.directory / "client-key.pem"

    @property
    def key_store(self) -> Path:
        """The server's key and certificate, PKCS12."""
        return self.directory / "server.p12"

    @property
    def trust_store(self) -> Path:
        """The authority's certificate as Java trusts it, PKCS12."""
        return self.directory / "trust.p12"

    @property
    def complete(self) -> bool:
        """True if all files exist."""
        return all(
            path.is_file()
            for path in (
                self.ca,
                self.client_cert,
                self.client_key,
                self.key_store,
                self.trust_store,
            )
        )


def make_certificates(files: CertificateFiles, key_password: str, trust_password: str) -> None:
    """Create new certificates, replacing existing ones.

    Args:
        files: Files to write; only the owner can read them.
        key_password: Password of the server's key store.
        trust_password: Password of the trust store.

    Raises:
        MissingExtra: The package cryptography is not installed.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError as error:
        raise MissingExtra(
            "--secure makes certificates with the package cryptography, which is not installed",
            hint="pip install 'ignitetf[node]'",
        ) from error
    ca_key, server_key, client_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = _certificate("ignitetf node CA", ca_key, "ignitetf node CA", ca_key, "ca")
    server = _certificate("ignitetf node", server_key, "ignitetf node CA", ca_key, "server")
    client = _certificate("ignitetf client", client_key, "ignitetf node CA", ca_key, "client")
    pem = serialization.Encoding.PEM
    # Remove the file that is written last, so that an interruption leaves the certificates
    # incomplete.
    files.trust_store.unlink(missing_ok=True)
    write_private(files.ca, ca.public_bytes(pem))
    write_private(files.client_cert, client.public_bytes(pem))
    write_private(
        files.client_key,
        client_key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
    write_private(
        files.key_store,
        pkcs12.serialize_key_and_certificates(
            b"node",
            server_key,
            server,
            [ca],
            serialization.BestAvailableEncryption(key_password.encode()),
        ),
    )
    write_private(
        files.trust_store,
        pkcs12.serialize_java_truststore(
            [pkcs12.PKCS12Certificate(ca, b"ca")],
            serialization.BestAvailableEncryption(trust_password.encode()),
        ),
    )


def expires_soon(files: CertificateFiles) -> bool:
    """True if the certificates expire within two months, have expired, or cannot be read."""
    from cryptography import x509

    try:
        ends = x509.load_pem_x509_certificate(files.client_cert.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return True
    now = datetime.datetime.now(datetime.UTC)
    return ends - now < datetime.timedelta(days=_RENEW_DAYS)


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: EllipticCurvePrivateKey,
    role: str,
) -> x509.Certificate:
    """Return a certificate for "ca", "server" (also a client of other members) or "client"."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.UTC)
    is_ca = role == "ca"
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(
            x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_ca,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=is_ca,
                crl_sign=is_ca,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    if role in ("server", "client"):
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role == "server":
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if role == "server":
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in _HOST_NAMES]
        names += [x509.IPAddress(ipaddress.ip_address(text)) for text in _HOST_ADDRESSES]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())
