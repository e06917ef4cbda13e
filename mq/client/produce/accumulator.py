"""Automatic batches: sends messages of a topic that wait at the same moment in one request.

Theory of operation. A message joins the open batch of its *lane*: its topic, its queue (if it has a sharding key or the
caller named one), its timeout and its priority. The batch is closed and given to the `SendPipeline` as one message

- at the end of this turn of the event loop, if no other batch of the lane is in flight: so a producer that awaits each
  send is not slowed down by the wait for others,
- else when the last one in flight is complete, and at the latest `linger` seconds after the first message joined,
- at once when the next message would make it larger than `batch_bytes`.

A batch of one message is an ordinary send. Each message keeps its own properties, keys and unique key; each caller gets
the result of its own message, or an error of its own. If a broker refuses a batch as illegal, its messages are sent
again one by one, so that the others do not fail with the one at fault.

The producer does not add messages that RocketMQ's protocol has no batches for, see `may_join`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import anyio

from mq.client.errors import ClientClosed, ClientError, NumberUsed, SendOutcomeUnknown, SendRejected, copy_of
from mq.client.message import Message, MessageQueue, SendResult
from mq.client.produce.numbering import Numbering
from mq.client.produce.outgoing_message import OnDone, OutgoingMessage
from mq.client.produce.send_pipeline import SendPipeline
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.batch import BATCHED_BYTES_MIN, BatchedMessage, encode_batch
from mq.protocol.names import RETRY_PREFIX

BATCH_BYTES_MAX = 256 * 1024
"""The answer names each message of a batch in its header: with this limit, that stays far below
`mq.protocol.frames.ANSWER_HEADER_BYTES_MAX`.
"""

_REFUSED_AS_A_BATCH = (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


def may_join(message: Message, outgoing: OutgoingMessage) -> bool:
    """Return whether a message may be part of an automatic batch.

    Not messages of lite topics, not delayed, transactional, compressed (the elements of a batch have no flag for it) or
    numbered ones (a batch has consecutive numbers), nor messages of retry topics.
    """
    return (
        not outgoing.sys_flag
        and message.delay_level is None
        and message.delay is None
        and message.deliver_at is None
        and message.lite_topic is None
        and props.SEQUENCE not in message.properties
        and not outgoing.topic.startswith(RETRY_PREFIX)
    )


class _BatchLane(NamedTuple):
    """Messages of one lane may share a batch."""

    topic: str
    queue: MessageQueue | None
    sharding_key: str | None
    """The sharding key, while its queue is not known."""
    timeout: float
    priority: int | None


class BatchedSend:
    """A message and its place in a batch. `batch` is None once the message is complete or abandoned."""

    __slots__ = ("batch", "message", "on_done")

    def __init__(self, message: OutgoingMessage, on_done: OnDone, batch: _MessageBatch) -> None:
        self.message = message
        self.on_done = on_done
        self.batch: _MessageBatch | None = batch


class _MessageBatch:
    """One batch. `deadline` is its first message's; `number` the pipeline's, None before the batch is passed to it;
    then `pending_count` counts members. `came_from` is the number of the batch from which its only message comes.
    """

    __slots__ = ("came_from", "deadline", "due_at", "lane", "members", "nbytes", "number", "pending_count")

    def __init__(self, lane: _BatchLane, due_at: float, deadline: float) -> None:
        self.lane = lane
        self.due_at = due_at
        self.deadline = deadline
        self.members: list[BatchedSend] = []
        self.nbytes = 0
        self.number: int | None = None
        self.came_from: int | None = None
        self.pending_count = 0


def check_linger(linger: float | None, batch_bytes: int, timeout: float) -> None:
    """Raise ValueError if `linger` or `batch_bytes` is out of range. `linger` and `timeout` are in seconds."""
    if linger is not None and not 0 <= linger < timeout:
        raise ValueError(f"linger is {linger}; allowed: None, or 0 to less than the timeout of {timeout} s")
    if not 1 <= batch_bytes <= BATCH_BYTES_MAX:
        raise ValueError(f"batch_bytes is {batch_bytes}; 1 to {BATCH_BYTES_MAX} are allowed")


class Accumulator:
    """Collects messages into batches for `pipeline`. `run` must run in a task.

    `linger` in seconds; `batch_bytes` is the largest body of a batch. `on_finished` is called when `extra_in_flight`
    has fallen. With `numbering`, a batch gets a number for each message, all at once.
    """

    def __init__(
        self,
        pipeline: SendPipeline,
        *,
        linger: float,
        batch_bytes: int,
        on_finished: Callable[[], None],
        numbering: Numbering | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._numbering = numbering
        self._linger = linger
        self._batch_bytes = batch_bytes
        self._on_finished = on_finished
        self._open: dict[_BatchLane, _MessageBatch] = {}
        self._on_wire: dict[_BatchLane, int] = {}
        self._requests = 0
        self._pending_count = 0
        self._alone: set[_MessageBatch] = set()
        self._wakeup = anyio.Event()
        self._closed = False

    @property
    def extra_in_flight(self) -> int:
        """The number of messages in flight beyond those that the pipeline counts: it counts a batch as one."""
        return self._pending_count - self._requests

    def is_in_flight(self, last: int) -> bool:
        """Return whether a message is sent alone whose batch had the pipeline's number `last` or a smaller one."""
        return any(batch.came_from is not None and batch.came_from <= last for batch in self._alone)

    def add(
        self, message: OutgoingMessage, on_done: OnDone, *, timeout: float, queue: MessageQueue | None
    ) -> BatchedSend:
        """Add a message to a batch. Calls `on_done` once, never within this call. Raises ClientClosed."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        queue = queue or self._pipeline.sharding_queue(message)
        lane = _BatchLane(message.topic, queue, None if queue else message.sharding_key, timeout, message.priority)
        nbytes = BATCHED_BYTES_MIN + len(message.body) + len(message.properties)
        batch = self._open.get(lane)
        if batch is not None and batch.nbytes + nbytes > self._batch_bytes:
            self._send(batch)
            batch = None
        if batch is None:
            batch = self._begin(lane)
        member = BatchedSend(message, on_done, batch)
        batch.members.append(member)
        batch.nbytes += nbytes
        self._pending_count += 1
        if batch.nbytes >= self._batch_bytes:
            self._send(batch)
        return member

    def _begin(self, lane: _BatchLane) -> _MessageBatch:
        now = anyio.current_time()
        wait = min(self._linger, lane.timeout / 2) if lane in self._on_wire else 0.0
        batch = self._open[lane] = _MessageBatch(lane, now + wait, now + lane.timeout)
        self._wakeup.set()
        return batch

    def abandon(self, member: BatchedSend) -> None:
        """Give up a message, without a callback. It is not sent if its batch is open; else it may still get stored."""
        batch = member.batch
        if batch is None:
            return
        member.batch = None
        self._pending_count -= 1
        if batch.number is None:
            batch.members.remove(member)
            batch.nbytes -= BATCHED_BYTES_MIN + len(member.message.body) + len(member.message.properties)
            if not batch.members:
                del self._open[batch.lane]
        else:
            batch.pending_count -= 1
            if not batch.pending_count:
                self._leave_wire(batch)
                self._pipeline.abandon(batch.number)
        self._on_finished()

    def flush(self, topic: str | None = None) -> None:
        """Send the open batches now, of one topic or of all."""
        for batch in list(self._open.values()):
            if topic is None or batch.lane.topic == topic:
                self._send(batch)

    def close(self) -> None:
        """Fail the messages of open batches: they were not sent."""
        self._closed = True
        batches, self._open = self._open, {}
        for batch in batches.values():
            self._complete_all(batch, ClientClosed("the producer was closed before the message was sent"))

    async def run(self) -> None:
        """Send batches when they are due, until cancelled."""
        while True:
            self._wakeup = anyio.Event()
            if self._open:
                earliest = min(batch.due_at for batch in self._open.values())
                with anyio.move_on_after(max(earliest - anyio.current_time(), 0.0)):
                    await self._wakeup.wait()
            else:
                # A task that runs in the same turn as the one that begins a batch still joins it.
                await self._wakeup.wait()
            now = anyio.current_time()
            for batch in [each for each in self._open.values() if each.due_at <= now]:
                self._send(batch)

    def _send(self, batch: _MessageBatch) -> None:
        """Pass an open batch to the pipeline."""
        del self._open[batch.lane]
        self._start(batch)

    def _start(self, batch: _MessageBatch) -> None:
        lane = batch.lane
        message = batch.members[0].message if len(batch.members) == 1 else _together(batch.members)
        if self._numbering is not None:
            message = self._numbering.number(message, len(batch.members))
        self._on_wire[lane] = self._on_wire.get(lane, 0) + 1
        self._requests += 1
        batch.pending_count = len(batch.members)
        batch.number = self._pipeline.start(
            message,
            lambda outcome: self._on_outcome(batch, outcome),
            timeout=max(batch.deadline - anyio.current_time(), 0.0),
            queue=lane.queue,
        )

    def _on_outcome(self, batch: _MessageBatch, outcome: SendResult | ClientError) -> None:
        if len(batch.members) > 1 and _is_refused_as_a_batch(outcome):
            self._send_one_by_one(batch)
        else:
            self._complete_all(batch, outcome)
        # The callbacks may have added messages: they are sent with those that waited.
        self._leave_wire(batch)
        self._on_finished()

    def _send_one_by_one(self, batch: _MessageBatch) -> None:
        for member in batch.members:
            if member.batch is not None:
                alone = member.batch = _MessageBatch(batch.lane, batch.due_at, batch.deadline)
                alone.came_from = batch.number
                alone.members.append(member)
                self._alone.add(alone)
                self._start(alone)

    def _leave_wire(self, batch: _MessageBatch) -> None:
        lane = batch.lane
        self._requests -= 1
        self._alone.discard(batch)
        self._on_wire[lane] -= 1
        if not self._on_wire[lane]:
            del self._on_wire[lane]
            if (next_batch := self._open.get(lane)) is not None:
                self._send(next_batch)

    def _complete_all(self, batch: _MessageBatch, outcome: SendResult | ClientError) -> None:
        """Call each member's callback with the outcome of its message."""
        members = batch.members
        record_ids: list[str] = []
        if isinstance(outcome, SendResult) and len(members) > 1:
            record_ids = outcome.offset_message_id.split(",")
            if len(record_ids) != len(members):
                outcome = SendOutcomeUnknown(
                    f"stored, but the answer names {len(record_ids)} messages of {len(members)}",
                    outcome.queue,
                    outcome.attempts,
                )
        for number, member in enumerate(members):
            if member.batch is None:
                continue
            member.batch = None
            self._pending_count -= 1
            own: SendResult | ClientError
            if isinstance(outcome, SendResult):
                own = _own_result(outcome, member, number, record_ids[number]) if record_ids else outcome
            else:
                own = _own_error(outcome, member) if len(members) > 1 else outcome
            self._pipeline.call_back(member.on_done, own, member.message.unique_key)


