"""The life cycle of every kind of consumer: what happens when its block is entered and left.

| step | push consumer | pull consumer | pop consumer |
|---|---|---|---|
| start | connections to brokers, heartbeats: joins the group | connections | connections |
| assign | `GroupMember` rebalances, at start and after each change | `assign` | none: any member pops any queue |
| pull | a `Puller` for each queue | a `Puller` for each queue | a pop for each broker group |
| deliver | handlers of `run`, or streams | `poll` | iteration |
| acknowledge | handler ends, next message, `Delivery.ack` | `commit` | `ack` |
| close | stores offsets, releases locks | stores nothing | returns popped messages |

A task that waits for a message when its consumer is closed gets ClientClosed. A closed consumer may be entered again
and starts from scratch.
"""

from __future__ import annotations

import os
import random
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Generic, Literal, TypeVar, overload

import anyio
import anyio.abc

from mq.client.body_codecs import BodyCodec, check_body_codec, encode_body
from mq.client.consume.decoding import BodyDecoder
from mq.client.consume.offsets import lag_of
from mq.client.consume.policies import OnError, check_policies
from mq.client.consume.send_back import failure_text, give_back
from mq.client.errors import NotADeadLetter
from mq.client.events import ClientEvent, OnEvent, check_on_event
from mq.client.message import BodyT, MessageQueue, ReceivedMessage
from mq.client.metrics.recorder import ClientMetrics, Lag, Recorder, check_metrics, open_recorder
from mq.client.net.client_core import ClientCore, RemotingSettings, parse_addresses
from mq.client.net.connection import RespondLater, refuse_server_request
from mq.client.net.identity import new_client_id, new_random, new_unique_keys
from mq.client.net.life_cycle import Client
from mq.client.net.routes import TopicRoute
from mq.client.produce.reply import REPLY_SECONDS, reply_to
from mq.client.produce.tracing import Tracer, open_tracer, trace_topic
from mq.client.spans import TracerProvider, open_spans
from mq.client.task_group import open_task_group
from mq.protocol import properties as props
from mq.protocol.incoming.headers import UnknownRequest
from mq.protocol.names import check_group
from mq.protocol.requests.clients import HeartbeatData
from mq.protocol.wire.request import Request

ReplyT = TypeVar("ReplyT")

LEAVE_SECONDS = 8.0
"""Time to store the last offsets, release locks and unregister, also while a leader is elected: brokers that do not
answer must not block closing for longer.
"""


