"""Calls handlers with messages: concurrency, order, and handling of failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.lowlevel

from mq.client.application_code import calling_task, failure_of, program_end_in, task_finder
from mq.client.consume.decoding import BodyDecoder, policy_of_failure
from mq.client.consume.delivery import RETRY_SECONDS_MAX, DeliveryBoard
from mq.client.consume.key_lanes import KeyLanes
from mq.client.consume.policies import (
    DeadLetter,
    HandlingPolicy,
    OnError,
    RetryLater,
    Skip,
    StopConsumer,
    raised_policy,
)
from mq.client.consume.process_queue import ProcessQueue
from mq.client.consume.send_back import failure_text
from mq.client.consume.subscription import TopicSubscription
from mq.client.errors import AlreadyOpen, ClientError
from mq.client.logs import log
from mq.client.message import BodyT, MessageQueue, ReceivedMessage
from mq.client.metrics.recorder import Recorder
from mq.client.produce.tracing import Tracer
from mq.client.spans import Spans
from mq.protocol.messages.trace import ContextCode
from mq.protocol.names import retry_topic
from mq.protocol.requests.relayed import ConsumeResult

if TYPE_CHECKING:
    import asyncio

Handler = Callable[[ReceivedMessage[BodyT]], Awaitable[None]]
GiveBack = Callable[[ReceivedMessage[Any], BaseException, float | None], Awaitable[bool]]
"""Gets the message, its failure, and after how many seconds it is wanted again; None: as after any failure."""
GiveUp = Callable[[ReceivedMessage[Any], BaseException], Awaitable[bool]]
Middleware = Callable[[Any, Callable[[Any], Awaitable[None]]], Awaitable[None]]
"""Gets the message, or the list of a handler with `batch`, and the function to await with that."""
MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)

LEASE_MESSAGES_MAX = 32
KEPT_SECONDS_MAX = 30.0
"""Seconds for which a member that is not `ordered` keeps, at most, a message to be retried later."""
REMEMBERED_MAX = 10_000
"""Failed messages whose attempts are remembered while their queues are away."""


class HandlerPool:
    """Runs the handlers of one consumer.

    With `ordered`, handles the messages of a queue one after the other, or with `by_key` the messages of each sharding
    key. `give_back` sends a failed message back to the brokers, and says whether they took it, in bounded time; None:
    the handler gets it again here, `attempts_max` times in all (None: for ever). Then `give_up` makes it a dead letter,
    and says whether a broker stored it. Attempts are counted in this process, also while a queue belongs to another
    member. `tracer` records handled messages.
    """

    def __init__(
        self,
        board: DeliveryBoard,
        topics: Mapping[str, TopicSubscription],
        *,
        group: str,
        concurrency: int,
        ordered: bool,
        by_key: bool,
        give_back: GiveBack | None,
        give_up: GiveUp,
        attempts_max: int | None,
        on_error: OnError,
        decoder: BodyDecoder,
        spans: Spans | None = None,
    ) -> None:
        self._on_error = on_error
        self._decoder = decoder
        self.middleware: list[Middleware] = []
        """Called around each handler; the first one is the outermost."""
        self._spans = spans
        self._board = board
        self._topics = topics
        self._group = group
        self._retry_topic = retry_topic(group)
        self._concurrency = concurrency
        self._ordered = ordered
        self._by_key = by_key
        self._lanes: KeyLanes | None = None
        self._give_back = give_back
        self._give_up = give_up
        self._attempts_max = attempts_max
        self._attempts: dict[tuple[MessageQueue, int], int] = {}
        """The next attempt of messages that failed here, by queue and position in the log."""
        self.tracer: Tracer | None = None
        self.recorder: Recorder | None = None
        self._fallback: Handler[Any] | None = None
        self._scope: anyio.CancelScope | None = None
        self._caller: asyncio.Task[Any] | None = None
        self._current_task: Callable[[], object] = calling_task
        self._at_work: set[object] = set()
        """The tasks in which handlers run."""
        self._was_run = False
        self._stopped_by: BaseException | None = None
        self._take_scope: anyio.CancelScope | None = None
        self._drains = False
        self._end_event: anyio.Event | None = None
        """Set when the current `run` ends."""

    def open(self) -> None:
        """Reset the pool when its consumer opens, before `run`."""
        self._scope = None
        self._fallback = None
        self._was_run = False
        self._end_event = None  # an event loop may have been given up in the middle of `run`

    async def warn_if_idle(self, seconds: float) -> None:
        """Warn if, after `seconds`, nothing is subscribed or `run` was not called: the consumer would wait silently."""
        await anyio.sleep(seconds)
        if not self._topics:
            log.warning("no_subscription", group=self._group, missing="consumer.subscribe(topic)")
        topics = [topic for topic, each in self._topics.items() if each.handler is not None]
        if topics and not self._was_run:
            log.warning("handlers_without_run", group=self._group, topics=topics, missing="await consumer.run()")

    def refuse_second_run(self) -> None:
        """Raise AlreadyOpen if `run` is at work, or a task waits for a message of a stream."""
        if self._board.streams:
            raise AlreadyOpen(
                f"a task reads messages of this consumer of group {self._group} in a loop, or by receive(), and run() "
                "would pass them to handlers: use only one of the two, or open another consumer"
            )
        if self._end_event is not None and not self._end_event.is_set():
            raise AlreadyOpen(
                f"run() of this consumer of group {self._group} is already running; for more handlers at once set "
                "`concurrency`, or open another consumer"
            )

    async def run(self, fallback: Handler[Any] | None) -> None:
        """Handle messages until `stop`. `fallback` handles topics without a handler; if it is missing, ValueError is
        raised. Only one `run` works at a time: see `refuse_second_run`.
        """
        self.refuse_second_run()
        unhandled_topics = [topic for topic, each in self._topics.items() if each.handler is None]
        if fallback is None and unhandled_topics:
            raise ValueError(f"no handler for topics {unhandled_topics}: pass one to run(), or use @consumer.on(topic)")
        self._fallback = fallback
        self._was_run = True
        self._stopped_by = None
        self._drains = False
        self._end_event = end_event = anyio.Event()
        self._board.is_run = True
        self._caller = calling_task()
        self._current_task = task_finder()
        try:
            with anyio.CancelScope() as scope:
                self._scope = scope
                await self._handle_forever()
        except BaseExceptionGroup as group:
            if (end := program_end_in(group)) is not None:
                raise end from group  # sys.exit() of a handler, with its exit code
            raise
        finally:
            self._board.is_run = False
            end_event.set()
        if self._stopped_by is not None:
            raise self._stopped_by

    async def _handle_forever(self) -> None:
        slots = anyio.Semaphore(self._concurrency)
        self._lanes = lanes = KeyLanes(self._concurrency, self._handle_in_lane, self._return) if self._by_key else None
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as self._take_scope:
                while lanes is not None:
                    await anyio.lowlevel.checkpoint()
                    lanes.add(tasks, *await self._board.take(lambda _: LEASE_MESSAGES_MAX, exclusive=False))
                while True:
                    await slots.acquire()
                    process_queue, messages = await self._board.take(self._lease_size, exclusive=self._ordered)
                    tasks.start_soon(self._handle, process_queue, messages, slots)

    def stop(self) -> None:
        """End `run`; running handlers are cancelled."""
        if self._scope is not None:
            self._scope.cancel()

    async def drain(self, seconds: float) -> bool:
        """Take no more messages, wait for running handlers, and end `run`. Cancel handlers after `seconds`.

        Returns whether all of them finished. If cancelled, `run` ends as soon as they have finished. Raises ClientError
        in a handler, for which it would wait.
        """
        await anyio.lowlevel.checkpoint()
        if self._current_task() in self._at_work:
            raise ClientError(
                "a handler cannot drain its consumer, which waits for it: call stop(), or drain in another task"
            )
        end_event = self._end_event
        if end_event is None or end_event.is_set() or self._take_scope is None:
            return True
        self._drains = True
        self._take_scope.cancel()
        if self._lanes is not None:
            self._lanes.stop()
        with anyio.move_on_after(seconds):
            await end_event.wait()
        if end_event.is_set():
            return True
        self.stop()
        # A task that a handler has started is cancelled now, and must end before `run` can.
        await anyio.lowlevel.checkpoint_if_cancelled()
        with anyio.CancelScope(shield=True):
            await end_event.wait()
        return False

    async def handle_again(self, message: ReceivedMessage[Any]) -> None:
        """Call the handler of a message's topic. Raises its exceptions, and LookupError if there is none."""
        topic = self._topics.get(message.topic)
        handler = topic.handler if topic is not None and message.topic != self._retry_topic else None
        if handler is not None and topic is not None:
            await self._around(handler, topic.timeout)([message] if topic.batch else message)
        elif self._fallback is not None:
            await self._around(self._fallback, None)(message)
        else:
            raise LookupError(f"{self._group} has no handler for {message.topic}, and got {message}")

    def _around(
        self, handler: Callable[[Any], Awaitable[None]], timeout: float | None
    ) -> Callable[[Any], Awaitable[None]]:
        """Return the handler with its time limit, within all middleware."""
        if timeout is not None:
            handler = partial(_in_time, handler, timeout)
        for each in reversed(self.middleware):
            handler = partial(_with_next, each, handler)
        return handler

    async def handle_for_operator(self, message: ReceivedMessage[Any]) -> ConsumeResult:
        """Handle a message now, for an operator, and return the result. The group's progress does not change."""
        started_at = anyio.current_time()
        result, remark = "CR_SUCCESS", ""
        error: BaseException | None = self._decoder.failure(message)
        if error is None and (error := await failure_of(self.handle_again, message)) is not None:
            log.exception("handler_failed", error, message=message, attempt=message.attempt)
        if error is not None:
            result, remark = "CR_THROW_EXCEPTION", repr(error)
        spent_ms = int((anyio.current_time() - started_at) * 1000)
        return ConsumeResult(result, order=self._ordered, remark=remark, spent_ms=spent_ms)

    def _lease_size(self, process_queue: ProcessQueue) -> int:
        topic = self._topics.get(process_queue.queue.topic)
        batch = (topic.batch if topic is not None else None) or 1
        if self._ordered:
            return max(batch, LEASE_MESSAGES_MAX)
        # Enough to be worth a task, but few enough to keep all tasks busy.
        return max(batch, min(LEASE_MESSAGES_MAX, process_queue.ready_count // self._concurrency))

    async def _handle(
        self, process_queue: ProcessQueue, messages: list[ReceivedMessage[Any]], slots: anyio.Semaphore
    ) -> None:
        """Pass `messages` to their handler, in order, until all are finished or one of an ordered queue failed."""
        handler, batch = self._handler_of(process_queue)
        count = 0
        retry_at = 0.0
        try:
            while count < len(messages) and handler is not None and self._may_go_on(process_queue):
                part, error = self._decoder.first(messages[count : count + self._part_size(messages[count], batch)])
                wanted_at = await self._attempt(handler, process_queue, part, error, is_batch=batch is not None)
                if wanted_at is not None:
                    retry_at = wanted_at
                    return
                count += len(part)
        finally:
            if count < len(messages):
                process_queue.block(messages[count:], retry_at)
            self._board.release(process_queue)
            slots.release()

    def _handler_of(self, process_queue: ProcessQueue) -> tuple[Callable[[Any], Awaitable[None]] | None, int | None]:
        """Return the handler for messages of a queue, with all that is around it, and the size of its batches."""
        topic = self._topics.get(process_queue.queue.topic)
        handler: Callable[[Any], Awaitable[None]] | None = self._fallback
        if topic is not None and topic.handler is not None:
            handler = topic.handler
        if handler is not None and process_queue.queue.topic != self._retry_topic:  # see `handle_again`
            handler = self._around(handler, topic.timeout if topic is not None else None)
        if self._spans is not None and handler is not None:
            handler = self._spans.trace_handler(handler)
        if self.recorder is not None and handler is not None:
            handler = self.recorder.time_handler(handler)
        return handler, topic.batch if topic is not None else None

    async def _handle_in_lane(self, process_queue: ProcessQueue, message: ReceivedMessage[Any]) -> float | None:
        """Handle one message; returns when to retry it, None if it is done."""
        await anyio.lowlevel.checkpoint()
        handler, batch = self._handler_of(process_queue)
        if handler is None:
            return anyio.current_time() + RETRY_SECONDS_MAX  # its topic was unsubscribed; its queue is dropped soon
        self._part_size(message, batch)  # notes the attempts
        part, error = self._decoder.first([message])
        return await self._attempt(handler, process_queue, part, error, is_batch=batch is not None)

    def _return(self, process_queue: ProcessQueue, message: ReceivedMessage[Any]) -> None:
        process_queue.give_back([message], 0.0)
        self._board.offer(process_queue)

    async def _attempt(
        self,
        handler: Callable[[Any], Awaitable[None]],
        process_queue: ProcessQueue,
        part: list[ReceivedMessage[Any]],
        error: BaseException | None,
        *,
        is_batch: bool,
    ) -> float | None:
        """Pass messages to their handler, once, unless they have failed before that with `error`.

        Returns when to retry them before all others, or None if they are done, or given back.
        """
        trace = None if self.tracer is None else self.tracer.trace_handling(part)
        is_told = error is not None
        if error is None:
            task = self._current_task()
            self._at_work.add(task)
            try:
                error = await failure_of(handler, part if is_batch else part[0], self._caller)
            finally:
                self._at_work.discard(task)
            if error is not None:
                error = raised_policy(error) or error
        if error is None:
            if trace is not None:
                trace.record_end(ContextCode.SUCCESS)
            self._finish(process_queue, part)
            return None
        policy = self._policy(error, part[0])
        if policy is not error and not is_told:
            log.exception("handler_failed", error, message=part[0], attempt=part[0].attempt)
        if trace is not None:
            trace.record_end(ContextCode.EXCEPTION)
        retry_at = self._board.retry_at(part[0])
        seconds = policy.seconds if isinstance(policy, RetryLater) else None
        if seconds is not None:
            retry_at = anyio.current_time() + seconds
        if isinstance(policy, StopConsumer):
            self._stopped_by = error
            self.stop()
            return 0.0
        if isinstance(policy, Skip):
            log.info("message_skipped", group=self._group, message=part[0], reason=failure_text(error))
            self._on_settle("skipped", part)
            self._finish(process_queue, part)
        elif isinstance(policy, DeadLetter) and await self._are_dead(error, process_queue, part):
            pass
        elif self._give_back is not None and (seconds is None or seconds > KEPT_SECONDS_MAX or self._is_last(part[0])):
            await self._give_all_back(self._give_back, error, process_queue, part, retry_at, seconds)
        elif self._give_back is not None:
            self._count_failure(part)
            self._on_settle("retried", part)
            process_queue.give_back(part, retry_at)
        elif not await self._try_give_up(error, process_queue, part):
            self._count_failure(part)
            self._on_settle("retried", part)
            if self._ordered:
                return retry_at
            process_queue.give_back(part, retry_at)
        return None

    def _may_go_on(self, process_queue: ProcessQueue) -> bool:
        return not self._drains and process_queue.may_go_on(anyio.current_time())

    def _policy(self, error: BaseException, message: ReceivedMessage[Any]) -> HandlingPolicy | None:
        topic = self._topics.get(message.topic)
        return policy_of_failure(error, *([] if topic is None else [topic.on_error]), self._on_error)

    async def _are_dead(
        self, error: BaseException, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage[Any]]
    ) -> bool:
        """Make dead letters of messages; returns whether all of them are, so that nothing is left to retry."""
        if process_queue.dropped:
            return False  # the next owner of the queue decides
        with anyio.CancelScope(shield=True):
            for message in messages:
                if not await self._give_up(message, error):
                    return False  # those before it may be stored twice
        log.warning("message_given_up", group=self._group, message=messages[0], attempts=messages[0].attempt)
        self._on_settle("dead_letter", messages)
        self._finish(process_queue, messages)
        return True

    def _part_size(self, message: ReceivedMessage[Any], batch: int | None) -> int:
        """Return the number of messages to hand over next, from `message` on: one alone at its last attempt."""
        if self._attempts:
            message.attempt = max(message.attempt, self._attempts.get(_identity(message), 1))
        return 1 if self._is_last(message) else batch or 1

    def _is_last(self, message: ReceivedMessage[Any]) -> bool:
        """Return whether this is the last attempt of this process."""
        return self._attempts_max is not None and message.attempt >= self._attempts_max

    def _count_failure(self, messages: Sequence[ReceivedMessage[Any]]) -> None:
        for message in messages:
            message.attempt += 1
            self._attempts.pop(_identity(message), None)
            self._attempts[_identity(message)] = message.attempt
        while len(self._attempts) > REMEMBERED_MAX:
            del self._attempts[next(iter(self._attempts))]

    def _finish(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage[Any]]) -> None:
        if self._attempts:
            for message in messages:
                self._attempts.pop(_identity(message), None)
        self._board.finish_all(process_queue, messages)

    def _on_settle(self, outcome: str, messages: Sequence[ReceivedMessage[Any]]) -> None:
        if self.recorder is not None:
            self.recorder.on_settle(messages[0].topic, outcome, len(messages))

    async def _try_give_up(
        self, error: BaseException, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage[Any]]
    ) -> bool:
        """Make a message that failed too often a dead letter; returns whether it is one."""
        message = messages[0]
        if not self._is_last(message) or len(messages) > 1:
            return False
        if process_queue.dropped:
            return False  # the next owner of the queue gets it
        with anyio.CancelScope(shield=True):
            is_stored = await self._give_up(message, error)
        if is_stored:
            log.warning("message_given_up", group=self._group, message=message, attempts=message.attempt)
            self._on_settle("dead_letter", messages)
            self._finish(process_queue, messages)
        return is_stored

    async def _give_all_back(
        self,
        give_back: GiveBack,
        error: BaseException,
        process_queue: ProcessQueue,
        messages: Sequence[ReceivedMessage[Any]],
        retry_at: float,
        seconds: float | None,
    ) -> None:
        """Send these messages back to the brokers, or retry them here if no broker takes them."""

        async def give(message: ReceivedMessage[Any]) -> None:
            if await give_back(message, error, seconds):
                self._on_settle("sent_back", [message])
                self._finish(process_queue, [message])
            else:
                self._on_settle("retried", [message])
                message.attempt += 1
                process_queue.give_back([message], retry_at)

        if process_queue.dropped:
            return  # the next owner of the queue gets them
        with anyio.CancelScope(shield=True):  # so that each is either sent back or retried here
            async with anyio.create_task_group() as tasks:
                for message in messages:
                    tasks.start_soon(give, message)


async def _in_time(handler: Callable[[Any], Awaitable[None]], seconds: float, messages: Any) -> None:
    with anyio.fail_after(seconds):
        await handler(messages)


async def _with_next(middleware: Middleware, call_next: Callable[[Any], Awaitable[None]], messages: Any) -> None:
    await middleware(messages, call_next)


def _identity(message: ReceivedMessage[Any]) -> tuple[MessageQueue, int]:
    """Return an identity that differs for each message, also if a topic is deleted and created again under its name."""
    return message.queue, message.record.physical_offset
