"""Request code 9030: returns the ends of many queues, and offsets by time, in one response.

Every replica answers, after it has applied everything that was committed when the request arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused, decode_body
from mq.broker.net.service import Route, Service
from mq.broker.net.slow_responses import ResponseSteps
from mq.broker.query.by_offset_and_time import OffsetAndTimeQueries
from mq.protocol.codes import ResponseCode
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.many_queues import (
    QUEUES_MAX,
    TOPICS_MAX,
    AskQueues,
    QueueQuestion,
    QueueQuestions,
    QueueSight,
    QueueSights,
)
from mq.store.errors import QueueFileDamaged
from raftlog import SegmentError


class ManyQueues(Service):
    """Answers request 9030 with the ends of many queues, and offsets by time."""

    def __init__(self, context: BrokerContext, *, lookup: OffsetAndTimeQueries) -> None:
        self._metadata = context.metadata
        self._store = context.store
        self._read = context.reads.read
        self._beginning = context.beginning
        self._gradually = context.slow_responses
        self._lookup = lookup
        self._queues_max = context.limits.bulk.ends_queues_max

    def routes(self) -> Iterator[Route]:
        yield Route(AskQueues, self.handle)

    def handle(self, call: Call[AskQueues]) -> None:
        """Request code 9030: return the ends of many queues, and offsets by time. Raises RequestRefused."""
        topics = decode_body(QueueQuestions.decode, call.body).topics
        if not 1 <= len(topics) <= TOPICS_MAX:
            raise _invalid(f"{len(topics)} topics; allowed: 1 to {TOPICS_MAX}")
        for each in topics:
            if each.queues is not None and len(each.queues) > QUEUES_MAX:
                raise _invalid(f"{len(each.queues)} queues of {each.topic[:127]}; maximum: {QUEUES_MAX}")
            if len(each.since_ms) > 1 and len(each.since_ms) != len(each.queues or ()):
                times, queues = len(each.since_ms), len(each.queues or ())
                raise _invalid(f"since_ms has {times} values for {queues} queues of {each.topic[:127]}")
        self._gradually.when_current(self._read, call, lambda: self._answer(call, topics))

    def _answer(self, call: Call[AskQueues], topics: Sequence[QueueQuestion]) -> ResponseSteps:
        topic_sights: list[list[QueueSight]] = []
        queues_left = self._queues_max
        for each in topics:
            config = self._metadata.topics.get(each.topic)
            queues = range(config.write_queues) if config is not None else ()
            queue_ids = queues if each.queues is None else [queue for queue in each.queues if queue in queues]
            times = dict(zip(each.queues or (), each.since_ms, strict=False)) if len(each.since_ms) > 1 else {}
            queues_left -= len(queue_ids)
            if queues_left < 0 and topic_sights:
                break
            sights: list[QueueSight] = []
            for queue in queue_ids:
                since = times.get(queue) if times else next(iter(each.since_ms), None)
                sights += self._sight(each.topic, queue, since, each.position)
                yield
            topic_sights.append(sights)
        return call.response(body=QueueSights(topics=topic_sights).encode())

    def _sight(
        self, topic: str, queue_id: int, since_ms: int | None, position: PhysicalOffset | None
    ) -> Iterator[QueueSight]:
        """Yield the state of a queue; nothing if that needs messages which are not on this replica."""
        queue = self._store.get(topic, queue_id)
        first = end = QueueOffset(0)
        last_ms = 0
        behind = None if position is None else QueueOffset(0)
        try:
            since = None if since_ms is None else self._lookup.offset_by_time(topic, queue_id, since_ms)
            if queue is not None:
                self._beginning.check(queue.min_offset)
                last_ms = self._lookup.store_time(topic, queue_id, QueueOffset(queue.max_offset - 1))
                first, end = queue.min_offset, queue.max_offset
                behind = None if position is None else queue.first_from(position)
        except (RequestRefused, SegmentError, QueueFileDamaged, OSError):
            return  # a request for this queue alone says why, or waits for the archive
        assert 0 <= first <= end, f"queue {queue_id} of {topic} has offsets from {first} to {end}"
        assert queue is None or behind is None or first <= behind <= end, f"{behind} is not in {first} to {end}"
        yield QueueSight(queue_id, first, end, max(last_ms, 0), since, behind)


def _invalid(why: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, why)
