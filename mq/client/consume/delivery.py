"""Delivers messages: chooses the next queue, one message at a time per queue for ordered consumption, and retries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from types import TracebackType
from typing import Any, Generic, Literal, Self

import anyio
import anyio.lowlevel

from mq.client.consume.decoding import BodyDecoder
from mq.client.consume.process_queue import ProcessQueue
from mq.client.errors import AlreadyOpen, BodyNotDecoded, ClientClosed, DeliveryFinished
from mq.client.message import BodyT, ReceivedMessage
from mq.client.metrics.recorder import Recorder
from mq.client.produce.tracing import Tracer
from mq.client.spans import Spans
from mq.protocol.messages.trace import ContextCode

RETRY_SECONDS_MAX = 30.0


class DeliveryBoard:
    """Keeps the queues with messages to deliver, in round-robin order.

    With `exclusive`, a queue with taken messages delivers the next ones after `release`. `on_progress` is called when
    messages of a queue were finished, so that its pulling may continue.

    Attributes:
        is_run: whether `run` takes the messages; then no stream may take some of them.
        streams: how many tasks wait for a message of a stream; then `run` may not begin.
    """

    def __init__(self, on_progress: Callable[[ProcessQueue], None], *, retry_seconds: float) -> None:
        self._on_progress = on_progress
        self._retry_seconds = retry_seconds
        self._turns: deque[ProcessQueue] = deque()
        self._ready_queues: set[ProcessQueue] = set()
        self._alarms: list[tuple[float, int, ProcessQueue]] = []
        self._alarm_count = 0
        self._offer_event = anyio.Event()
        self._closed = False
        self.is_run = False
        self.streams = 0

    def open(self) -> None:
        """Start without queues, and let tasks wait for messages."""
        self.is_run = False  # an event loop may have been given up in the middle of `run`
        self._turns.clear()
        self._ready_queues.clear()
        self._alarms.clear()
        self._offer_event = anyio.Event()
        self._closed = False

    def refuse_beside_run(self) -> None:
        """Raise AlreadyOpen during `run`: a stream would take messages from its handlers."""
        if self.is_run:
            raise AlreadyOpen(
                "run() of this consumer is running and passes its messages to the handlers: use either run() or a "
                "loop, or open another consumer"
            )

    def close(self) -> None:
        """Stop delivering; waiting tasks get an error."""
        self._closed = True
        self._offer_event.set()

    def offer(self, queue: ProcessQueue) -> None:
        """Add `queue` to the list of queues to deliver, if it may have messages and is not in the list."""
        if queue not in self._ready_queues and not queue.leased and not queue.dropped:
            self._ready_queues.add(queue)
            self._turns.append(queue)
            self._offer_event.set()

    def release(self, queue: ProcessQueue) -> None:
        """Deliver the queue again, because the messages that were taken exclusively are finished or returned."""
        queue.leased = False
        self.offer(queue)

    def finish(self, queue: ProcessQueue, message: ReceivedMessage[Any]) -> None:
        """Record that the message is finished, unless another member now owns its queue."""
        if not queue.dropped:
            queue.acknowledge(message)
            self._on_progress(queue)

    def finish_all(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage[Any]]) -> None:
        """Finish messages of one queue."""
        if messages and not queue.dropped:
            for message in messages:
                queue.acknowledge(message)
            self._on_progress(queue)

    def retry_at(self, message: ReceivedMessage[Any]) -> float:
        """Return when to retry a message that has just failed. The delay doubles with each failure, up to 30 s."""
        delay = min(self._retry_seconds * 2.0 ** min(message.attempt - 1, 10), RETRY_SECONDS_MAX)
        return anyio.current_time() + delay

    async def take(
        self, count: Callable[[ProcessQueue], int], *, exclusive: bool
    ) -> tuple[ProcessQueue, list[ReceivedMessage[Any]]]:
        """Wait for messages of any queue, and take at most `count(queue)` of them. If cancelled, none is taken.

        Raises ClientClosed.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._closed:
                raise ClientClosed("the consumer is closed")
            if (batch := self.take_nowait(count, exclusive=exclusive)) is not None:
                return batch
            if self._offer_event.is_set():  # otherwise other tasks wait for it, too
                self._offer_event = anyio.Event()
            seconds = max(self._alarms[0][0] - anyio.current_time(), 0.0) if self._alarms else float("inf")
            with anyio.move_on_after(seconds):
                await self._offer_event.wait()

    def take_nowait(
        self, count: Callable[[ProcessQueue], int], *, exclusive: bool
    ) -> tuple[ProcessQueue, list[ReceivedMessage[Any]]] | None:
        """Works like `take`, but returns None if nothing is available now."""
        now = anyio.current_time()
        while self._alarms and self._alarms[0][0] <= now:
            self.offer(heappop(self._alarms)[2])
        while self._turns:
            queue = self._turns.popleft()
            self._ready_queues.discard(queue)
            messages = queue.take(count(queue), now)
            if messages:
                queue.leased = exclusive
                self._offer_or_set_alarm(queue, now)
                return queue, messages
            self._offer_or_set_alarm(queue, now)
        return None

    def _offer_or_set_alarm(self, queue: ProcessQueue, now: float) -> None:
        available_at = queue.available_at(now)
        if available_at is None or queue.leased:
            return
        if available_at <= now:
            self.offer(queue)
        else:
            self._alarm_count += 1
            heappush(self._alarms, (available_at, self._alarm_count, queue))


