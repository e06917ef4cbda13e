"""The certificate of a gRPC server: from files, or self-signed and made at the start."""

from __future__ import annotations

import datetime as dt
import hashlib
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

from mq.certificate import Certificate, CertificateUnusable

ALPN: Final = "h2"
_VALID: Final = dt.timedelta(days=3_650)


class TlsContext(Protocol):
    """Supplies the TLS context for each new connection of a server."""

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection; it offers HTTP/2."""
        ...


class OwnCertificate:
    """A certificate from files (`mq.certificate`), which it reads again when they change."""

    def __init__(self, certificate: Certificate) -> None:
        self._certificate = certificate
        self._context_in_use: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection; it offers HTTP/2."""
        context = self._certificate.context
        if context is not self._context_in_use:
            context.set_alpn_protocols([ALPN])
            self._context_in_use = context
        return context


class SelfSigned:
    """A self-signed certificate. Clients that verify certificates refuse it.

    Args:
        names: host names and addresses in it.
        wall_clock_ms: milliseconds since the epoch.

    Attributes:
        fingerprint: SHA-256 of the certificate, as ``openssl x509 -fingerprint -sha256`` prints it.
        valid_until: in UTC.

    Raises:
        CertificateUnusable: it could not be made.
    """

    def __init__(self, names: Iterable[str], wall_clock_ms: Callable[[], int]) -> None:
        now = dt.datetime.fromtimestamp(wall_clock_ms() // 1_000, dt.UTC)
        self.valid_until = now + _VALID
        program = [sys.executable, "-P", "-m", "mq.proxy.grpc.self_signed"]
        times = [now.isoformat(), self.valid_until.isoformat()]
        process = subprocess.run([*program, *times, *names], capture_output=True, check=False)
        if process.returncode:
            reason = process.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise CertificateUnusable(f"the proxy cannot make a certificate for itself: {reason or process.returncode}")
        pem = process.stdout.decode("ascii")
        digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem[pem.index(ssl.PEM_HEADER) :])).hexdigest().upper()
        self.fingerprint = ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([ALPN])
        # The ssl module takes files only; the directory is readable by this user alone, and gone a moment later.
        with tempfile.TemporaryDirectory(prefix="raftmq-") as directory:
            both = Path(directory, "certificate-and-key.pem")
            both.write_bytes(process.stdout)
            context.load_cert_chain(both)
        self._context = context

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection; see TlsContext."""
        return self._context
