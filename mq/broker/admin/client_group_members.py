"""Lists members of producer and consumer groups, and asks them about themselves, for tools and consoles.

Each replica answers from the heartbeats it received; clients send heartbeats to all replicas. For what only the client
knows, the broker asks it over its connection, and the tool's request waits for the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.client_requests import NoResponse
from mq.broker.net.connection import ClientConnection
from mq.broker.net.consumer_group import ConsumerGroup, GroupSubscription, Member
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.protocol.codes import LANGUAGES, MQ_VERSION, RequestCode, ResponseCode
from mq.protocol.errors import BodyError
from mq.protocol.incoming.headers import Response
from mq.protocol.message_ids import MessageIdInvalid, parse_offset_message_id
from mq.protocol.numbers import PhysicalOffset
from mq.protocol.requests.clients import ClientBehindProxy, ConsumerData, SubscriptionData
from mq.protocol.requests.consumer_groups import (
    ClientConnectionData,
    ConsumerConnection,
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetProducerConnectionList,
    GroupAndTopicExt,
    GroupNames,
    GroupSubscriptionData,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    QuerySubscriptionByConsumer,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
)
from mq.protocol.requests.relayed import (
    ConsumeDirectlyExt,
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    InvokeBrokerToGetConsumerStatus,
)
from mq.protocol.requests.topics import TopicList
from mq.protocol.wire.queue_tables import QueueRef, queue_table, read_member_offsets

STATUS_SECONDS = 5.0
RELAYED_LENGTH_MAX = 8192
"""Maximum header length, in characters, of a relayed answer."""
RELAY_VERSION_MIN = 62
"""Clients before 3.1.8 do not support relayed requests."""


Tables = dict[str, Mapping[QueueRef, int]]


class GroupMembers(Service):
    """Answers queries for the members of producer and consumer groups.

    Args:
        record_at: the committed record at a physical offset, or None.
    """

    def __init__(self, context: BrokerContext, *, record_at: Callable[[PhysicalOffset], bytes | None]) -> None:
        self._broker_name = context.settings.group
        self._relay_seconds = context.limits.upkeep.relay_seconds
        self._clients = context.clients
        self._metadata = context.metadata
        self._record_at = record_at
        self._clock = context.clock
        self._wall_clock_ms = context.wall_clock_ms

    def routes(self) -> Iterator[Route]:
        yield Route(GetConsumerConnectionList, self.handle_consumers)
        yield Route(GetProducerConnectionList, self.handle_producers)
        yield Route(GetAllProducerInfo, self.handle_all_producers)
        yield Route(QueryTopicConsumeByWho, self.handle_groups_of_topic)
        yield Route(QueryTopicsByConsumer, self.handle_topics_of_group)
        yield Route(QuerySubscriptionByConsumer, self.handle_subscription)
        yield Route(InvokeBrokerToGetConsumerStatus, self.handle_status)
        yield Route(GetConsumerRunningInfo, self.handle_running_info)
        yield Route(ConsumeMessageDirectly, self.handle_consume_directly)

    # -- members -------------------------------------------------------------------------------------------------------

    def handle_consumers(self, call: Call[GetConsumerConnectionList]) -> bytes:
        """Request code 203: return the members of a consumer group, and its subscriptions."""
        name = call.request.ext.consumer_group
        group = self._clients.consumer_group(name)
        members = [*self._clients.proxied_clients.members(name)]
        clients = [client for _, client in members]
        if group is None and not clients:
            raise RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        behavior = ConsumerData(name, consume_type=clients[0].consume_type) if group is None else group
        info = ConsumerConnection(
            connections=[
                *([] if group is None else _connections(group.members)),
                *(proxied_data(client, at) for at, client in members),
            ],
            subscriptions=_subscriptions_of(group, clients),
            consume_type=behavior.consume_type,
            message_model=behavior.message_model,
            consume_from_where=behavior.consume_from_where,
        )
        return _success(call, info.encode())

    def handle_producers(self, call: Call[GetProducerConnectionList]) -> bytes:
        """Request code 204: return the members of a producer group."""
        name = call.request.ext.producer_group
        members = self._clients.producer_members(name)
        if not members:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return _success(call, ProducerConnection(_connections(members)).encode())

    def handle_all_producers(self, call: Call[GetAllProducerInfo]) -> bytes:
        """Request code 328: return the members of all producer groups."""
        now, now_ms = self._clock(), self._wall_clock_ms()
        table = {
            name: [
                ProducerInfo(
                    client_id=member.client_id,
                    remote_ip=at.peer.rpartition(":")[0],
                    language=member.language or "OTHER",
                    version=member.version,
                    last_update_ms=now_ms - int((now - member.last_heartbeat) * 1000),
                )
                for at, member in members.items()
            ]
            for name, members in self._clients.producer_groups()
        }
        return _success(call, ProducerTable(table).encode())

    def handle_groups_of_topic(self, call: Call[QueryTopicConsumeByWho]) -> bytes:
        """Request code 300: return the groups that subscribe to a topic or have offsets in it."""
        topic = call.request.ext.topic
        groups = {group for group, name in self._metadata.consumer_offsets if name == topic}
        online = [*self._clients.groups_of_topic(topic), *self._clients.proxied_clients.groups_of_topic(topic)]
        return _success(call, GroupNames(sorted(groups.union(online))).encode())

    def handle_topics_of_group(self, call: Call[QueryTopicsByConsumer]) -> bytes:
        """Request code 343: return the topics in which a group has offsets."""
        topics = sorted(topic for group, topic in self._metadata.consumer_offsets if group == call.request.ext.group)
        return _success(call, TopicList(topics).encode())

    def handle_subscription(self, call: Call[QuerySubscriptionByConsumer]) -> bytes:
        """Request code 345: return the subscription of a consumer group to a topic."""
        ext = call.request.ext
        group = self._clients.consumer_group(ext.group)
        subscription = None if group is None else group.subscriptions.get(ext.topic)
        info = GroupSubscriptionData(ext.group, ext.topic, None if subscription is None else _data(subscription))
        return _success(call, info.encode())

    # -- relayed to members --------------------------------------------------------------------------------------------

    def handle_status(self, call: Call[InvokeBrokerToGetConsumerStatus]) -> None:
        """Request code 223: ask members for their in-memory offsets; return what arrives in time, by client id."""
        ext = call.request.ext
        group = self._clients.consumer_group(ext.group)
        if ext.topic not in self._metadata.topics:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"there is no topic {ext.topic}")
        if group is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer of the group {ext.group} is online")
        members = {
            member.client_id: at
            for at, member in group.members.items()
            if ext.client_id in (None, "", member.client_id)
        }
        if not members:
            raise _not_online(ext.group, ext.client_id)
        tables: Tables = {}
        open_questions = len(members)

        def on_response(client_id: str, response: Response | NoResponse, text: bytes) -> None:
            nonlocal open_questions
            open_questions -= 1
            assert open_questions >= 0, f"{-open_questions} members more than {len(members)} have answered"
            if isinstance(response, Response) and response.code == ResponseCode.SUCCESS:
                try:
                    tables[client_id] = read_member_offsets(text)
                except BodyError:
                    pass  # treated as a member that did not answer
            if not open_questions:
                call.answer(_success(call, _status(tables)))

        for client_id, at in members.items():
            fields = GroupAndTopicExt(topic=ext.topic, group=ext.group).fields()
            code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
            at.ask(code, fields, b"", STATUS_SECONDS, partial(on_response, client_id))

    def handle_running_info(self, call: Call[GetConsumerRunningInfo]) -> None:
        """Request code 307: ask a client for its state, and return its answer."""
        ext = call.request.ext
        self._relay(call, ext.client_id, ext.fields(), call.body)

    def handle_consume_directly(self, call: Call[ConsumeMessageDirectly]) -> None:
        """Request code 309: send a client one message to consume, and return its answer."""
        ext, body = call.request.ext, call.body
        if ext.message_id:
            try:
                place = parse_offset_message_id(ext.message_id)
            except MessageIdInvalid as error:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
            record = self._record_at(place.physical_offset)
            if record is None:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"there is no message {ext.message_id}")
            body = record
        relay_ext = ConsumeDirectlyExt(
            client_id=ext.client_id,
            consumer_group=ext.consumer_group,
            message_id=ext.message_id,
            broker_name=self._broker_name,
            topic=ext.topic,
        )
        self._relay(call, ext.client_id, relay_ext.fields(), body)

    def _relay(
        self,
        call: Call[GetConsumerRunningInfo | ConsumeMessageDirectly],
        client_id: str | None,
        fields: dict[str, str],
        body: bytes,
    ) -> None:
        name = call.request.ext.consumer_group
        at = self._connection_of(name, client_id)

        def on_response(response: Response | NoResponse, text: bytes) -> None:
            if isinstance(response, Response) and not _fits(response):
                code, remark = (
                    ResponseCode.SYSTEM_ERROR,
                    f"consumer <{name}> <{client_id}> sent an invalid answer",
                )
                frame = call.response(code, remark=remark)
            elif isinstance(response, Response):
                frame = call.response(response.code, remark=response.remark, ext=response.ext, body=text)
            else:
                timeout = response is NoResponse.TIMEOUT
                code = ResponseCode.CONSUME_MSG_TIMEOUT if timeout else ResponseCode.SYSTEM_ERROR
                remark = f"consumer <{name}> <{client_id}> did not answer: {response.name}"
                frame = call.response(code, remark=remark)
            call.answer(frame)

        call.drop_body()
        at.ask(call.request.code, fields, body, self._relay_seconds, on_response)

    def _connection_of(self, name: str, client_id: str | None) -> ClientConnection:
        """Return the connection on which to ask a member: its own or its proxy's. Raises RequestRefused."""
        group = self._clients.consumer_group(name)
        for at, member in () if group is None else reversed(group.members.items()):
            if member.client_id == client_id:
                if member.version < RELAY_VERSION_MIN:
                    raise RequestRefused(
                        ResponseCode.SYSTEM_ERROR,
                        f"The Consumer <{name}> Version <{member.version}> too low to finish, please upgrade it to"
                        " V3_1_8",
                    )
                return at
        at_proxy = None if client_id is None else self._clients.proxied_clients.connection(name, client_id)
        if at_proxy is None:
            raise _not_online(name, client_id)
        return at_proxy


