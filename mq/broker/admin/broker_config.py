"""Shows and changes settings of a running broker: request codes 25 and 26.

Changes last until the process restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused, decode_body
from mq.broker.net.service import Route, Service
from mq.broker.setting_fields import SettingGroup
from mq.broker.settings import BrokerSettings
from mq.protocol.broker_ids import LEADER_ID, broker_id_of
from mq.protocol.codes import ResponseCode
from mq.protocol.names import TRACE_TOPIC
from mq.protocol.requests.broker import GetBrokerConfig, UpdateBrokerConfig, VersionReply
from mq.protocol.requests.broker_properties import (
    AUTO_CREATE_GROUP,
    AUTO_CREATE_TOPIC,
    DELETE_HOUR,
    FORBIDDEN,
    MESSAGES_PER_PULL,
    RETENTION_HOURS,
    BrokerProperties,
)
from mq.protocol.requests.settings_text import decode_properties, encode_properties

CHANGEABLE: Final = {
    AUTO_CREATE_TOPIC: "auto_create_topics",
    RETENTION_HOURS: "retention_hours",
    DELETE_HOUR: "delete_when",
    AUTO_CREATE_GROUP: "auto_create_groups",
    MESSAGES_PER_PULL: "pull_messages_max",
    "raftmq.retention_bytes": "retention_bytes",
    "raftmq.archive_retention_hours": "archive_retention_hours",
    "raftmq.archive_retention_bytes": "archive_retention_bytes",
    "raftmq.sql_filter": "sql_filter",
    "raftmq.bulk_bytes_per_second": "bulk_bytes_per_second",
}
"""Settings that can change at run time, by RocketMQ's names, or by ours if it has none."""
WHY_FIXED: Final = {name: group.why_fixed for group in SettingGroup.__subclasses__() for name in group.model_fields}
"""The reason why each setting cannot change at run time; empty if it can."""

_UNKNOWN: Final = set(CHANGEABLE.values()) - BrokerSettings.model_fields.keys()
assert not _UNKNOWN, f"there are no settings {_UNKNOWN}"

_OURS: Final = "raftmq."


class BrokerConfig(Service):
    """Shows and changes the settings of the running broker.

    Args:
        is_allowed: whether the client at this address and port may change settings.
        on_changed: called after each change.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        is_allowed: Callable[[str], bool],
        on_changed: Callable[[BrokerSettings], None],
    ) -> None:
        self._settings = context.settings
        self._appender = context.appender
        self._version = context.data_version
        self._is_allowed = is_allowed
        self._on_changed = on_changed
        self._log = context.log

    def routes(self) -> Iterator[Route]:
        yield Route(GetBrokerConfig, self.handle_get)
        yield Route(UpdateBrokerConfig, self.handle_update)

    def handle_get(self, call: Call[GetBrokerConfig]) -> bytes:
        """Request code 26: return all settings as text."""
        return call.response(
            ext=VersionReply(version=self._version().encode().decode()).fields(),
            body=encode_properties(self.properties()),
        )

    def handle_update(self, call: Call[UpdateBrokerConfig]) -> bytes:
        """Request code 25: apply all requested changes, or none."""
        if not self._is_allowed(call.connection.peer):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"settings cannot be changed from {call.connection.peer}, see the setting admin_networks",
            )
        properties = decode_body(decode_properties, call.body)
        changes = self._parse(properties)
        assert changes.keys() <= {*CHANGEABLE.values()}, (
            f"{changes.keys()} are to change, at run time only {CHANGEABLE}"
        )
        if changes:
            values = self._settings.model_dump(exclude_unset=True) | changes
            try:
                self._settings = BrokerSettings.model_validate(values)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"]))
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{where}: {first['msg']}") from error
            self._on_changed(self._settings)
            self._log.warning("settings_changed", client=call.connection.peer, **changes)
        return call.response()

    def properties(self) -> dict[str, str]:
        """Return all settings under our names, and under RocketMQ's names where RocketMQ has them."""
        settings, leads = self._settings, self._appender.is_open
        stock = BrokerProperties(
            auto_create_topic_enable=settings.auto_create_topics,
            file_reserved_time=f"{settings.retention_hours:g}",
            delete_when=f"{settings.delete_when:02d}",
            broker_cluster_name=settings.cluster,
            broker_name=settings.group,
            broker_id=LEADER_ID if leads else broker_id_of(settings.node_id),
            broker_role="SYNC_MASTER" if leads else "SLAVE",
            broker_ip1=(settings.advertise or settings.listen).rpartition(":")[0],
            listen_port=settings.listen_address[1],
            namesrv_addr=settings.namesrv,
            store_path_root_dir=str(settings.data_dir),
            store_path_commit_log=str(settings.log_dir),
            mapped_file_size_commit_log=settings.segment_bytes,
            flush_disk_type="SYNC_FLUSH" if settings.durability == "quorum-fsync" else "ASYNC_FLUSH",
            max_message_size=settings.message_bytes_max,
            default_topic_queue_nums=settings.default_topic_queues,
            auto_create_subscription_group=settings.auto_create_groups,
            reject_transaction_message=not settings.transactions,
            transaction_time_out=round(settings.transaction_timeout_seconds * 1000),
            transaction_check_interval=round(settings.transaction_check_seconds * 1000),
            transaction_check_max=settings.transaction_checks_max,
            message_delay_level=settings.delay_levels,
            timer_max_delay_sec=settings.timer_delay_max_seconds,
            msg_trace_topic_name=TRACE_TOPIC,
            store_reply_message_enable=settings.store_reply_message,
            max_transfer_count_on_message_in_memory=settings.pull_messages_max,
            max_transfer_bytes_on_message_in_memory=settings.pull_bytes_max,
            register_name_server_period=round(settings.register_seconds * 1000),
            disk_max_used_space_ratio=round(settings.disk_full_ratio * 100),
            dledger_group=settings.group,
            dledger_self_id=settings.node_id,
            dledger_peers=settings.peers,
        )
        ours = {_OURS + name: _text(value) for name, value in settings.model_dump().items()}
        table = ours | stock.fields()
        assert CHANGEABLE.keys() <= table.keys(), f"{CHANGEABLE.keys() - table.keys()} can be changed and is not shown"
        return table

    def _parse(self, properties: Mapping[str, str]) -> dict[str, Any]:
        """Parse the requested changes, by our names. Raises RequestRefused."""
        current = self.properties()
        changes: dict[str, Any] = {}
        for name, value in properties.items():
            if name in FORBIDDEN:
                raise RequestRefused(ResponseCode.NO_PERMISSION, f"the setting {name} cannot be changed")
            if name not in current:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"there is no setting {name[:80]}")
            ours = CHANGEABLE.get(name, name.removeprefix(_OURS))
            if ours in CHANGEABLE.values():
                changes[ours] = value or None
            elif value != current[name]:
                why = f": {WHY_FIXED[ours]}" if ours in WHY_FIXED else ""
                raise RequestRefused(
                    ResponseCode.NO_PERMISSION, f"{name} is {current[name]!r} until the broker restarts{why}"
                )
        return changes


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
