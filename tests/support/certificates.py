"""A certificate authority, and certificates signed by it, in files."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path
from typing import Any

import trustme


class Authority:
    """An authority with its files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ca = trustme.CA()
        self.file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def sign(self, name: str, *hosts: str, not_after: dt.datetime | None = None) -> tuple[Path, Path]:
        """The files of a certificate for these hosts and of its key."""
        issued = self._ca.issue_cert(*hosts, not_after=not_after)
        certificate, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return certificate, key

    def settings(self, mode: str, *hosts: str, **given: Any) -> dict[str, Any]:
        """Settings of a server with a certificate."""
        certificate, key = self.sign("server", *(hosts or ("127.0.0.1",)))
        return {"tls_mode": mode, "tls_certificate": certificate, "tls_key": key, **given}

    def client(self, *, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this authority."""
        context = ssl.create_default_context(cafile=str(self.file))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context