def subscribes(group: ConsumerGroup[ClientConnection] | None, topic: str) -> bool:
    """Return whether a group subscribes to a topic; True if it has no members or no subscriptions."""
    return group is None or not group.subscriptions or topic in group.subscriptions


def _fits(response: Response) -> bool:
    """Return whether a client's response can be relayed in both encodings."""
    texts = sum(len(name) + len(value) for name, value in response.ext.items()) + len(response.remark or "")
    return -32768 <= response.code <= 32767 and texts <= RELAYED_LENGTH_MAX


def _not_online(group: str, client_id: str | None) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")


def _connections(members: Mapping[ClientConnection, Member]) -> list[ClientConnectionData]:
    return [connection_data(member, at) for at, member in members.items()]


def connection_data(member: Member, at: ClientConnection) -> ClientConnectionData:
    """Describe a member and its connection for tools."""
    return ClientConnectionData(
        client_id=member.client_id, client_addr=at.peer, language=member.language or "OTHER", version=member.version
    )


def proxied_data(client: ClientBehindProxy, at: ClientConnection) -> ClientConnectionData:
    """Describe a client behind a proxy, or one that pops, for tools."""
    return ClientConnectionData(
        client_id=client.client_id,
        client_addr=client.address or at.peer,
        language=client.language if client.language in LANGUAGES else "OTHER",
        version=MQ_VERSION,
        subscriptions=client.subscriptions,
    )


