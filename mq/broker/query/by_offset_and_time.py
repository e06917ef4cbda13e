"""Finds messages by offset and by time: request codes 29, 32, 33, 303 and 321.

Every replica answers, from its committed entries. Queries about the state of a queue wait until everything is applied
that was committed when they arrived.

Store times come from the leaders' clocks, so they may decrease within a queue after a change of leadership or a clock
that was set back. A search then finds one of the places where they cross the requested time, not necessarily the first.
"""

from __future__ import annotations

from collections.abc import Iterator

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.linearizable_reads import when_current
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.net.slow_responses import ResponseSteps
from mq.filter.subscription import Subscription
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.records import decode_record
from mq.protocol.numbers import FIRST_OFFSET, NO_OFFSET, PhysicalOffset, QueueOffset
from mq.protocol.requests.clients import SubscriptionData
from mq.protocol.requests.compaction_attributes import is_compacted
from mq.protocol.requests.offsets import GetEarliestMsgStoretime, OffsetReply, SearchOffsetByTimestamp, TimestampReply
from mq.protocol.requests.queries import (
    ConsumeQueueView,
    QueryConsumeQueue,
    QueryConsumeTimeSpan,
    QueueEntry,
    QueueName,
    TimeSpan,
    TimeSpans,
    ViewMessageById,
)
from mq.protocol.requests.retention_attributes import reserve_bytes, reserve_hours
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.log_records import LogRecords
from raftlog.segment import EntryGone

UPPER = "upper"
ENTRIES_MAX = 1024
"""Maximum number of queue entries in one answer."""


