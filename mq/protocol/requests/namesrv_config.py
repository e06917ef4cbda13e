"""A name server's settings as operators' tools see them (request codes 318 and 319), and its key-value file."""

from __future__ import annotations

from typing import Final

import msgspec

from mq.protocol.wire.fields import HeaderFields, wire
from mq.protocol.wire.json_body import Body

ORDER_MESSAGES: Final = "orderMessageEnable"

FORBIDDEN: Final = frozenset({"configBlackList", "configStorePath", "kvConfigPath"})
"""Settings that cannot be changed at run time."""


class NamesrvProperties(HeaderFields, kw_only=True):
    """The settings that stock name servers have, too. Times are in milliseconds."""

    listen_port: int
    bind_address: str
    kv_config_path: str
    scan_not_active_broker_interval: int
    return_order_topic_config_to_broker: bool = True
    order_message_enable: bool


class KvConfigTable(Body, rename=wire(namespaces="configTable")):
    """The content of RocketMQ's ``kvConfig.json``: values by namespace and key."""

    namespaces: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
