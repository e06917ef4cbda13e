"""Administration of a cluster: reads and changes topics, messages, consumer groups and brokers."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio

from mq.client.consume.offsets import ConsumeFrom, check_position, queue_offset, stored_offset
from mq.client.dead_letter_requeue import requeue
from mq.client.deleted_topics import deleted_topics, restore_topic
from mq.client.errors import BrokerError, ClientClosed, ClientError, NoRoute, TopicNotFound
from mq.client.events import OnEvent, check_on_event
from mq.client.lite_topics import LiteTopics
from mq.client.logs import log
from mq.client.lookups import message_by_id, messages_by_key, trace_of
from mq.client.message import MessageQueue, ReceivedMessage
from mq.client.net.client_core import ClientCore, RemotingSettings, parse_addresses
from mq.client.net.leader_calls import PAUSE_SECONDS, is_busy, leader_in, leaders_in
from mq.client.net.life_cycle import Client
from mq.client.net.replies import fields_of, read_body
from mq.client.net.routes import TopicRoute
from mq.client.removed_members import RemovedMembers
from mq.client.schedules import Schedules
from mq.client.topic_changes import attribute_changes, check_counts, put_topic
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.messages.trace import MessageTrace
from mq.protocol.names import TRACE_TOPIC, check_group, check_topic, topics_of_group
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.broker import BrokerStatsData, KVTable, StatsExt
from mq.protocol.requests.clients import ConsumerGroupExt, ConsumerList
from mq.protocol.requests.consumer_groups import (
    ClientConnectionData,
    ConsumerConnection,
    DeleteSubscriptionGroupExt,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from mq.protocol.requests.deleted_topics import DeletedTopicInfo
from mq.protocol.requests.group_progress import (
    BrokerConsumeStatsExt,
    ConsumeStatsExt,
    GroupProgress,
    MessageSkipped,
    ResetOffsetExt,
    SkipMessageExt,
    read_all_progress,
    read_progress,
)
from mq.protocol.requests.namesrv import ClusterInfo, DeleteTopicInNamesrvExt
from mq.protocol.requests.raft_group import GroupAnswer, GroupCommand
from mq.protocol.requests.relayed import ProcessQueueInfo, RunningInfoExt, read_member_queues
from mq.protocol.requests.settings_text import decode_properties
from mq.protocol.requests.topics import (
    DeleteTopicInBrokerExt,
    QueueEnds,
    TopicConfig,
    TopicConfigReply,
    TopicExt,
    TopicList,
    TopicOfBrokerExt,
    read_topic_stats,
)
from mq.protocol.wire.queue_tables import QueueRef, read_offset_table

TOPIC_VISIBLE_SECONDS = 5.0
TRACE_MESSAGES_MAX = 64
POLL_SECONDS = 0.05

T = TypeVar("T")


class Admin(Client):
    """Administers a cluster through its name servers, on trio or asyncio.

        async with Admin("127.0.0.1:9876") as admin:
            await admin.create_topic("Orders", queues=8)

    All methods raise NameServersUnavailable, ConnectFailed, ConnectionLost, RequestTimeout and BrokerError; if `stored`
    is "unknown", the operation may have been executed.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        ping: bool = False,
        on_event: OnEvent | None = None,
        remoting: RemotingSettings | None = None,
    ) -> None:
        self._pings_first = ping
        self._on_event = check_on_event(on_event)
        self._name_servers = parse_addresses(namesrv)
        self._take_settings(remoting)
        self._core: ClientCore | None = None

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[None]:
        async with ClientCore.open(
            self._name_servers, on_event=self._on_event, settings=self._remoting_settings
        ) as self._core:
            await self._ping_first(self._core)
            yield

    def __repr__(self) -> str:
        return f"<Admin at {';'.join(self._name_servers)}>"

    def _open_core(self) -> ClientCore:
        self._check_open()
        assert self._core is not None, "open without connections"
        return self._core

    async def _ask(self, code: int, ext: dict[str, str] | None = None) -> tuple[Response, memoryview]:
        response, body = await self._open_core().ask_name_server(code, ext)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, "name server")
        return response, body

    @property
    def schedules(self) -> Schedules:
        """The calls that administer schedules."""
        return Schedules(self)

    @property
    def lite(self) -> LiteTopics:
        """The calls that administer lite topics."""
        return LiteTopics(self)

    @property
    def removed_members(self) -> RemovedMembers:
        """The calls that remove members from their consumer groups for a while."""
        return RemovedMembers(self)

    # The cluster.

    async def cluster_info(self) -> ClusterInfo:
        """Return all broker groups with the addresses of their replicas. The leader has id 0."""
        _, body = await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        return read_body(ClusterInfo.decode, body)

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """Return the runtime figures of one broker, by RocketMQ's names."""
        _, body = await self._open_core().call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(read_body(KVTable.decode, body).table)

    async def broker_settings(self, address: str) -> dict[str, str]:
        """Return the current settings of one broker. Settings of raftmq have names that start with `raftmq.`."""
        _, body = await self._open_core().call(address, RequestCode.GET_BROKER_CONFIG)
        return read_body(decode_properties, body)

    async def manage_group(self, address: str, command: GroupCommand, *, timeout: float = 3.0) -> GroupAnswer:
        """Show or change the Raft group of the broker at `address`, and return the broker's answer."""
        body = command.encode()
        _, response = await self._open_core().call(address, RequestCode.MANAGE_GROUP, body=body, timeout=timeout)
        return read_body(GroupAnswer.decode, response)

    async def _leaders(self, cluster: str | None, broker: str | None) -> dict[str, str]:
        """Leader address by broker name, of one cluster, of one broker group, or of all.

        Waits up to `leader_seconds` of its limits for groups that elect a leader, and for the first broker to
        register. Raises NoRoute.
        """
        deadline = anyio.current_time() + self._open_core().settings.limits.leader_seconds
        while True:
            leaders = leaders_in(await self.cluster_info(), cluster, broker)
            addresses = {name: address for name, address in leaders.items() if address is not None}
            if addresses and len(addresses) == len(leaders):
                return addresses
            if anyio.current_time() >= deadline:
                break
            await anyio.sleep(POLL_SECONDS)
        if leaderless := [name for name in leaders if name not in addresses]:
            raise NoRoute("", f"broker group {leaderless[0]} has no leader")
        raise NoRoute("", "no broker is registered at the name servers yet; one that was just started takes seconds")

    # Topics.

    async def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int = 6,
        order: bool = False,
        message_type: str | None = None,
        retention_hours: int | None = None,
        retention_bytes: int | None = None,
        compacted: bool | None = None,
        filter_type: str = "SINGLE_TAG",
        sys_flag: int = 0,
        attributes: Mapping[str, str | None] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> TopicRoute:
        """Create or change `topic` with `queues` queues on every broker group of the cluster, or on one group.

        If it has more queues, the others get no more messages, and stay readable up to the last one with messages.
        `read_queues` and `write_queues` set them apart; fewer `read_queues` hide the messages of the others.

        `perm` is 4 for readable plus 2 for writable; `order` marks a topic for ordered consumption. `message_type`, for
        gRPC clients, is one of `MESSAGE_TYPES`. `retention_hours` from 1 on is for how long messages stay, no longer
        than brokers keep their logs, `retention_bytes` from 1 MiB on how many bytes stay in each broker group; -1: no
        limit. With `compacted`, the newest message of each key stays. None changes nothing. `attributes` sets
        others, or removes them (None). Returns the route once the name servers know all the groups. If a group loses
        its leader meanwhile, the next one is asked again, for 10 s. Raises NameRefused, and NoRoute if there is none
        after 5 s.
        """
        check_topic(topic)
        check_counts(queues=queues, read_queues=read_queues, write_queues=write_queues)
        changes = attribute_changes(message_type, retention_hours, retention_bytes, attributes, compacted=compacted)
        leaders = await self._leaders(cluster, broker)
        config = TopicConfig(
            topic,
            queues if read_queues is None else read_queues,
            queues if write_queues is None else write_queues,
            perm,
            filter_type,
            sys_flag,
            order,
        )
        created_queues: set[MessageQueue] = set()
        for name, address in leaders.items():
            ask = partial(self._ask_leader, name, address, cluster)
            readable = await put_topic(ask, config, changes, hides_none=read_queues is None)
            created_queues |= {MessageQueue(topic, name, queue_id) for queue_id in range(readable)}
        with anyio.move_on_after(TOPIC_VISIBLE_SECONDS):
            while True:
                try:
                    route = await self.route(topic)
                    if not perm & 4 or created_queues <= set(route.read_queues):
                        return route
                except TopicNotFound:
                    pass  # brokers answer before the name servers are updated
                await anyio.sleep(POLL_SECONDS)
        limit = f"within {TOPIC_VISIBLE_SECONDS:g} s"
        raise NoRoute(topic, f"created, but not all of {sorted(leaders)} registered it at the name server {limit}")

    async def _ask_leader(
        self, broker: str, address: str, cluster: str | None, code: int, ext: dict[str, str] | None, body: bytes
    ) -> tuple[Response, memoryview]:
        """Send a request, which may be carried out twice, to the leader of a broker group; `address` is the last known.

        Waits for an election, up to `election_seconds` of its limits: name servers may still know the former leader,
        and a leader may not serve yet. Raises the error of the last attempt.
        """
        deadline = anyio.current_time() + self._open_core().settings.limits.election_seconds
        while True:
            try:
                return await self._open_core().call(address, code, ext, body)
            except ClientError as error:
                is_refusal = isinstance(error, BrokerError | ClientClosed)
                may_follow = not is_refusal or (isinstance(error, BrokerError) and is_busy(error))
                if not may_follow or anyio.current_time() + PAUSE_SECONDS >= deadline:
                    raise
                log.info("leader_asked_again", broker_name=broker, code=code, reason=str(error))
            await anyio.sleep(PAUSE_SECONDS)
            address = (await self._leaders(cluster, broker))[broker]

    async def delete_topic(
        self, topic: str, *, cluster: str | None = None, operator: str = "", restorable: bool = False
    ) -> None:
        """Delete `topic`, its messages (also those that groups would pop again) and its route, on every broker group.

        With `restorable`, `restore_topic` brings it back until retention has deleted its messages, unless it has lite
        topics; a message does not create it meanwhile. Without, it cannot be restored, also if it is deleted already;
        a message may create it. `operator` says who deletes it, if accounts do not.
        """
        ext = DeleteTopicInBrokerExt(topic=topic, operator=props.safe_value(operator), restorable=restorable)
        for address in (await self._leaders(cluster, None)).values():
            await self._open_core().call(address, RequestCode.DELETE_TOPIC_IN_BROKER, ext.fields())
        await self._ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNamesrvExt(topic=topic).fields())

    async def deleted_topics(self) -> dict[str, dict[str, DeletedTopicInfo]]:
        """Map each deleted topic that can be restored to its broker groups. Sorted. Raises NoRoute, BrokerError."""
        return await deleted_topics(self._open_core(), await self._leaders(None, None))

    async def restore_topic(self, topic: str) -> list[str]:
        """Restore a deleted topic in every broker group that still can; returns their names, sorted.

        It is as it was when it was deleted, with the messages that retention has left. A group that pops gets messages
        that it had not acknowledged once more. Returns when the name servers know it. Raises TopicNotFound if no group
        can restore it, NoRoute, and BrokerError, also if there is a topic of its name.
        """
        check_topic(topic)
        brokers = await restore_topic(self._open_core(), topic, await self._leaders(None, None))
        with anyio.move_on_after(TOPIC_VISIBLE_SECONDS):
            while True:
                try:
                    await self.route(topic)
                    return brokers
                except TopicNotFound:
                    await anyio.sleep(POLL_SECONDS)  # brokers answer before the name servers are updated
        raise NoRoute(topic, f"restored, but no name server knew it within {TOPIC_VISIBLE_SECONDS:g} s")

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        _, body = await self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(read_body(TopicList.decode, body).topics)

    async def route(self, topic: str) -> TopicRoute:
        """Return the current route of `topic`. Raises TopicNotFound."""
        return await self._open_core().route(topic, refresh=True)

    # Messages.

    async def message_by_id(self, offset_message_id: str) -> ReceivedMessage | None:
        """Return the stored record with this id (`SendResult.offset_message_id`), or None if there is none.

        It is found although the broker that stored it is down. Raises ValueError for an invalid id, NoRoute if no
        broker group has the broker named in it, and none has the record.
        """
        return await message_by_id(self._open_core(), offset_message_id, await self.cluster_info())

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 32,
        begin: dt.datetime | None = None,
        end: dt.datetime | None = None,
        unique: bool = False,
    ) -> list[ReceivedMessage]:
        """Return messages of `topic` with this key, stored from `begin` to `end` (both inclusive), oldest first.

        Each broker group answers with its newest `count_max`, 64 at most. With `unique` the key is a message id
        (`SendResult.message_id`). Raises TopicNotFound.
        """
        return await messages_by_key(
            self._open_core(),
            topic,
            key,
            count_max=count_max,
            begin_ms=0 if begin is None else _ms(begin),
            end_ms=2**63 - 1 if end is None else _ms(end),
            unique=unique,
        )

    async def trace(
        self,
        message_id: str,
        *,
        topic: str = TRACE_TOPIC,
        begin: dt.datetime | None = None,
        end: dt.datetime | None = None,
    ) -> MessageTrace:
        """Return the trace records that producers and consumers with `trace=True` have written about a message.

        `topic` is the trace topic; `begin` and `end` limit the time. With very many consumers, some records may be
        missing. Raises TopicNotFound.
        """
        messages = await self.messages_by_key(topic, message_id, count_max=TRACE_MESSAGES_MAX, begin=begin, end=end)
        return trace_of(message_id, messages)

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Return the configuration of `topic` in each broker group that has it. Raises TopicNotFound, NoRoute."""
        configs: dict[str, TopicConfig] = {}
        ext = TopicOfBrokerExt(topic=topic, lo=True)
        for name, address in (await self._leaders_of(topic)).items():
            _, body = await self._open_core().call(address, RequestCode.GET_TOPIC_CONFIG, ext.fields())
            configs[name] = read_body(TopicConfig.decode, body)
        return configs

    async def topic_identities(self, topic: str) -> dict[str, str]:
        """Return the identity of `topic` in each broker group. It differs from that of a deleted topic of the same
        name, and of one in another cluster. Empty for topics of old releases, and from stock brokers.

        Raises TopicNotFound, NoRoute.
        """
        identities: dict[str, str] = {}
        ext = TopicOfBrokerExt(topic=topic, lo=True)
        for name, address in (await self._leaders_of(topic)).items():
            response, _ = await self._open_core().call(address, RequestCode.GET_TOPIC_CONFIG, ext.fields())
            identities[name] = fields_of(TopicConfigReply, response).topic_identity
        return identities

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueEnds]:
        """Return the first and the next offset of each queue of `topic`, and the store time of its last message."""
        ends: dict[QueueRef, QueueEnds] = {}
        ext = TopicExt(topic=topic)
        for address in (await self._leaders_of(topic)).values():
            _, body = await self._open_core().call(address, RequestCode.GET_TOPIC_STATS_INFO, ext.fields())
            ends |= read_body(read_topic_stats, body)
        return _by_queue(ends)

    async def figure(self, name: str, key: str) -> dict[str, BrokerStatsData]:
        """Return one of RocketMQ's statistics, such as `TOPIC_PUT_NUMS` of a topic, from each broker group that has it.

        `key` is a topic, `topic@group` or a cluster. Raises NoRoute.
        """
        figures: dict[str, BrokerStatsData] = {}
        ext = StatsExt(stats_name=name, stats_key=key)
        for broker, address in (await self._leaders(None, None)).items():
            try:
                _, body = await self._open_core().call(address, RequestCode.VIEW_BROKER_STATS_DATA, ext.fields())
                figures[broker] = read_body(BrokerStatsData.decode, body)
            except BrokerError as error:
                if error.code != ResponseCode.SYSTEM_ERROR:  # the brokers' answer when nothing was counted
                    raise
        return figures

    async def _leaders_of(self, topic: str) -> dict[str, str]:
        """Leader address by broker name, of the groups that have a topic. Raises TopicNotFound, NoRoute."""
        route = await self.route(topic)
        return {name: leader_in(route, name) for name in sorted(route.brokers)}

    # Consumer groups.

    async def consumer_groups(self) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        """Return the configuration of every consumer group, by group name, then by broker group. Raises NoRoute."""
        groups: dict[str, dict[str, SubscriptionGroupConfig]] = {}
        for broker, address in (await self._leaders(None, None)).items():
            _, body = await self._open_core().call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            for name, config in read_body(SubscriptionGroupTable.decode, body).groups.items():
                groups.setdefault(name, {})[broker] = config
        return groups

    async def put_consumer_group(self, config: SubscriptionGroupConfig, *, cluster: str | None = None) -> None:
        """Create or change a consumer group in every broker group of the cluster. Raises NameRefused, NoRoute."""
        check_group(config.group_name)
        for address in (await self._leaders(cluster, None)).values():
            await self._open_core().call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.encode())

    async def delete_consumer_group(
        self, group: str, *, offsets: bool = True, topics: bool = False, cluster: str | None = None
    ) -> None:
        """Delete a group; with `offsets` also its offsets, with `topics` also its retry and dead letter topics.

        The former include offsets of topics that it pops, unless another group's retry topic has the same name. A group
        with members is created again by their next heartbeat. Raises NameRefused, NoRoute.
        """
        check_group(group)
        own = topics_of_group(group, await self.consumer_groups(), await self.topics()) if topics else ()
        ext = DeleteSubscriptionGroupExt(group_name=group, remove_offset=offsets, clean_offset=offsets)
        for address in (await self._leaders(cluster, None)).values():
            await self._open_core().call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext.fields())
        for topic in own:
            await self.delete_topic(topic, cluster=cluster)

    async def group_progress(self, group: str) -> dict[MessageQueue, GroupProgress]:
        """Return the progress of a group in each queue of the topics in which it has offsets. Raises NoRoute."""
        progress: dict[QueueRef, GroupProgress] = {}
        for address in (await self._leaders(None, None)).values():
            ext = ConsumeStatsExt(consumer_group=group)
            _, body = await self._open_core().call(address, RequestCode.GET_CONSUME_STATS, ext.fields())
            progress |= read_body(read_progress, body)
        return _by_queue(progress)

    async def all_progress(self) -> dict[str, dict[MessageQueue, GroupProgress]]:
        """Return the progress of all groups that have offsets, by group; sends two requests per broker group.

        Raises NoRoute.
        """
        progress: dict[str, dict[QueueRef, GroupProgress]] = {}
        for address in (await self._leaders(None, None)).values():
            for is_order in (False, True):  # brokers answer for unordered and for ordered topics separately
                ext = BrokerConsumeStatsExt(is_order=is_order)
                _, body = await self._open_core().call(address, RequestCode.GET_BROKER_CONSUME_STATS, ext.fields())
                for group, queues in read_body(read_all_progress, body).items():
                    progress.setdefault(group, {}).update(queues)
        return {group: _by_queue(progress[group]) for group in sorted(progress)}

    async def group_members(self, group: str) -> list[ClientConnectionData]:
        """Return the members of a group in all broker groups, by client id; empty without any. Raises NoRoute."""
        members: dict[str, ClientConnectionData] = {}
        ext = ConsumerGroupExt(consumer_group=group)
        for address in (await self._leaders(None, None)).values():
            try:
                _, body = await self._open_core().call(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ext.fields())
            except BrokerError as error:
                if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    continue
                raise
            members |= {each.client_id: each for each in read_body(ConsumerConnection.decode, body).connections}
        return [members[client_id] for client_id in sorted(members)]

    async def member_queues(self, group: str, client_id: str) -> dict[MessageQueue, ProcessQueueInfo]:
        """Ask a member of a consumer group, through its broker, which queues it has now.

        Raises NoRoute, and BrokerError if it is not a member, does not answer, or pops its messages.
        """
        ext = RunningInfoExt(consumer_group=group, client_id=client_id)
        failure: BrokerError | None = None
        for address in (await self._leaders(None, None)).values():
            try:
                _, body = await self._open_core().call(address, RequestCode.GET_CONSUMER_RUNNING_INFO, ext.fields())
            except BrokerError as error:
                failure = error  # it may be connected to another broker group only
                continue
            return _by_queue(read_body(read_member_queues, body))
        assert failure is not None, "there is a leader, and it neither answered nor refused"
        raise failure

    async def reset_group(self, group: str, topic: str, position: ConsumeFrom) -> dict[MessageQueue, int]:
        """Reset a group to the first or next message of `topic`, or to a time. Returns the new offsets.

        Forwards or backwards, in all queues, whether or not members are running: these continue from there at once, and
        their commits for earlier positions are ignored. Raises ValueError for an invalid position, TopicNotFound,
        NoRoute.
        """
        check_group(group)
        check_position(position)
        timestamp_ms = _ms(position) if isinstance(position, dt.datetime) else 0 if position == "first" else -1
        offsets: dict[QueueRef, int] = {}
        ext = ResetOffsetExt(topic=topic, group=group, timestamp_ms=timestamp_ms, force=True)
        for address in (await self._leaders_of(topic)).values():
            _, body = await self._open_core().call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext.fields())
            offsets |= read_body(read_offset_table, body)
        return _by_queue(offsets)

    async def skip_message(self, group: str, queue: MessageQueue, offset: int, *, operator: str = "") -> int:
        """Advance a group past its next message in `queue`, at `offset`; it becomes a dead letter of the group.

        Works while members run; these continue behind it at once. `operator` says who skips it, for the dead letter and
        the broker's log. Returns the offset at which the group goes on. Raises NameRefused, NoRoute, TopicNotFound, and
        BrokerError, also if the group stands at another offset.
        """
        check_group(group)
        address = (await self._leaders_of(queue.topic)).get(queue.broker_name)
        if address is None:
            raise NoRoute(queue.topic, f"broker group {queue.broker_name} has none of its queues, or no leader")
        ext = SkipMessageExt(
            group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=QueueOffset(offset),
            operator=props.safe_value(operator),
        )
        response, _ = await self._open_core().call(address, RequestCode.SKIP_MESSAGE, ext.fields())
        return fields_of(MessageSkipped, response).next_offset

    async def requeue_dead_letter(
        self, group: str, letter: ReceivedMessage[Any], *, operator: str = "", to_topic: bool = False
    ) -> None:
        """Send a dead letter again to `group` alone, or with `to_topic` to all groups that read its topic.

        The copy has the message id of the original and no attempts yet; the dead letter stays. `operator` says who
        does it. Raises MessageRefused if the letter does not say where it came from, NameRefused, NoRoute and
        BrokerError; with `stored` "unknown", the copy may have been stored.
        """
        check_group(group)
        await requeue(self._open_core(), group, letter, operator=operator, to_topic=to_topic)

    # Queues and groups.

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message kept in `queue`."""
        return await self.offset(queue, "first")

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset the next message of `queue` will get."""
        return await self.offset(queue, "last")

    async def offset(self, queue: MessageQueue, position: ConsumeFrom) -> int:
        """Return the first or next offset of `queue`, or that of its first message stored at or after a time."""
        core = self._open_core()
        return await queue_offset(core, queue, position, seconds=core.settings.request_seconds)

    async def consumers(self, group: str, topic: str) -> list[str]:
        """Ask the leader of a broker group of `topic` for the client ids of the members of `group`."""
        core = self._open_core()
        route = await self.route(topic)
        for name in sorted(route.brokers):
            if (address := route.leader_address(name)) is None:
                continue
            try:
                ext = ConsumerGroupExt(consumer_group=group)
                _, body = await core.call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext.fields())
            except BrokerError as error:
                if error.code == ResponseCode.SYSTEM_ERROR:  # the brokers' answer for a group without members
                    return []
                raise
            return sorted(read_body(ConsumerList.decode, body).consumer_ids)
        raise NoRoute(topic, "no broker group has a leader")

    async def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the stored offset of `group` in `queue`, or None if there is none."""
        core = self._open_core()
        return await stored_offset(core, group, queue, seconds=core.settings.request_seconds)


def _ms(time: dt.datetime) -> int:
    if time.tzinfo is None:
        raise ValueError(f"{time} needs a time zone")
    return int(time.timestamp() * 1000)


def _by_queue(by_ref: Mapping[QueueRef, T]) -> dict[MessageQueue, T]:
    return {MessageQueue(ref.topic, ref.broker_name, ref.queue_id): by_ref[ref] for ref in sorted(by_ref)}