class OffsetAndTimeQueries(Service):
    """Answers queries by offset and time; also searches by time for other services."""

    def __init__(self, context: BrokerContext, *, records: LogRecords) -> None:
        self._broker_name = context.settings.group
        self._metadata = context.metadata
        self._store = context.store
        self._records = records
        self._clients = context.clients
        self._read = context.reads.read
        self._beginning = context.beginning
        self._segment_log = context.replica.log
        self._gradually = context.slow_responses
        self._wall_clock_ms = context.wall_clock_ms

    def routes(self) -> Iterator[Route]:
        yield Route(SearchOffsetByTimestamp, self.handle_search)
        yield Route(GetEarliestMsgStoretime, self.handle_earliest)
        yield Route(ViewMessageById, self.handle_view)
        yield Route(QueryConsumeTimeSpan, self.handle_time_span)
        yield Route(QueryConsumeQueue, self.handle_consume_queue)

    def record_at(self, physical_offset: PhysicalOffset) -> bytes | None:
        """Return the committed record that begins at a physical offset, None without one. Accepts any number.

        Raises raftlog.SegmentError if the log cannot be read.
        """
        return self._records.at(physical_offset)

    def store_time(self, topic: str, queue_id: int, offset: QueueOffset) -> int:
        """Return the store time of the message at a queue offset, in epoch milliseconds; -1 without a message.

        Raises raftlog.SegmentError, QueueFileDamaged, OSError if it cannot be read.
        """
        queue = self._store.get(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return -1
        try:
            return self._store_time(queue, offset)
        except EntryGone as error:
            queue.expire(PhysicalOffset(error.first))  # the log was truncated, but this queue is not updated yet
            return -1

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of the first message in epoch milliseconds; -1 without one. Raises as `store_time`."""
        queue = self._store.get(topic, queue_id)
        while queue is not None and queue.min_offset < queue.max_offset:
            self._beginning.check(queue.min_offset)
            time_ms = self.store_time(topic, queue_id, queue.min_offset)
            if time_ms >= 0:
                return time_ms
        return -1

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> QueueOffset:
        """Return the queue offset of the first message stored at or after a time; without one, the end of the queue.

        With ``upper``, the last message stored at or before that time; the first message if all are later. 0 for a
        queue that never had messages. For decreasing store times, see the module. Raises as `store_time`.
        """
        queue = self._store.get(topic, queue_id)
        if queue is None:
            return FIRST_OFFSET
        while True:
            try:
                # The first message later than the lower bound.
                offset = self._first_later(queue, timestamp_ms if upper else timestamp_ms - 1)
            except EntryGone as error:
                queue.expire(PhysicalOffset(error.first))
            else:
                offset = max(offset - 1, queue.min_offset) if upper else offset
                low, high = queue.min_offset, queue.max_offset
                assert low <= offset <= high, f"offset {offset} of {queue.key} has this time, which has {low} to {high}"
                if offset <= queue.min_offset:
                    self._beginning.check(queue.min_offset)
                return offset

    def _first_later(self, queue: ConsumeQueue, timestamp_ms: int) -> QueueOffset:
        low, high = queue.min_offset, queue.max_offset
        assert low <= high, f"{queue.key} has offsets from {low} to {high}"
        while low < high:
            middle = low + (high - low) // 2
            if self._store_time(queue, middle) > timestamp_ms:
                high = middle
            else:
                low = middle + 1
        return low

    def _store_time(self, queue: ConsumeQueue, offset: QueueOffset) -> int:
        physical_offset, _, _ = QUEUE_ENTRY.unpack(queue.read(offset, 1))
        return self._records.store_time_ms(physical_offset)

    # -- requests ----------------------------------------------------------------------------------------------------

    def handle_search(self, call: Call[SearchOffsetByTimestamp]) -> None:
        """Request code 29: return the offset of the first message of a queue that was stored at or after a time."""
        ext = call.request.ext

        def respond() -> bytes:
            upper = (ext.boundary or "").lower() == UPPER
            offset = self.offset_by_time(ext.topic, ext.queue_id, ext.timestamp_ms, upper)
            return call.response(ext=OffsetReply(offset=offset).fields())

        when_current(self._read, call, respond)

    def handle_earliest(self, call: Call[GetEarliestMsgStoretime]) -> None:
        """Request code 32: return the store time of the first message of a queue."""

        def respond() -> bytes:
            timestamp = self.earliest_time(call.request.ext.topic, call.request.ext.queue_id)
            return call.response(ext=TimestampReply(timestamp=timestamp).fields())

        when_current(self._read, call, respond)

    def handle_view(self, call: Call[ViewMessageById]) -> bytes | None:
        """Request code 33: return the record at a physical offset. Raises RequestRefused."""
        offset = call.request.ext.physical_offset

        def respond() -> bytes:
            record = self._records.at(offset)
            if record is None:
                if offset < self._segment_log.base_pos and not self._beginning.is_first:
                    raise self._beginning.refusal()
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
            if self._has_expired(record):
                remark = f"the message at {offset} has expired: its topic keeps fewer messages than the log"
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark)
            return call.response(body=record)

        if not self._records.is_archived(offset) and not self._records.is_ahead(offset):
            return respond()
        when_current(self._read, call, respond)
        return None

    def _has_expired(self, record: bytes) -> bool:
        """Whether the message of this record has expired from its queue, although the log still has it."""
        message = decode_record(memoryview(record), verify=False)
        config = self._metadata.topics.get(message.topic)
        limits = (reserve_hours, reserve_bytes)
        if config is None or (
            all(limit(config.attributes) is None for limit in limits) and not is_compacted(config.attributes)
        ):
            return False
        queue = self._store.get(message.topic, message.queue_id)
        return queue is not None and message.queue_offset < queue.min_offset

    def handle_time_span(self, call: Call[QueryConsumeTimeSpan]) -> None:
        """Request code 303: return the range of store times in each queue of a topic. Raises RequestRefused."""
        ext = call.request.ext

        def respond() -> ResponseSteps:
            config = self._metadata.topics.get(ext.topic)
            if config is None:
                raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{ext.topic}] not exist")
            offsets = self._metadata.consumer_offsets.get((ext.group, ext.topic), {})
            spans: list[TimeSpan] = []
            for each in range(config.write_queues):
                spans.append(self._span(ext.topic, each, offsets.get(each, NO_OFFSET)))
                yield
            text = TimeSpans(spans=spans).encode()
            return call.response(body=text)

        self._gradually.when_current(self._read, call, respond)

    def _span(self, topic: str, queue_id: int, offset: QueueOffset) -> TimeSpan:
        end = self._store.max_offset(topic, queue_id)
        earliest = self.earliest_time(topic, queue_id)
        waiting_since = self.store_time(topic, queue_id, offset) if 0 <= offset < end else -1
        return TimeSpan(
            queue=QueueName(topic=topic, broker_name=self._broker_name, queue_id=queue_id),
            min_ms=earliest,
            max_ms=self.store_time(topic, queue_id, end - 1),
            consumed_ms=self.store_time(topic, queue_id, offset - 1) if offset > 0 else earliest,
            delay_ms=max(0, self._wall_clock_ms() - waiting_since) if waiting_since >= 0 else 0,
        )

    def handle_consume_queue(self, call: Call[QueryConsumeQueue]) -> None:
        """Request code 321: return entries of a consume queue. Raises RequestRefused."""
        ext = call.request.ext

        def respond() -> bytes:
            queue = self._store.get(ext.topic, ext.queue_id)
            if queue is None:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{ext.queue_id}@{ext.topic} is not exist!")
            entries = queue.read(ext.index, min(max(ext.count, 1), ENTRIES_MAX))
            if not entries:
                self._beginning.check(queue.min_offset, ext.index)
                remark = f"Index {ext.index} of {ext.queue_id}@{ext.topic} is not exist!"
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark)
            subscription = self._clients.subscription(ext.consumer_group, ext.topic) if ext.consumer_group else None
            view = ConsumeQueueView(
                entries=[
                    QueueEntry(
                        physical_offset=at,
                        nbytes=size,
                        tag_code=code,
                        is_wanted=subscription is None or subscription.matches_code(code),
                    )
                    for at, size, code in QUEUE_ENTRY.iter_unpack(entries)
                ],
                min_offset=queue.min_offset,
                max_offset=queue.max_offset,
                subscription_data=None if subscription is None else _as_data(subscription),
            )
            return call.response(body=view.encode())

        when_current(self._read, call, respond)


def _as_data(subscription: Subscription) -> SubscriptionData:
    return SubscriptionData(
        topic=subscription.topic,
        expression=subscription.expression,
        tags=tuple(sorted(subscription.tags)),
        codes=tuple(sorted(subscription.codes)),
        expression_type=subscription.expression_type,
    )
