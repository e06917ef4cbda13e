"""Topics of a broker: their queues, permissions and attributes."""

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
    """A topic. ``perm`` is a sum of 4 read, 2 write, 1 inherit."""

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
    """17: create a topic or change its queues."""

    ext: UpdateAndCreateTopicExt = msgspec.field(name="extFields")


class TopicExt(Ext):
    """One topic."""

    topic: str


class DeleteTopicInBrokerExt(TopicExt, rename=wire(access_key="AccessKey")):
    """A topic. ``operator``, which only our tools send, and ``access_key`` of the signature say who deletes it.

    ``restorable``, which only our tools send, says that it may be restored.
    """

    operator: str = ""
    restorable: bool = False
    access_key: str = ""


class DeleteTopicInBroker(Request, tag=int(Code.DELETE_TOPIC_IN_BROKER)):
    """Request code 215: delete a topic with its messages."""

    ext: DeleteTopicInBrokerExt = msgspec.field(name="extFields")


class GetAllTopicConfig(Request, tag=int(Code.GET_ALL_TOPIC_CONFIG)):
    """21: all topics of a broker."""


class TopicCountReply(Reply):
    """The number of topics (21)."""

    total_topic_num: int


class DataVersion(Body, rename=wire(timestamp_ms="timestamp")):
    """The version of a broker's topics. Versions are equal only if all three numbers agree."""

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
    """All topics of a broker (request code 21), and the inner part of a registration."""

    topics: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class UpdateAndCreateTopicList(Request, tag=int(Code.UPDATE_AND_CREATE_TOPIC_LIST)):
    """18: create or change topics; they are in the body."""


class TopicConfigList(Body, rename=wire(topics="topicConfigList")):
    """Topics to create or change (request code 18)."""

    topics: Sequence[TopicConfig] = ()


class TopicOfBrokerExt(TopicExt):
    """One topic; ``lo`` belongs to static topics, which we do not have."""

    lo: bool | None = None


class GetTopicConfig(Request, tag=int(Code.GET_TOPIC_CONFIG)):
    """Request code 351: return one topic's configuration."""

    ext: TopicOfBrokerExt = msgspec.field(name="extFields")


class TopicConfigReply(Reply):
    """A field besides a topic's configuration (351): its identity."""

    topic_identity: str = ""


class GetTopicStatsInfo(Request, tag=int(Code.GET_TOPIC_STATS_INFO)):
    """Request code 202: return the ends of a topic's queues."""

    ext: TopicExt = msgspec.field(name="extFields")


class QueueEnds(Body, rename=wire(last_update_ms="lastUpdateTimestamp")):
    """A queue: its first offset, the one after its last, and the store time of its last message (0: none)."""

    min_offset: QueueOffset = FIRST_OFFSET
    max_offset: QueueOffset = FIRST_OFFSET
    last_update_ms: int = 0


def topic_stats_of(rows: bytes) -> bytes:
    """Build a topic's statistics from rows that are encoded already."""
    return b'{"offsetTable":{%s},"topicPutTps":0.0}' % rows


def topic_stats(queues: Mapping[QueueRef, QueueEnds]) -> bytes:
    """The answer to request code 202."""
    return topic_stats_of(b",".join(queue_row(ref, ends.encode()) for ref, ends in queues.items()))


def read_topic_stats(body: bytes | memoryview) -> dict[QueueRef, QueueEnds]:
    """Decode the answer to request code 202. Raises BodyError."""
    return decode_queue_table(body, QueueEnds)


class GetSystemTopicListFromBroker(Request, tag=int(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)):
    """Request code 305: return the broker's internal topics."""


class TopicList(Body, rename=wire(topics="topicList")):
    """Names of topics (request code 206)."""

    topics: Sequence[str] = ()
    broker_addr: str | msgspec.UnsetType = msgspec.UNSET
