"""Popped messages that nobody acknowledged in time: the leader gives them to their groups again.

They are copied to the retry topic of their group and topic, in one log entry with the command that takes them out of
their checkpoint; so there is one copy of each that can be had, whatever happens to the leader. Checkpoints stand in a
heap by the time at which they are over. It is made anew from the replicated state by whoever leads.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import structlog

from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.pop.ack import AcksInFlight, Place
from mq.broker.pop.ordered_clock import OrderedClock
from mq.broker.state.commands import PutTopic, TopicConfig, encode_command
from mq.broker.state.metadata import Metadata
from mq.broker.state.pop_checkpoints import AckMessages, QueueOfGroup, offsets_of
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.outcome import Outcome, Stored
from mq.broker.write_path.pending import InternalRecord, PendingCommand, PendingGroup
from mq.broker.write_path.queue_offsets import NextOffset, QueueOffsets
from mq.protocol import properties as props
from mq.protocol.hashes import tag_code
from mq.protocol.names import pop_retry_topic
from mq.protocol.records import (
    BORN_HOST_IPV6,
    STORE_HOST_IPV6,
    RecordError,
    StoredMessage,
    decode_record,
    encode_host,
)
from mq.protocol.wire_names import INT32_MAX
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError
from mq.store.queue_store import QueueStore
from raftlog import SegmentError
from raftlog.segment import EntryGone

Log = structlog.stdlib.BoundLogger

_GROUP_BYTES_MAX = 256 * 1024
_GROUPS_IN_FLIGHT_MAX = 32
_COMMANDS_BYTES_MAX = 2048
_PAUSE_MS = 1000
_LISTED_AT_ONCE = 2000
"""Checkpoints that are put into the heap in one go: some milliseconds."""


class PopRevival:
    """Looks after checkpoints while this replica leads.

    Args:
        read: ``read(physical_offset, nbytes)`` of the log.
        leaving: what is on its way out of checkpoints, of this leadership.
        woken: told of a group and a topic of which it can have ``count`` messages more.
        freed: told of a queue that is consumed in order and whose time is over.
        ordered_clock: says how long queues that are consumed in order stay blocked.

    Attributes:
        revived: how many messages were put into the log to come again.
        lost: how many were due that the log had lost to its retention.
    """

    def __init__(
        self,
        *,
        metadata: Metadata,
        store: QueueStore,
        appender: Appender,
        tails: QueueOffsets,
        read: Callable[[int, int], bytes],
        leaving: Callable[[], AcksInFlight],
        woken: Callable[[str, str, int], None],
        freed: Callable[[QueueOfGroup], None],
        ordered_clock: OrderedClock,
        pending_bytes_max: int,
        wall_clock_ms: Callable[[], int],
        log: Log,
    ) -> None:
        self._metadata = metadata
        self._store = store
        self._appender = appender
        self._tails = tails
        self._read = read
        self._leaving = leaving
        self._woken = woken
        self._freed = freed
        self._ordered_clock = ordered_clock
        self._pending_bytes_max = pending_bytes_max
        self._wall_clock_ms = wall_clock_ms
        self._log = RateLimitedLog(log, wall_clock_ms)
        self._group_bytes_max = min(_GROUP_BYTES_MAX, appender.entry_bytes_max) - _COMMANDS_BYTES_MAX
        self._heap: list[tuple[int, Place]] = []
        self._unlisted: Iterator[tuple[int, Place]] = iter(())
        self._groups = 0
        self._seen_ms = 0
        self.revived = 0
        self.lost = 0

    def lead(self) -> None:
        """This replica leads, and everything committed before is applied."""
        self._groups = 0
        self._look_anew()

    def resign(self) -> None:
        """This replica does not lead any more."""
        self._heap = []
        self._unlisted = iter(())

    def schedule(self, place: Place) -> None:
        """Look at a checkpoint when its time is over."""
        due_ms = self._due_ms(place, self._wall_clock_ms())
        if due_ms is None:
            return
        heapq.heappush(self._heap, (due_ms, place))
        # Checkpoints that were acknowledged stay in the heap until their time; of a fast group they would pile up.
        pops = self._metadata.pops
        if len(self._heap) > 2 * (pops.count + len(pops.queues)) + 1024:
            self._look_anew()

    def _look_anew(self) -> None:
        """Make the heap anew; some at a time, for there may be very many."""
        self._heap = []
        self._unlisted = self._all(list(self._metadata.pops.queues), self._wall_clock_ms())

    def run(self) -> None:
        """Give back what is due; called by a timer some times a second."""
        now_ms = self._wall_clock_ms()
        if now_ms < self._seen_ms - _PAUSE_MS:
            self._look_anew()  # the clock went back, and nobody is to wait until it is there again
        self._seen_ms = now_ms
        for row in islice(self._unlisted, _LISTED_AT_ONCE):
            heapq.heappush(self._heap, row)
        while self._heap and self._heap[0][0] <= now_ms and self._may_begin():
            _, place = heapq.heappop(self._heap)
            due_ms = self._due_ms(place, now_ms)
            if due_ms is None:
                continue
            key, start, pop_time_ms = place
            in_order = (start, pop_time_ms) not in self._metadata.pops.of(key).open
            if due_ms > now_ms and (in_order or pop_time_ms <= now_ms):
                heapq.heappush(self._heap, (due_ms, place))  # its time was changed, or the clock was
                continue
            if in_order:
                self._freed(key)
                continue
            try:
                whole = self._revive(place, now_ms)
            except (SegmentError, StoreError, RecordError, OSError) as error:
                # Other replicas have what this disk does not give.
                self._log.warning("popped_message_unreadable", topic=key[1], queue_id=key[2], error=str(error))
                whole = False
            if not whole:
                heapq.heappush(self._heap, (now_ms + _PAUSE_MS, place))

    def _may_begin(self) -> bool:
        return (
            self._appender.is_open
            and self._groups < _GROUPS_IN_FLIGHT_MAX
            # As with delayed messages, producers that are too fast do not keep all others waiting.
            and (not self._groups or self._appender.pending_bytes <= self._pending_bytes_max)
        )

    def _all(self, keys: list[QueueOfGroup], now_ms: int) -> Iterator[tuple[int, Place]]:
        for key in keys:
            of_queue = self._metadata.pops.of(key)
            places = [(key, start, pop_time_ms) for start, pop_time_ms in of_queue.open]
            if (ordered := of_queue.ordered) is not None:
                places.append((key, ordered.start, ordered.pop_time_ms))
            for place in places:
                if (due_ms := self._due_ms(place, now_ms)) is not None:
                    yield due_ms, place

    def _due_ms(self, place: Place, now_ms: int) -> int | None:
        """When the time of a checkpoint is over, None if it has ended.

        If the pop time is after ``now_ms``, the wall clock went back since: the invisible time starts again now. For a
        queue that is consumed in order see `OrderedClock`.
        """
        key, start, pop_time_ms = place
        of_queue = self._metadata.pops.of(key)
        checkpoint = of_queue.open.get((start, pop_time_ms))
        if checkpoint is not None:
            return min(pop_time_ms, now_ms) + checkpoint.invisible_ms
        ordered = of_queue.ordered
        if ordered is None or (ordered.start, ordered.pop_time_ms) != (start, pop_time_ms):
            return None
        return now_ms + self._ordered_clock.wait_ms(key, ordered, now_ms)

    def _revive(self, place: Place, now_ms: int) -> bool:
        """Put a checkpoint's open messages into the retry topic; returns False if some have to wait."""
        key, start, pop_time_ms = place
        leaving = self._leaving()
        bits = self._metadata.pops.of(key).open[start, pop_time_ms].bits & ~leaving.of(place)
        retry_topic = pop_retry_topic(*key[:2])
        if key[0] in self._metadata.groups and not self._metadata.has_room_for_topic(retry_topic):
            self._log.warning("retry_topic_refused", topic=retry_topic, topics=len(self._metadata.topics))
            return False
        while bits:
            if not self._may_begin():
                return False
            done, records, topics = self._copies(place, bits)
            group: PendingGroup = []
            if records and retry_topic not in self._metadata.topics:
                config = TopicConfig(name=retry_topic, read_queues=1, write_queues=1)
                creation = PutTopic(config=config, timestamp_ms=now_ms, unless_there=True)
                group.append(PendingCommand(encode_command(creation)))
            command = AckMessages(rows=[(*key, start, pop_time_ms, done)])
            settled = partial(self._settled, leaving, place, done, len(records), topics)
            leaving.begin(place, done)
            self._groups += 1
            self.revived += len(records)
            self._appender.add_atomically([*group, *records, PendingCommand(encode_command(command), settled)])
            bits &= ~done
        return True

    def _settled(
        self, leaving: AcksInFlight, place: Place, done: int, count: int, topics: set[str], outcome: Outcome
    ) -> None:
        known = isinstance(outcome, Stored)
        if leaving is not self._leaving():
            return  # of another leadership
        self._groups -= 1
        leaving.end(place, done)
        if not known:
            heapq.heappush(self._heap, (self._wall_clock_ms() + _PAUSE_MS, place))
            return
        for topic in topics:
            self._woken(place[0][0], topic, count)

    def _copies(self, place: Place, bits: int) -> tuple[int, list[InternalRecord], set[str]]:
        """Copies of as many messages as fit an entry, a bit for each message they are of, and whose pops get them.

        What the log has lost has its bit, and no copy. Raises SegmentError, StoreError, RecordError, OSError.
        """
        (group, topic, queue_id), start, pop_time_ms = place
        queue = self._store.get(topic, queue_id)
        tail = self._tails.get(pop_retry_topic(group, topic), 0)
        records: list[InternalRecord] = []
        topics = {topic}
        nbytes = done = 0
        for offset in offsets_of(start, bits):
            if group in self._metadata.groups:
                try:
                    message = None if queue is None else self._message(queue, offset)
                except (SegmentError, StoreError, RecordError, OSError):
                    if not done:
                        raise
                    break
                if message is not None:
                    record = _copy(message, tail, group, pop_time_ms)
                    if records and nbytes + record.nbytes > self._group_bytes_max:
                        break
                    records.append(record)
                    nbytes += record.nbytes
                    topics.add(message.properties.get(props.RETRY_TOPIC, topic))
                else:
                    self.lost += 1
            done |= 1 << (offset - start)
        return done, records, topics

    def _message(self, queue: ConsumeQueue, offset: int) -> StoredMessage | None:
        """A message of a queue, None if the log has lost it."""
        if not queue.min_offset <= offset < queue.max_offset:
            return None
        position, size, _ = QUEUE_ENTRY.unpack(queue.read(offset, 1))
        try:
            return decode_record(memoryview(self._read(position, size)))
        except EntryGone:
            return None


def _copy(message: StoredMessage, tail: NextOffset, group: str, pop_time_ms: int) -> InternalRecord:
    """A message as it is in the retry topic."""
    properties = {
        props.RETRY_TOPIC: message.topic,
        props.ORIGIN_MESSAGE_ID: message.offset_message_id,
        props.FIRST_POP_TIME: str(pop_time_ms),
        **message.properties,
        props.ORIGIN_GROUP: group,
    }
    encoded = props.encode(properties).encode()
    if len(encoded) > props.PROPERTIES_BYTES_MAX:
        # Another group's name would keep it from this one.
        kept = {name: value for name, value in message.properties.items() if name != props.ORIGIN_GROUP}
        encoded = props.encode(kept).encode()
    return InternalRecord(
        tail=tail,
        body=message.body,
        properties=encoded[: props.PROPERTIES_BYTES_MAX],
        tag_code=tag_code(message.properties.get(props.TAGS, "")),
        flag=message.flag,
        sys_flag=message.sys_flag & ~(BORN_HOST_IPV6 | STORE_HOST_IPV6),
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=encode_host(*message.born_host) if "." in message.born_host.ip else bytes(8),
        reconsume_times=min(message.reconsume_times + 1, INT32_MAX),
    )
