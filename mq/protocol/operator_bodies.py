"""Bodies for operators' tools, as values with our field names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from mq.protocol import fastjson
from mq.protocol.bodies import BrokerData
from mq.protocol.errors import BodyError
from mq.protocol.json_body import Body
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.queue_tables import QueueRef, queue_row, read_queue_table
from mq.protocol.registration import DataVersion, TopicConfig
from mq.protocol.wire_names import I32, I64, wire

PROPERTIES_LINES_MAX: Final = 1000

T = TypeVar("T")

# -- topics ------------------------------------------------------------------------------------------------------------


class TopicConfigList(Body, rename=wire(topics="topicConfigList")):
    """Topics to create or change (request code 18)."""

    topics: Sequence[TopicConfig] = ()


class QueueEnds(Body, rename=wire(last_update_ms="lastUpdateTimestamp")):
    """A queue: its first offset, the one after its last, and the store time of its last message (0: none)."""

    min_offset: QueueOffset = FIRST_OFFSET
    max_offset: QueueOffset = FIRST_OFFSET
    last_update_ms: int = 0


def topic_stats(queues: Mapping[QueueRef, QueueEnds]) -> bytes:
    """The answer to request code 202."""
    return topic_stats_of(b",".join(queue_row(ref, ends.encode()) for ref, ends in queues.items()))


def topic_stats_of(rows: bytes) -> bytes:
    """The same, from rows that are encoded already."""
    return b'{"offsetTable":{%s},"topicPutTps":0.0}' % rows


def read_topic_stats(body: bytes | memoryview) -> dict[QueueRef, QueueEnds]:
    """Decode such an answer. Raises BodyError."""
    return _read_table(body, QueueEnds)


# -- groups ------------------------------------------------------------------------------------------------------------


class GroupRetryPolicy(Body):
    """The retry delays of a group. Only the default steps are supported."""

    type: str = "CUSTOMIZED"


class SubscriptionGroupConfig(Body, rename=wire()):
    """A consumer group (request codes 200 and 352)."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: I32 = 1
    retry_max_times: I32 = 16
    broker_id: I64 = 0
    which_broker_when_consume_slowly: I64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: I32 = 0
    consume_timeout_minute: I32 = 15
    group_retry_policy: GroupRetryPolicy = msgspec.field(default_factory=GroupRetryPolicy)
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


class SubscriptionGroupList(Body, rename=wire(groups="groupConfigList")):
    """Consumer groups to create or change (request code 225)."""

    groups: Sequence[SubscriptionGroupConfig] = ()


class SubscriptionGroupTable(Body, rename=wire(groups="subscriptionGroupTable")):
    """All consumer groups of a broker (request code 201)."""

    groups: dict[str, SubscriptionGroupConfig] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)


class DelayOffsets(Body, rename=wire()):
    """For each delay level the next offset to deliver (request code 45)."""

    offset_table: dict[int, QueueOffset] = msgspec.field(default_factory=dict)


class GroupProgress(
    Body,
    rename=wire(end="brokerOffset", offset="consumerOffset", last_ms="lastTimestamp", pulled="pullOffset"),
):
    """A queue and a group: the offset of the next message to be stored, and of the next one to be consumed.

    ``last_ms`` is the store time of the last consumed message, 0 without one. ``pulled`` is the offset up to which
    messages were popped, 0 from brokers before RocketMQ 5.
    """

    end: QueueOffset = FIRST_OFFSET
    offset: QueueOffset = FIRST_OFFSET
    last_ms: int = 0
    pulled: QueueOffset = FIRST_OFFSET


def read_progress(body: bytes | memoryview) -> dict[QueueRef, GroupProgress]:
    """Decode the answer to request code 208. Raises BodyError."""
    return _read_table(body, GroupProgress)


