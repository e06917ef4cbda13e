"""Reads the settings of a process. Later sources override earlier ones: defaults, TOML file, environment, flags."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import ModelWrapValidatorHandler, PrivateAttr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)


def validator(parse: Callable[[str], object], *names: str) -> Any:
    """Return a validator of settings that refuses a value for which ``parse`` raises ValueError, and accepts None."""

    def check(value: str | None) -> str | None:
        if value is not None:
            parse(value)
        return value

    return field_validator(*names)(check)


class ProcessSettings(BaseSettings):
    """Base of the settings of one kind of process. They are read once, at start, and never change.

    What an operator changes of a running broker makes another object, which `Service.settings_changed` gets. Only
    `mq.broker.setting_fields.ChangeableSettings` differ in it.
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True)
    former_names: ClassVar[Mapping[str, str]] = {}
    """Settings that were renamed: the former name, which still works, and the present one."""
    _former_names_used: tuple[str, ...] = PrivateAttr(())

    @property
    def former_names_used(self) -> tuple[str, ...]:
        """The former names that were used for settings; the caller should tell the operator."""
        return self._former_names_used

    @model_validator(mode="wrap")
    @classmethod
    def _accept_former_names(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        used = tuple(former for former in cls.former_names if former in values)
        for former in used:
            present = cls.former_names[former]
            if present in values:
                raise ValueError(f"{former} and its new name {present} are both set: remove {former}")
            values[present] = values.pop(former)
        settings = handler(values)
        settings._former_names_used = used
        return settings

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of settings, those of `_sources`, to pydantic."""
        return tuple(cls._sources(init_settings, env_settings))

    @classmethod
    def _sources(
        cls, flags: PydanticBaseSettingsSource, environment: PydanticBaseSettingsSource
    ) -> list[PydanticBaseSettingsSource]:
        """Order the sources: flags before the environment, which may use former names too."""
        return [flags, environment, InitSettingsSource(cls, init_kwargs=cls._former_environment(flags()))]

    @classmethod
    def _former_environment(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Read the environment's values under former names, without those that were given otherwise."""
        prefix = cls.model_config.get("env_prefix", "").lower()
        environment = {name.lower(): value for name, value in os.environ.items()}
        names = {former: prefix + former for former, present in cls.former_names.items() if present not in values}
        return {former: environment[name] for former, name in names.items() if name in environment}

    @classmethod
    def load(cls, config: Path | None = None, **flags: Any) -> Self:
        """Read the settings. Flags that are None are ignored.

        Raises:
            pydantic.ValidationError, OSError, tomllib.TOMLDecodeError: the settings are invalid, or cannot be read.
        """
        options = {name: value for name, value in flags.items() if value is not None}
        if config is None:
            return cls(**options)
        with config.open("rb"):
            pass  # an unreadable file is an error, not an empty file

        class FromFile(cls):  # type: ignore[valid-type,misc]
            model_config = SettingsConfigDict(toml_file=config)

            @classmethod
            def _sources(
                cls, flags: PydanticBaseSettingsSource, environment: PydanticBaseSettingsSource
            ) -> list[PydanticBaseSettingsSource]:
                return [*super()._sources(flags, environment), TomlConfigSettingsSource(cls)]

        settings: Self = FromFile(**options)
        return settings
