"""The certificate of a gRPC server: its own from files, or one that it makes at the start and signs itself."""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import ssl
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mq.tls import Certificate

ALPN: Final = "h2"
_VALID: Final = dt.timedelta(days=3_650)


class TlsContext(Protocol):
    """Where a server gets the context of each connection from."""

    def context(self) -> ssl.SSLContext:
        """The context for a new connection; it offers HTTP/2."""
        ...


class OwnCertificate:
    """The certificate of `mq.tls`, which is read again when its files change."""

    def __init__(self, certificate: Certificate) -> None:
        self._certificate = certificate
        self._offering: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """See TlsContext."""
        context = self._certificate.context
        if context is not self._offering:
            context.set_alpn_protocols([ALPN])
            self._offering = context
        return context


class SelfSigned:
    """A certificate that nobody vouches for: clients either do not verify certificates, or refuse it.

    Args:
        names: host names and addresses in it.
        wall_clock_ms: milliseconds since the epoch.

    Attributes:
        fingerprint: SHA-256 of the certificate, as ``openssl x509 -fingerprint -sha256`` prints it.
        valid_until: in UTC.
    """

    def __init__(self, names: Iterable[str], wall_clock_ms: Callable[[], int]) -> None:
        now = dt.datetime.fromtimestamp(wall_clock_ms() // 1_000, dt.UTC)
        self.valid_until = now + _VALID
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "raftmq proxy")])
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            # A client whose clock is a little behind accepts it, too.
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(self.valid_until)
            .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        digest = hashlib.sha256(made.public_bytes(serialization.Encoding.DER)).hexdigest().upper()
        self.fingerprint = ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([ALPN])
        # The ssl module takes files only; the directory is readable by this user alone, and gone a moment later.
        with tempfile.TemporaryDirectory(prefix="raftmq-") as directory:
            both = Path(directory, "certificate-and-key.pem")
            both.write_bytes(
                key.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
                + made.public_bytes(serialization.Encoding.PEM)
            )
            context.load_cert_chain(both)
        self._context = context

    def context(self) -> ssl.SSLContext:
        """See TlsContext."""
        return self._context


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
