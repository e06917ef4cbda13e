"""Loads the security files named in the settings: accounts, certificates, and keys for name servers."""

from __future__ import annotations

import ssl
from pathlib import Path

from mq.broker.access.control import AccessControl
from mq.broker.base.rate_limited_log import Log
from mq.broker.context import wall_clock_ms
from mq.broker.settings import BrokerSettings
from mq.certificate import Certificate, CertificateUnusable
from mq.credentials import Credentials, CredentialsInvalid
from mq.protocol.access.address_patterns import is_loopback
from mq.protocol.access.plain_acl import AclFileInvalid


class StartRefused(Exception):
    """The broker cannot start with this setup. The text says what is wrong, and where. No file was changed.

    ``may_pass``: the same start may succeed later, since a port, a name, a disk or another process was in the way.
    """

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


def access_control(settings: BrokerSettings, log: Log) -> AccessControl | None:
    """Load the accounts of clients; None without ``acl_file``, so that all have full access. Raises StartRefused."""
    if settings.acl_file is None:
        if not is_loopback(settings.listen_address[0]):
            reason = "everybody who reaches this address has full access: see acl_file"
            log.warning("clients_not_authenticated", listen=settings.listen, reason=reason)
        return None
    try:
        return AccessControl(settings.acl_file, log, settings.group)
    except AclFileInvalid as error:
        raise StartRefused(f"{settings.acl_file}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise StartRefused(f"{settings.acl_file}: {getattr(error, 'strerror', None) or error}") from error


def certificate(settings: BrokerSettings, log: Log) -> Certificate | None:
    """Load the broker's certificate; None if it does not use one. Raises StartRefused."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    if settings.tls_mode == settings.tls_replication == "disabled":
        return None
    try:
        return Certificate(settings.tls_certificate, settings.tls_key, settings.tls_clients_ca, log, wall_clock_ms)
    except CertificateUnusable as error:
        raise StartRefused(str(error)) from error


def namesrv_tls(settings: BrokerSettings) -> ssl.SSLContext | None:
    """Make the TLS context for connections to name servers; None without TLS. Raises StartRefused."""
    if not settings.tls_namesrv:
        return None
    try:
        return ssl.create_default_context(cafile=settings.tls_namesrv_ca)
    except (OSError, ValueError) as error:
        raise StartRefused(f"{settings.tls_namesrv_ca}: {getattr(error, 'strerror', None) or error}") from error


def read_credentials(path: Path | None) -> Credentials | None:
    """Read the keys for name servers with accounts; None without a file. Raises CredentialsInvalid, OSError."""
    return None if path is None else Credentials.from_file(path)


def check_credentials(path: Path | None) -> None:
    """Try to read the keys, so that an error in the file stops the start. Raises StartRefused."""
    try:
        read_credentials(path)
    except CredentialsInvalid as error:
        raise StartRefused(f"namesrv_credentials: {error}") from error
    except OSError as error:
        raise StartRefused(f"namesrv_credentials: {path}: {error.strerror or error}") from error
