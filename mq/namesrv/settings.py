"""Settings of one name server process: defaults, then a TOML file, then environment, then flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

MIB = 1024 * 1024


class NamesrvSettings(BaseSettings):
    """What a name server needs to know. Durations are seconds."""

    model_config = SettingsConfigDict(env_prefix="RAFTMQ_NAMESRV_", extra="forbid", frozen=True)

    listen_host: str = Field(default="0.0.0.0", description="where brokers and clients connect")  # noqa: S104 (to be found)
    listen_port: int = Field(default=9876, ge=0, le=65535, description="0 takes any free port")

    broker_expiry_seconds: float = Field(
        default=120.0, gt=0, description="a broker that is silent for longer is forgotten"
    )
    scan_seconds: float = Field(default=10.0, gt=0, description="how often silent brokers are looked for")
    order_topics: bool = Field(default=False, description="put the order configuration of a topic into its route")

    connections_max: int = Field(default=10_000, ge=1, description="beyond it new connections are closed at once")
    frame_bytes_max: int = Field(default=16 * MIB, ge=64 * 1024, description="largest request")
    first_frame_seconds_max: float = Field(
        default=10.0, gt=0, description="who connects says something within this time"
    )
    idle_seconds_max: float = Field(default=120.0, gt=0, description="longest time without a complete request")
    send_seconds_max: float = Field(default=30.0, gt=0, description="a peer that does not read its answers is dropped")

    broker_groups_max: int = Field(default=10_000, ge=1)
    topics_max: int = Field(default=100_000, ge=1)
    kv_entries_max: int = Field(default=10_000, ge=1)

    @classmethod
    def load(cls, config: Path | None = None, **flags: Any) -> NamesrvSettings:
        """Read settings; flags that are None do not count.

        Raises:
            pydantic.ValidationError, OSError, tomllib.TOMLDecodeError: the settings make no sense, or cannot be read.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        if config is None:
            return cls(**given)
        with config.open("rb"):
            pass  # an unreadable file is an error of its own, not an empty one

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

        loaded: NamesrvSettings = FromFile(**given)
        return loaded
