"""Lists topics and offsets: request codes 21, 351, 202, 305, 43 and 45.

Every replica answers, after it has applied everything that was committed when the request arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call, Handler
from mq.broker.net.linearizable_reads import when_current
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.net.slow_responses import ResponseSteps, join_parts
from mq.broker.state.metadata import as_registered
from mq.protocol.codes import ResponseCode
from mq.protocol.names import METADATA_TOPIC, SYSTEM_TOPICS
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.group_progress import DelayOffsets, GetAllConsumerOffset, GetAllDelayOffset
from mq.protocol.requests.topics import (
    GetAllTopicConfig,
    GetSystemTopicListFromBroker,
    GetTopicConfig,
    GetTopicStatsInfo,
    QueueEnds,
    TopicConfigReply,
    TopicConfigTable,
    TopicCountReply,
    TopicList,
    topic_stats_of,
)
from mq.protocol.wire.queue_tables import QueueRef, queue_row


class TopicQueries(Service):
    """Lists topics, the ends of their queues, and the offsets of groups.

    Args:
        store_time: when the message at a queue offset was stored, in epoch milliseconds; -1 without a message.
    """

    def __init__(self, context: BrokerContext, *, store_time: Callable[[str, int, QueueOffset], int]) -> None:
        self._broker_name = context.settings.group
        self._metadata = context.metadata
        self._store = context.store
        self._read = context.reads.read
        self._beginning = context.beginning
        self._gradually = context.slow_responses
        self._store_time = store_time
        self._version = context.data_version
        self._limits = context.limits.upkeep

    def routes(self) -> Iterator[Route]:
        yield Route(GetAllTopicConfig, self._served_by(self._all_topics))
        yield Route(GetTopicConfig, self._served_by(self._topic))
        yield Route(GetTopicStatsInfo, self._served_gradually(self._topic_stats))
        yield Route(GetSystemTopicListFromBroker, self._served_by(self._system_topics))
        yield Route(GetAllConsumerOffset, self._served_gradually(self._consumer_offsets))
        yield Route(GetAllDelayOffset, self._served_by(self._delay_offsets))

    def _served_by(self, build: Callable[[Any], tuple[bytes, dict[str, str] | None]]) -> Handler:
        def handle(call: Call[Any]) -> None:
            def respond() -> bytes:
                text, ext = build(call.request)
                return call.response(ext=ext, body=text)

            when_current(self._read, call, respond)

        return handle

    def _served_gradually(self, build: Callable[[Any], ResponseSteps]) -> Handler:
        def handle(call: Call[Any]) -> None:
            def respond() -> ResponseSteps:
                text = yield from build(call.request)
                return call.response(body=text)

            self._gradually.when_current(self._read, call, respond)

        return handle

    def _all_topics(self, request: GetAllTopicConfig) -> tuple[bytes, dict[str, str] | None]:
        topics = self._metadata.topic_table()
        version = self._version()
        return TopicConfigTable(topics, version).encode(), TopicCountReply(total_topic_num=len(topics)).fields()

    def _topic(self, request: GetTopicConfig) -> tuple[bytes, dict[str, str] | None]:
        config = self._metadata.topics.get(request.ext.topic)
        if config is None:
            raise _no_topic(request.ext.topic)
        # In the header, because stock clients reject unknown fields in the body.
        identity = self._metadata.topic_identity(config.name)
        return as_registered(config).encode(), TopicConfigReply(topic_identity=identity).fields()

    def _topic_stats(self, request: GetTopicStatsInfo) -> ResponseSteps:
        topic = request.ext.topic
        config = self._metadata.topics.get(topic)
        if config is None:
            raise _no_topic(topic)
        rows = yield from join_parts(
            queue_row(QueueRef(topic, self._broker_name, each), self._ends(topic, each).encode())
            for each in range(config.write_queues)
        )
        return topic_stats_of(rows)

    def _ends(self, topic: str, queue_id: int) -> QueueEnds:
        queue = self._store.get(topic, queue_id)
        if queue is None:
            return QueueEnds()
        self._beginning.check(queue.min_offset)
        newest = self._store_time(topic, queue_id, queue.max_offset - 1)
        assert queue.min_offset <= queue.max_offset, f"{queue.key} has {queue.min_offset} to {queue.max_offset}"
        return QueueEnds(queue.min_offset, queue.max_offset, max(newest, 0))

    def _system_topics(self, request: GetSystemTopicListFromBroker) -> tuple[bytes, dict[str, str] | None]:
        return TopicList(sorted((SYSTEM_TOPICS | self._metadata.system_topics) - {METADATA_TOPIC})).encode(), None

    def _consumer_offsets(self, request: GetAllConsumerOffset) -> ResponseSteps:
        tables = self._metadata.consumer_offsets
        shown_max = self._limits.offset_tables_shown_max
        if len(tables) > shown_max:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"offsets of {len(tables)} pairs of group and topic, shown are at most {shown_max}",
            )
        rows = yield from join_parts(
            b'"%s@%s":{%s}' % (topic.encode(), group.encode(), b",".join(b'"%d":%d' % each for each in offsets.items()))
            for (group, topic), offsets in sorted(tables.items())
        )
        return b'{"dataVersion":%s,"offsetTable":{%s}}' % (self._version().encode(), rows)

    def _delay_offsets(self, request: GetAllDelayOffset) -> tuple[bytes, dict[str, str] | None]:
        offsets = dict(self._metadata.delay_offsets)
        assert all(offset >= 0 for offset in offsets.values()), f"offsets of delay levels: {offsets}"
        return DelayOffsets(offsets).encode(), None


def _no_topic(topic: str) -> RequestRefused:
    return RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {topic[:127]} does not exist")
