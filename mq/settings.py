"""How the settings of a process are read: defaults, then a TOML file, then environment, then flags."""

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
    """Base of the settings of one kind of process. They are read once, at start, and never change."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    @classmethod
    def load(cls, config: Path | None = None, **flags: Any) -> Self:
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

        loaded: Self = FromFile(**given)
        return loaded
