"""Request code 9017 (ASK_PENDING): messages of this broker group that consumers cannot see yet.

Which messages wait is replicated state, see `mq.broker.state.completion_marks`; their due times are in the entries of
the queues. So an answer reads the queue entries of waiting messages, 20 bytes each, and the records of the few that it
names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from operator import itemgetter
from typing import Final, NamedTuple

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.net.slow_responses import ResponseSteps
from mq.broker.transaction.half_messages import HALF_QUEUE_ID
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.delay import LEVEL_MAX, TIMER_SLOTS, timer_slot
from mq.protocol.messages.recall_handle import RecallHandle
from mq.protocol.messages.records import RecordError, StoredMessage, decode_record
from mq.protocol.names import HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, UNENDED_TOPIC
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.requests.pending import KINDS, SHOWN_MAX, AskPending, PendingInfo, PendingMessage
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError
from raftlog import SegmentError

LOOKED_AT_MAX: Final = 200_000
"""Waiting messages whose due times are read for one answer: about a second of CPU, in steps."""
STEP_ENTRIES: Final = 256
STEP_DONE: Final = 64 * STEP_ENTRIES
"""Offsets of finished messages that are passed over in one step, by their marks alone."""
BORDERS_SECONDS: Final = (0, 60, 600, 3600, 6 * 3600, 24 * 3600)
_TEXT_MAX: Final = 256
"""Characters of keys and tags in an answer."""


class _PendingEntry(NamedTuple):
    """The queue entry of a waiting message. ``turn_ms``: when the broker next looks at it; 0 without a time."""

    turn_ms: int
    topic: str
    queue_id: int
    offset: QueueOffset
    position: int
    size: int


class PendingQueries(Service):
    """Lists messages that are not visible yet: delayed ones, and those of open or given-up transactions."""

    def __init__(self, context: BrokerContext) -> None:
        self._broker_name = context.settings.group
        self._metadata = context.metadata
        self._store = context.store
        self._pread = context.replica.log.pread
        self._read = context.reads.read
        self._gradually = context.slow_responses
        self._wall_clock_ms = context.wall_clock_ms

    def routes(self) -> Iterator[Route]:
        yield Route(AskPending, self.handle, leader_only=True, repeatable=True)

    def handle(self, call: Call[AskPending]) -> None:
        """Request code 9017: return the waiting messages of one kind. Raises RequestRefused."""
        ext = call.request.ext
        if ext.kind not in KINDS:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"{ext.kind[:40]!r} is unknown; allowed: {', '.join(KINDS)}"
            )
        count = min(max(ext.count, 0), SHOWN_MAX)

        def respond() -> ResponseSteps:
            queues = self._queues(ext.kind)
            now_ms = self._wall_clock_ms()
            counts: Counter[int] = Counter()
            first: list[_PendingEntry] = []
            total = sum(self._open_count(topic, queue_id) for topic, queue_id in queues)
            looked_at = 0
            yield
            for topic, queue_id in queues:
                for each in self._open_entries(topic, queue_id):
                    if each is None:
                        yield
                        continue
                    looked_at += 1
                    if ext.kind == "timed":
                        counts[_border(each.turn_ms - now_ms)] += 1
                    first.append(each)
                    if len(first) >= 8 * SHOWN_MAX:
                        first = _nearest(first, count)
                    if looked_at >= LOOKED_AT_MAX:
                        break
                if looked_at >= LOOKED_AT_MAX:
                    break
                yield
            messages: list[PendingMessage] = []
            for each in _nearest(first, count):
                if (message := self._pending_message(each)) is not None:
                    messages.append(message)
                yield
            assert len(messages) <= count <= SHOWN_MAX, (
                f"{len(messages)} messages are shown of {count}; maximum: {SHOWN_MAX}"
            )
            assert looked_at <= LOOKED_AT_MAX, f"{looked_at} messages were looked at; maximum: {LOOKED_AT_MAX}"
            info = PendingInfo(total=total, looked_at=looked_at, counts=sorted(counts.items()), messages=messages)
            return call.response(body=info.encode())

        self._gradually.when_current(self._read, call, respond)

    def _queues(self, kind: str) -> list[tuple[str, int]]:
        """Return the queues to examine, with those of timers starting at the current minute."""
        if kind == "half":
            return [(HALF_TOPIC, HALF_QUEUE_ID)]
        if kind == "given-up":
            return [(UNENDED_TOPIC, 0)]
        first = timer_slot(self._wall_clock_ms())
        slots = [(first + number) % TIMER_SLOTS for number in range(TIMER_SLOTS)]
        queues = [(SCHEDULE_TOPIC, level) for level in range(LEVEL_MAX)] + [(TIMER_TOPIC, slot) for slot in slots]
        return [each for each in queues if self._store.get(*each) is not None]

    def _open_count(self, topic: str, queue_id: int) -> int:
        queue = self._store.get(topic, queue_id)
        if queue is None:
            return 0
        marks = self._metadata.marks.get(topic, queue_id)
        return max(marks.count_open(queue.max_offset) - marks.count_open(self._begin(topic, queue_id, queue)), 0)

    def _begin(self, topic: str, queue_id: int, queue: ConsumeQueue) -> QueueOffset:
        next_offset = FIRST_OFFSET
        if topic == SCHEDULE_TOPIC:
            next_offset = self._metadata.delay_offsets.get(queue_id + 1, FIRST_OFFSET)
        return max(queue.min_offset, self._metadata.marks.get(topic, queue_id).low, next_offset)

    def _open_entries(self, topic: str, queue_id: int) -> Generator[_PendingEntry | None, None, None]:
        """Yield the open messages of a queue, and None where the work may be interrupted."""
        offset = FIRST_OFFSET
        while (queue := self._store.get(topic, queue_id)) is not None:
            offset = max(offset, self._begin(topic, queue_id, queue))
            marks = self._metadata.marks.get(topic, queue_id)
            end = min(offset + STEP_DONE, queue.max_offset)
            nearest = next(marks.open_offsets(offset, end), None)
            if nearest is None:
                if end >= queue.max_offset:
                    return
                offset = end
                yield None
                continue
            offset = nearest
            try:
                entries = queue.read(offset, STEP_ENTRIES)
            except (StoreError, OSError):
                return  # the broker has reported it, and delivers the others
            if not entries:
                return
            assert len(entries) <= STEP_ENTRIES * QUEUE_ENTRY.size, f"{len(entries)} bytes of {STEP_ENTRIES} entries"
            is_timed = topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
            for position, size, code in QUEUE_ENTRY.iter_unpack(entries):
                if not marks.is_done(offset):
                    yield _PendingEntry(code if is_timed else 0, topic, queue_id, offset, position, size)
                offset += 1
            yield None

    def _pending_message(self, entry: _PendingEntry) -> PendingMessage | None:
        """Read a message for a response. Returns None if it is no longer pending, or cannot be read."""
        if self._metadata.marks.get(entry.topic, entry.queue_id).is_done(entry.offset):
            return None
        try:
            message = decode_record(memoryview(self._pread(entry.position, entry.size)))
        except (SegmentError, RecordError, OSError):
            return None
        properties = message.properties
        due_ms = 0
        if entry.topic == SCHEDULE_TOPIC:
            due_ms = entry.turn_ms
        elif entry.topic == TIMER_TOPIC:
            due_ms = _parse_int(properties.get(props.TIMER_OUT_MS)) or entry.turn_ms
        return PendingMessage(
            topic=properties.get(props.REAL_TOPIC, message.topic),
            message_id=properties.get(props.UNIQUE_KEY, ""),
            offset_message_id=message.offset_message_id,
            stored_ms=message.store_timestamp_ms,
            body_bytes=len(message.body),
            keys=properties.get(props.KEYS, "")[:_TEXT_MAX],
            tags=properties.get(props.TAGS, "")[:_TEXT_MAX],
            due_ms=due_ms,
            level=entry.queue_id + 1 if entry.topic == SCHEDULE_TOPIC else 0,
            handle=self._handle(entry, message, due_ms),
            group=properties.get(props.PRODUCER_GROUP, ""),
            checks=self._checks(entry),
            is_put_off=entry.topic == HALF_TOPIC and entry.offset in self._metadata.checks.put_off,
        )

    def _handle(self, entry: _PendingEntry, message: StoredMessage, due_ms: int) -> str:
        """Return the recall handle of a timed message; empty for others, which cannot be recalled."""
        topic, key = message.properties.get(props.REAL_TOPIC, ""), message.properties.get(props.UNIQUE_KEY, "")
        is_recallable = entry.topic == TIMER_TOPIC and props.DELAY not in message.properties
        if not is_recallable or topic.startswith(RETRY_PREFIX):
            return ""
        return RecallHandle(topic, self._broker_name, due_ms, key, entry.offset).encode() or ""

    def _checks(self, entry: _PendingEntry) -> int:
        """Return how often the producer group of a half message was asked for the outcome; 0 for other messages."""
        if entry.topic != HALF_TOPIC:
            return 0
        return sum(entry.offset < offset for offset in self._metadata.checks.offsets.values())


def _nearest(entries: list[_PendingEntry], count: int) -> list[_PendingEntry]:
    """Return the first ``count`` entries by time. Those without a time come first."""
    return sorted(entries, key=itemgetter(0))[:count]


def _border(left_ms: int) -> int:
    """Return the smallest border, in seconds, that is at least ``left_ms``; the last one for later messages."""
    return next((border for border in BORDERS_SECONDS if left_ms <= border * 1000), BORDERS_SECONDS[-1])


def _parse_int(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 20 else 0
