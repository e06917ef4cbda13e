"""Shows and changes settings of a running name server for operators' tools, by RocketMQ's names."""

from __future__ import annotations

from collections.abc import Mapping

from mq.namesrv.kv_file import FILE_NAME
from mq.namesrv.settings import NamesrvSettings

_ORDER = "orderMessageEnable"
_FORBIDDEN = frozenset({"configBlackList", "configStorePath", "kvConfigPath"})


class ConfigForbidden(Exception):
    """The setting exists but cannot change at run time; nothing was changed."""


class ConfigRefused(Exception):
    """The setting does not exist, or not with this value; nothing was changed."""


class RunningConfig:
    """``order_topics`` can change; all other settings are fixed at the start."""

    def __init__(self, settings: NamesrvSettings) -> None:
        self._settings = settings
        self.order_topics = settings.order_topics

    def properties(self) -> dict[str, str]:
        """All settings, by our names, and by RocketMQ's where it has one."""
        settings = self._settings
        directory = settings.data_dir
        return {
            "listenPort": str(settings.listen_port),
            "bindAddress": settings.listen_host,
            "kvConfigPath": "" if directory is None else str(directory / FILE_NAME),
            "scanNotActiveBrokerInterval": str(round(settings.scan_seconds * 1000)),
            "returnOrderTopicConfigToBroker": "true",
            **{f"raftmq.{name}": str(value) for name, value in settings.model_dump().items()},
            "raftmq.order_topics": str(self.order_topics),
            _ORDER: str(self.order_topics).lower(),
        }

    def update(self, wanted: Mapping[str, str]) -> None:
        """Change all of these settings or none. Raises ConfigForbidden, ConfigRefused."""
        current = self.properties()
        for name, value in wanted.items():
            if name in _FORBIDDEN:
                raise ConfigForbidden(f"the setting {name} cannot be changed")
            if name not in current:
                raise ConfigRefused(f"there is no setting {name}")
            if name == _ORDER:
                if value.lower() not in ("true", "false"):
                    raise ConfigRefused(f"{name} is true or false, not {value[:40]!r}")
            elif value != current[name]:
                raise ConfigForbidden(f"{name} is {current[name]!r} until the name server restarts")
        if _ORDER in wanted:
            self.order_topics = wanted[_ORDER].lower() == "true"