class Delivery(Generic[BodyT]):
    """One message that the application finishes itself, with `ack()` or `nack()`. Only the first call counts.

    As a context manager it returns the message, acknowledges it when the block ends, and retries it later if the block
    raises (the exception propagates). `exclusive` says that its queue waits until then.
    """

    __slots__ = ("_board", "_exclusive", "_outcome", "_queue", "_timer", "_trace", "message", "work")

    def __init__(
        self,
        board: DeliveryBoard,
        queue: ProcessQueue,
        message: ReceivedMessage[BodyT],
        *,
        exclusive: bool,
        tracer: Tracer | None = None,
        spans: Spans | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._timer = None if recorder is None else recorder.begin([message])
        self._trace = None if tracer is None else tracer.trace_handling([message])
        self.work = None if spans is None else spans.start_process([message])
        """Its span, if spans are enabled."""
        self._exclusive = exclusive
        self._board = board
        self._queue = queue
        self.message: ReceivedMessage[BodyT] = message
        self._outcome: Literal["acknowledged", "given back"] | None = None

    @property
    def finished(self) -> bool:
        """Whether the message was acknowledged or returned."""
        return self._outcome is not None

    def __repr__(self) -> str:
        return f"<Delivery {'finished' if self.finished else 'open'} of {self.message}>"

    def __enter__(self) -> ReceivedMessage[BodyT]:
        if self.work is not None:
            self.work.__enter__()
        return self.message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.settle(error)
        finally:
            if self.work is not None:
                self.work.__exit__(kind, error, traceback)

    def settle(self, error: BaseException | None) -> None:
        """Acknowledge the message, or return it because of an error, unless that was done already."""
        if not self.finished:
            if error is None:
                self.ack()
            else:
                self.nack()

    def ack(self) -> None:
        """Finish the message; the group's offset moves past it once all earlier ones of its queue are finished.

        If another member has taken over its queue, this has no effect, and the message is redelivered there. Raises
        DeliveryFinished.
        """
        self._finish("acknowledged")
        if self._trace is not None:
            self._trace.record_end(ContextCode.SUCCESS)
        self._board.finish(self._queue, self.message)
        if self._exclusive:
            self._board.release(self._queue)

    def nack(self, delay: float | None = None) -> None:
        """Redeliver the message in `delay` seconds (default: growing with each attempt).

        Later messages are delivered in the meantime, unless the consumer is exclusive. Raises DeliveryFinished.
        """
        self._finish("given back")
        if self._trace is not None:
            self._trace.record_end(ContextCode.FAILED)
        at = self._board.retry_at(self.message) if delay is None else anyio.current_time() + delay
        self.message.attempt += 1
        if self._exclusive:
            self._queue.block([self.message], at)
            self._board.release(self._queue)
        else:
            self._queue.give_back([self.message], at)
            self._board.offer(self._queue)

    def _finish(self, outcome: Literal["acknowledged", "given back"]) -> None:
        if self._outcome is not None:
            raise DeliveryFinished(self.message, self._outcome)
        self._outcome = outcome
        if self.work is not None:
            self.work.on_settle(outcome)
        if self._timer is not None:
            self._timer.on_settle("done" if outcome == "acknowledged" else "retried")


class DeliveryStream(Generic[BodyT]):
    """Iterates over all messages of a consumer as deliveries. Several tasks may iterate at the same time.

    With `exclusive`, a queue delivers the next message when the previous one is settled.
    """

    def __init__(
        self,
        board: DeliveryBoard,
        decoder: BodyDecoder,
        *,
        exclusive: bool,
        tracer: Tracer | None = None,
        spans: Spans | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._recorder = recorder
        self._board = board
        self._decoder = decoder
        self._exclusive = exclusive
        self._tracer = tracer
        self._spans = spans

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery[BodyT]:
        """Wait for the next delivery. Raises ClientClosed; AlreadyOpen in `run`; BodyNotDecoded for `StopConsumer`."""
        await anyio.lowlevel.checkpoint()
        self._board.refuse_beside_run()
        self._board.streams += 1
        try:
            while True:
                queue, [message] = await self._board.take(lambda _: 1, exclusive=self._exclusive)
                if (error := self._decoder.failure(message)) is None:
                    break
                await self._put_aside(queue, message, error)
        finally:
            self._board.streams -= 1
        return Delivery(
            self._board,
            queue,
            message,
            exclusive=self._exclusive,
            tracer=self._tracer,
            spans=self._spans,
            recorder=self._recorder,
        )

    async def _put_aside(self, queue: ProcessQueue, message: ReceivedMessage[Any], error: BodyNotDecoded) -> None:
        delivery: Delivery[Any] = Delivery(self._board, queue, message, exclusive=self._exclusive)
        retry_after: float | None = 0.0
        try:
            retry_after = await self._decoder.put_aside(message, error)
        finally:
            if retry_after is None:
                delivery.ack()
            else:
                delivery.nack(retry_after)


class MessageStream(Generic[BodyT]):
    """Iterates over all messages of a consumer. A request for the next message acknowledges the previous one.

    So the body of `async for` is the handler: if it raises, or the process dies, the message is redelivered.
    """

    def __init__(self, deliveries: DeliveryStream[BodyT]) -> None:
        self._deliveries = deliveries
        self._current: Delivery[BodyT] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage[BodyT]:
        if self._current is not None:
            current, self._current = self._current, None
            current.ack()
        self._current = await anext(self._deliveries)
        return self._current.message
