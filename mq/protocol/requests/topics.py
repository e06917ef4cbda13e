"""Requests about a broker's topics: their queues, permissions and attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.wire.fields import I32, I64, wire
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.queue_tables import QueueRef, decode_queue_table, queue_row
from mq.protocol.wire.reply import Reply
from mq.protocol.wire.request import Ext, Request


class UpdateAndCreateTopicExt(Ext):
    """The header of request code 17: a topic. ``perm`` is a sum of 4 read, 2 write, 1 inherit."""

    topic: str
    default_topic: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 | None = None
    order: bool = False
    attributes: str | None = None


class UpdateAndCreateTopic(Request, tag=int(Code.UPDATE_AND_CREATE_TOPIC)):
    """Request code 17: create a topic, or change its queues."""

    ext: UpdateAndCreateTopicExt = msgspec.field(name="extFields")


class TopicExt(Ext):
    """The header of a request about one topic."""

    topic: str


class DeleteTopicInBrokerExt(TopicExt, rename=wire(access_key="AccessKey")):
    """The header of 215. ``operator`` (only our tools send it) and the signature's ``access_key`` tell who deletes.

    ``restorable``, which only our tools send, says that it may be restored.
    """

    operator: str = ""
    restorable: bool = False
    access_key: str = ""


class DeleteTopicInBroker(Request, tag=int(Code.DELETE_TOPIC_IN_BROKER)):
    """Request code 215: delete a topic with its messages."""

    ext: DeleteTopicInBrokerExt = msgspec.field(name="extFields")


class GetAllTopicConfig(Request, tag=int(Code.GET_ALL_TOPIC_CONFIG)):
    """Request code 21: return all topics of a broker."""


class TopicCountReply(Reply):
    """The response header of request code 21: the number of topics."""

    total_topic_num: int


class DataVersion(Body, rename=wire(timestamp_ms="timestamp")):
    """The version of a broker's topics. Two versions are equal only if all three numbers are."""

    counter: I64 = 0
    timestamp_ms: I64 = 0
    state_version: I64 = 0


class TopicConfig(Body, rename=wire()):
    """A topic on a broker. ``perm`` is a sum of 4 read, 2 write, 1 inherit."""

    topic_name: str
    read_queue_nums: I32 = 16
    write_queue_nums: I32 = 16
    perm: I32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


class TopicConfigTable(Body, rename=wire(topics="topicConfigTable")):
    """All topics of a broker (request code 21); also a part of a registration."""

    topics: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class UpdateAndCreateTopicList(Request, tag=int(Code.UPDATE_AND_CREATE_TOPIC_LIST)):
    """Request code 18: create or change the topics in the body."""


class TopicConfigList(Body, rename=wire(topics="topicConfigList")):
    """Topics to create or change (request code 18)."""

    topics: Sequence[TopicConfig] = ()


class TopicOfBrokerExt(TopicExt):
    """The header of request code 351: a topic. ``lo`` is for static topics, which we do not have."""

    lo: bool | None = None


class GetTopicConfig(Request, tag=int(Code.GET_TOPIC_CONFIG)):
    """Request code 351: return one topic's configuration."""

    ext: TopicOfBrokerExt = msgspec.field(name="extFields")


class TopicConfigReply(Reply):
    """The response header of request code 351: the identity of the topic."""

    topic_identity: str = ""


class GetTopicStatsInfo(Request, tag=int(Code.GET_TOPIC_STATS_INFO)):
    """Request code 202: return the first and last offsets of a topic's queues."""

    ext: TopicExt = msgspec.field(name="extFields")


class QueueEnds(Body, rename=wire(last_update_ms="lastUpdateTimestamp")):
    """A queue: its first offset, the offset after its last message, and that message's store time (0: none)."""

    min_offset: QueueOffset = FIRST_OFFSET
    max_offset: QueueOffset = FIRST_OFFSET
    last_update_ms: int = 0


def topic_stats_of(rows: bytes) -> bytes:
    """Encode a topic's statistics (response to request code 202) from rows that are encoded already."""
    return b'{"offsetTable":{%s},"topicPutTps":0.0}' % rows


def topic_stats(queues: Mapping[QueueRef, QueueEnds]) -> bytes:
    """Encode the response to request code 202."""
    return topic_stats_of(b",".join(queue_row(ref, ends.encode()) for ref, ends in queues.items()))


def read_topic_stats(body: bytes | memoryview) -> dict[QueueRef, QueueEnds]:
    """Decode the response to request code 202. Raises BodyError."""
    return decode_queue_table(body, QueueEnds)


class GetSystemTopicListFromBroker(Request, tag=int(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)):
    """Request code 305: return the broker's internal topics."""


class TopicList(Body, rename=wire(topics="topicList")):
    """Names of topics (request code 206)."""

    topics: Sequence[str] = ()
    broker_addr: str | msgspec.UnsetType = msgspec.UNSET
