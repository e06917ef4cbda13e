"""Bodies about consumer groups: members, locks, progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from mq.protocol import fastjson
from mq.protocol.bodies import SubscriptionData
from mq.protocol.errors import BodyError
from mq.protocol.json_body import CLIENT_VALUES_MAX, Body
from mq.protocol.queue_tables import QueueRef, read_queue_table
from mq.protocol.wire_names import wire


class QueueLocks(Body, rename=wire(group="consumerGroup", queues="mqSet")):
    """Queues that a client of a group locks, or unlocks (request codes 41 and 42)."""

    dialect_values_max: ClassVar[int] = CLIENT_VALUES_MAX

    client_id: str
    group: str
    queues: Sequence[QueueRef] = ()


class LockedQueues(Body, rename=wire(queues="lockOKMQSet")):
    """The requested queues that the client now holds (request code 41)."""

    queues: Sequence[QueueRef] = ()


class ClientConnectionData(Body, rename=wire(subscriptions="raftmqSubscriptions")):
    """One connection of a client.

    ``subscriptions`` are only there for a client behind a proxy: its own, each with topic, expression and type.
    """

    client_id: str
    client_addr: str
    language: str
    version: int
    subscriptions: Sequence[tuple[str, str, str]] | msgspec.UnsetType = msgspec.UNSET


class ConsumerConnection(Body, rename=wire(connections="connectionSet", subscriptions="subscriptionTable")):
    """The members of a consumer group and their subscriptions (request code 203)."""

    connections: Sequence[ClientConnectionData]
    subscriptions: dict[str, SubscriptionData]
    consume_type: str
    message_model: str
    consume_from_where: str


class ProducerConnection(Body, rename=wire(connections="connectionSet")):
    """The members of a producer group (request code 204)."""

    connections: Sequence[ClientConnectionData]


class ProducerInfo(Body, rename=wire(remote_ip="remoteIP", last_update_ms="lastUpdateTimestamp")):
    """One connection of a producer group."""

    client_id: str
    remote_ip: str
    language: str
    version: int
    last_update_ms: int


class ProducerTable(Body):
    """All producers by group (request code 328)."""

    data: dict[str, list[ProducerInfo]]


class GroupNames(Body, rename=wire(groups="groupList")):
    """Names of groups (request code 300)."""

    groups: Sequence[str]


class CorrectionOffsets(Body, rename=wire(offsets="correctionOffsets")):
    """Offsets by queue id (request code 308)."""

    offsets: dict[int, int]


class GroupSubscriptionData(Body, rename=wire(subscription="subscriptionData")):
    """A group's subscription to a topic (request code 345)."""

    group: str
    topic: str
    subscription: SubscriptionData | None


class GroupForbidden(Body):
    """Whether a group may read a topic (request code 353)."""

    group: str
    topic: str
    readable: bool


class ProcessQueueInfo(Body, rename=wire(cached_mib="cachedMsgSizeInMiB", dropped="droped")):
    """A consumer's progress in one of its queues (request code 307); times are epoch milliseconds, 0 if unknown.

    Cached messages are the unfinished ones, between two inclusive offsets, 0 without any. ``cached_mib`` is the size of
    their bodies in MiB.
    """

    commit_offset: int
    cached_msg_min_offset: int
    cached_msg_max_offset: int
    cached_msg_count: int
    cached_mib: int
    locked: bool
    dropped: bool
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0
    last_lock_timestamp: int = 0
    try_unlock_times: int = 0


def read_member_queues(body: bytes | memoryview) -> dict[QueueRef, ProcessQueueInfo]:
    """The queues in a consumer's running info (request code 307). Raises BodyError."""
    info = fastjson.parse(body, values_max=fastjson.TRUSTED_VALUES_MAX)
    table = read_queue_table(info.get("mqTable") or {}) if isinstance(info, dict) else {}
    try:
        return {ref: msgspec.convert(value, ProcessQueueInfo, strict=False) for ref, value in table.items()}
    except msgspec.ValidationError as error:
        raise BodyError(f"queues of a member: {error}") from error


def read_subscriptions(body: bytes, *, values_max: int) -> list[SubscriptionData]:
    """The subscriptions in a consumer's running info (request code 307). Raises BodyError."""
    info = fastjson.parse(body, values_max=values_max)
    told = info.get("subscriptionSet") if isinstance(info, dict) else None
    try:
        return msgspec.convert(told, list[SubscriptionData])
    except msgspec.ValidationError as error:
        raise BodyError(f"subscriptions of a client: {error}") from error


class ConsumeResult(Body, rename=wire(spent_ms="spentTimeMills")):
    """The result of passing one message to a consumer (request code 309)."""

    consume_result: str
    order: bool = False
    auto_commit: bool = True
    remark: str = ""
    spent_ms: int = 0
