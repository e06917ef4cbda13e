"""Settings of a running broker as operators' tools see and change them: request codes 25 and 26.

A change is one of this process: the next start reads the settings again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import structlog
from pydantic import ValidationError

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.errors import RequestRefused, decoded
from mq.broker.net.service import Route, Service
from mq.broker.settings import BrokerSettings
from mq.protocol.codes import ResponseCode
from mq.protocol.names import TRACE_TOPIC
from mq.protocol.operator_bodies import decode_properties, encode_properties
from mq.protocol.operator_requests import GetBrokerConfig, UpdateBrokerConfig
from mq.protocol.registration import DataVersion
from mq.protocol.replies import VersionReply

Log = structlog.stdlib.BoundLogger

CHANGEABLE: Final = {
    "autoCreateTopicEnable": "auto_create_topics",
    "fileReservedTime": "retention_hours",
    "deleteWhen": "delete_when",
}
"""Settings that can change while the broker runs, by RocketMQ's names."""

_FORBIDDEN: Final = frozenset({"brokerConfigPath", "configBlackList"})
_OURS: Final = "raftmq."


class BrokerConfig(Service):
    """The settings in force, and the handlers around them.

    Args:
        leads: whether this replica leads.
        version: that of topics and groups.
        is_allowed: whether somebody at this address and port may change them.
        on_changed: told of each change.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        leads: Callable[[], bool],
        version: Callable[[], DataVersion],
        is_allowed: Callable[[str], bool],
        on_changed: Callable[[BrokerSettings], None],
    ) -> None:
        self._settings = context.settings
        self._leads = leads
        self._version = version
        self._is_allowed = is_allowed
        self._on_changed = on_changed
        self._log = context.log

    def routes(self) -> Iterator[Route]:
        """The requests that are served here; see `Service`."""
        yield Route(GetBrokerConfig, self.handle_get)
        yield Route(UpdateBrokerConfig, self.handle_update)

    def handle_get(self, call: Call[GetBrokerConfig]) -> bytes:
        """Request code 26."""
        return call.response(
            ext=VersionReply(version=self._version().encode().decode()).fields(),
            body=encode_properties(self.properties()),
        )

    def handle_update(self, call: Call[UpdateBrokerConfig]) -> bytes:
        """Request code 25: all that is asked for, or nothing."""
        if not self._is_allowed(call.connection.peer):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"settings cannot be changed from {call.connection.peer}, see the setting admin_from",
            )
        wanted = decoded(decode_properties, call.body)
        changes = self._checked(wanted)
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
        """All settings: those that stock brokers have by their names, and all by ours."""
        settings, leads = self._settings, self._leads()
        return {
            **{_OURS + name: _text(value) for name, value in settings.model_dump().items()},
            **{stock: _text(getattr(settings, name)) for stock, name in CHANGEABLE.items()},
            "fileReservedTime": f"{settings.retention_hours:g}",
            "deleteWhen": f"{settings.delete_when:02d}",
            "brokerClusterName": settings.cluster,
            "brokerName": settings.group,
            "brokerId": "0" if leads else str(int(settings.node_id[1:]) + 1),
            "brokerRole": "SYNC_MASTER" if leads else "SLAVE",
            "brokerIP1": (settings.advertise or settings.listen).rpartition(":")[0],
            "listenPort": str(settings.listen_address[1]),
            "namesrvAddr": settings.namesrv,
            "storePathRootDir": str(settings.data_dir),
            "storePathCommitLog": str(settings.log_dir),
            "mappedFileSizeCommitLog": str(settings.segment_bytes),
            "flushDiskType": "SYNC_FLUSH" if settings.durability == "quorum-fsync" else "ASYNC_FLUSH",
            "maxMessageSize": str(settings.message_bytes_max),
            "defaultTopicQueueNums": str(settings.default_topic_queues),
            "autoCreateSubscriptionGroup": _text(settings.auto_create_groups),
            "brokerPermission": "6",
            "slaveReadEnable": "true",
            "rejectTransactionMessage": _text(not settings.transactions),
            "transactionTimeOut": str(round(settings.transaction_timeout_seconds * 1000)),
            "transactionCheckInterval": str(round(settings.transaction_check_seconds * 1000)),
            "transactionCheckMax": str(settings.transaction_checks_max),
            "filterServerNums": "0",
            "messageDelayLevel": settings.delay_levels,
            "timerMaxDelaySec": str(settings.timer_delay_max_seconds),
            "timerWheelEnable": "true",
            "recallMessageEnable": "true",
            "msgTraceTopicName": TRACE_TOPIC,
            "storeReplyMessageEnable": _text(settings.store_reply_message),
            "traceOn": "true",
            "traceTopicEnable": "true",
            "useTLS": "false",
            "maxTransferCountOnMessageInMemory": str(settings.pull_messages_max),
            "maxTransferBytesOnMessageInMemory": str(settings.pull_bytes_max),
            "longPollingEnable": "true",
            "registerNameServerPeriod": str(round(settings.register_seconds * 1000)),
            "diskMaxUsedSpaceRatio": str(round(settings.disk_full_ratio * 100)),
            "enableDLegerCommitLog": "true",
            "dLegerGroup": settings.group,
            "dLegerSelfId": settings.node_id,
            "dLegerPeers": settings.peers,
        }

    def _checked(self, wanted: Mapping[str, str]) -> dict[str, Any]:
        """What is to change, by our names. Raises RequestRefused."""
        current = self.properties()
        changes: dict[str, Any] = {}
        for name, value in wanted.items():
            if name in _FORBIDDEN:
                raise RequestRefused(ResponseCode.NO_PERMISSION, f"the setting {name} cannot be changed")
            if name not in current:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"there is no setting {name[:80]}")
            ours = CHANGEABLE.get(name, name.removeprefix(_OURS))
            if ours in CHANGEABLE.values():
                changes[ours] = value
            elif value != current[name]:
                raise RequestRefused(
                    ResponseCode.NO_PERMISSION, f"{name} is {current[name]!r} until the broker restarts"
                )
        return changes


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
