"""Request code 9006: the extent of a topic on this replica, for planning to read all of it.

First and last offsets of queues are known without reading files. The size of queues, and their offsets at the
beginnings of log files, are looked up in consume queues, interleaved with other work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.net.slow_responses import ResponseSteps
from mq.protocol.bulk import PlannedPlace, PlannedQueue, encode_plan
from mq.protocol.codes import PERM_READ, ResponseCode
from mq.protocol.numbers import FIRST_OFFSET, PhysicalOffset, QueueOffset
from mq.protocol.requests.bulk import PlanTopic, TopicPlanReply
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY, entry_sizes

PLACES_MAX: Final = 1024

_SAMPLE_ENTRIES: Final = 32
_PLANNED_AT_ONCE: Final = 64


class TopicPlans(Service):
    """Answers queries for the extent of a topic on this replica, with which readers plan."""

    def __init__(self, context: BrokerContext) -> None:
        self._settings = context.settings
        self._limits = context.limits.bulk
        self._replica = context.replica
        self._records = context.records
        self._beginning = context.beginning
        self._metadata = context.metadata
        self._store = context.store
        self._read = context.reads.read
        self._gradually = context.slow_responses

    def routes(self) -> Iterator[Route]:
        yield Route(PlanTopic, self.handle)

    def handle(self, call: Call[PlanTopic]) -> None:
        """Request code 9006: return the extent of a topic on this replica."""

        def respond() -> ResponseSteps:
            return self._answer(call)

        if call.request.ext.current:
            self._gradually.when_current(self._read, call, respond)
        else:
            self._gradually.work(call, respond())

    def _answer(self, call: Call[PlanTopic]) -> ResponseSteps:
        ext = call.request.ext
        config = self._metadata.topics.get(ext.topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {ext.topic[:127]} does not exist")
        if not config.perm & PERM_READ:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {ext.topic} is not readable")
        count = config.read_queues
        if not 0 <= ext.first_queue < max(count, 1):
            remark = f"queue id {ext.first_queue} is illegal, {ext.topic} has {count} read queues"
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
        identity = self._metadata.topic_identity(ext.topic)
        end = min(count, ext.first_queue + self._limits.plan_queues_max)
        queues = [self._store.get(ext.topic, queue_id) for queue_id in range(ext.first_queue, end)]
        rows: list[PlannedQueue] = []
        for queue_id, queue in enumerate(queues, ext.first_queue):
            if queue is not None:
                self._beginning.check(queue.min_offset)
            rows.append(_row(queue_id, queue, with_size=ext.detail))
            if ext.detail or queue_id % _PLANNED_AT_ONCE == 0:
                yield
        places: list[PlannedPlace] = []
        if ext.detail:
            lows = [row.first for row in rows]
            for position in self._places(min(count, self._limits.plan_queues_max)):
                for number, queue in enumerate(queues):
                    lows[number] = _offset_at(queue, position, lows[number], rows[number].end)
                    yield
                places.append(PlannedPlace(position, tuple(lows)))
        reply = TopicPlanReply(
            topic_identity=identity,
            log_identity=self._settings.identity,
            role="leader" if self._replica.is_leader else "follower",
            read_queues=count,
            next_queue=end if end < count else -1,
            base_position=PhysicalOffset(self._records.begin_pos),
            **(self._archive() if ext.detail else {}),
        )
        return call.response(ext=reply.fields(), body=encode_plan(rows, places))

    def _archive(self) -> dict[str, Any]:
        """Return the archive's address, and a place by which readers verify that it is this log's archive."""
        settings = self._settings
        if (url := settings.archive_url) is None:
            return {}
        end = self._metadata.archived.end_at(url)
        return {
            "segment_bytes": settings.segment_bytes,
            "archive_url": url,
            "archive_endpoint_url": settings.archive_endpoint_url,
            "archive_index": end.index,
            "archive_term": end.term,
            "archive_position": PhysicalOffset(end.pos),
            "archive_chain": end.chain,
        }

    def _places(self, queues: int) -> Iterator[PhysicalOffset]:
        """Yield the beginnings of log files except the first, as many as fit into a response for these queues."""
        begin, size = self._records.begin_pos, self._settings.segment_bytes
        archive_starts = range(begin - begin % size + size, self._replica.log.base_pos + 1, size)
        local = (segment.start for segment in self._replica.log.segments()[1:])
        starts = [PhysicalOffset(start) for start in (*archive_starts, *local)]
        step = -(-len(starts) // max(1, min(PLACES_MAX, self._limits.plan_offsets_max // max(queues, 1)))) or 1
        places, offsets_max = starts[::step], max(self._limits.plan_offsets_max, queues)
        assert len(places) * queues <= offsets_max, f"{len(places)} places of {queues} queues; maximum: {offsets_max}"
        return iter(places)


def _row(queue_id: int, queue: ConsumeQueue | None, *, with_size: bool) -> PlannedQueue:
    if queue is None:
        return PlannedQueue(queue_id, FIRST_OFFSET, FIRST_OFFSET)
    first = queue.min_offset
    end = max(first, queue.max_offset)  # a queue that was just dropped has none
    if not with_size or first >= end:
        return PlannedQueue(queue_id, first, end)
    samples = b"".join(
        queue.read(max(first, at), _SAMPLE_ENTRIES) for at in (first, first + (end - first) // 2, end - _SAMPLE_ENTRIES)
    )
    sizes = entry_sizes(samples)
    return PlannedQueue(queue_id, first, end, sum(sizes) * (end - first) // len(sizes))


def _offset_at(
    queue: ConsumeQueue | None, position: PhysicalOffset, low: QueueOffset, high: QueueOffset
) -> QueueOffset:
    """Return the first offset, at least ``low``, of a message at or after ``position``; ``high`` if there is none."""
    if queue is None:
        return low
    assert low <= high, f"offsets are planned from {low} to {high}"
    while low < high:
        middle = low + (high - low) // 2
        entry = queue.read(middle, 1)
        if entry and QUEUE_ENTRY.unpack(entry)[0] >= position:
            high = middle
        else:
            low = middle + 1
    return low