class Consumer(Client, Generic[BodyT]):
    """The base of all consumers. Subclasses override the steps of the life cycle, which are called in this order:

    `_on_connect`, `_start`, then the block of the user, `_stop`, `_on_close`, `_leave`.
    """

    _kind: ClassVar[str]
    """The name in metrics of clients of this class."""

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        *,
        trace: bool | str = False,
        otel: bool | TracerProvider = False,
        metrics: ClientMetrics | None = None,
        model: Literal["clustering", "broadcasting"] = "clustering",
        codec: BodyCodec[BodyT] | None = None,
        on_error: OnError | None = None,
        ping: bool = False,
        on_event: OnEvent | None = None,
        remoting: RemotingSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        check_group(group)
        self._codec = check_body_codec(codec)
        self._on_error = check_policies(on_error)
        self._decoder = BodyDecoder(group, self._codec_of, self._on_error, give_up=self._give_up, emit=self._emit)
        self._decoder.is_on = codec is not None
        self._pings_first = ping
        self._on_event = check_on_event(on_event)
        self.group = group
        self.client_id = ""
        """Its id at the brokers; a new one each time it is opened."""
        self._name_servers = parse_addresses(namesrv)
        self._take_settings(remoting)
        self._rng = rng
        self._made_in = os.getpid()
        self._trace_topic = trace_topic(trace)
        self._core: ClientCore | None = None
        """Set while the consumer is open."""
        self._tasks: anyio.abc.TaskGroup | None = None
        """Set while it is open."""
        self._tracer: Tracer | None = None
        self._spans = open_spans(otel, group=group, model=model)
        self._metrics = check_metrics(metrics)
        self._recorder: Recorder | None = None

    def _renew(self) -> None:
        self.client_id = new_client_id()
        self._random = new_random(self._rng, self._made_in)
        self._unique_keys = new_unique_keys(self._random)
        self._core = self._tasks = self._tracer = self._recorder = None
        if self._spans is not None:
            self._spans.identify(self.client_id)

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[None]:
        async with (
            open_recorder(self._metrics, self._kind, self.group, self._open_connections) as recorder,
            ClientCore.open(
                self._name_servers,
                heartbeat_body=self._heartbeat_body,
                on_route_change=self._on_route,
                on_server_request=self._answer_server,
                on_event=self._on_event if recorder is None else recorder.counting_events(self._on_event),
                settings=self._remoting_settings,
                rng=self._random,
            ) as core,
        ):
            self._core, self._recorder = core, recorder
            self._decoder.on_settled = None if recorder is None else recorder.on_settle
            self._on_connect(core)
            try:
                async with open_task_group() as tasks:
                    self._tasks = tasks
                    self._tracer = tracer = open_tracer(
                        tasks, core, self._trace_topic, group=self.group, unique_keys=self._unique_keys
                    )
                    await self._ping_first(core)
                    await self._start(core, tasks)
                    if recorder is not None:
                        tasks.start_soon(recorder.run, self._lag_to_show(), core.settings.limits.sample_seconds)
                    try:
                        yield
                    finally:
                        self._stop()
                        if tracer is not None:
                            await tracer.finish()  # noqa: ASYNC102 - shields itself, for a second at most
            finally:
                self._tasks = None
                self._on_close()
                with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                    await self._leave(core)

    def _lag_to_show(self) -> Lag | None:
        """Return the function that reads the lag for metrics; None if no lag is shown."""
        return None

    # Life cycle.

    def _on_connect(self, core: ClientCore) -> None:
        """Called when connections can be opened and nothing runs yet. An exception prevents entering the block."""

    async def _start(self, core: ClientCore, tasks: anyio.abc.TaskGroup) -> None:
        """Start assigning and pulling, in `tasks`. An exception prevents entering the block."""

    def _stop(self) -> None:
        """Deliver nothing more: the block ends. The tasks in `_tasks` still run, and are cancelled next."""

    def _on_close(self) -> None:
        """Wake tasks that wait for a message, after assigning and pulling have ended."""

    @abstractmethod
    async def _leave(self, core: ClientCore) -> None:
        """Store offsets, return messages and unregister; for LEAVE_SECONDS at most. Must not raise."""

    # Communication with brokers.

    def _heartbeat_body(self) -> bytes:
        """Return the heartbeat of this consumer; by default without a group."""
        return HeartbeatData(self.client_id).encode()

    def _on_route(self, route: TopicRoute) -> None:
        """Called when the route of a topic became known or changed."""

    def _answer_server(
        self, request: Request | UnknownRequest, body: memoryview, respond_later: RespondLater
    ) -> bytes | None:
        """Handle a request from a broker; see `OnServerRequest`."""
        return refuse_server_request(request, body, respond_later)

    def _emit(self, event: ClientEvent) -> None:
        if self._core is not None:
            self._core.emit(event)

    # Bodies.

    def _codec_of(self, topic: str) -> BodyCodec[Any] | None:
        """Return the codec for messages of a topic; None for bytes."""
        return self._codec

    async def _give_up(self, message: ReceivedMessage[Any], error: BaseException) -> bool:
        """Make a message a dead letter; returns whether a broker has stored it. Takes at most 5 s."""
        assert self._core is not None, "a message is given up before the consumer is open"
        text = failure_text(error)
        return await give_back(self._core, self.group, message, max_reconsume_times=None, failure=text, is_dead=True)

    # Common to all kinds.

    @overload
    async def reply(
        self,
        message: ReceivedMessage[Any],
        body: BodyT,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float = REPLY_SECONDS,
        codec: None = None,
    ) -> None: ...
    @overload
    async def reply(
        self,
        message: ReceivedMessage[Any],
        body: ReplyT,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float = REPLY_SECONDS,
        codec: BodyCodec[ReplyT],
    ) -> None: ...
    async def reply(
        self,
        message: ReceivedMessage[Any],
        body: Any,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float = REPLY_SECONDS,
        codec: BodyCodec[Any] | None = None,
    ) -> None:
        """Reply to a message sent with `Producer.request`, and wait until the sender has the reply.

        `codec` encodes the body, by default the consumer's codec.

        Raises NotARequest, ReplyNotDelivered (the sender is gone), MessageRefused, and after `timeout` seconds the last
        error. A reply does not acknowledge the message: that happens when its handler ends, as for any other.
        """
        core = self._open_core()
        own_id = self._unique_keys.next()
        reply_codec = check_body_codec(codec) or self._codec
        if reply_codec is not None:
            body = encode_body(reply_codec, body)
        await reply_to(message, body, core, self.group, properties=properties, unique_key=own_id, timeout=timeout)

    async def dead_letter(self, message: ReceivedMessage[Any], reason: str | BaseException) -> None:
        """Store a received message in the group's dead letter topic, with the reason, and wait for the broker's answer.

        This does not acknowledge it: a handler returns afterwards, others acknowledge the delivery. Raises
        NotADeadLetter if no broker took it within 5 s, TypeError for a value that is not a received message.
        """
        core = self._open_core()
        any_message: Any = message
        if not isinstance(any_message, ReceivedMessage):
            raise TypeError(f"pass a message that this consumer has received, not {any_message!r}")
        text = failure_text(reason) if isinstance(reason, BaseException) else props.safe_value(reason)
        is_stored = await give_back(core, self.group, message, max_reconsume_times=None, failure=text, is_dead=True)
        if not is_stored:
            raise NotADeadLetter(message)

    # State.

    def _open_core(self) -> ClientCore:
        """Return the connections of the open consumer. Raises ClientClosed."""
        self._check_open()
        assert self._core is not None, "open without connections"
        return self._core

    def _show(self, what: str, state: str) -> str:
        """Return the text of `repr`: `what` is consumed, `state` describes an open consumer."""
        state = "closed" if self._tasks is None else state
        return f"<{type(self).__name__} {self.group}{what} at {';'.join(self._name_servers)}, {state}>"


class PositionedConsumer(Consumer[BodyT]):
    """A consumer that has a position in each of its queues."""

    @property
    @abstractmethod
    def positions(self) -> Mapping[MessageQueue, int]:
        """Maps each queue to the offset of its next message."""

    async def lag(self) -> dict[MessageQueue, int]:
        """Return the number of unfinished messages of each assigned queue. Asks the leaders for the ends of the queues.

        Includes messages that no filter selects. Raises ClientError if a leader does not answer.
        """
        return await lag_of(self._open_core(), self.positions)

    def _lag_to_show(self) -> Lag:
        return self.lag
