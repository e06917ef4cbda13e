"""Reads the settings of a process: defaults, then a TOML file, then environment, then flags."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any, Final, Self

from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

METRICS_OFF: Final = "off"
"""In place of an address, disables metrics."""
_METRICS_PORT_DISTANCE: Final = 100


def metrics_address_beside(address: tuple[str, int]) -> tuple[str, int] | None:
    """The default address for metrics of a server that listens at ``address``; None if there is no such port."""
    host, port = address
    port += _METRICS_PORT_DISTANCE if port else 0
    return (host, port) if port < 65536 else None


def parse_metrics_address(text: str) -> tuple[str, int] | None:
    """An address for metrics, from HOST:PORT or ``off``. Raises ValueError."""
    if text == METRICS_OFF:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is neither HOST:PORT nor `{METRICS_OFF}`")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r}: an IPv6 address needs brackets, as in [::1]:11011")
    return host.strip("[]"), int(port)


def parse_networks(text: str) -> list[Network]:
    """Networks from ``ADDRESS/BITS,...``. Raises ValueError."""
    return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]


class ProcessSettings(BaseSettings):
    """Base of the settings of one kind of process: read once, at start, into an object that never changes.

    What an operator changes of a running broker makes another object, which `Service.settings_changed` gets. Only
    `mq.broker.setting_groups.ChangeableSettings` differ in it.
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    @classmethod
    def load(cls, config: Path | None = None, **flags: Any) -> Self:
        """Read settings; flags that are None are ignored.

        Raises:
            pydantic.ValidationError, OSError, tomllib.TOMLDecodeError: the settings are invalid, or cannot be read.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        if config is None:
            return cls(**given)
        with config.open("rb"):
            pass  # an unreadable file is an error, not an empty file

        class FromFile(cls):  # type: ignore[valid-type,misc]
            model_config = SettingsConfigDict(toml_file=config)

            @classmethod
            def settings_customise_sources(
                cls,
                settings_cls: type[BaseSettings],
                init_settings: PydanticBaseSettingsSource,
                env_settings: PydanticBaseSettingsSource,
                dotenv_settings: PydanticBaseSettingsSource,
                file_secret_settings: PydanticBaseSettingsSource,
            ) -> tuple[PydanticBaseSettingsSource, ...]:
                return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

        loaded: Self = FromFile(**given)
        return loaded
