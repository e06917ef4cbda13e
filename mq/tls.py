"""The certificate of a server: loaded at start, and reloaded when its files change."""

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
"""Clients must not, may, or must use TLS; `permissive` serves both on the same port."""


class CertificateUnusable(Exception):
    """The files do not contain a certificate with its key; the message says why."""


class _Loaded(NamedTuple):
    """Loaded from the files: contexts for clients and for calling replicas, and the certificate itself."""

    clients: ssl.SSLContext
    replicas: ssl.SSLContext
    der: bytes
    valid_until: dt.datetime


class Certificate:
    """The certificate of a server, and the context for new connections.

    Args:
        certificate, key: PEM files; the first one has the whole chain.
        clients_ca: PEM file with the authorities of accepted client certificates; None to require none.

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
        """The context for client connections."""
        return self._loaded.clients

    @property
    def valid_until(self) -> dt.datetime:
        """When it expires, in UTC."""
        return self._loaded.valid_until

    def for_clients(self) -> tuple[ssl.SSLContext, bytes]:
        """The context for client connections; and the certificate (DER)."""
        return self._loaded.clients, self._loaded.der

    def for_replicas(self) -> tuple[ssl.SSLContext, bytes]:
        """The context for connections of other replicas, which need no certificates; and the certificate (DER)."""
        return self._loaded.replicas, self._loaded.der

    def refresh(self) -> None:
        """Reload the files if they have changed. If they are invalid, keep the old certificate and log the reason once.
        Open connections are not affected. Called by a timer.
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
        """The context for connections to other servers of the same kind, which authenticate in another way."""
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
    """The server's own certificate (DER), the first in the file. Raises CertificateUnusable."""
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
    """Raises ValueError unless the setting ``name`` is consistent with the others."""
    if mode != "disabled" and (certificate is None or key is None):
        raise ValueError(f"{name} = {mode!r} needs tls_certificate and tls_key")
