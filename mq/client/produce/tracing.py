"""Records what happens to messages in the trace topic, for `Admin.trace` and Java's tools.

Recording never waits and never fails: records accumulate in memory, at most `trace_records_max`, and are sent to the
trace topic several times a second. Records without room, or without a reachable broker, are dropped and counted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.abc

from mq.client.errors import ClientError, MessageRefused
from mq.client.logs import log
from mq.client.message import Message, ReceivedMessage, SendResult
from mq.client.net.client_core import ClientCore
from mq.client.produce.outgoing_message import OnDone, OutgoingMessage, make_ready
from mq.client.produce.recall import delay_properties, recall
from mq.client.produce.send_pipeline import RetryPolicy, SendPipeline
from mq.protocol import properties as props
from mq.protocol.message_ids import UniqKeyGenerator
from mq.protocol.messages.recall_handle import HandleInvalid, RecallHandle
from mq.protocol.messages.records import PREPARED
from mq.protocol.messages.trace import (
    TRACE_GROUP,
    ContextCode,
    HandlingBegun,
    HandlingEnded,
    MessageKind,
    Recalled,
    SendTrace,
    TraceRecord,
    TransactionEnded,
    trace_messages,
)
from mq.protocol.names import TRACE_TOPIC, check_topic

BATCH_RECORDS = 100
GATHER_SECONDS = 0.2
MESSAGES_IN_FLIGHT_MAX = 16
LEAVE_SECONDS = 1.0
"""Time to send the remaining records when a client closes."""

WARN_SECONDS = 30.0
"""Between two warnings that records were dropped."""

_COMPRESS_BYTES_MIN = 4096
_STATES = {True: "COMMIT_MESSAGE", False: "ROLLBACK_MESSAGE", None: "UNKNOW"}


def trace_topic(trace: bool | str) -> str | None:
    """Return the topic that the option `trace` of a client names; None without one. Raises NameRefused."""
    if not trace:
        return None
    topic = TRACE_TOPIC if trace is True else trace
    check_topic(topic)
    return topic


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _kind(message: Message, outgoing: OutgoingMessage) -> MessageKind:
    if outgoing.sys_flag & PREPARED:
        return MessageKind.HALF
    return MessageKind.DELAY if delay_properties(message) else MessageKind.NORMAL


def _unwanted(message: ReceivedMessage[Any]) -> bool:
    """Return whether the message's broker is configured not to trace its messages."""
    return message.properties.get(props.TRACE_ON) == "false"


