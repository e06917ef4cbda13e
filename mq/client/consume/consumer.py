"""The life of a consumer, of whichever kind: what happens from entering its block to leaving it, in which order.

| step | push consumer | pull consumer | pop consumer |
|---|---|---|---|
| start | connections to brokers, heartbeats: the group has a member | connections | connections |
| assign | `GroupMember` shares queues out, again with each change | `assign` | none: any member pops any queue |
| pull | a `Puller` for each queue | a `Puller` for each queue | a pop for each broker group |
| hand out | handlers of `run`, or streams | `poll` | iteration |
| acknowledge | handler ends, next message, `Delivery.ack` | `commit` | `ack` |
| close | offsets are stored, locks given back | nothing is stored | what was popped is given back |

Whoever waits for a message when its consumer is closed gets ClientClosed. A consumer that was closed may be entered
again and begins anew.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, Self

import anyio
import anyio.abc

from mq.client.errors import ClientClosed
from mq.client.message import ReceivedMessage
from mq.client.net.client_core import ClientCore, RemotingSettings, parse_addresses
from mq.client.net.connection import AnswerLater, refuse_server_request
from mq.client.net.identity import new_client_id, new_unique_keys
from mq.client.net.routes import TopicRoute
from mq.client.produce.reply import REPLY_SECONDS, reply_to
from mq.client.produce.tracing import Tracer, open_tracer, trace_topic
from mq.client.spans import TracerProvider, open_spans
from mq.client.task_group import open_task_group
from mq.protocol.bodies import HeartbeatData
from mq.protocol.headers import Request, UnknownRequest
from mq.protocol.names import check_group

__all__ = ["Consumer"]

LEAVE_SECONDS = 2.0
"""Storing the last offsets and saying goodbye take two round trips; brokers that do not answer do not hold us up."""


class Consumer(anyio.AsyncContextManagerMixin):
    """What all kinds of consumers share. Kinds override the steps of their life, which are called in this order:

    `_connected`, `_start`, then the block of the user, `_stop`, `_closed`, `_leave`.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        *,
        trace: bool | str = False,
        otel: bool | TracerProvider = False,
        model: Literal["clustering", "broadcasting"] = "clustering",
        remoting: RemotingSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        self.client_id = new_client_id()
        self._name_servers = parse_addresses(namesrv)
        self._remoting_settings = remoting
        self._rng = rng
        self._trace_topic = trace_topic(trace)
        self._unique_keys = new_unique_keys(rng or random.Random())
        self._remoting: ClientCore | None = None
        """Set when it is entered for the first time, and kept."""
        self._tasks: anyio.abc.TaskGroup | None = None
        """Set while it is open."""
        self._tracer: Tracer | None = None
        self._spans = open_spans(otel, group=group, client_id=self.client_id, model=model)

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        async with ClientCore.open(
            self._name_servers,
            heartbeat_body=self._heartbeat_body,
            on_route_change=self._note_route,
            on_server_request=self._answer_server,
            settings=self._remoting_settings,
            rng=self._rng,
        ) as remoting:
            self._remoting = remoting
            self._connected(remoting)
            try:
                async with open_task_group() as tasks:
                    self._tasks = tasks
                    self._tracer = tracer = open_tracer(
                        tasks, remoting, self._trace_topic, group=self.group, unique_keys=self._unique_keys
                    )
                    await self._start(remoting, tasks)
                    try:
                        yield self
                    finally:
                        self._stop()
                        if tracer is not None:
                            await tracer.finish()  # noqa: ASYNC102 - shields itself, for a second at most
            finally:
                self._tasks = None
                self._closed()
                with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                    await self._leave(remoting)

    # The steps of a life.

    def _connected(self, remoting: ClientCore) -> None:
        """Connections can be opened. Nothing runs yet. May raise: then the block is not entered."""

    async def _start(self, remoting: ClientCore, tasks: anyio.abc.TaskGroup) -> None:
        """Begin to assign and to pull, in `tasks`. May raise: then the block is not entered."""

    def _stop(self) -> None:
        """The block has ended: nothing more is handed out. `_tasks` still run, to be cancelled."""

    def _closed(self) -> None:
        """Nothing is assigned or pulled any more. Wakes whoever waits for a message."""

    @abstractmethod
    async def _leave(self, remoting: ClientCore) -> None:
        """Store and give back what is to be, and say goodbye; for LEAVE_SECONDS at most. Must not raise."""

    # What brokers are told, and tell us.

    def _heartbeat_body(self) -> bytes:
        """What brokers hear of this consumer; by default that it is there, as a member of no group."""
        return HeartbeatData(self.client_id).encode()

    def _note_route(self, route: TopicRoute) -> None:
        """The route of a topic is known, or another one."""

    def _answer_server(
        self, request: Request | UnknownRequest, body: memoryview, answer_later: AnswerLater
    ) -> bytes | None:
        """What a broker asks; see `OnServerRequest`."""
        return refuse_server_request(request, body, answer_later)

    # What all kinds do with a message.

    async def reply(
        self,
        message: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float = REPLY_SECONDS,
    ) -> None:
        """Answer a message whose sender waits for it, see `Producer.request`, and wait until the sender has the reply.

        Raises NotARequest, ReplyNotDelivered (the sender is gone), MessageRefused, and after `timeout` seconds what was
        in the way. The reply is not acknowledgement: the message is done when its handler ends, as any other.
        """
        own_id, remoting = self._unique_keys.next(), self._remoting
        await reply_to(message, body, remoting, self.group, properties=properties, unique_key=own_id, timeout=timeout)

    # Whether it is open.

    def _opened(self) -> ClientCore:
        """Raises ClientClosed before the block and after it."""
        if self._remoting is None:
            raise ClientClosed(f"enter the consumer first: async with {type(self).__name__}(...) as consumer")
        if self._tasks is None:
            raise ClientClosed("the consumer is closed")
        return self._remoting

    def _show(self, what: str, state: str) -> str:
        """What `repr` says: `what` is consumed, `state` is that of an open consumer."""
        state = "closed" if self._tasks is None else state
        return f"<{type(self).__name__} {self.group}{what} at {';'.join(self._name_servers)}, {state}>"
