"""Sends the proxy's requests to brokers, over the SDK's connections and in the name of the client's user.

`mq.client.net.leader_calls` and `mq.client.produce.send_pipeline` find leaders and retry.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import structlog
import trio

from mq.client.errors import BrokerError, ClientError, NoRoute, TopicNotFound
from mq.client.message import SendResult
from mq.client.net.client_core import ClientCore, RemotingSettings
from mq.client.net.connection import OnServerRequest
from mq.client.net.leader_calls import PAUSE_SECONDS, Repeat, call_leader, leader_address
from mq.client.net.replies import read_body
from mq.client.net.routes import TopicRoute
from mq.client.produce.outgoing_message import OutgoingMessage, Pending
from mq.client.produce.send_pipeline import RetryPolicy, SendPipeline
from mq.client.task_group import open_task_group
from mq.protocol.access.acting import ActsFor
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.names import AUTO_CREATE_TEMPLATE
from mq.protocol.requests.clients import CheckClientConfigBody, ClientBehindProxy, HeartbeatOfProxy, ProducerData
from mq.protocol.requests.consumer_groups import GroupExt, SubscriptionGroupConfig
from mq.protocol.requests.topics import TopicConfig, TopicOfBrokerExt
from mq.proxy.brief_cache import BriefCache
from mq.proxy.callers import Fields

_FRESH_SECONDS: Final = 5.0
"""The time after which the proxy knows of a change to a topic or a group."""
_ASK_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 5.0
"""Time to wait for the answer to a request after the time for which it may be held."""
_STAY_CONNECTED_SECONDS: Final = 5.0
_GROUP: Final = "raftmq-proxy"

NOT_NOW: Final = frozenset(
    {ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR, ResponseCode.GO_AWAY}
)
"""Answers to requests about consumption after which another attempt is useful."""

Log = structlog.stdlib.BoundLogger


class Topic(NamedTuple):
    """The route and configuration of a topic, at most some seconds old."""

    route: TopicRoute
    config: TopicConfig


class Brokers:
    """Sends requests to all brokers that the name servers know. `open` makes it."""

    def __init__(self, core: ClientCore, pipeline: SendPipeline, log: Log) -> None:
        self._core = core
        self._pipeline = pipeline
        self._log = log
        self._topics: BriefCache[str, Topic] = BriefCache(self._ask_topic, seconds=_FRESH_SECONDS)
        self._groups: BriefCache[str, SubscriptionGroupConfig | None] = BriefCache(
            self._ask_group, seconds=_FRESH_SECONDS
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        name_servers: Sequence[str],
        log: Log,
        *,
        client_id: str,
        producer_groups: Callable[[], Collection[str]],
        members: Callable[[], Sequence[ClientBehindProxy]],
        on_server_request: OnServerRequest,
        settings: RemotingSettings,
    ) -> AsyncGenerator[Brokers]:
        """Connect to brokers when needed, until the block ends.

        `producer_groups` and `members` of consumer groups are announced to all brokers.
        """

        def heartbeat() -> bytes:
            groups = sorted(producer_groups()) or [_GROUP]
            producers = [ProducerData(group) for group in groups]
            return HeartbeatOfProxy(client_id=client_id, producers=producers, proxied_clients=members()).encode()

        async with (
            ClientCore.open(
                name_servers, heartbeat_body=heartbeat, on_server_request=on_server_request, settings=settings
            ) as core,
            open_task_group() as tasks,
        ):
            pipeline = SendPipeline(tasks, core, _GROUP, policy=RetryPolicy(), auto_create_topics=False)
            tasks.start_soon(pipeline.run)
            brokers = cls(core, pipeline, log)
            try:
                yield brokers
            finally:
                pipeline.close()
                tasks.cancel_scope.cancel()

    # What there is.

    async def topic(self, name: str) -> Topic:
        """Return the route and the configuration of a topic. Raises ClientError."""
        return await self._topics.get(name)

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        """Return the configuration of a consumer group; None if it does not exist yet. Raises ClientError."""
        return await self._groups.get(name)

    async def _ask_topic(self, name: str) -> Topic:
        route = await self._core.route(name, refresh=True)
        ext = TopicOfBrokerExt(topic=name, lo=True)
        _, body = await self.ask(name, _any_broker(route), RequestCode.GET_TOPIC_CONFIG, ext.fields())
        return Topic(route, read_body(TopicConfig.decode, body))

    async def _ask_group(self, name: str) -> SubscriptionGroupConfig | None:
        route = await self._core.route(AUTO_CREATE_TEMPLATE)
        code, ext = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupExt(group=name)
        try:
            _, body = await self.ask(AUTO_CREATE_TEMPLATE, _any_broker(route), code, ext.fields())
        except BrokerError as error:
            if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                return None
            raise
        return read_body(SubscriptionGroupConfig.decode, body)

    async def authenticate(self, user: ActsFor) -> None:
        """Ask a broker to check the signature of a user. Raises ClientError if it is wrong."""
        route = await self._core.route(AUTO_CREATE_TEMPLATE)
        body = CheckClientConfigBody().encode()
        code = RequestCode.CHECK_CLIENT_CONFIG
        await self.ask(AUTO_CREATE_TEMPLATE, _any_broker(route), code, user.fields(), body)

    async def authorize(self, topic: str, extra: Fields) -> None:  # noqa: ASYNC910 - without accounts, no broker is asked
        """Ask a broker whether a user may do anything with a topic. Without a user, everybody may.

        Raises ClientError if not.
        """
        if extra:
            broker_name = _any_broker((await self.topic(topic)).route)
            ext = TopicOfBrokerExt(topic=topic, lo=True)
            await self.ask(topic, broker_name, RequestCode.GET_TOPIC_CONFIG, {**ext.fields(), **extra})

    async def authorize_member(self, group: str, topics: Iterable[str], extra: Fields) -> None:
        """Ask a broker whether a user may consume these topics with a group. Without a user, everybody may.

        Raises ClientError if not.
        """
        if not extra:
            return  # noqa: ASYNC910 - without accounts nobody is asked
        for topic in topics:
            await self.authorize(topic, extra)
        route = await self._core.route(AUTO_CREATE_TEMPLATE)
        code, ext = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupExt(group=group)
        try:
            await self.ask(AUTO_CREATE_TEMPLATE, _any_broker(route), code, {**ext.fields(), **extra})
        except BrokerError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise

    # Requests.

    async def send(self, messages: Sequence[OutgoingMessage], *, seconds: float) -> list[SendResult | ClientError]:
        """Store messages. Returns for each its result, or an error that says whether it may be stored.

        Those with the same sharding key are stored in this order. If cancelled, they may be stored.
        """
        sends = [Pending(message.unique_key) for message in messages]
        numbers = [
            self._pipeline.start(message, each.complete, timeout=seconds)
            for message, each in zip(messages, sends, strict=True)
        ]
        outcomes: list[SendResult | ClientError] = []
        try:
            for each in sends:
                try:
                    outcomes.append(await each)
                except ClientError as error:
                    outcomes.append(error)
        except trio.Cancelled:
            for number in numbers:
                self._pipeline.abandon(number)
            raise
        return outcomes  # noqa: ASYNC910 - there is a message, so there is an outcome to wait for

    async def ask(
        self,
        topic: str,
        broker_name: str,
        code: int,
        ext: Fields | None = None,
        body: bytes = b"",
        *,
        seconds: float = _ASK_SECONDS,
        repeat: Repeat = Repeat.ALWAYS,
    ) -> tuple[Response, memoryview]:
        """Send a request to a broker group's leader, if need be repeatedly. Returns the answer. Raises ClientError."""
        return await call_leader(
            self._core,
            topic,
            broker_name,
            code,
            dict(ext or {}),
            body,
            seconds=seconds,
            repeat=repeat,
            busy_codes=NOT_NOW,
        )

    async def ask_held(
        self, topic: str, broker_name: str, code: int, ext_for: Callable[[int], Fields], *, seconds: float
    ) -> tuple[Response, memoryview] | None:
        """Works like `ask`, for a request that the broker may hold. `ext_for` gets the milliseconds left of `seconds`.

        The answer may have any code. None if the time is over and no broker has answered.
        """
        deadline = trio.current_time() + seconds
        refresh = False
        error: ClientError | None = None
        while True:
            wait = deadline - trio.current_time()
            if wait <= 0:
                if error is not None:
                    self._log.info("held_request_failed", topic=topic, broker=broker_name, reason=str(error))
                return None  # noqa: ASYNC910 - the time was over before the first question
            try:
                address = await leader_address(self._core, topic, broker_name, refresh=refresh)
                connection = await self._core.connection(address)
                response = await connection.request(
                    code, dict(ext_for(math.ceil(1000 * wait))), timeout=wait + _ANSWER_SECONDS, may_be_held=True
                )
                if response[0].code not in NOT_NOW:
                    return response
                error = BrokerError(response[0].code, response[0].remark, address)
            except TopicNotFound:
                raise
            except ClientError as failure:
                error = failure
            refresh = True
            await trio.sleep(PAUSE_SECONDS)

    # What brokers know of clients.

    def announce_clients(self) -> None:
        """Send a heartbeat now, because producer groups or members of consumer groups have changed."""
        self._core.heartbeat_soon()

    async def stay_connected(self) -> None:
        """Keep connections to all brokers, because each may send a check-back to a producer. Until cancelled."""
        while True:
            try:
                route = await self._core.route(AUTO_CREATE_TEMPLATE, refresh=True)
                await self._core.connect_all(route.addresses())
            except ClientError as error:
                self._log.debug("brokers_unknown", reason=str(error))
            await trio.sleep(_STAY_CONNECTED_SECONDS)

    def troubles(self) -> list[str]:
        """Return the problems that keep the proxy from working now."""
        return list(self._core.troubles())


def _any_broker(route: TopicRoute) -> str:
    """Return a broker group of a route, if possible one with a leader. Raises NoRoute."""
    names = sorted(route.brokers, key=lambda name: (route.leader_address(name) is None, name))
    if not names:
        raise NoRoute(route.topic, "no broker group has the topic")
    return names[0]
