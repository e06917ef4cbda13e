"""The settings of one proxy process; `mq.settings` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from mq.addresses import parse_metrics_address, parse_networks
from mq.client.net.client_core import parse_addresses
from mq.proxy.configuration import ProxyConfiguration, ProxyTlsMode, parse_utc_offsets
from mq.settings import ProcessSettings, validator


class ProxySettings(ProcessSettings):
    """All settings of a proxy. Durations are in seconds."""

    model_config = SettingsConfigDict(env_prefix="RAFTMQ_PROXY_")

    listen_host: str = Field(default="0.0.0.0", description="where gRPC clients connect")  # noqa: S104 (to be found)
    listen_port: int = Field(default=8081, ge=0, le=65535, description="0 takes any free port")
    namesrv: str = Field(default="127.0.0.1:9876", description="name servers, separated by semicolons")
    metrics_listen: str | None = Field(
        default=None,
        description="where /metrics, /healthz and /readyz are served, HOST:PORT, or `off`; default: port 100 higher",
    )
    tls_mode: ProxyTlsMode = Field(
        default="permissive",
        description="whether clients use TLS: disabled, permissive (optional, same port), or enforcing",
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="PEM file with the certificate chain; without it, the proxy makes a certificate when it starts",
    )
    tls_key: Path | None = Field(default=None, description="PEM file with the key, without a password")
    tls_clients_ca: Path | None = Field(
        default=None, description="clients must have a certificate that one of these authorities signed (PEM)"
    )
    haproxy_networks: str = Field(
        default="",
        description="load balancers that may name their clients by HAProxy's protocol: addresses or networks, "
        "separated by commas; a header from anybody else closes the connection",
    )
    connections_max: int = Field(
        default=10_000, ge=1, description="open connections; above, new connections are closed at once"
    )
    calls_max: int = Field(default=1_000, ge=1, description="calls at a time on one connection")
    signature_seconds_max: float = Field(
        default=300.0,
        gt=0,
        description="age of a client's signature, which covers nothing but its time; older ones are refused",
    )
    signature_utc_offsets: str = Field(
        default="",
        description="zones such as +08:00, separated by commas, whose time clients may sign as if it was UTC; those "
        "for Java, Go and Python do so. Such a signature can be repeated when the time that it names comes in UTC",
    )
    drain_seconds: float = Field(
        default=10.0, gt=0, description="time for calls to end after SIGTERM; then they end with UNAVAILABLE"
    )

    _is_metrics_address = validator(parse_metrics_address, "metrics_listen")
    _has_addresses = validator(parse_addresses, "namesrv")
    _has_offsets = validator(parse_utc_offsets, "signature_utc_offsets")
    _has_networks = validator(parse_networks, "haproxy_networks")

    @model_validator(mode="after")
    def _has_both_files(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key must be set together")
        if self.tls_clients_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_clients_ca needs tls_certificate and tls_key")
        return self

    def configuration(self) -> ProxyConfiguration:
        """Convert the settings to the configuration of the process that serves."""
        return ProxyConfiguration(**self.model_dump(mode="json"))
