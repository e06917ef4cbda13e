"""The certificate of a server: read when it starts, and again when its files change."""

from __future__ import annotations

import datetime as dt
import os
import ssl
from pathlib import Path
from typing import Literal, NamedTuple

import structlog

from mq.x509 import valid_until

Log = structlog.stdlib.BoundLogger

TlsMode = Literal["disabled", "permissive", "enforcing"]
"""No client may use TLS; each may, on the same port; each must."""


class CertificateUnusable(Exception):
    """The files do not have a certificate with its key; why is in the message."""


class _Loaded(NamedTuple):
    """What was made of the files: contexts for clients and for replicas that call, and the certificate itself."""

    clients: ssl.SSLContext
    replicas: ssl.SSLContext
    der: bytes
    valid_until: dt.datetime


class Certificate:
    """The certificate of a server, and the context for new connections.

    Args:
        certificate, key: PEM files; the first one has the whole chain.
        clients_ca: PEM file with the authorities whose clients are let in; None for clients without a certificate.

    Raises CertificateUnusable.
    """

    def __init__(self, certificate: Path, key: Path, clients_ca: Path | None, log: Log) -> None:
        self._certificate = certificate
        self._key = key
        self._clients_ca = clients_ca
        self._log = log
        self._fault = ""
        self._stamp = self._read_stamp()
        self._loaded = self._read()

    @property
    def context(self) -> ssl.SSLContext:
        """For connections of clients."""
        return self._loaded.clients

    @property
    def valid_until(self) -> dt.datetime:
        """When it expires, in UTC."""
        return self._loaded.valid_until

    def for_clients(self) -> tuple[ssl.SSLContext, bytes]:
        """For connections of clients; and the certificate (DER)."""
        return self._loaded.clients, self._loaded.der

    def for_replicas(self) -> tuple[ssl.SSLContext, bytes]:
        """For connections of other replicas, which are not asked for certificates; and the certificate (DER)."""
        return self._loaded.replicas, self._loaded.der

    def refresh(self) -> None:
        """Read the files anew if they have changed. If they cannot be used, the certificate stays as it is, and the log
        says why, once. Connections that stand are left alone. Called by a timer.
        """
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return
            self._loaded = self._read()
            self._stamp = stamp
        except CertificateUnusable as error:
            if str(error) != self._fault:
                self._fault = str(error)
                self._log.error(
                    "certificate_unusable", error=str(error), reason="the previous certificate stays in use"
                )
            return
        self._fault = ""
        self._log.info("certificate_read", path=str(self._certificate))

    def peer_context(self) -> ssl.SSLContext:
        """For connections to other servers of the same kind, which prove in another way who they are."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(self._certificate, self._key)
        return context

    def _read(self) -> _Loaded:
        clients, replicas = self._context(), self._context()
        replicas.minimum_version = ssl.TLSVersion.TLSv1_3
        if self._clients_ca is not None:
            try:
                clients.load_verify_locations(self._clients_ca)
            except (OSError, ValueError) as error:
                raise CertificateUnusable(f"{self._clients_ca}: {_reason(error)}") from error
            clients.verify_mode = ssl.CERT_REQUIRED
        der = _first_certificate(self._certificate)
        try:
            return _Loaded(clients, replicas, der, valid_until(der))
        except ValueError as error:
            raise CertificateUnusable(f"{self._certificate}: {error}") from error

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except (OSError, ValueError) as error:
            raise CertificateUnusable(f"{self._certificate} and {self._key}: {_reason(error)}") from error
        return context

    def _read_stamp(self) -> tuple[tuple[int, int, int], ...]:
        paths = [path for path in (self._certificate, self._key, self._clients_ca) if path is not None]
        try:
            found = [os.stat(path) for path in paths]
        except OSError as error:
            raise CertificateUnusable(f"{error.filename}: {error.strerror}") from error
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


def _first_certificate(path: Path) -> bytes:
    """The server's own certificate (DER), with which the file begins. Raises CertificateUnusable."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    try:
        text = path.read_text()
        start = text.index(begin)
        return ssl.PEM_cert_to_DER_cert(text[start : text.index(end, start) + len(end)])
    except (OSError, ValueError) as error:
        raise CertificateUnusable(f"{path}: {_reason(error)}") from error


def _no_password() -> str:
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not a certificate with its key").replace("_", " ").lower()
    return (isinstance(error, OSError) and error.strerror) or str(error)


def check_tls(name: str, mode: TlsMode, certificate: Path | None, key: Path | None) -> None:
    """Raises ValueError unless the setting ``name`` goes together with the others."""
    if mode != "disabled" and (certificate is None or key is None):
        raise ValueError(f"{name} = {mode!r} needs tls_certificate and tls_key")
