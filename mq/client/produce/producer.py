"""The public producer. `send_pipeline` does the work."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar, overload

import anyio
import anyio.abc
import anyio.lowlevel

from mq.client.body_codecs import BodyCodec, check_body_codec, decode_body, encode_message
from mq.client.errors import ClientError, MessageRefused, ProducerBusy
from mq.client.events import OnEvent, check_on_event
from mq.client.message import BodyT, Message, MessageQueue, ReceivedMessage, SendResult
from mq.client.metrics.recorder import ClientMetrics, Recorder, check_metrics, open_recorder
from mq.client.net.client_core import ClientCore, RemotingSettings, parse_addresses
from mq.client.net.connection import RespondLater, refuse_server_request
from mq.client.net.identity import new_client_id, new_random, new_unique_keys
from mq.client.net.life_cycle import Client
from mq.client.produce.accumulator import Accumulator, check_linger, may_join
from mq.client.produce.in_flight_limit import InFlightLimit
from mq.client.produce.numbering import numbering_of
from mq.client.produce.oneway import send_oneway
from mq.client.produce.outgoing_message import OnDone, OutgoingMessage, Pending, check_codec, split_result
from mq.client.produce.preparation import Preparation, wall_clock_ms
from mq.client.produce.request_reply import OpenRequests, ask
from mq.client.produce.send_pipeline import RetryPolicy, SendPipeline
from mq.client.produce.tracing import Tracer, open_tracer, trace_topic, traced_recall
from mq.client.spans import SendSpan, TracerProvider, open_spans
from mq.client.task_group import open_task_group
from mq.protocol.incoming.headers import UnknownRequest
from mq.protocol.messages.compression import Codec
from mq.protocol.names import check_group
from mq.protocol.requests.clients import HeartbeatData, ProducerData
from mq.protocol.requests.request_reply import PushReplyMessageToClient
from mq.protocol.wire.request import Request

ReplyT = TypeVar("ReplyT")

# submit() does not yield while there is room; during a burst the writing task must still run now and then.
_SUBMITS_PER_YIELD = 64

LEAVE_SECONDS = 2.0
"""Unregistering takes one round trip; brokers that do not answer must not block closing."""


class Producer(Client, Generic[BodyT]):
    """Sends messages to RocketMQ topics, on trio or asyncio.

        async with Producer("127.0.0.1:9876", group="orders") as producer:
            result = await producer.send(Message("Orders", b"body", tags="new", keys=["4711"]))

    `namesrv` is `host:port`, several separated by `;`, or a list. Many tasks may use one producer at once. Leaving the
    block waits for messages in flight, unless it is left by an exception.

    `timeout` limits one send with all its attempts, in seconds. Within it, `retries` more attempts follow unknown
    outcomes and refusals that another broker might not share, each taking at most `attempt_timeout`; while a queue has
    no leader, attempts continue until the timeout. The default leaves time for three attempts, so that a send survives
    a change of leader, even if the old one vanished silently: the new one is found as soon as the name servers know it,
    2 to 5 s later. With a shorter timeout, sends report such a change as an error. `retry_unknown=False` never repeats
    a message that may be stored already. `in_flight_max` limits the messages in flight; sends that wait for room are
    served in their order, and `timeout` begins when there is room.

    With `linger`, messages of a topic that are sent while others are in flight wait for them, at most `linger` seconds,
    and are sent together, in one request of at most `batch_bytes` bytes; see `mq.client.produce.accumulator`. Each has
    its own result or error all the same. None, the default, sends each message by itself.

    With `numbered`, raftmq stores a message once, however often it is sent again. Numbers belong to a producer id: a
    new one (True), or one that no other producer has meanwhile, such as "billing-7", whose numbers begin at the clock's
    microseconds or at `first_number`. Messages with numbers of their own keep them. See `docs/deduplication.md`.

    Bodies of at least `compress_bytes_min` bytes are compressed with "zlib", which all consumers support, with "lz4" or
    "zstd", which are faster but not supported by Go clients, or not at all (None).

    With `trace` the outcome of each message is recorded, see `Admin.trace`, in the topic of that name or, for True, in
    the one that all RocketMQ tools use. With `otel` each send is a span of OpenTelemetry, of the global tracer provider
    (True) or of that one, and the message carries its context. With `metrics` sends are counted: `mq.client.metrics`.

    With `codec`, see `mq.client.body_codecs`, bodies are values that it encodes when they are sent; a value that it
    cannot encode raises MessageRefused. It also decodes the replies to requests.

    Order: messages of one queue keep the order of their sends if each is awaited before the next; with several in
    flight, a retried one may end up behind later ones.
    """

    _recorder: Recorder | None = None
    _watches_sends = False
    """Whether traces, spans or metrics want to know of each send."""

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str = "raftmq_python",
        *,
        timeout: float = 10.0,
        attempt_timeout: float = 3.0,
        retries: int = 2,
        retry_unknown: bool = True,
        in_flight_max: int = 1024,
        linger: float | None = None,
        batch_bytes: int = 64 * 1024,
        codec: BodyCodec[BodyT] | None = None,
        compress: Codec | None = "zlib",
        compress_bytes_min: int = 4096,
        auto_create_topics: bool = True,
        trace: bool | str = False,
        otel: bool | TracerProvider = False,
        metrics: ClientMetrics | None = None,
        ping: bool = False,
        on_event: OnEvent | None = None,
        remoting: RemotingSettings | None = None,
        rng: random.Random | None = None,
        numbered: bool | str = False,
        first_number: int | None = None,
    ) -> None:
        check_group(group)
        if timeout <= 0 or in_flight_max < 1:
            raise ValueError(f"timeout {timeout} must be positive and in_flight_max {in_flight_max} at least 1")
        check_codec(compress)
        self._codec = check_body_codec(codec)
        self.group = group
        self.client_id = ""
        """Its id at the brokers; a new one each time it is opened."""
        self.timeout = timeout
        self._policy = RetryPolicy(retries=retries, attempt_seconds=attempt_timeout, retry_unknown=retry_unknown)
        check_linger(linger, batch_bytes, timeout)
        self._numbering = numbering_of(numbered, first_number, in_flight_max)
        self._pings_first = ping
        self._on_event = check_on_event(on_event)
        self._in_flight_max = in_flight_max
        self._linger = linger
        self._batch_bytes = batch_bytes
        self._compress = compress
        self._compress_bytes_min = compress_bytes_min
        self._auto_create_topics = auto_create_topics
        self._name_servers = parse_addresses(namesrv)
        self._take_settings(remoting)
        self._rng = rng
        self._made_in = os.getpid()
        self._core: ClientCore | None = None
        self._pipeline: SendPipeline | None = None
        self._accumulator: Accumulator | None = None
        self._submits = 0
        self._trace_topic = trace_topic(trace)
        self._tracer: Tracer | None = None
        self._spans = open_spans(otel, group=group)
        self._metrics = check_metrics(metrics)
        self._requests: OpenRequests | None = None

    def _renew(self) -> None:
        self.client_id = new_client_id()
        self._random = new_random(self._rng, self._made_in)
        self._unique_keys = new_unique_keys(self._random)
        if self._numbering is not None:
            self._numbering.begin(self._random)
        self._preparation = Preparation(
            self._unique_keys,
            self._spans,
            compress=self._compress,
            compress_bytes_min=self._compress_bytes_min,
            numbering=self._numbering,
        )
        self._requests = OpenRequests(self.client_id, limit=self._in_flight_max, rng=self._random)
        self._limit = InFlightLimit(self._in_flight_max, self._in_flight if self._numbering is None else self._span)
        self._core = self._pipeline = self._accumulator = self._tracer = self._recorder = None
        if self._spans is not None:
            self._spans.identify(self.client_id)

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[None]:
        async with (
            open_recorder(self._metrics, "producer", self.group, self._open_connections) as recorder,
            ClientCore.open(
                self._name_servers,
                heartbeat_body=self._heartbeat_body,
                on_server_request=self._answer_server,
                on_event=self._on_event if recorder is None else recorder.counting_events(self._on_event),
                settings=self._remoting_settings,
                rng=self._random,
            ) as core,
        ):
            self._core, self._recorder = core, recorder
            await self._ping_first(core)
            try:
                async with open_task_group() as tasks:
                    self._pipeline = pipeline = SendPipeline(
                        tasks,
                        core,
                        self.group,
                        policy=self._policy,
                        auto_create_topics=self._auto_create_topics,
                        on_finished=self._limit.wake_waiters,
                        on_retry=None if recorder is None else recorder.count_retry,
                    )
                    tasks.start_soon(pipeline.run)
                    if recorder is not None:
                        recorder.show_sends(self._in_flight)
                        tasks.start_soon(recorder.run, None, core.settings.limits.sample_seconds)
                    if self._linger is not None:
                        self._accumulator = Accumulator(
                            pipeline,
                            linger=self._linger,
                            batch_bytes=self._batch_bytes,
                            on_finished=self._limit.wake_waiters,
                            numbering=self._numbering,
                        )
                        tasks.start_soon(self._accumulator.run)
                    self._tracer = tracer = open_tracer(
                        tasks, core, self._trace_topic, group=self.group, unique_keys=self._unique_keys
                    )
                    self._watches_sends = any(each is not None for each in (tracer, self._spans, recorder))
                    self._start_tasks(tasks, core)
                    try:
                        yield
                    finally:
                        if self._accumulator is not None:
                            self._accumulator.close()
                        pipeline.close()
                        if tracer is not None:
                            await tracer.finish()  # noqa: ASYNC102 - shields itself, for a second at most
            finally:
                with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                    await core.unregister(self.client_id, producer_group=self.group)

    async def _finish(self) -> None:
        """Accept no more messages, and wait until none is in flight."""
        pipeline = self._pipeline
        assert pipeline is not None, "open without a pipeline"
        while self._in_flight():
            if self._accumulator is not None:
                self._accumulator.flush()
            await pipeline.wait_finished()

    def _pending_messages(self) -> int:
        return self._in_flight()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group} at {';'.join(self._name_servers)}, {self._in_flight()} in flight>"

    def _start_tasks(self, tasks: anyio.abc.TaskGroup, core: ClientCore) -> None:
        """Start further tasks of a subclass."""

    def _answer_server(
        self, request: Request | UnknownRequest, body: memoryview, respond_later: RespondLater
    ) -> bytes | None:
        if isinstance(request, PushReplyMessageToClient):
            assert self._requests is not None, "a reply came without a connection"
            return self._requests.on_push(request, body, wall_clock_ms())
        return refuse_server_request(request, body, respond_later)

    def _on_done(
        self, messages: Sequence[Message], outgoing: OutgoingMessage, on_done: OnDone, span: SendSpan | None
    ) -> OnDone:
        """Wrap `on_done` for `outgoing`, which contains `messages`, to also count and trace the outcome."""
        if not self._watches_sends:
            return on_done
        if self._recorder is not None:
            on_done = self._recorder.count_send(outgoing.topic, len(messages), len(outgoing.body), on_done)
        if self._tracer is not None:
            on_done = self._tracer.trace_send(messages, outgoing, on_done)
        return on_done if span is None else span.end_on_outcome(outgoing.unique_key, self._leader_of, on_done)

    def _leader_of(self, queue: MessageQueue) -> str | None:
        """Return the address of a queue's leader, if known."""
        route = None if self._core is None else self._core.known_route(queue.topic)
        return None if route is None else route.leader_address(queue.broker_name)

    def _heartbeat_body(self) -> bytes:
        return HeartbeatData(self.client_id, producers=[ProducerData(self.group)]).encode()

    def _open_pipeline(self) -> SendPipeline:
        if not self._is_usable():
            self._check_open()
        assert self._pipeline is not None, "open without a pipeline"
        return self._pipeline

    # One message.

    async def send(
        self, message: Message[BodyT], *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send one message and wait until it is stored.

        `timeout` overrides the producer's, in seconds, for all attempts together. With `queue`, or a sharding key in
        the message, all attempts use that queue.

        Raises SendOutcomeUnknown if the message may have been stored. All other errors mean that it was not:
        MessageRefused (a limit of the protocol), SendRejected (refused by a broker), TopicNotFound, NoRoute,
        ConnectFailed, NameServersUnavailable (no server reachable within the timeout), ClientClosed. If cancelled, it
        makes no further attempt, and the message may or may not have been stored.
        """
        return await self._send(encode_message(message, self._codec), self._budget(timeout), queue)

    async def _send(
        self,
        message: Message,
        seconds: float,
        queue: MessageQueue | None,
        *,
        own: Mapping[str, str] | None = None,
        retries: int | None = None,
    ) -> SendResult:
        pipeline = self._open_pipeline()
        await self._wait_room(pipeline)
        outgoing, span = self._make_ready(message, queue, own)
        send = Pending(outgoing.unique_key)
        completion = self._on_done([message], outgoing, send.complete, span)
        if own is None:
            abandon = self._start(pipeline, message, outgoing, completion, seconds, queue)
        else:
            abandon = self._start_alone(pipeline, outgoing, completion, seconds, queue, retries)
        return await self._outcome(abandon, send, span, outgoing.topic)

    def _start(
        self,
        pipeline: SendPipeline,
        message: Message,
        outgoing: OutgoingMessage,
        on_done: OnDone,
        seconds: float,
        queue: MessageQueue | None,
    ) -> Callable[[], None]:
        """Start to send a message, in a batch if possible. Returns a function that abandons it. Raises ClientClosed."""
        accumulator = self._accumulator
        if accumulator is None or not may_join(message, outgoing):
            return self._start_alone(pipeline, outgoing, on_done, seconds, queue)
        member = accumulator.add(outgoing, on_done, timeout=seconds, queue=queue)
        return partial(accumulator.abandon, member)

    def _start_alone(
        self,
        pipeline: SendPipeline,
        message: OutgoingMessage,
        on_done: OnDone,
        seconds: float,
        queue: MessageQueue | None,
        retries: int | None = None,
    ) -> Callable[[], None]:
        """Start a request of its own; messages of the topic that wait for a batch are sent first, to keep the order."""
        if self._accumulator is not None:
            self._accumulator.flush(message.topic)
        if self._numbering is not None:
            message = self._numbering.number(message, message.unique_key.count(",") + 1)
        send = pipeline.start(message, on_done, timeout=seconds, queue=queue, retries=retries)
        return partial(pipeline.abandon, send)

    async def _outcome(
        self, abandon: Callable[[], None], send: Pending, span: SendSpan | None, topic: str, count: int = 1
    ) -> SendResult:
        """Wait for the outcome of a send; abandon it if cancelled. Raises the errors of `send`."""
        try:
            return await send.wait()
        finally:
            if not send.done:
                abandon()
                if span is not None:
                    span.on_abandon()
                if self._recorder is not None:
                    self._recorder.not_awaited(topic, "cancelled", count)

    async def submit(
        self, message: Message[BodyT], *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> Pending:
        """Start to send a message, and return a handle to await. Waits only while `in_flight_max` are in flight.

            pending = [await producer.submit(message) for message in messages]
            results = [await each for each in pending]

        Raises MessageRefused and ClientClosed; all other errors are raised where the handle is awaited.
        """
        pipeline = self._open_pipeline()
        seconds, ready = self._budget(timeout), encode_message(message, self._codec)
        await self._wait_room(pipeline)
        outgoing, span = self._make_ready(ready, queue)
        send = Pending(outgoing.unique_key)
        completion = self._on_done([ready], outgoing, send.complete, span)
        self._start(pipeline, ready, outgoing, completion, seconds, queue)
        return send

    def send_nowait(
        self,
        message: Message[BodyT],
        on_done: OnDone,
        *,
        timeout: float | None = None,
        queue: MessageQueue | None = None,
    ) -> str:
        """Start to send a message and return its id. Later, `on_done` gets its SendResult or the error, once.

        `on_done` runs in a task of the producer and must not block; its exceptions are logged. Raises ProducerBusy if
        `in_flight_max` messages are in flight, MessageRefused, ClientClosed.
        """
        pipeline = self._open_pipeline()
        if not self._limit.has_room:
            raise ProducerBusy(self._in_flight_max)
        seconds, ready = self._budget(timeout), encode_message(message, self._codec)
        outgoing, span = self._make_ready(ready, queue)
        completion = self._on_done([ready], outgoing, on_done, span)
        self._start(pipeline, ready, outgoing, completion, seconds, queue)
        return outgoing.unique_key

    async def send_oneway(self, message: Message[BodyT], *, queue: MessageQueue | None = None) -> None:
        """Send one message without waiting for an answer. It may be lost without notice, and gets no number.

        Raises MessageRefused, TopicNotFound, NoRoute, ConnectFailed, NameServersUnavailable, ClientClosed.
        """
        self._open_pipeline()
        outgoing, span = self._make_ready(encode_message(message, self._codec), queue)
        assert self._core is not None, "a pipeline without connections"
        await send_oneway(
            self._core,
            self.group,
            outgoing,
            queue,
            auto_create_topics=self._auto_create_topics,
            rng=self._random,
            span=span,
            recorder=self._recorder,
        )
        await anyio.lowlevel.checkpoint()

    @overload
    async def request(
        self,
        message: Message[BodyT],
        *,
        timeout: float | None = None,
        queue: MessageQueue | None = None,
        reply_codec: None = None,
    ) -> ReceivedMessage[BodyT]: ...
    @overload
    async def request(
        self,
        message: Message[BodyT],
        *,
        timeout: float | None = None,
        queue: MessageQueue | None = None,
        reply_codec: BodyCodec[ReplyT],
    ) -> ReceivedMessage[ReplyT]: ...
    async def request(
        self,
        message: Message[BodyT],
        *,
        timeout: float | None = None,
        queue: MessageQueue | None = None,
        reply_codec: BodyCodec[Any] | None = None,
    ) -> ReceivedMessage[Any]:
        """Send one message to a consumer that replies, and wait for the reply, both within `timeout`.

        `reply_codec` decodes the body of the reply, by default the producer's codec. Raises BodyNotDecoded if it
        cannot, with the reply as its `message`; NoReply if the message is stored but no reply came, ProducerBusy
        while `in_flight_max` others wait, and the errors of `send`. Of several replies the first one counts.
        """
        self._open_pipeline()
        codec = check_body_codec(reply_codec) or self._codec
        ready = encode_message(message, self._codec)
        requests = self._requests
        assert self._core is not None and requests is not None, "a pipeline without connections"  # noqa: PT018
        reply = await ask(
            self._core,
            requests,
            message.topic,
            seconds=self._budget(timeout),
            send=lambda left, own: self._send(ready, left, queue, own=own),
        )
        if codec is not None and (error := decode_body(reply, codec)) is not None:
            raise error
        return reply

    async def recall(self, handle: str | None, *, timeout: float | None = None) -> str:
        """Recall a message that waits for its time, and return its id; `handle` is its `SendResult.recall_handle`.

        Raises NotRecalled if no such message waits: it was delivered, or recalled before. Raises
        MessageRefused for an invalid handle, such as the None of a message with a delay level, and TopicNotFound,
        NoRoute, ConnectFailed, NameServersUnavailable, ClientClosed; ConnectionLost and RequestTimeout if the outcome
        is unknown.
        """
        self._open_pipeline()
        assert self._core is not None, "a pipeline without connections"
        return await traced_recall(self._core, self._tracer, self.group, handle, seconds=self._budget(timeout))

    @property
    def dropped_replies(self) -> int:
        """The number of replies for which no request was waiting, or none any more."""
        self._check_process()
        return 0 if self._requests is None else self._requests.dropped_count

    # Many messages.

    async def send_batch(
        self,
        messages: Sequence[Message[BodyT]],
        *,
        timeout: float | None = None,
        queue: MessageQueue | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic in one request. They are stored together, in order, in one queue; all or none.

        Their bodies are not compressed; the total is limited to 4 MiB, including about 100 bytes per message.
        `properties` belong to the batch: each message gets them in addition to its own. Returns the results in
        order. For repeated messages with sequence numbers, the broker may no longer know the place; then their queue
        offset is -1. Raises the errors of `send`, which apply to all of them.
        """
        pipeline = self._open_pipeline()
        seconds, ready = self._budget(timeout), [encode_message(message, self._codec) for message in messages]
        await self._wait_room(pipeline)
        try:
            outgoing, span = self._preparation.batch(ready, queue, properties)
        except BaseException:
            self._limit.wake_waiters()  # this one takes no room
            raise
        send = Pending(outgoing.unique_key)
        completion = self._on_done(ready, outgoing, send.complete, span)
        abandon = self._start_alone(pipeline, outgoing, completion, seconds, queue)
        together = await self._outcome(abandon, send, span, outgoing.topic, len(messages))
        return split_result(together, len(messages))

    async def send_many(
        self, messages: Iterable[Message[BodyT]], *, timeout: float | None = None
    ) -> list[SendResult | ClientError]:
        """Send all messages, many in flight at once, and return the outcomes in the same order. Raises ClientClosed."""
        sends: list[Pending] = []
        for message in messages:
            try:
                sends.append(await self.submit(message, timeout=timeout))
            except MessageRefused as error:
                failure = Pending()
                failure.complete(error)
                sends.append(failure)
        return [await each.wait_outcome() for each in sends]

    async def flush(self) -> None:
        """Wait until the outcomes of all messages are known whose sends started before this call.

        The timeouts of the messages limit the wait, whatever other tasks send meanwhile. Raises ClientClosed.
        """
        pipeline = self._open_pipeline()
        if not self._limit.has_room:  # sends that wait for room are served in their order
            await self._limit.wait()
            self._limit.wake_waiters()  # this call takes no room
        await anyio.lowlevel.checkpoint()  # those that were let in before start their messages
        if self._accumulator is not None:
            self._accumulator.flush()
        last = pipeline.last_number
        while pipeline.is_in_flight(last) or (self._accumulator is not None and self._accumulator.is_in_flight(last)):
            await pipeline.wait_finished()

    @property
    def in_flight(self) -> int:
        """The number of messages in flight."""
        self._check_process()
        return self._in_flight()

    def _in_flight(self) -> int:
        waiting_count = self._accumulator.extra_in_flight if self._accumulator is not None else 0
        return waiting_count + (self._pipeline.in_flight if self._pipeline is not None else 0)

    def _span(self) -> int:
        """Sends that brokers must remember so that they know the oldest message in flight when it is sent again."""
        pipeline = self._pipeline
        return self._in_flight() + (pipeline.span - pipeline.in_flight if pipeline is not None else 0)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return a topic's writable queues, for `send(queue=...)`. Raises TopicNotFound, NameServersUnavailable."""
        self._open_pipeline()
        assert self._core is not None, "a pipeline without connections"
        return list((await self._core.route(topic)).write_queues)

    def _budget(self, timeout: float | None) -> float:
        if timeout is None:
            return self.timeout
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout}; it must be positive")
        return timeout

    async def _wait_room(self, pipeline: SendPipeline) -> None:
        self._submits += 1
        if self._submits % _SUBMITS_PER_YIELD == 0:
            await anyio.lowlevel.checkpoint()
        if not self._limit.has_room:
            await self._limit.wait()

    def _make_ready(
        self, message: Message, queue: MessageQueue | None, own: Mapping[str, str] | None = None
    ) -> tuple[OutgoingMessage, SendSpan | None]:
        """Prepare a message for sending. Returns it and its span. Raises MessageRefused."""
        try:
            return self._preparation.message(message, queue, own)
        except BaseException:
            self._limit.wake_waiters()  # this one takes no room
            if self._recorder is not None:
                self._recorder.not_awaited(message.topic, "not_stored")
            raise
