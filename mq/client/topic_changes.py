"""Builds requests that create topics, or change topics and their attributes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from mq.client.errors import BrokerError
from mq.client.logs import log
from mq.client.net.replies import fields_of, read_body
from mq.protocol.codes import RequestCode
from mq.protocol.incoming.headers import Response
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE, MESSAGE_TYPES
from mq.protocol.names import AUTO_CREATE_TEMPLATE
from mq.protocol.requests.compaction_attributes import CLEANUP_POLICY, COMPACTION
from mq.protocol.requests.offsets import OffsetReply, QueueExt
from mq.protocol.requests.retention_attributes import RESERVE_BYTES, RESERVE_TIME
from mq.protocol.requests.topics import TopicConfig, TopicConfigList, TopicOfBrokerExt, UpdateAndCreateTopicExt

Ask = Callable[[int, dict[str, str] | None, bytes], Awaitable[tuple[Response, memoryview]]]
"""Sends a request, which may be carried out twice, to the leader of a broker group, and returns its answer."""


async def put_topic(ask: Ask, config: TopicConfig, changes: Mapping[str, str | None], *, hides_none: bool) -> int:
    """Create or change a topic in one broker group. Returns the number of queues that can be read afterwards.

    With `hides_none`, queues beyond the number in `config` stay readable up to the last one with messages. Raises
    ValueError for an attribute without a name, and the errors of `ask`.
    """
    request = topic_request(config, changes)
    count = config.read_queue_nums
    before = await _readable(ask, config.topic_name) if hides_none else 0
    if before <= count or count < 1:
        await ask(*request)
        return count

    async def put(readable: int) -> None:
        await ask(*topic_request(msgspec.structs.replace(config, read_queue_nums=readable), changes))

    # As long as a queue can be read, its broker takes messages of producers that still have the old route.
    await put(before)
    if (new_count := await _last_with_messages(ask, config.topic_name, count, before) + 1) < before:
        await put(new_count)
        if (late := await _last_with_messages(ask, config.topic_name, new_count, before) + 1) > new_count:
            new_count = late
            await put(new_count)
    if new_count > count:
        reason = f"they have messages; read_queues={count} would hide these"
        log.info("queues_stay_readable", topic=config.topic_name, queues=f"{count} to {new_count - 1}", reason=reason)
    return new_count


async def _readable(ask: Ask, topic: str) -> int:
    """Return the number of queues of a topic that can be read now; 0 if there is none, or the broker cannot tell."""
    try:
        _, body = await ask(RequestCode.GET_TOPIC_CONFIG, TopicOfBrokerExt(topic=topic, lo=True).fields(), b"")
    except BrokerError:
        return 0
    return read_body(TopicConfig.decode, body).read_queue_nums


async def _last_with_messages(ask: Ask, topic: str, first: int, end: int) -> int:
    """Return the last one of these queues that has messages; `first - 1` if none has."""
    for queue_id in range(end - 1, first - 1, -1):
        ends: list[int] = []
        for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
            response, _ = await ask(code, QueueExt(topic=topic, queue_id=queue_id).fields(), b"")
            ends.append(max(0, fields_of(OffsetReply, response).offset))
        if ends[0] > ends[1]:
            return queue_id
    return first - 1


def check_counts(**counts: int | None) -> None:
    """Raise TypeError for a number of queues that is not a whole number. Brokers check the range."""
    for name, count in counts.items():
        number: object = count
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise TypeError(f"{name} is a whole number, not {number!r}")


def attribute_changes(
    message_type: str | None,
    retention_hours: int | None,
    retention_bytes: int | None,
    others: Mapping[str, str | None] | None,
    *,
    compacted: bool | None = None,
) -> dict[str, str | None]:
    """Return the attributes to set, with None those to remove. Raises ValueError for an unknown message type."""
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
    """Build the request that creates or changes a topic. `changes` has its attributes by name: None removes one.

    The usual one has the attributes as a text. A value that it cannot have is sent as a list of one topic, which
    RocketMQ knows from 5.3 on. Raises ValueError for an attribute without a name.
    """
    if not all(changes):
        raise ValueError("an attribute has an empty name")
    edits = {f"-{name}" if value is None else f"+{name}": value or "" for name, value in changes.items()}
    if any(part != part.strip() or "," in part for each in edits.items() for part in each) or "=" in "".join(edits):
        body = TopicConfigList([msgspec.structs.replace(config, attributes=edits)]).encode()
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
        attributes=",".join(name if name[0] == "-" else f"{name}={value}" for name, value in edits.items()) or None,
    )
    return RequestCode.UPDATE_AND_CREATE_TOPIC, ext.fields(), b""
