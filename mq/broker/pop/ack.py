"""Acknowledgements of popped messages (request codes 200051 and 200151), and changes of invisible times (200053).

Requests of one turn of the event loop enter the log together and are answered when committed. A message may leave its
checkpoint only once: by an acknowledgement, a changed invisible time, or a move to the retry topic. The first one in
the log wins; later requests are told that the message does not exist.

The answer to a changed invisible time may be lost, for example with the leader. Then its client has only the former
receipt, and asks again, or acknowledges with it. So a former receipt stands for the checkpoint that was made from its
own, as long as that is open: no other client can have popped the message in the meantime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, KeysView
from itertools import groupby
from typing import Any

from mq.broker.limits import PopLimits
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route
from mq.broker.pop.ordered_clock import OrderedClock
from mq.broker.state.commands import encode_command
from mq.broker.state.format_level import LEVEL_OF_SUSPENDED_MESSAGES
from mq.broker.state.metadata import Metadata
from mq.broker.state.pop_checkpoints import (
    INVISIBLE_MS_MAX,
    SPAN_MAX,
    AckMessages,
    CheckpointId,
    DeferMessage,
    PopMessages,
    QueueOfGroup,
    offsets_of,
)
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.outcome import DiskFull, LeadershipLost, Outcome, Stored, Unknown
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import BodyError
from mq.protocol.names import NameRefused, check_lite_topic, fitted_topic, lite_queue, pop_retry_topic
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.requests.lite import AckLiteExt, AckLiteMessage
from mq.protocol.requests.pop import (
    AckExt,
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleExt,
    ChangeMessageInvisibleTime,
    PopTimes,
)
from mq.protocol.requests.receipts import (
    NORMAL,
    ORDERED_REVIVE_QUEUE,
    REVIVE_QUEUE,
    AckRow,
    BatchAck,
    ReceiptError,
    ReceiptReader,
)
from mq.protocol.wire.encoding import ONEWAY_FLAG
from mq.store.queue_store import QueueStore

ROWS_MAX = 200
"""Checkpoints in one command: even with the longest names it fits the smallest log file."""
BATCH_ROWS_MAX = 10_000
"""Checkpoints in one batch of acknowledgements."""

_Waiter = tuple[Call[Any], bytes]
"""A request, and its answer."""


class AcksInFlight:
    """Tracks popped messages for which an acknowledgement, a change of the invisible time or a redelivery is in flight.

    Attributes:
        ready: requests that have waited, to be handled again.
    """

    def __init__(self) -> None:
        self._bits: dict[CheckpointId, int] = {}
        self._queues: dict[QueueOfGroup, int] = {}
        self._waiting_calls: dict[CheckpointId, list[Call[Any]]] = {}
        self.ready: list[Call[Any]] = []

    def bits(self, checkpoint_id: CheckpointId) -> int:
        """Return a bitmap of the messages of a checkpoint that are in flight."""
        return self._bits.get(checkpoint_id, 0)

    @property
    def queues(self) -> KeysView[QueueOfGroup]:
        """The queues that have messages in flight."""
        return self._queues.keys()

    def wait(self, checkpoint_id: CheckpointId, call: Call[Any]) -> None:
        """Hold a request for a message in flight until the outcome is known: it may repeat the earlier request."""
        assert self._bits.get(checkpoint_id), f"a request waits for {checkpoint_id}, of which nothing is in flight"
        self._waiting_calls.setdefault(checkpoint_id, []).append(call)

    def check_invariants(self) -> None:
        """Assert that queues are counted correctly, and that requests wait only for messages in flight; for tests."""
        assert all(bits > 0 for bits in self._bits.values()), f"nothing is in flight of one of {list(self._bits)}"
        queues = Counter(checkpoint_id.queue for checkpoint_id in self._bits)
        assert queues == self._queues, f"checkpoints in flight by queue are {dict(queues)}, counted {self._queues}"
        orphans = self._waiting_calls.keys() - self._bits.keys()
        assert not orphans, f"requests wait for {orphans}, of which nothing is in flight"

    def take_ready(self) -> list[Call[Any]]:
        """Remove and return the requests that have waited, to handle them again."""
        ready, self.ready = self.ready, []
        return ready

    def take_all(self) -> list[Call[Any]]:
        """Remove and return all requests, whether they are ready or still wait."""
        calls_by_id, self._waiting_calls = self._waiting_calls, {}
        return [*self.take_ready(), *(call for calls in calls_by_id.values() for call in calls)]

    def begin(self, checkpoint_id: CheckpointId, bits: int) -> None:
        """Mark messages of a checkpoint as in flight. None of them was in flight before."""
        assert bits > 0, f"{checkpoint_id}: the messages {bits:#x} are to leave"
        twice = self._bits.get(checkpoint_id, 0) & bits
        assert not twice, f"{checkpoint_id}: {twice:#x} is in flight already, and {bits:#x} as well"
        if checkpoint_id not in self._bits:
            self._queues[checkpoint_id.queue] = self._queues.get(checkpoint_id.queue, 0) + 1
        self._bits[checkpoint_id] = self._bits.get(checkpoint_id, 0) | bits

    def end(self, checkpoint_id: CheckpointId, bits: int) -> None:
        """Mark messages of a checkpoint as no longer in flight. All of them were in flight."""
        in_flight = self._bits[checkpoint_id] & bits
        assert in_flight == bits, f"{checkpoint_id}: of {bits:#x} only {in_flight:#x} was in flight"
        bits_left = self._bits[checkpoint_id] & ~bits
        self.ready += self._waiting_calls.pop(checkpoint_id, ())
        if bits_left:
            self._bits[checkpoint_id] = bits_left
            return
        del self._bits[checkpoint_id]
        self._queues[checkpoint_id.queue] -= 1
        left_in_queue = self._queues[checkpoint_id.queue]
        assert left_in_queue >= 0, f"{left_in_queue} checkpoints of {checkpoint_id.queue} are in flight"
        if not self._queues[checkpoint_id.queue]:
            del self._queues[checkpoint_id.queue]


class PopAcks:
    """Handles acknowledgements of popped messages, and changes of their invisible times.

    Args:
        schedule: called with a checkpoint to check when its invisible time ends.
        on_free: called with an ordered queue that may have messages again.
        is_popped_again: whether the open messages of an ordered queue are being popped again.
        ordered_clock: the time from which a changed invisible time is counted in an ordered queue.
    """

    def __init__(
        self,
        *,
        metadata: Metadata,
        store: QueueStore,
        appender: Appender,
        schedule: Callable[[CheckpointId], None],
        on_free: Callable[[QueueOfGroup], None],
        is_popped_again: Callable[[QueueOfGroup], bool],
        is_hidden: Callable[[QueueOffset, QueueOffset], bool],
        ordered_clock: OrderedClock,
        wall_clock_ms: Callable[[], int],
        limits: PopLimits,
    ) -> None:
        self._checkpoints_max = limits.checkpoints_max
        self._metadata = metadata
        self._store = store
        self._appender = appender
        self._schedule = schedule
        self._on_free = on_free
        self._is_taken_over = is_popped_again
        self._is_hidden = is_hidden
        self._ordered_clock = ordered_clock
        self._wall_clock_ms = wall_clock_ms
        self._receipts = ReceiptReader()
        self.in_flight = AcksInFlight()
        self._rows: dict[CheckpointId, int] = {}
        """The rows of the next command: one for each checkpoint, even if several requests name its messages."""
        self.waiters: list[_Waiter] = []

    def routes(self) -> Iterator[Route]:
        """Yield the requests that this service handles."""
        yield Route(AckMessage, self.handle_ack, leader_only=True, repeatable=True)
        yield Route(AckLiteMessage, self.handle_ack, leader_only=True, repeatable=True)
        yield Route(BatchAckMessage, self.handle_batch, leader_only=True, repeatable=True)
        yield Route(ChangeMessageInvisibleTime, self.handle_change, leader_only=True, repeatable=True)

    def resign(self) -> None:
        """Serve unanswered requests again, so that the new leader gets them, since this replica stops leading."""
        calls = self.in_flight.take_all()
        self.in_flight = AcksInFlight()
        self._rows = {}
        waiters, self.waiters = self.waiters, []
        for call in (*(call for call, _ in waiters), *calls):
            call.dispatch()

    def check_invariants(self) -> None:
        """Assert that acknowledged messages are counted as in flight; for tests."""
        self.in_flight.check_invariants()
        for checkpoint_id, bits in self._rows.items():
            missing_bits = bits & ~self.in_flight.bits(checkpoint_id)
            assert not missing_bits, f"{checkpoint_id}: {missing_bits:#x} is acknowledged, and not in flight"
        if self._appender.is_idle:
            queues = [*self.in_flight.queues]
            assert not queues, f"messages of {len(queues)} queues leave, such as {queues[0]}, and nothing is pending"

    def handle_ack(self, call: Call[AckMessage | AckLiteMessage]) -> bytes | None:
        """Request codes 200051 and 200072: acknowledge a popped message. Raises RequestRefused."""
        self._appender.check_room()
        checkpoint_id, bit = self._message(call.request.ext)
        if self.in_flight.bits(checkpoint_id) & bit:
            self.in_flight.wait(checkpoint_id, call)
            return None
        self._add(checkpoint_id, bit)
        self._gather((call, call.success()))
        return None

    def handle_batch(self, call: Call[BatchAckMessage]) -> bytes | None:
        """Request code 200151: acknowledge messages of several receipts. Raises RequestRefused."""
        self._appender.check_room()
        try:
            acks = BatchAck.decode(call.body).acks
            if len(acks) > BATCH_ROWS_MAX:
                raise ReceiptError(f"the batch has {len(acks)} acknowledgements; maximum: {BATCH_ROWS_MAX}")
            pairs = [(ack, ack.bits) for ack in acks]
        except (BodyError, ReceiptError) as error:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        count = missing_count = 0
        for ack, bits in pairs:
            topic = ack.topic if ack.mark == NORMAL else pop_retry_topic(ack.group, ack.topic)
            key = ack.group, fitted_topic(topic), ack.queue_id
            checkpoint_id = self._id_of(key, ack.start, ack.pop_time_ms)
            rows = [(checkpoint_id, bits << (ack.start - checkpoint_id.start)), *self._own_checkpoints(key, ack, bits)]
            effective = 0
            for checkpoint_id, wanted_bits in rows:
                if open_bits := self._open_bits(checkpoint_id) & wanted_bits:
                    effective += open_bits.bit_count()
                    self._add(checkpoint_id, open_bits)
            count += effective
            missing_count += bits.bit_count() - effective
        if not count:
            raise RequestRefused(
                ResponseCode.NO_MESSAGE, f"none of these {missing_count} messages is still hidden for this receipt"
            )
        if missing_count:
            remark = f"{missing_count} of {count + missing_count} messages are no longer hidden for this receipt"
            response = call.response(ResponseCode.NO_MESSAGE, remark=remark)
        else:
            response = call.success()
        self._gather((call, response))
        return None

    def handle_change(self, call: Call[ChangeMessageInvisibleTime]) -> bytes | None:
        """Request code 200053: change the invisible time of a message. Raises RequestRefused."""
        self._appender.check_room()
        ext = call.request.ext
        if ext.invisible_ms < 0:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"invisibleTime is {ext.invisible_ms}; allowed: 0 or more milliseconds"
            )
        if self._metadata.pops.count >= 2 * self._checkpoints_max:
            count = self._metadata.pops.count
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST]system busy, {count} pops are open")
        checkpoint_id, bit = self._message(ext)
        if self.in_flight.bits(checkpoint_id) & bit:
            self.in_flight.wait(checkpoint_id, call)
            return None
        # Older replicas could not read it: until all of the group are newer, the attempt counts.
        suspended = bool(ext.suspend) and self._metadata.format_level.level >= LEVEL_OF_SUSPENDED_MESSAGES
        self._defer(checkpoint_id, ext.offset, min(ext.invisible_ms, INVISIBLE_MS_MAX), call, suspended=suspended)
        return None

    def _defer(
        self,
        checkpoint_id: CheckpointId,
        offset: QueueOffset,
        invisible_ms: int,
        call: Call[ChangeMessageInvisibleTime] | None = None,
        *,
        suspended: bool = False,
    ) -> None:
        """Hide a message for ``invisible_ms`` from now on. Answers ``call`` when that is stored.

        If it is ``suspended``, the attempt that ends here is not counted.
        """
        (key, start, pop_time_ms), now_ms = checkpoint_id, self._wall_clock_ms()
        of_queue = self._metadata.pops.get(key)
        open_places, open_pop = of_queue.open, of_queue.ordered
        in_order = (start, pop_time_ms) not in open_places
        if in_order and open_pop is not None:
            # With a wall clock behind the pop time, the new invisible time would be over before it begins.
            now_ms = self._ordered_clock.now_ms(key, open_pop, now_ms)
        while (offset, now_ms) in open_places:
            now_ms += 1  # messages popped in the same millisecond keep their invisible time
        group, topic, queue_id = key
        command = DeferMessage(
            group=group,
            topic=topic,
            queue_id=queue_id,
            start=start,
            pop_time_ms=pop_time_ms,
            offset=offset,
            new_pop_time_ms=now_ms,
            invisible_ms=invisible_ms,
            suspended=suspended,
        )
        waiters: list[_Waiter] = []
        if call is not None:
            # In an ordered queue, the receipt still names the pop to which the message belongs.
            reply = (
                PopTimes(
                    pop_time_ms=pop_time_ms,
                    invisible_ms=now_ms + invisible_ms - pop_time_ms,
                    revive_queue=ORDERED_REVIVE_QUEUE,
                )
                if in_order
                else PopTimes(pop_time_ms=now_ms, invisible_ms=invisible_ms, revive_queue=REVIVE_QUEUE)
            )
            waiters = [(call, call.response(ext=reply.fields()))]

        def on_stored() -> None:
            self._schedule(checkpoint_id if in_order else CheckpointId(key, offset, now_ms))

        assert 0 <= offset - start < SPAN_MAX, f"message {offset} is not of {checkpoint_id}"
        bit = 1 << (offset - start)
        self.in_flight.begin(checkpoint_id, bit)
        self._replicate(encode_command(command), [(checkpoint_id, bit)], waiters, on_stored)

    def give_back(self, pop: PopMessages) -> None:
        """Make the messages of a pop visible again, because its client is gone and cannot receive them.

        Those of an ordered queue, and all while too much is pending, become visible when their invisible time ends.
        """
        if pop.attempt is not None or not self._appender.is_open or not self._appender.has_room:
            return
        checkpoint_id = CheckpointId((pop.group, pop.topic, pop.queue_id), pop.start, pop.pop_time_ms)
        open_bits = self._open_bits(checkpoint_id)
        for offset in offsets_of(pop.start, pop.taken & open_bits):
            self._defer(checkpoint_id, offset, 0)

    def flush(self) -> None:
        """Append the batched requests to the log; called at the end of each turn."""
        for call in self.in_flight.take_ready():
            call.dispatch()
        if not self.waiters:
            return
        assert self._rows, f"{len(self.waiters)} requests wait for acknowledgements, and there are none"
        rows, self._rows = [*self._rows.items()], {}
        waiters, self.waiters = self.waiters, []
        for at in range(0, len(rows), ROWS_MAX):
            some = rows[at : at + ROWS_MAX]
            body = encode_command(AckMessages(rows=[(*key, start, ms, bits) for (key, start, ms), bits in some]))
            self._replicate(body, some, waiters if at + ROWS_MAX >= len(rows) else [])

    def _add(self, checkpoint_id: CheckpointId, bits: int) -> None:
        self.in_flight.begin(checkpoint_id, bits)
        self._rows[checkpoint_id] = self._rows.get(checkpoint_id, 0) | bits

    def _gather(self, waiter: _Waiter) -> None:
        self.waiters.append(waiter)
        if len(self._rows) >= ROWS_MAX:
            self.flush()

    def _replicate(
        self,
        command: bytes,
        rows: list[tuple[CheckpointId, int]],
        waiters: list[_Waiter],
        on_stored: Callable[[], None] | None = None,
    ) -> None:
        assert rows, f"{len(waiters)} requests wait for a command that acknowledges nothing"
        in_flight = self.in_flight

        def finish(outcome: Outcome) -> None:
            if in_flight is not self.in_flight:
                return  # from an earlier leadership
            for checkpoint_id, bits in rows:
                in_flight.end(checkpoint_id, bits)
                key, start, pop_time_ms = checkpoint_id
                if not isinstance(outcome, Stored):
                    self._schedule(checkpoint_id)  # its time may have ended in the meantime
                elif (start, pop_time_ms) not in (of_queue := self._metadata.pops.get(key)).open:
                    open_pop = of_queue.ordered
                    if open_pop is not None and open_pop.later:
                        self._schedule(checkpoint_id)  # without these messages the others may become visible earlier
                    if open_pop is None or open_pop.pop_time_ms == pop_time_ms:
                        self._on_free(key)
            if isinstance(outcome, Stored) and on_stored is not None:
                on_stored()

        def on_outcome(outcome: Outcome) -> None:
            finish(outcome)
            if isinstance(outcome, Stored):
                _answer_all(waiters)
                return
            for call, _ in waiters:
                match outcome:
                    case DiskFull(remark):
                        call.answer(call.response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark))
                    case LeadershipLost() | Unknown():
                        call.dispatch()  # acknowledging is idempotent

        self._appender.add_command(command, on_outcome)

    def _message(self, ext: AckExt | AckLiteExt | ChangeInvisibleExt) -> tuple[CheckpointId, int]:
        """Return a message's checkpoint, and its bit there; it may be in flight. Raises RequestRefused if not open."""
        topic = fitted_topic(ext.topic)
        config = self._metadata.topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {ext.topic} does not exist")
        if not 0 <= ext.queue_id < config.read_queues:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queue id {ext.queue_id} is illegal, {ext.topic} has {config.read_queues} read queues",
            )
        try:
            receipt = self._receipts.decode(ext.extra_info)
            if ext.lite_topic:
                check_lite_topic(ext.lite_topic)
        except (ReceiptError, NameRefused) as error:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        if ext.lite_topic:
            topic = lite_queue(topic, ext.lite_topic)
            # Receipts of lite topics say nothing of where a pop began.
            receipt = receipt._replace(start=ext.offset)
        queue_id = 0 if ext.lite_topic else ext.queue_id
        queue = self._store.get(topic, queue_id)
        low, high = (FIRST_OFFSET, FIRST_OFFSET) if queue is None else (queue.min_offset, queue.max_offset)
        is_gone = ext.offset < low and not self._is_hidden(low, ext.offset)
        if is_gone or ext.offset >= high:
            raise RequestRefused(
                ResponseCode.NO_MESSAGE, f"offset {ext.offset} is outside of the queue: expected {low} to {high - 1}"
            )
        key = ext.consumer_group, topic, queue_id
        checkpoint_id = self._id_of(key, receipt.start, receipt.pop_time_ms)
        own_pop_time = self._metadata.pops.get(key).moves.get((receipt.start, receipt.pop_time_ms, ext.offset))
        if own_pop_time is not None:
            checkpoint_id = CheckpointId(key, ext.offset, own_pop_time)
        at = ext.offset - checkpoint_id.start
        is_open = self._open_bits(checkpoint_id) | self.in_flight.bits(checkpoint_id)
        if not 0 <= at < SPAN_MAX or not is_open >> at & 1:
            raise RequestRefused(
                ResponseCode.NO_MESSAGE,
                f"message {ext.offset} of {topic} is not open for this receipt: it was acknowledged, or its invisible "
                "time ended",
            )
        return checkpoint_id, 1 << at

    def _own_checkpoints(self, key: QueueOfGroup, ack: AckRow, bits: int) -> Iterator[tuple[CheckpointId, int]]:
        """Yield the checkpoints of those messages of a receipt that have one of their own, each with its bit."""
        if pop_times := self._metadata.pops.get(key).moves:
            for offset in offsets_of(ack.start, bits):
                if (pop_time_ms := pop_times.get((ack.start, ack.pop_time_ms, offset))) is not None:
                    yield CheckpointId(key, offset, pop_time_ms), 1

    def _id_of(self, key: QueueOfGroup, start: QueueOffset, pop_time_ms: int) -> CheckpointId:
        """Return the checkpoint of a receipt, also for a message whose invisible time was changed."""
        of_queue = self._metadata.pops.get(key)
        open_pop = of_queue.ordered
        if open_pop is None or open_pop.pop_time_ms != pop_time_ms or (start, pop_time_ms) in of_queue.open:
            return CheckpointId(key, start, pop_time_ms)
        return CheckpointId(key, open_pop.start if 0 <= start - open_pop.start < SPAN_MAX else start, pop_time_ms)

    def _open_bits(self, checkpoint_id: CheckpointId) -> int:
        """Return a bitmap of the open messages of a checkpoint that are not in flight."""
        key, start, pop_time_ms = checkpoint_id
        of_queue = self._metadata.pops.get(key)
        checkpoint = of_queue.open.get((start, pop_time_ms))
        if checkpoint is not None:
            return checkpoint.bits & ~self.in_flight.bits(checkpoint_id)
        pop = of_queue.ordered
        if pop is None or (pop.start, pop.pop_time_ms) != (start, pop_time_ms) or self._is_taken_over(key):
            return 0
        return pop.bits & ~self.in_flight.bits(checkpoint_id)


def _answer_all(waiters: list[_Waiter]) -> None:
    """Send these responses. Consecutive ones to one client are sent in one piece."""
    for connection, of_client in groupby(waiters, _connection_of):
        answers = [answer for call, answer in of_client if not call.request.flag & ONEWAY_FLAG]
        if answers:
            connection.send(answers[0] if len(answers) == 1 else b"".join(answers))


def _connection_of(waiter: _Waiter) -> ClientConnection:
    return waiter[0].connection
