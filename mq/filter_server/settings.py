"""The settings of a filter server; `mq.settings` reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from mq.addresses import metrics_address_beside, parse_metrics_address
from mq.client.net.client_core import parse_addresses
from mq.client.net.connection import split_address
from mq.filter.wasm import WasmLimits
from mq.filter_server.java_filters import JavaLimits
from mq.settings import ProcessSettings, validator

TlsMode = Literal["disabled", "permissive", "enforcing"]

_LIMITS = WasmLimits()
_JAVA = JavaLimits()


class FilterServerSettings(ProcessSettings):
    """All settings of a filter server. Durations are seconds."""

    model_config = SettingsConfigDict(env_prefix="RAFTMQ_FILTER_")

    listen_host: str = Field(default="127.0.0.1", description="where consumers connect")
    listen_port: int = Field(default=10921, ge=0, le=65535, description="0 takes any free port")
    advertise: str | None = Field(
        default=None, description="address in the route, HOST:PORT, when it differs from the one that it listens on"
    )
    broker: str = Field(default="127.0.0.1:10911", description="the broker beside which it runs, HOST:PORT")
    namesrv: str = Field(default="127.0.0.1:9876", description="name servers, separated by semicolons")
    metrics_listen: str | None = Field(
        default=None,
        description="where /metrics, /healthz and /readyz are served, HOST:PORT, or `off`; default: port 100 higher",
    )
    tls_mode: TlsMode = Field(
        default="disabled",
        description="whether consumers use TLS: disabled, permissive (optional, same port), or enforcing",
    )
    tls_certificate: Path | None = Field(default=None, description="PEM file with the certificate chain")
    tls_key: Path | None = Field(default=None, description="PEM file with the key, without a password")
    tls_clients_ca: Path | None = Field(
        default=None, description="clients must have a certificate that one of these authorities signed (PEM)"
    )
    threads: int = Field(
        default=0, ge=0, le=256, description="filters that run at the same time; 0: one for each processor"
    )
    connections_max: int = Field(
        default=10_000, ge=1, description="open connections; above, new connections are closed at once"
    )
    pulls_max: int = Field(default=4_096, ge=1, description="pulls at a time; above, they are answered SYSTEM_BUSY")
    programs_max: int = Field(default=256, ge=1, description="filter programs in memory; the others are fetched again")
    fuel_per_message: int = Field(
        default=_LIMITS.fuel_per_message, ge=10_000, description="instructions of a module for one message, about"
    )
    seconds_per_message: float = Field(
        default=_LIMITS.seconds_per_message, gt=0, le=10, description="time of a filter for one message"
    )
    memory_bytes_max: int = Field(
        default=_LIMITS.memory_bytes_max, ge=1024 * 1024, le=2**31, description="memory of a module"
    )
    body_bytes_max: int = Field(
        default=4 * 1024 * 1024, ge=1024, description="size of a body, not compressed, that a filter gets"
    )
    allow_java: bool = Field(
        default=False, description="whether filters of RocketMQ's clients in Java are compiled and run; needs a JDK"
    )
    java_heap_bytes: int = Field(
        default=_JAVA.heap_bytes,
        ge=8 * 1024 * 1024,
        le=2**34,
        description="heap of the virtual machine of a Java filter",
    )
    java_processes_max: int = Field(
        default=_JAVA.processes_max, ge=1, le=1024, description="virtual machines of Java filters at a time"
    )
    java_class_path: str = Field(default="", description="what else Java filters may import, as of `java -cp`")
    group_share: float = Field(
        default=0.5,
        gt=0,
        le=256,
        description="processors that the filters of one group may use on average; above, its pulls wait",
    )

    _is_address = validator(split_address, "advertise", "broker")
    _is_metrics_address = validator(parse_metrics_address, "metrics_listen")
    _has_addresses = validator(parse_addresses, "namesrv")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key must be set together")
        if self.tls_mode != "disabled" and self.tls_certificate is None:
            raise ValueError(f"tls_mode {self.tls_mode} needs tls_certificate and tls_key")
        if self.listen_host in ("0.0.0.0", "::") and self.advertise is None:  # noqa: S104 - refused, not bound
            raise ValueError(
                f"consumers cannot connect to the address {self.listen_host}: set `advertise` to one that they can use"
            )
        return self

    @property
    def threads_max(self) -> int:
        """The number of filters that may run at the same time."""
        return self.threads or os.cpu_count() or 1

    @property
    def wasm_limits(self) -> WasmLimits:
        """The limits of WebAssembly filters."""
        return WasmLimits(self.fuel_per_message, self.seconds_per_message, self.memory_bytes_max)

    @property
    def java_limits(self) -> JavaLimits:
        """The limits of filters in Java."""
        return JavaLimits(self.java_heap_bytes, self.seconds_per_message, self.java_processes_max)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """The address at which metrics can be scraped; None if that is disabled."""
        if self.metrics_listen is not None:
            return parse_metrics_address(self.metrics_listen)
        return metrics_address_beside((self.listen_host, self.listen_port))
