"""Loads the certificate of a server at start, and again when its files change."""

from __future__ import annotations

import datetime as dt
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from mq.x509 import Validity, validity

Log = structlog.stdlib.BoundLogger

EXPIRES_SOON: Final = dt.timedelta(days=14)
"""The time before the end of a certificate in which a warning is logged once a day."""
_WARN_AGAIN: Final = dt.timedelta(days=1)
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


class CertificateUnusable(Exception):
    """The files do not contain a certificate and its key. The message says why."""


class _Contexts(NamedTuple):
    """Loaded from the files: contexts for clients, for calling replicas and for calls, and the certificate itself."""

    clients: ssl.SSLContext
    replicas: ssl.SSLContext
    calls: ssl.SSLContext
    der: bytes
    validity: Validity
    """The validity of the whole chain."""


class Certificate:
    """The certificate of a server, and the TLS context for new connections.

    Args:
        certificate, key: PEM files; the first one has the whole chain.
        clients_ca: PEM file with the authorities of accepted client certificates; None to require none.
        wall_clock_ms: milliseconds since the epoch.

    A certificate that has expired, or is not valid yet, is used only if it is there at the start: some clients do not
    verify it. Raises CertificateUnusable.
    """

    def __init__(
        self,
        certificate: Path,
        key: Path,
        clients_ca: Path | None,
        log: Log,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._clients_ca = clients_ca
        self._log = log
        self._wall_clock_ms = wall_clock_ms
        self._fault = ""
        self._warned_at: dt.datetime | None = None
        self._stamp = self._read_stamp()
        self._contexts = self._read()
        self._warn_of_end()

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context for client connections."""
        return self._contexts.clients

    @property
    def valid_until(self) -> dt.datetime:
        """The time when the certificate expires, in UTC."""
        return self._contexts.validity.ends

    def for_clients(self) -> tuple[ssl.SSLContext, bytes]:
        """Return the TLS context for client connections, and the certificate (DER)."""
        return self._contexts.clients, self._contexts.der

    def for_replicas(self) -> tuple[ssl.SSLContext, bytes]:
        """Return the TLS context for connections of replicas, which need no certificates, and our certificate (DER)."""
        return self._contexts.replicas, self._contexts.der

    def refresh(self) -> None:
        """Load the files again if they have changed. If they are unusable, keep the old certificate, and log why once.
        Open connections stay. Called by a timer.
        """
        self._warn_of_end()
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return
            contexts = self._read()
            self._check_time(contexts.validity)
            self._contexts, self._stamp, self._warned_at = contexts, stamp, None
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
        """Return the TLS context for connections to other servers of this kind, which authenticate in another way."""
        return self._contexts.calls

    def _check_time(self, valid: Validity) -> None:
        if (fault := self._fault_of_time(valid)) is not None:
            raise CertificateUnusable(f"{self._certificate}: {fault}")
        if self._clients_ca is not None:
            faults = [
                self._fault_of_time(_common_validity(self._clients_ca, [der]))
                for der in _certificates(self._clients_ca)
            ]
            if None not in faults:
                raise CertificateUnusable(f"{self._clients_ca}: {faults[0]}")

    def _now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._wall_clock_ms() / 1000, dt.UTC)

    def _fault_of_time(self, valid: Validity) -> str | None:
        now = self._now()
        if valid.ends <= now:
            return f"expired at {valid.ends:%Y-%m-%d %H:%M:%S} UTC"
        return f"not valid before {valid.begins:%Y-%m-%d %H:%M:%S} UTC" if now < valid.begins else None

    def _warn_of_end(self) -> None:
        """Log once a day that the certificate in use is not valid, or ends soon."""
        now, valid = self._now(), self._contexts.validity
        if valid.begins <= now < valid.ends - EXPIRES_SOON:
            return
        if self._warned_at is not None and self._warned_at <= now < self._warned_at + _WARN_AGAIN:
            return
        self._warned_at = now
        if (fault := self._fault_of_time(valid)) is not None:
            reason = "clients that verify certificates cannot connect"
            self._log.error("certificate_not_valid", path=str(self._certificate), error=fault, reason=reason)
        else:
            self._log.warning(
                "certificate_expires_soon", path=str(self._certificate), valid_until=valid.ends.isoformat()
            )

    def _read(self) -> _Contexts:
        clients, replicas = self._context(), self._context()
        replicas.minimum_version = ssl.TLSVersion.TLSv1_3
        if self._clients_ca is not None:
            try:
                clients.load_verify_locations(self._clients_ca)
            except (OSError, ValueError) as error:
                raise CertificateUnusable(f"{self._clients_ca}: {_reason(error)}") from error
            clients.verify_mode = ssl.CERT_REQUIRED
        calls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        calls.check_hostname = False
        calls.verify_mode = ssl.CERT_NONE
        self._use(calls)
        chain = _certificates(self._certificate)
        return _Contexts(clients, replicas, calls, chain[0], _common_validity(self._certificate, chain))

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._use(context)
        return context

    def _use(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except (OSError, ValueError) as error:
            raise CertificateUnusable(f"{self._certificate} and {self._key}: {_reason(error)}") from error

    def _read_stamp(self) -> tuple[tuple[int, int, int], ...]:
        paths = [path for path in (self._certificate, self._key, self._clients_ca) if path is not None]
        try:
            statuses = [os.stat(path) for path in paths]
        except OSError as error:
            raise CertificateUnusable(f"{error.filename}: {error.strerror}") from error
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in statuses)


def _certificates(path: Path) -> list[bytes]:
    """The certificates (DER) in a file, at least one; the first one is the server's own. Raises CertificateUnusable."""
    certificates: list[bytes] = []
    try:
        text = path.read_text()
        while not certificates or _BEGIN in text:
            start = text.index(_BEGIN)
            end = text.index(_END, start) + len(_END)
            certificates.append(ssl.PEM_cert_to_DER_cert(text[start:end]))
            text = text[end:]
    except (OSError, ValueError) as error:
        raise CertificateUnusable(f"{path}: {_reason(error)}") from error
    return certificates


def _common_validity(path: Path, chain: list[bytes]) -> Validity:
    """The time in which all certificates of a chain are valid, without its root: clients have their own copy of that.
    Raises CertificateUnusable.
    """
    try:
        own, *others = map(validity, chain)
    except ValueError as error:
        raise CertificateUnusable(f"{path}: {error}") from error
    links = [own, *(each for each in others if not each.is_root)]
    return Validity(max(each.begins for each in links), min(each.ends for each in links), own.is_root)


def _no_password() -> str:
    raise ValueError("the key is protected by a password: expected a key without one")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not a certificate with its key").replace("_", " ").lower()
    return (isinstance(error, OSError) and error.strerror) or str(error)
