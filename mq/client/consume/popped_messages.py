"""Queues popped messages between the tasks that pop and those that handle, and parses the answers to pops."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from mq.client.errors import ClientClosed, ClientError, UnreadableAnswer
from mq.client.message import BodyT, MessageQueue, ReceivedMessage
from mq.client.net.replies import LeftOut, fields_of, received_messages
from mq.protocol import properties as props
from mq.protocol.incoming.headers import Response
from mq.protocol.names import lite_queue
from mq.protocol.numbers import NO_OFFSET, QueueOffset
from mq.protocol.requests.pop import PopReply
from mq.protocol.requests.receipts import (
    BITS_BYTES_MAX,
    NORMAL,
    AckRow,
    BatchAck,
    Receipt,
    ReceiptError,
    encode_bits,
    mark_of,
    read_count_info,
)

LITE_QUEUE_ID = 0
"""Lite topics have one queue."""
SPAN_MAX = 8 * BITS_BYTES_MAX


class PoppedMessage(ReceivedMessage[BodyT]):
    """A popped message, with the receipt that acknowledges it. Hidden from other consumers until `hidden_until`.

    In ordered consumption, `reconsume_times` counts how often it was popped before, including behind one that failed.
    """

    __slots__ = ("behind", "hidden_until", "receipt")

    def __init__(self, message: ReceivedMessage[Any], receipt: Receipt, hidden_until: float) -> None:
        super().__init__(message.record, message.queue, message.raw_body)
        self.receipt: Receipt = receipt
        self.hidden_until: float = hidden_until
        """On the clock of the event loop."""
        self.behind: deque[PoppedMessage[Any]] = deque()
        """In ordered consumption: messages of its queue popped with it, which wait until it is done."""


def check_popped(message: PoppedMessage[Any]) -> None:
    """Raise TypeError for a message without a receipt: no pop consumer has received it."""
    if not isinstance(message, PoppedMessage):
        raise TypeError(f"pass a message that this PopConsumer has received, not {message!r}")


class AckBatch:
    """Acknowledgements that one request sends."""

    def __init__(self) -> None:
        self.messages: list[PoppedMessage[Any]] = []
        self.response_event = anyio.Event()
        self.error: ClientError | None = None

    def fail(self) -> None:
        """Report an unknown outcome to all callers."""
        self.error = ClientClosed("the consumer was closed before the answer came")
        self.error.stored = "unknown"
        self.response_event.set()


class Inbox:
    """Popped messages that wait to be handled. Tasks wait for `room` before they pop.

    With `ahead` 0 there is room while a task waits in `get`.

    With `ordered`, a message comes out when the previous one popped with it from its queue is released.
    """

    def __init__(self, ahead: int, *, ordered: bool) -> None:
        self._ahead = ahead
        self._ordered = ordered
        self._ready: deque[PoppedMessage[Any]] = deque()
        self._open: dict[MessageQueue, PoppedMessage[Any]] = {}
        """In ordered consumption: for each queue the message waiting or being handled, until its invisible time is
        over.
        """
        self._count = 0
        """Messages that are ready, and those behind an open message."""
        self._waiting_count = 0
        """Callers of `get`."""
        self._came = anyio.Event()
        self._room_event = anyio.Event()
        self._closed = False

    async def room(self) -> None:
        """Wait until fewer than `ahead` messages wait."""
        while self._count >= (self._ahead or self._waiting_count):
            if self._room_event.is_set():
                self._room_event = anyio.Event()
            # Messages behind one that is never done stay only until their invisible time is over.
            over = min((head.hidden_until for head in self._open.values()), default=math.inf)
            with anyio.CancelScope(deadline=over):
                await self._room_event.wait()
            now = anyio.current_time()
            for head in [head for head in self._open.values() if head.hidden_until <= now]:
                self.drop(head)

    def put(self, messages: Sequence[PoppedMessage[Any]]) -> None:
        """Add the messages of one pop."""
        self._count += len(messages)
        self._ready.extend(self._heads(messages) if self._ordered else messages)
        self._came.set()

    def _heads(self, messages: Iterable[PoppedMessage[Any]]) -> list[PoppedMessage[Any]]:
        heads: dict[MessageQueue, PoppedMessage[Any]] = {}
        for message in messages:
            head = heads.setdefault(message.queue, message)
            if head is not message:
                head.behind.append(message)
        for queue, head in heads.items():
            if (late := self._open.get(queue)) is not None:
                self.drop(late)
            self._open[queue] = head
        return list(heads.values())

    async def get(self) -> PoppedMessage[Any]:
        """Wait for the next message that is still hidden and was not popped again. Raises ClientClosed."""
        await anyio.lowlevel.checkpoint()
        while True:
            while self._ready:
                message = self._ready.popleft()
                self._leave(1)
                is_replaced = self._ordered and self._open.get(message.queue) is not message
                if message.hidden_until > anyio.current_time() and not is_replaced:
                    return message
                self.drop(message)
            if self._closed:
                raise ClientClosed("the consumer is closed")
            if self._came.is_set():
                self._came = anyio.Event()
            self._waiting_count += 1
            self._room_event.set()
            try:
                await self._came.wait()
            finally:
                self._waiting_count -= 1

    def release_next(self, message: PoppedMessage[Any]) -> None:
        """Let `get` return the next message of the queue of this finished message."""
        if not self._ordered:
            return
        behind, message.behind = message.behind, deque()
        if behind:
            next_message = behind.popleft()
            next_message.behind = behind
            if self._open.get(message.queue) is message:
                self._open[message.queue] = next_message
            self._ready.append(next_message)
            self._came.set()
        elif self._open.get(message.queue) is message:
            del self._open[message.queue]

    def drop(self, message: PoppedMessage[Any]) -> list[PoppedMessage[Any]]:
        """Drop this message and those of its queue that wait behind it; returns all of them."""
        dropped_messages = [message, *message.behind]
        message.behind = deque()
        if self._open.get(message.queue) is message:
            del self._open[message.queue]
        self._leave(len(dropped_messages) - 1)
        return dropped_messages

    def close(self) -> list[PoppedMessage[Any]]:
        """Stop delivering, and return the open messages of ordered queues."""
        self._closed = True
        self._ready.clear()
        self._came.set()
        return [each for head in list(self._open.values()) for each in self.drop(head)]

    def _leave(self, count: int) -> None:
        self._count -= count
        self._room_event.set()


def read_popped(
    topic: str,
    broker_name: str,
    response: Response,
    body: memoryview,
    hidden_until: float,
    *,
    left_out: list[LeftOut] | None = None,
) -> list[PoppedMessage[Any]]:
    """Parse the answer to a pop: messages with their receipts. Raises UnreadableAnswer.

    Those whose codec is not installed are added to `left_out`; without that list they raise CodecNotInstalled.
    """
    reply = fields_of(PopReply, response)
    try:
        starts = {}
        for row in filter(None, (reply.start_offset_info or "").split(";")):
            mark, queue_id, start = row.split(" ")
            starts[mark, int(queue_id)] = QueueOffset(start)
        counts = read_count_info(reply.order_counts or "")
        # A redelivered message carries its receipt; so may one that was forwarded with all its properties.
        may_carry = any(mark != NORMAL for mark, _ in starts)
        messages: list[PoppedMessage[Any]] = []
        for message in received_messages(broker_name, body, left_out):
            record = message.record
            pop_ck = record.properties.get(props.POP_CK)
            if pop_ck is not None and may_carry:
                receipt = Receipt.decode(pop_ck)
            else:
                mark = mark_of(record.topic)
                receipt = Receipt(
                    starts[mark, record.queue_id],
                    reply.pop_time_ms,
                    reply.invisible_ms,
                    reply.revive_queue,
                    mark,
                    broker_name,
                    record.queue_id,
                    record.queue_offset,
                )
            if not 0 <= receipt.offset - receipt.start < SPAN_MAX:
                raise ReceiptError(
                    f"the receipt of message {receipt.offset} names a pop that began at {receipt.start}, too far from "
                    "it"
                )
            times = record.reconsume_times
            if counts:
                every = counts.get((receipt.mark, receipt.queue_id, NO_OFFSET), times)
                times = counts.get((receipt.mark, receipt.queue_id, receipt.offset), every)
            if record.topic != topic or times != record.reconsume_times:
                # A redelivered message may bear the name of the topic where it waited.
                message.record = msgspec.structs.replace(record, topic=topic, reconsume_times=times)
            messages.append(PoppedMessage(message, receipt, hidden_until))
    except (KeyError, ValueError, ReceiptError) as error:
        raise UnreadableAnswer(f"popped, but the answer is unreadable: {error!r}") from error
    return messages


def read_popped_lite(
    parent: str,
    broker_name: str,
    response: Response,
    body: memoryview,
    hidden_until: float,
    left_out: list[LeftOut],
) -> list[PoppedMessage[Any]]:
    """Works like `read_popped`, for lite topics of `parent`: the queues of the messages are those of the lite topics.

    If the codec of one message is not installed, none is returned.
    """
    reply = fields_of(PopReply, response)
    unreadable: list[LeftOut] = []
    all_messages = received_messages(broker_name, body, unreadable)
    counts = (reply.order_counts or "").split(";")
    if unreadable:
        # Which ones of the counts are theirs cannot be told; their lite topics would come out of order.
        left_out += unreadable
        return []
    try:
        messages: list[PoppedMessage[Any]] = []
        for message, count in zip(all_messages, counts, strict=True):
            properties = message.record.properties
            offset = QueueOffset(int(properties[props.LITE_OFFSET]))
            message.queue = MessageQueue(lite_queue(parent, properties[props.LITE_TOPIC]), broker_name, LITE_QUEUE_ID)
            message.record = msgspec.structs.replace(
                message.record, queue_id=LITE_QUEUE_ID, queue_offset=offset, reconsume_times=int(count)
            )
            receipt = Receipt(
                offset,
                reply.pop_time_ms,
                reply.invisible_ms,
                reply.revive_queue,
                NORMAL,
                broker_name,
                LITE_QUEUE_ID,
                offset,
            )
            messages.append(PoppedMessage(message, receipt, hidden_until))
    except (KeyError, ValueError) as error:
        raise UnreadableAnswer(f"popped, but the answer is unreadable: {error!r}") from error
    return messages


def batch_ack(broker_name: str, receipts: Iterable[tuple[str, str, Receipt]]) -> bytes:
    """Encode a request that acknowledges messages, each given by its group, topic and receipt."""
    rows: dict[tuple[str, str, str, int, QueueOffset, int, int], int] = {}
    for group, topic, receipt in receipts:
        key = group, topic, receipt.mark, receipt.queue_id, receipt.start, receipt.pop_time_ms, receipt.revive_queue
        rows[key] = rows.get(key, 0) | 1 << (receipt.offset - receipt.start)
    acks = [
        AckRow(
            group=group,
            topic=topic,
            mark=mark,
            start=start,
            queue_id=queue_id,
            revive_queue=revive_queue,
            pop_time_ms=pop_time_ms,
            encoded_bits=encode_bits(bits),
        )
        for (group, topic, mark, queue_id, start, pop_time_ms, revive_queue), bits in rows.items()
    ]
    return msgspec.json.encode(BatchAck(acks=acks, broker_name=broker_name))
