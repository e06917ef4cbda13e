"""Popped messages that nobody acknowledged in time: the leader gives them to their groups again.

They are copied to the retry topic of their group and topic, in one log entry with the command that takes them out of
their checkpoint (`mq.broker.schedule.delivery`); so there is one copy of each that can be had, whatever happens to the
leader. Checkpoints stand in a heap by the time at which they are over. It is made anew from the replicated state by
whoever leads. When the time of one is over, its open messages are due, one after the other.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from itertools import islice

from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import BrokerContext
from mq.broker.pop.ack import AcksInFlight, Place
from mq.broker.pop.ordered_clock import OrderedClock
from mq.broker.schedule.delivery import Delivery, Due, Moved
from mq.broker.schedule.read_backoff import ReadBackoff
from mq.broker.state.commands import Command, PutTopic, TopicConfig
from mq.broker.state.pop_checkpoints import SPAN_MAX, AckMessages, QueueOfGroup, offsets_of
from mq.broker.write_path.outcome import OnOutcome, Outcome, Stored
from mq.broker.write_path.pending import InternalRecord
from mq.broker.write_path.queue_offsets import NextOffset
from mq.broker.write_path.record_copy import copy_record
from mq.protocol import properties as props
from mq.protocol.names import pop_retry_topic
from mq.protocol.records import StoredMessage, decode_record

_GROUPS_IN_FLIGHT_MAX = 32
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
        context: BrokerContext,
        *,
        read: Callable[[int, int], bytes],
        leaving: Callable[[], AcksInFlight],
        woken: Callable[[str, str, int], None],
        freed: Callable[[QueueOfGroup], None],
        ordered_clock: OrderedClock,
    ) -> None:
        self._context = context
        self._metadata = context.metadata
        self._store = context.store
        self._tails = context.queue_offsets
        self._read = read
        self._leaving = leaving
        self._woken = woken
        self._freed = freed
        self._ordered_clock = ordered_clock
        self._wall_clock_ms = context.wall_clock_ms
        self._log = RateLimitedLog(context.log, context.wall_clock_ms)
        self._heap: list[tuple[int, Place]] = []
        self._unlisted: Iterator[tuple[int, Place]] = iter(())
        self._tail: NextOffset
        """Where messages of the checkpoint go that are due."""
        self._delivery: Delivery[Place] | None = None
        self._unreadable = ReadBackoff()
        self._seen_ms = 0
        self.revived = 0
        self.lost = 0

    def lead(self) -> None:
        """This replica leads, and everything committed before is applied."""
        self._unreadable = ReadBackoff()
        self._delivery = Delivery(
            self._context,
            self,
            unreadable=self._unreadable,
            log=self._log,
            groups_max=_GROUPS_IN_FLIGHT_MAX,
            read=self._read,
        )
        self._look_anew()

    def resign(self) -> None:
        """This replica does not lead any more."""
        if self._delivery is not None:
            self._delivery.stop()
        self._delivery = None
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
        if self._delivery is not None:
            self._delivery.run(now_ms)

    # -- what is due: see `mq.broker.schedule.delivery.Source` ---------------------------------------------------------

    def restart(self) -> None:
        """See `Source`."""
        self._look_anew()

    def due(self, now_ms: int) -> Generator[Due[Place], int | None]:
        """See `Source`: open messages of the checkpoints whose time is over."""
        while self._heap and self._heap[0][0] <= now_ms:
            place = self._heap[0][1]
            again_ms = yield from self._due_of(place, now_ms)
            _, ended = heapq.heappop(self._heap)
            assert ended is place, "another checkpoint came first while messages of this one were delivered"
            if again_ms is not None:
                heapq.heappush(self._heap, (again_ms, place))

    def _due_of(self, place: Place, now_ms: int) -> Generator[Due[Place], int | None, int | None]:
        """Open messages of a checkpoint; returns when to look at it again, None for not at all."""
        key, start, pop_time_ms = place
        group, topic, queue_id = key
        due_ms = self._due_ms(place, now_ms)
        if due_ms is None:
            if self._unreadable:
                self._unreadable.gone(place, start + SPAN_MAX)
            return None
        checkpoint = self._metadata.pops.of(key).open.get((start, pop_time_ms))
        if due_ms > now_ms and (checkpoint is None or pop_time_ms <= now_ms):
            return due_ms  # its time was changed, or the clock was
        if checkpoint is None:
            self._freed(key)
            return None
        retry_topic = pop_retry_topic(group, topic)
        queue = self._store.get(topic, queue_id) if group in self._metadata.groups else None
        if group in self._metadata.groups and not self._metadata.has_room_for_topic(retry_topic):
            self._log.warning("retry_topic_refused", topic=retry_topic, topics=len(self._metadata.topics))
            return now_ms + _PAUSE_MS
        self._tail = self._tails.get(retry_topic, 0)
        leaving = self._leaving()
        again_ms: int | None = None
        for offset in offsets_of(start, checkpoint.bits & ~leaving.of(place)):
            is_there = queue is not None and queue.min_offset <= offset < queue.max_offset
            until_ms = yield Due(place, offset, queue if is_there else None)
            if until_ms is None:
                leaving.begin(place, 1 << (offset - start))
            else:
                again_ms = until_ms if again_ms is None else min(again_ms, until_ms)
        return again_ms

    def copy(self, due: Due[Place], record: bytes, now_ms: int) -> InternalRecord:
        """See `Source`."""
        (group, _, _), _, pop_time_ms = due.key
        return _copy(decode_record(memoryview(record)), self._tail, group, pop_time_ms)

    def mark(self, moved: Moved[Place], now_ms: int) -> tuple[list[Command], OnOutcome]:
        """See `Source`. A message that the log has lost leaves its checkpoint without a copy."""
        leaving = self._leaving()
        done: dict[Place, int] = {}
        created: dict[str, PutTopic] = {}
        there: Counter[tuple[str, str]] = Counter()
        """How many messages more each group can have of each topic."""
        for due, record in moved:
            place, (group, topic, _) = due.key, due.key[0]
            done[place] = done.get(place, 0) | 1 << (due.offset - place[1])
            if record is None:
                self.lost += group in self._metadata.groups
                continue
            self.revived += 1
            origin = props.find(record.properties.decode("utf-8", "replace"), props.RETRY_TOPIC)
            there[group, topic] += 1
            if origin and origin != topic:
                there[group, origin] += 1
            if (name := record.tail.topic) not in self._metadata.topics:
                config = TopicConfig(name=name, read_queues=1, write_queues=1)
                created[name] = PutTopic(config=config, timestamp_ms=now_ms, unless_there=True)

        def settled(outcome: Outcome) -> None:
            if leaving is not self._leaving():
                return  # of another leadership
            for place, bits in done.items():
                leaving.end(place, bits)
            if isinstance(outcome, Stored):
                for (group, topic), count in there.items():
                    self._woken(group, topic, count)

        rows = [(*key, start, pop_time_ms, bits) for (key, start, pop_time_ms), bits in done.items()]
        return [*created.values(), AckMessages(rows=rows)], settled

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
    return copy_record(message, tail, encoded[: props.PROPERTIES_BYTES_MAX], attempts=1)
