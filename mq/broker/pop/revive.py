"""Redelivers popped messages that were not acknowledged in time, on the leader.

They are copied to the retry topic of their group and topic, in one log entry with the command that removes them from
their checkpoint (`mq.broker.schedule.delivery`); so exactly one copy is available, whatever happens to the leader. A
heap orders checkpoints by the end of their invisible time; each new leader builds it from the replicated state. When
the time of a checkpoint ends, its open messages become due, one after the other.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from itertools import islice

from mq.broker.base.rate_limited_log import RateLimitedLog
from mq.broker.context import BrokerContext
from mq.broker.pop.ack import AcksInFlight
from mq.broker.pop.ordered_clock import OrderedClock
from mq.broker.pop.retry_topics import PopRetryTopics
from mq.broker.schedule.delivery import Delivery, Due, Moves
from mq.broker.schedule.read_backoff import ReadBackoff
from mq.broker.state.commands import Command, PutTopic
from mq.broker.state.pop_checkpoints import SPAN_MAX, AckMessages, CheckpointId, QueueOfGroup, offsets_of
from mq.broker.write_path.outcome import OnOutcome, Outcome, Stored
from mq.broker.write_path.pending import InternalRecord
from mq.broker.write_path.queue_tails import QueueTail
from mq.broker.write_path.record_copy import copy_record
from mq.protocol import properties as props
from mq.protocol.messages.records import StoredMessage, decode_record
from mq.protocol.messages.redelivery_properties import with_origin
from mq.protocol.names import pop_retry_topic

_GROUPS_IN_FLIGHT_MAX = 32
_PAUSE_MS = 1000
_LISTED_AT_ONCE = 2000
"""Checkpoints put into the heap in one step: a few milliseconds."""


class PopRevival:
    """Redelivers popped messages whose invisible time has ended, while this replica leads.

    Args:
        in_flight: messages that are leaving their checkpoints, of this leadership.
        woken: called with a group and a topic that has ``count`` messages more for it.
        on_free: called with an ordered queue whose invisible time has ended.
        ordered_clock: says how long ordered queues stay blocked.

    Attributes:
        revive_count: messages appended for redelivery.
        loss_count: due messages that the log had already deleted.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        in_flight: Callable[[], AcksInFlight],
        woken: Callable[[str, str, int], None],
        on_free: Callable[[QueueOfGroup], None],
        ordered_clock: OrderedClock,
    ) -> None:
        self._context = context
        self._broker_name = context.settings.group
        self._metadata = context.metadata
        self._store = context.store
        self._retry_topics = PopRetryTopics(context)
        self._in_flight = in_flight
        self._woken = woken
        self._on_free = on_free
        self._ordered_clock = ordered_clock
        self._wall_clock_ms = context.wall_clock_ms
        self._log = RateLimitedLog(context.log, context.wall_clock_ms)
        self._heap: list[tuple[int, CheckpointId]] = []
        self._to_list: Iterator[tuple[int, CheckpointId]] = iter(())
        self._is_listing = False
        self._delivery: Delivery[CheckpointId] | None = None
        self._unreadable = ReadBackoff()
        self._seen_ms = 0
        self.revive_count = 0
        self.loss_count = 0

    def lead(self) -> None:
        """Start redelivering messages, since this replica leads."""
        self._unreadable = ReadBackoff()
        self._delivery = Delivery(
            self._context,
            self,
            unreadable=self._unreadable,
            log=self._log,
            groups_max=_GROUPS_IN_FLIGHT_MAX,
        )
        self._rescan()

    def resign(self) -> None:
        """Stop redelivering messages, since this replica stops leading."""
        if self._delivery is not None:
            self._delivery.stop()
        self._delivery = None
        self._heap = []
        self._to_list = iter(())

    def check_invariants(self) -> None:
        """Assert that a leader watches every open checkpoint, and a follower none; for tests, since it is slow."""
        if self._delivery is None:
            assert not self._heap, f"{len(self._heap)} checkpoints are watched, and this replica does not lead"
            return
        self._delivery.check_invariants()
        # Due checkpoints are no longer in the heap. If it is not stored, the next `run` puts everything there again.
        if self._is_listing or self._delivery.must_restart:
            return
        ids = {checkpoint_id for _, checkpoint_id in self._heap}
        for key, of_queue in self._metadata.pops.queues.items():
            for (start, pop_time_ms), checkpoint in of_queue.open.items():
                checkpoint_id = CheckpointId(key, start, pop_time_ms)
                open_bits = checkpoint.bits & ~self._in_flight().bits(checkpoint_id)
                assert not open_bits or checkpoint_id in ids, f"nobody redelivers {open_bits:#x} of {checkpoint_id}"

    def schedule(self, checkpoint_id: CheckpointId) -> None:
        """Redeliver the messages of a checkpoint when its invisible time ends."""
        due_ms = self._due_ms(checkpoint_id, self._wall_clock_ms())
        if due_ms is None:
            return
        heapq.heappush(self._heap, (due_ms, checkpoint_id))
        # Acknowledged checkpoints stay in the heap until their time; those of a fast group would pile up.
        pops = self._metadata.pops
        if len(self._heap) > 2 * (pops.count + len(pops.queues)) + 1024:
            self._rescan()

    def _rescan(self) -> None:
        """Rebuild the heap in steps, since there may be very many checkpoints."""
        self._heap = []
        self._to_list = self._all(list(self._metadata.pops.queues), self._wall_clock_ms())
        self._is_listing = True

    def rests_until(self) -> float:
        """Return when `run` has something to do next, on the clock of the event loop."""
        if self._is_listing or (self._delivery is not None and self._delivery.is_under_way):
            return float("-inf")
        if not self._heap:
            return float("inf")
        return self._context.clock() + (self._heap[0][0] - self._wall_clock_ms()) / 1000

    def run(self) -> None:
        """Redeliver messages whose invisible time ended; called by a timer several times a second."""
        now_ms = self._wall_clock_ms()
        if now_ms < self._seen_ms - _PAUSE_MS:
            self._rescan()  # the clock was set back: do not wait until it has caught up
        self._seen_ms = now_ms
        rows = list(islice(self._to_list, _LISTED_AT_ONCE))
        self._is_listing = len(rows) == _LISTED_AT_ONCE
        for row in rows:
            heapq.heappush(self._heap, row)
        if self._delivery is not None:
            self._delivery.run(now_ms)

    # -- due messages: see `mq.broker.schedule.delivery.Source` --------------------------------------------------------

    def restart(self) -> None:
        """List all open checkpoints again."""
        self._rescan()

    def due(self, now_ms: int) -> Generator[Due[CheckpointId], int | None]:
        """Yield the open messages of checkpoints whose invisible time has ended; see `Source.due`."""
        while self._heap and self._heap[0][0] <= now_ms:
            checkpoint_id = self._heap[0][1]
            again_ms = yield from self._due_of(checkpoint_id, now_ms)
            _, top_id = heapq.heappop(self._heap)
            assert top_id is checkpoint_id, "another checkpoint came first while messages of this one were delivered"
            if again_ms is not None:
                heapq.heappush(self._heap, (again_ms, checkpoint_id))

    def _due_of(self, checkpoint_id: CheckpointId, now_ms: int) -> Generator[Due[CheckpointId], int | None, int | None]:
        """Yield the open messages of a checkpoint. Returns when to check it again, None for never."""
        key, start, pop_time_ms = checkpoint_id
        group, topic, queue_id = key
        due_ms = self._due_ms(checkpoint_id, now_ms)
        if due_ms is None:
            if self._unreadable:
                self._unreadable.forget_before(checkpoint_id, start + SPAN_MAX)
            return None
        checkpoint = self._metadata.pops.get(key).open.get((start, pop_time_ms))
        if due_ms > now_ms and (checkpoint is None or pop_time_ms <= now_ms):
            return due_ms  # its invisible time or the clock was changed
        if checkpoint is None:
            self._on_free(key)
            return None
        retry_topic = pop_retry_topic(group, topic)
        queue = self._store.get(topic, queue_id) if group in self._metadata.groups else None
        if group in self._metadata.groups and not self._metadata.has_room_for_topic(retry_topic):
            self._log.warning("retry_topic_refused", topic=retry_topic, topics=len(self._metadata.topics))
            return now_ms + _PAUSE_MS
        in_flight = self._in_flight()
        again_ms: int | None = None
        for offset in offsets_of(start, checkpoint.bits & ~in_flight.bits(checkpoint_id)):
            is_there = queue is not None and queue.min_offset <= offset < queue.max_offset
            until_ms = yield Due(checkpoint_id, offset, queue if is_there else None)
            if until_ms is None:
                in_flight.begin(checkpoint_id, 1 << (offset - start))
            else:
                again_ms = until_ms if again_ms is None else min(again_ms, until_ms)
        return again_ms

    def copy(self, due: Due[CheckpointId], record: bytes, now_ms: int) -> InternalRecord:
        """Copy a message for the retry topic of its group."""
        key, start, pop_time_ms = due.key
        group, topic, _ = key
        checkpoint = self._metadata.pops.get(key).open.get((start, pop_time_ms))
        message = decode_record(memoryview(record))
        origin = message.properties.get(props.RETRY_TOPIC, message.topic)
        tail = self._retry_topics.tail(group, topic, origin, message.properties)
        attempts = 0 if checkpoint is not None and checkpoint.suspended else 1
        return _copy(message, tail, group, pop_time_ms, self._broker_name, attempts)

    def mark(self, moves: Moves[CheckpointId], now_ms: int) -> tuple[list[Command], OnOutcome]:
        """Return commands that close these messages, also lost ones, and create retry topics; and a callback."""
        in_flight = self._in_flight()
        bits_by_id: dict[CheckpointId, int] = {}
        topics: dict[str, PutTopic] = {}
        there: Counter[tuple[str, str]] = Counter()
        """Messages that become available, by group and topic."""
        for due, record in moves:
            checkpoint_id, (group, topic, _) = due.key, due.key[0]
            number = due.offset - checkpoint_id.start
            assert 0 <= number < SPAN_MAX, f"{checkpoint_id}: message {due.offset} is delivered"
            bits_by_id[checkpoint_id] = bits_by_id.get(checkpoint_id, 0) | 1 << (due.offset - checkpoint_id.start)
            if record is None:
                self.loss_count += group in self._metadata.groups
                continue
            self.revive_count += 1
            origin = props.find(record.properties.decode("utf-8", "replace"), props.RETRY_TOPIC)
            there[group, topic] += 1
            if origin and origin != topic:
                there[group, origin] += 1
            if (put := self._retry_topics.put(record.tail, origin or topic, now_ms)) is not None:
                topics[record.tail.topic] = put

        def finish(outcome: Outcome) -> None:
            if in_flight is not self._in_flight():
                return  # from an earlier leadership
            for checkpoint_id, bits in bits_by_id.items():
                in_flight.end(checkpoint_id, bits)
            if isinstance(outcome, Stored):
                for (group, topic), count in there.items():
                    self._woken(group, topic, count)

        rows = [(*key, start, pop_time_ms, bits) for (key, start, pop_time_ms), bits in bits_by_id.items()]
        return [*topics.values(), AckMessages(rows=rows)], finish

    def _all(self, keys: list[QueueOfGroup], now_ms: int) -> Iterator[tuple[int, CheckpointId]]:
        for key in keys:
            of_queue = self._metadata.pops.get(key)
            checkpoint_ids = [CheckpointId(key, start, pop_time_ms) for start, pop_time_ms in of_queue.open]
            if (open_pop := of_queue.ordered) is not None:
                checkpoint_ids.append(CheckpointId(key, open_pop.start, open_pop.pop_time_ms))
            for checkpoint_id in checkpoint_ids:
                if (due_ms := self._due_ms(checkpoint_id, now_ms)) is not None:
                    yield due_ms, checkpoint_id

    def _due_ms(self, checkpoint_id: CheckpointId, now_ms: int) -> int | None:
        """Return when the invisible time of a checkpoint ends; None if the checkpoint is closed.

        If the pop time is after ``now_ms``, the wall clock was set back: the invisible time starts again now. For an
        ordered queue see `OrderedClock`.
        """
        key, start, pop_time_ms = checkpoint_id
        of_queue = self._metadata.pops.get(key)
        checkpoint = of_queue.open.get((start, pop_time_ms))
        if checkpoint is not None:
            return min(pop_time_ms, now_ms) + checkpoint.invisible_ms
        open_pop = of_queue.ordered
        if open_pop is None or (open_pop.start, open_pop.pop_time_ms) != (start, pop_time_ms):
            return None
        return now_ms + self._ordered_clock.wait_ms(key, open_pop, now_ms)


def _copy(
    message: StoredMessage, tail: QueueTail, group: str, pop_time_ms: int, broker_name: str, attempts: int
) -> InternalRecord:
    """Copy a message for its retry topic, and add ``attempts`` to its number of deliveries."""
    properties = with_origin(message, broker_name)
    properties.setdefault(props.FIRST_POP_TIME, str(pop_time_ms))
    properties[props.ORIGIN_GROUP] = group
    return copy_record(message, tail, props.fit(properties), attempts=attempts)
