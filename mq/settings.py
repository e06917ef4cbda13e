"""Reads the settings of a process: defaults, then a TOML file, then environment, then flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)


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
