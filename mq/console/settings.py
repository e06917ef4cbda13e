"""The settings of a console process; `mq.settings` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from mq.client.net.client_core import parse_addresses
from mq.console.safety import exposure_fault
from mq.settings import ProcessSettings, validator


class ConsoleSettings(ProcessSettings):
    """All settings of a console. Durations are seconds."""

    model_config = SettingsConfigDict(env_prefix="RAFTMQ_CONSOLE_")

    listen_host: str = Field(
        default="127.0.0.1", description="where browsers connect; any but a loopback address needs `login`"
    )
    listen_port: int = Field(default=8090, ge=0, le=65535, description="0 takes any free port")
    namesrv: str = Field(default="127.0.0.1:9876", description="name servers, separated by semicolons")
    login: bool = Field(
        default=False,
        description="people log in with their access key and secret key, and each request is signed as theirs; "
        "without it, all requests are the console's own",
    )
    allow_changes: bool = Field(default=False, description="pages have buttons that change something")
    hide_bodies: bool = Field(
        default=False, description="bodies, properties but tag and keys, and failures of messages are not shown"
    )
    tls_certificate: Path | None = Field(default=None, description="PEM file with the certificate chain")
    tls_key: Path | None = Field(default=None, description="PEM file with the key, without a password")
    plain_http: bool = Field(
        default=False,
        description="allows a login without TLS on other than a loopback address, behind a proxy that adds TLS",
    )
    session_seconds: float = Field(default=3600.0, gt=0, description="a login ends this long after the last request")
    session_seconds_max: float = Field(default=43_200.0, gt=0, description="a login ends this long after it began")
    streams_max: int = Field(default=200, ge=1, description="open pages that are refreshed by themselves")

    _has_addresses = validator(parse_addresses, "namesrv")

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key must be set together")
        fault = exposure_fault(
            self.listen_host, login=self.login, encrypts=self.tls_certificate is not None, plain_http=self.plain_http
        )
        if fault is not None:
            raise ValueError(fault)
        return self

    @property
    def is_secure(self) -> bool:
        """Whether browsers use HTTPS."""
        return self.tls_certificate is not None or self.plain_http