class Tracer:
    """Records what one client does with messages, in the trace topic. `run` must run in a task.

    `dropped_count` counts lost records.
    """

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        core: ClientCore,
        topic: str,
        *,
        group: str,
        unique_keys: UniqKeyGenerator,
    ) -> None:
        self._core = core
        self._limits = core.settings.limits
        self._topic = topic
        self._group = group
        self._unique_keys = unique_keys
        self._pipeline = SendPipeline(tasks, core, TRACE_GROUP, policy=RetryPolicy())
        self._records: deque[TraceRecord] = deque()
        self._wakeup = anyio.Event()
        self._many = anyio.Event()
        self.dropped_count = 0
        self._warn_at = float("-inf")

    def record(self, record: TraceRecord) -> None:
        """Queue a record; `run` sends it soon."""
        if len(self._records) >= self._limits.trace_records_max:
            self._drop(1, f"{len(self._records)} records are waiting")
            return
        self._records.append(record)
        self._wakeup.set()
        if len(self._records) >= BATCH_RECORDS:
            self._many.set()

    # Producers.

    def trace_send(self, messages: Sequence[Message], outgoing: OutgoingMessage, on_done: OnDone) -> OnDone:
        """Wrap `on_done`, to also record the outcome of sending `outgoing`, which contains `messages`."""
        if outgoing.topic == self._topic:
            return on_done
        messages = tuple(messages)
        timestamp_ms, started_at = _now_ms(), anyio.current_time()

        def on_outcome(outcome: SendResult | ClientError) -> None:
            try:
                on_done(outcome)
            finally:
                record_outcome(outcome)

        def record_outcome(outcome: SendResult | ClientError) -> None:
            cost_ms = int((anyio.current_time() - started_at) * 1000)
            result = outcome if isinstance(outcome, SendResult) else None
            if result is not None and not result.trace_on:
                return
            record_ids = [] if result is None else result.offset_message_id.split(",")
            for number, message_id in enumerate(outgoing.unique_key.split(",")):
                message = messages[number]
                self.record(
                    SendTrace(
                        timestamp_ms=timestamp_ms,
                        region=props.REGION,
                        group=self._group,
                        topic=outgoing.topic,
                        message_id=message_id,
                        tags=message.tags,
                        keys=" ".join(message.keys) or None,
                        store_host=self._store_host(result),
                        body_bytes=len(message.body),
                        cost_ms=cost_ms,
                        kind=_kind(message, outgoing),
                        offset_message_id=record_ids[number] if number < len(record_ids) else None,
                        success=result is not None,
                    )
                )

        return on_outcome

    def trace_recall(self, handle: str) -> Callable[[bool], None] | None:
        """Return a callback that records whether this handle's message was recalled; None for an invalid handle."""
        try:
            decoded_handle = RecallHandle.decode(handle)
        except HandleInvalid:
            return None
        timestamp_ms = _now_ms()

        def on_recall(success: bool) -> None:
            self.record(
                Recalled(
                    timestamp_ms=timestamp_ms,
                    region=props.REGION,
                    group=self._group,
                    topic=decoded_handle.topic,
                    message_id=decoded_handle.unique_key,
                    success=success,
                )
            )

        return on_recall

    def trace_transaction_end(self, message: Message, result: SendResult, decision: bool | None) -> None:
        """Record that a transaction is about to be committed (True), rolled back (False) or left open (None)."""
        if result.trace_on:
            self.record(
                TransactionEnded(
                    timestamp_ms=_now_ms(),
                    region=props.REGION,
                    group=self._group,
                    topic=result.queue.topic,
                    message_id=result.message_id,
                    tags=message.tags,
                    keys=" ".join(message.keys) or None,
                    store_host=self._store_host(result),
                    transaction_id=result.message_id,
                    state=_STATES[decision],
                )
            )

    def end_check(self, message: ReceivedMessage[Any], decision: bool | None) -> None:
        """Record the application's answer to a check-back."""
        if not _unwanted(message):
            host = message.store_host
            self.record(
                TransactionEnded(
                    timestamp_ms=_now_ms(),
                    region=message.properties.get(props.MESSAGE_REGION),
                    group=self._group,
                    topic=message.topic,
                    message_id=message.message_id,
                    tags=message.tags,
                    keys=message.properties.get(props.KEYS),
                    store_host=f"{host.ip}:{host.port}",
                    transaction_id=message.message_id,
                    state=_STATES[decision],
                    from_check=True,
                )
            )

    def _store_host(self, result: SendResult | None) -> str | None:
        route = None if result is None else self._core.known_route(result.queue.topic)
        return None if route is None or result is None else route.leader_address(result.queue.broker_name)

    # Consumers.

    def trace_handling(self, messages: Sequence[ReceivedMessage[Any]]) -> HandlingTrace:
        """Record that these messages are about to be handled together. Call `record_end` of the result afterwards."""
        return HandlingTrace(self.record, self._group, self._unique_keys.next(), messages)

    # Sending records.

    async def run(self) -> None:
        """Send records, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._pipeline.run)
            while True:
                await self._wakeup.wait()
                with anyio.move_on_after(GATHER_SECONDS):
                    await self._many.wait()
                await self._wait_room()
                self._write()

    async def finish(self) -> None:
        """Send the remaining records, and wait until they are stored, for a second at most."""
        with anyio.move_on_after(LEAVE_SECONDS, shield=True):
            while self._records:
                await self._wait_room()
                self._write()
            while self._pipeline.in_flight:
                await self._pipeline.wait_finished()
        self.dropped_count += len(self._records)
        self._records.clear()
        self._warn_at = float("inf")  # once more, at the end
        self._pipeline.close()
        if self.dropped_count:
            self._warn("the client is closed")

    async def _wait_room(self) -> None:
        while self._pipeline.in_flight >= MESSAGES_IN_FLIGHT_MAX:
            await self._pipeline.wait_finished()

    def _write(self) -> None:
        """Send the oldest records."""
        records = [self._records.popleft() for _ in range(min(BATCH_RECORDS, len(self._records)))]
        if len(self._records) < BATCH_RECORDS:
            self._many = anyio.Event()
        if not self._records:
            self._wakeup = anyio.Event()
        for keys, body, count in trace_messages(records):
            message = Message(self._topic, body, keys=keys)
            try:
                outgoing = make_ready(
                    message,
                    unique_key=self._unique_keys.next(),
                    born_timestamp_ms=_now_ms(),
                    compress="zlib",
                    compress_bytes_min=_COMPRESS_BYTES_MIN,
                )
                self._pipeline.start(outgoing, self._on_write(count), timeout=self._limits.trace_send_seconds)
            except ClientError as error:
                self._on_loss(count, error)

    def _on_write(self, count: int) -> OnDone:
        def on_outcome(outcome: SendResult | ClientError) -> None:
            if isinstance(outcome, ClientError):
                self._on_loss(count, outcome)

        return on_outcome

    def _on_loss(self, count: int, error: ClientError) -> None:
        log.debug("trace_not_written", topic=self._topic, records=count, reason=str(error))
        self._drop(count, str(error))

    def _drop(self, count: int, reason: str) -> None:
        self.dropped_count += count
        now = anyio.current_time()
        if now >= self._warn_at:
            self._warn_at = now + WARN_SECONDS
            self._warn(reason)

    def _warn(self, reason: str) -> None:
        log.warning(
            "trace_incomplete", group=self._group, topic=self._topic, dropped_records=self.dropped_count, reason=reason
        )


def open_tracer(
    tasks: anyio.abc.TaskGroup, core: ClientCore, topic: str | None, *, group: str, unique_keys: UniqKeyGenerator
) -> Tracer | None:
    """Start a tracer in `tasks`; None without a topic. Call `Tracer.finish` before the tasks end."""
    if topic is None:
        return None
    tracer = Tracer(tasks, core, topic, group=group, unique_keys=unique_keys)
    tasks.start_soon(tracer.run)
    return tracer


class HandlingTrace:
    """Records that a consumer handled messages together. Call `record_end` afterwards."""

    __slots__ = ("_begun_ms", "_group", "_messages", "_note", "_request_id", "_started_at")

    def __init__(
        self, note: Callable[[TraceRecord], None], group: str, request_id: str, messages: Sequence[ReceivedMessage[Any]]
    ) -> None:
        self._note = note
        self._group = group
        self._request_id = request_id
        self._messages = [each for each in messages if not _unwanted(each)]
        self._started_at = anyio.current_time()
        self._begun_ms = _now_ms()
        for message in self._messages:
            note(
                HandlingBegun(
                    timestamp_ms=self._begun_ms,
                    region=message.properties.get(props.MESSAGE_REGION),
                    group=group,
                    request_id=request_id,
                    message_id=message.message_id,
                    retry_times=message.reconsume_times,
                    keys=message.properties.get(props.KEYS),
                )
            )

    def record_end(self, code: ContextCode) -> None:
        """Record the result of the handling. Any code but SUCCESS means that the messages are redelivered."""
        if not self._messages:
            return
        cost_ms = int((anyio.current_time() - self._started_at) * 1000) // len(self._messages)
        timestamp_ms = _now_ms()
        for message in self._messages:
            self._note(
                HandlingEnded(
                    request_id=self._request_id,
                    message_id=message.message_id,
                    cost_ms=cost_ms,
                    success=code is ContextCode.SUCCESS,
                    keys=message.properties.get(props.KEYS),
                    context_code=code,
                    timestamp_ms=timestamp_ms,
                    group=self._group,
                )
            )


async def traced_recall(
    core: ClientCore, tracer: Tracer | None, group: str, handle: str | None, *, seconds: float
) -> str:
    """Recall a message, as `recall` does, and record the outcome. Raises the errors of `Producer.recall`."""
    if handle is None:
        raise MessageRefused("no recall handle: only messages that wait for a `delay` or a `deliver_at` have one")
    on_recall = None if tracer is None else tracer.trace_recall(handle)
    message_id = ""
    try:
        message_id = await recall(core, group, handle, seconds=seconds)
    finally:
        if on_recall is not None:
            on_recall(bool(message_id))
    return message_id
