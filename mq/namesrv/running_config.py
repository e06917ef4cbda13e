"""Shows and changes the settings of a running name server for operators' tools, with RocketMQ's names."""

from __future__ import annotations

from collections.abc import Mapping

from mq.namesrv.kv_file import FILE_NAME
from mq.namesrv.settings import NamesrvSettings
from mq.protocol.requests.namesrv_config import FORBIDDEN, ORDER_MESSAGES, NamesrvProperties


class ConfigForbidden(Exception):
    """The setting cannot be changed while the name server runs. Nothing was changed."""


class ConfigInvalid(Exception):
    """The setting does not exist, or cannot have this value. Nothing was changed."""


class RunningConfig:
    """The settings of a running name server. Only ``order_topics`` can be changed."""

    def __init__(self, settings: NamesrvSettings) -> None:
        self._settings = settings
        self.order_topics = settings.order_topics

    def properties(self) -> dict[str, str]:
        """Return all settings by our names, and by RocketMQ's where it has a name."""
        settings = self._settings
        directory = settings.data_dir
        stock = NamesrvProperties(
            listen_port=settings.listen_port,
            bind_address=settings.listen_host,
            kv_config_path="" if directory is None else str(directory / FILE_NAME),
            scan_not_active_broker_interval=round(settings.scan_seconds * 1000),
            order_message_enable=self.order_topics,
        )
        return {
            **stock.fields(),
            **{f"raftmq.{name}": str(value) for name, value in settings.model_dump().items()},
            "raftmq.order_topics": str(self.order_topics),
        }

    def update(self, changes: Mapping[str, str]) -> None:
        """Change all of these settings, or none. Raises ConfigForbidden, ConfigInvalid."""
        current = self.properties()
        for name, value in changes.items():
            if name in FORBIDDEN:
                raise ConfigForbidden(f"the setting {name} cannot be changed")
            if name not in current:
                raise ConfigInvalid(f"there is no setting {name}")
            if name == ORDER_MESSAGES:
                if value.lower() not in ("true", "false"):
                    raise ConfigInvalid(f"{name} is true or false, not {value[:40]!r}")
            elif value != current[name]:
                raise ConfigForbidden(f"{name} is {current[name]!r} until the name server restarts")
        if ORDER_MESSAGES in changes:
            self.order_topics = changes[ORDER_MESSAGES].lower() == "true"