def _together(members: list[BatchedSend]) -> OutgoingMessage:
    """Return the messages as one batch. Each has its own properties, and the batch none."""
    messages = [member.message for member in members]
    return OutgoingMessage(
        topic=messages[0].topic,
        body=encode_batch([BatchedMessage(each.body, each.properties, each.flag) for each in messages]),
        properties="",
        sys_flag=0,
        flag=0,
        born_timestamp_ms=messages[0].born_timestamp_ms,
        unique_key=",".join([each.unique_key for each in messages]),
        sharding_key=messages[0].sharding_key,
        is_batch=True,
    )


def _is_refused_as_a_batch(outcome: SendResult | ClientError) -> bool:
    """Return whether a refused batch can be sent message by message. If a number was used, the others were, too."""
    return (
        isinstance(outcome, SendRejected)
        and outcome.code in _REFUSED_AS_A_BATCH
        and not isinstance(outcome, NumberUsed)
    )


def _own_result(together: SendResult, member: BatchedSend, number: int, record_id: str) -> SendResult:
    return SendResult(
        message_id=member.message.unique_key,
        offset_message_id=record_id,
        queue=together.queue,
        # A repeated batch may have been stored so long ago that its broker no longer knows the place.
        queue_offset=together.queue_offset + number if together.queue_offset >= 0 else together.queue_offset,
        status=together.status,
        attempts=together.attempts,
        maybe_duplicated=together.maybe_duplicated,
        trace_on=together.trace_on,
    )


def _own_error(error: ClientError, member: BatchedSend) -> ClientError:
    own = copy_of(error)
    if isinstance(own, SendOutcomeUnknown):
        own.message_id = member.message.unique_key
    return own