def read_all_progress(body: bytes | memoryview) -> dict[str, dict[QueueRef, GroupProgress]]:
    """Decode the answer to request code 317, by group. Raises BodyError."""
    found = fastjson.parse(body, values_max=fastjson.TRUSTED_VALUES_MAX)
    progress: dict[str, dict[QueueRef, GroupProgress]] = {}
    try:
        groups = msgspec.convert(found, _AllProgress, strict=False).groups
        for group, tables in (pair for each in groups for pair in each.items()):
            queues = progress.setdefault(group, {})
            for table in tables:
                rows = read_queue_table(table.offset_table)
                queues |= {ref: msgspec.convert(value, GroupProgress, strict=False) for ref, value in rows.items()}
    except msgspec.ValidationError as error:
        raise BodyError(f"body of {len(body)} bytes is not the progress of groups: {error}") from error
    return progress


class _ProgressInTopic(Body, rename=wire()):
    offset_table: dict[Any, Any] = msgspec.field(default_factory=dict)


class _AllProgress(Body, rename=wire(groups="consumeStatsList")):
    groups: list[dict[str, list[_ProgressInTopic]]] = msgspec.field(default_factory=list)


class MessageRequestMode(Body, rename=wire()):
    """Whether a group pulls or pops the messages of a topic (request code 401)."""

    topic: str = ""
    consumer_group: str = ""
    mode: str = "PULL"
    pop_share_queue_num: I32 = 0


class MessageRequestModes(Body, rename=wire(modes="messageRequestModeMap")):
    """The request modes by topic and group (request code 402)."""

    modes: dict[str, dict[str, MessageRequestMode]] = msgspec.field(default_factory=dict)


class AssignmentQuery(Body, rename=wire()):
    """A member's query for its queues (request code 400)."""

    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


class QueueAssignment(Body, rename=wire()):
    """One queue, and whether to PULL or to POP it. Queue id -1 stands for any queue of the broker group."""

    message_queue: QueueRef
    mode: str = "PULL"


class QueueAssignments(Body, rename=wire(assignments="messageQueueAssignments")):
    """The answer to 400; None: unknown, and the previous assignment stays."""

    assignments: list[QueueAssignment] | None = None


# -- figures -----------------------------------------------------------------------------------------------------------


class StatsOver(Body):
    """A figure over a period: total, per second, and per call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body, rename=wire()):
    """A figure over the last minute, hour and day (request code 315)."""

    stats_minute: StatsOver = msgspec.field(default_factory=StatsOver)
    stats_hour: StatsOver = msgspec.field(default_factory=StatsOver)
    stats_day: StatsOver = msgspec.field(default_factory=StatsOver)


# -- name servers ------------------------------------------------------------------------------------------------------


class BrokerMemberGroup(Body, rename=wire(group="brokerMemberGroup")):
    """The brokers of a group (request code 901)."""

    group: BrokerData


# -- settings ----------------------------------------------------------------------------------------------------------


def _read_table(body: bytes | memoryview, kind: type[T]) -> dict[QueueRef, T]:
    found = fastjson.parse(body, values_max=fastjson.TRUSTED_VALUES_MAX)
    if not isinstance(found, dict):
        raise BodyError(f"body of {len(body)} bytes is not a table of queues")
    try:
        return {
            ref: msgspec.convert(value, kind, strict=False)
            for ref, value in read_queue_table(found.get("offsetTable", {})).items()
        }
    except msgspec.ValidationError as error:
        raise BodyError(f"body of {len(body)} bytes is not a table of queues: {error}") from error


def encode_properties(values: Mapping[str, str]) -> bytes:
    """Settings as a text of lines ``name=value``, sorted."""
    return "".join(f"{name}={values[name]}\n" for name in sorted(values)).encode()


def decode_properties(data: bytes | memoryview) -> dict[str, str]:
    """Parse such a text; blank lines and those that begin with # or ! are ignored. Raises BodyError."""
    try:
        lines = bytes(data).decode().splitlines()
    except UnicodeDecodeError as error:
        raise BodyError(f"settings of {len(data)} bytes are not UTF-8") from error
    if len(lines) > PROPERTIES_LINES_MAX:
        raise BodyError(f"settings of {len(lines)} lines; maximum: {PROPERTIES_LINES_MAX}")
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise BodyError(f"settings: line {number} is not name=value: {text[:80]!r}")
        values[name.strip()] = value.strip()
    return values
