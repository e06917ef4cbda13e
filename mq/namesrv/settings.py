"""The settings of a name server process; `mq.settings` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from mq.addresses import metrics_address_beside, parse_metrics_address
from mq.settings import ProcessSettings, validator
from mq.tls_or_plain import TlsMode, check_tls

MIB = 1024 * 1024


class NamesrvSettings(ProcessSettings):
    """All settings of a name server. Durations are seconds."""

    model_config = SettingsConfigDict(env_prefix="RAFTMQ_NAMESRV_")
    former_names: ClassVar[Mapping[str, str]] = {
        "stranger_seconds": "unidentified_seconds_max",
        "strangers_max": "unidentified_connections_max",
        "unfinished_bytes_max": "partial_request_bytes_max",
        "unfinished_seconds_max": "partial_request_seconds_max",
        "unread_bytes_max": "unread_replies_bytes_max",
    }

    listen_host: str = Field(default="0.0.0.0", description="where brokers and clients connect")  # noqa: S104 (to be found)
    listen_port: int = Field(default=9876, ge=0, le=65535, description="0 takes any free port")

    metrics_listen: str | None = Field(
        default=None,
        description="where /metrics, /healthz and /readyz are served, HOST:PORT, or `off`; default: port 100 higher",
    )

    acl_file: Path | None = Field(
        default=None,
        description="accounts of brokers and administrators, as RocketMQ's plain_acl.yml; read again when it changes; "
        "default: everybody may register brokers and change routes",
    )
    tls_mode: TlsMode = Field(
        default="disabled",
        description="whether peers use TLS: disabled, permissive (optional, same port), or enforcing",
    )
    tls_certificate: Path | None = Field(default=None, description="PEM file with the certificate chain")
    tls_key: Path | None = Field(default=None, description="PEM file with the key, without a password")
    tls_clients_ca: Path | None = Field(
        default=None, description="peers must have a certificate that one of these authorities signed (PEM)"
    )

    data_dir: Path | None = Field(
        default=Path("namesrv-data"),
        description="directory of the key-value configuration; created with the first value",
    )

    broker_expiry_seconds: float = Field(
        default=120.0, gt=0, description="remove a broker that has not registered for this time"
    )
    scan_seconds: float = Field(default=10.0, gt=0, description="how often the name server looks for expired brokers")
    order_topics: bool = Field(default=False, description="put the order configuration of a topic into its route")

    connections_max: int = Field(
        default=10_000,
        ge=1,
        description="above this, new connections are closed at once; less if the system allows less",
    )
    frame_bytes_max: int = Field(default=16 * MIB, ge=64 * 1024, description="largest request")
    unidentified_connections_max: int = Field(
        default=1000,
        ge=1,
        description="connections without a complete request yet; above, the oldest are closed after "
        "`unidentified_seconds_max`",
    )
    unidentified_seconds_max: float = Field(
        default=30.0,
        gt=0,
        description="time for the first request, TLS handshake included, before `unidentified_connections_max` counts",
    )
    idle_seconds_max: float = Field(default=120.0, gt=0, description="longest time without a complete request")
    send_seconds_max: float = Field(
        default=30.0, gt=0, description="close the connection of a peer that does not read its answers for this time"
    )
    partial_request_bytes_max: int = Field(
        default=64 * MIB, ge=MIB, description="partly received requests of all peers; above, further ones wait unread"
    )
    partial_request_seconds_max: float = Field(
        default=30.0, gt=0, description="close a connection if no more bytes of its request arrive for this time"
    )
    unread_replies_bytes_max: int = Field(
        default=64 * MIB,
        ge=MIB,
        description="unread answers of all peers; above, the peers with the oldest are dropped",
    )

    broker_groups_max: int = Field(default=10_000, ge=1, description="registered broker groups")
    brokers_max: int = Field(default=20_000, ge=1, description="registered brokers")
    topics_max: int = Field(default=100_000, ge=1, description="distinct topics of all broker groups")
    routes_max: int = Field(default=1_000_000, ge=1, description="pairs of broker group and topic")
    kv_entries_max: int = Field(default=10_000, ge=1, description="entries of the key-value configuration")
    kv_bytes_max: int = Field(default=8 * MIB, ge=1024, description="all namespaces, keys and values")

    _is_metrics_address = validator(parse_metrics_address, "metrics_listen")

    @model_validator(mode="after")
    def _has_a_certificate(self) -> Self:
        check_tls("tls_mode", self.tls_mode, self.tls_certificate, self.tls_key)
        return self

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """The address at which metrics can be scraped; None if that is disabled."""
        if self.metrics_listen is not None:
            return parse_metrics_address(self.metrics_listen)
        return metrics_address_beside((self.listen_host, self.listen_port))
