"""Parses the address and connection settings of a broker from a URL and options of kombu."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mq.client.consume.pop_options import INVISIBLE_SECONDS_MAX
from mq.client.net.client_core import RemotingSettings
from mq.client.net.credentials import Credentials, CredentialsInvalid

DEFAULT_PORT: Final = 9876
_PREFIX: Final = "celery"
_OFF: Final = frozenset(("false", "no", "off", "0"))
"""The values of `?ssl=` in a URL for a connection without TLS."""
_OPTIONS: Final = {
    "visibility_timeout": 120.0,
    "publish_timeout": 30.0,
    "delay_max": 39 * 86400.0,
    "redeliveries_max": None,
}


@dataclass(frozen=True, slots=True)
class Address:
    """The name servers, credentials and options of a connection. Connections with equal addresses share a session."""

    name_servers: tuple[str, ...]
    prefix: str
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    tls: tuple[tuple[str, Any], ...] | None = None
    connect_timeout: float = 5.0
    visibility_timeout: float = 120.0
    """Seconds that a delivered message stays hidden if its process dies; renewed while the process lives."""
    publish_timeout: float = 30.0
    delay_max: float = 39 * 86400.0
    """A longer ETA is delivered after this time, and held by the worker for the rest."""
    redeliveries_max: int | None = None

    def remoting_settings(self) -> RemotingSettings:
        """Return the settings for all clients. Raises CredentialsInvalid, also for unusable certificates."""
        options: dict[str, Any] = {}
        if self.secret_key is not None and self.access_key is None:
            raise CredentialsInvalid("the broker URL has a secret key without an access key: raftmq://KEY:SECRET@host")
        if self.access_key is not None:
            options["credentials"] = Credentials(self.access_key, self.secret_key or "")
        if self.tls is not None:
            options["tls"] = _context(dict(self.tls))
        return RemotingSettings(**options)


def address_of(client: Any, *, tls: bool) -> Address:
    """Return the address of a `kombu.Connection`. Raises ValueError for an option with a bad value."""
    options = dict(client.transport_options)
    values: dict[str, Any] = {name: options.get(name, default) for name, default in _OPTIONS.items()}
    for name, value in values.items():
        is_default = value is None and _OPTIONS[name] is None
        if not is_default and not (isinstance(value, (int, float)) and value > 0):
            raise ValueError(f"transport option {name} is {value!r}; it must be a positive number")
    values["visibility_timeout"] = min(values["visibility_timeout"], INVISIBLE_SECONDS_MAX)
    hosts = (client.hostname or "localhost").split(",")
    port = client.port or DEFAULT_PORT
    prefix = options.get("prefix") or (client.virtual_host or "").strip("/") or _PREFIX
    use_tls = tls or (client.ssl and str(client.ssl).lower() not in _OFF)
    return Address(
        name_servers=tuple(f"[{host}]:{port}" if ":" in host else f"{host.strip()}:{port}" for host in hosts),
        prefix=prefix,
        access_key=client.userid or None,
        secret_key=client.password or None,
        tls=tuple(sorted(_tls_options(client.ssl).items())) if use_tls else None,
        connect_timeout=float(client.connect_timeout or 5.0),
        **values,
    )


def _tls_options(ssl_options: object) -> dict[str, Any]:
    """`{"ca_certs": ..., "certfile": ..., "keyfile": ..., "cert_reqs": ...}`, whose names may begin with `ssl_`."""
    if not isinstance(ssl_options, Mapping):
        return {}
    options = {str(name).removeprefix("ssl_"): value for name, value in ssl_options.items()}
    unknown = options.keys() - {"ca_certs", "certfile", "keyfile", "cert_reqs", "check_hostname"}
    if unknown:
        raise ValueError(f"unknown options for TLS: {', '.join(sorted(unknown))}")
    return options


def _context(options: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ca_certs"))
        if certificate := options.get("certfile"):
            context.load_cert_chain(certificate, options.get("keyfile"))
    except (OSError, ValueError) as error:
        # kombu takes an OSError for a lost connection, and a worker would try again for ever.
        files = ", ".join(f"{name} {options[name]}" for name in ("ca_certs", "certfile", "keyfile") if name in options)
        raise CredentialsInvalid(f"{files}: {getattr(error, 'strerror', None) or error}") from error
    if options.get("check_hostname") is False or options.get("cert_reqs") == ssl.CERT_NONE:
        context.check_hostname = False
    if (verify_mode := options.get("cert_reqs")) is not None:
        context.verify_mode = verify_mode
    return context
