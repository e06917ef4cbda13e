"""The request that creates or changes a topic, and its attributes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mq.protocol.codes import RequestCode
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE, MESSAGE_TYPES
from mq.protocol.names import AUTO_CREATE_TEMPLATE
from mq.protocol.requests.compaction_attributes import CLEANUP_POLICY, COMPACTION
from mq.protocol.requests.retention_attributes import RESERVE_BYTES, RESERVE_TIME
from mq.protocol.requests.topics import TopicConfig, TopicConfigList, UpdateAndCreateTopicExt


def attribute_changes(
    message_type: str | None,
    retention_hours: int | None,
    retention_bytes: int | None,
    others: Mapping[str, str | None] | None,
    *,
    compacted: bool | None = None,
) -> dict[str, str | None]:
    """Attributes to set, and with None to remove. Raises ValueError for an unknown message type."""
    if message_type is not None and message_type not in MESSAGE_TYPES:
        raise ValueError(f"message_type is {message_type!r}, not one of {', '.join(MESSAGE_TYPES)}")
    changes = dict(others or {})
    if message_type is not None:
        changes[MESSAGE_TYPE_ATTRIBUTE] = message_type
    if retention_hours is not None:
        changes[RESERVE_TIME] = None if retention_hours == -1 else str(retention_hours)
    if retention_bytes is not None:
        changes[RESERVE_BYTES] = None if retention_bytes == -1 else str(retention_bytes)
    if compacted is not None:
        changes[CLEANUP_POLICY] = COMPACTION if compacted else None
    return changes


def topic_request(config: TopicConfig, changes: Mapping[str, str | None]) -> tuple[int, dict[str, str] | None, bytes]:
    """The request that creates or changes a topic, and its attributes by name: None removes one.

    The usual one has the attributes as a text. What that cannot say goes as a list of one topic, which RocketMQ knows
    from 5.3 on. Raises ValueError for an attribute without a name.
    """
    if not all(changes):
        raise ValueError("an attribute has an empty name")
    signed = {f"-{name}" if value is None else f"+{name}": value or "" for name, value in changes.items()}
    if any(part != part.strip() or "," in part for each in signed.items() for part in each) or "=" in "".join(signed):
        body = TopicConfigList([msgspec.structs.replace(config, attributes=signed)]).encode()
        return RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body
    ext = UpdateAndCreateTopicExt(
        topic=config.topic_name,
        default_topic=AUTO_CREATE_TEMPLATE,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=",".join(name if name[0] == "-" else f"{name}={value}" for name, value in signed.items()) or None,
    )
    return RequestCode.UPDATE_AND_CREATE_TOPIC, ext.fields(), b""