def _subscriptions_of(
    group: ConsumerGroup[ClientConnection] | None, clients: Iterable[ClientBehindProxy]
) -> dict[str, SubscriptionData]:
    """Return the subscriptions of a group by topic. If clients behind proxies disagree, those of one client count."""
    subscriptions = {
        topic: SubscriptionData(topic=topic, expression=expression, expression_type=kind)
        for client in clients
        for topic, expression, kind in client.subscriptions
    }
    return (
        subscriptions
        if group is None
        else subscriptions | {topic: _data(each) for topic, each in group.subscriptions.items()}
    )


def _data(subscription: GroupSubscription) -> SubscriptionData:
    tag_filter = subscription.tag_filter
    return SubscriptionData(
        topic=subscription.topic,
        expression=subscription.expression,
        tags=() if tag_filter is None else tuple(sorted(tag_filter.tags)),
        codes=() if tag_filter is None else tuple(sorted(tag_filter.codes)),
        version=subscription.version,
        expression_type=subscription.expression_type,
    )


def _status(tables: Tables) -> bytes:
    rows: Iterable[bytes] = (
        msgspec.json.encode(client_id)
        + b":"
        + queue_table((ref, b"%d" % offset) for ref, offset in sorted(table.items()))
        for client_id, table in sorted(tables.items())
    )
    return b'{"consumerTable":{' + b",".join(rows) + b'},"messageQueueTable":{}}'


def _success(call: Call[Any], body: bytes) -> bytes:
    return call.response(body=body)
