"""Registers clients: HEART_BEAT (34), UNREGISTER_CLIENT (35) and queries for the members of a group (38).

When the members or the topics of a consumer group change, every member is told to rebalance (request code 40).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.consume.change_notices import ChangeNotices
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.clients import ROUND_CALLS, CheckedSubscriptions
from mq.broker.net.connection import ClientConnection
from mq.broker.net.heartbeat_limits import HeartbeatInvalid
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.removed_members import reply
from mq.broker.net.service import Route, Service
from mq.broker.net.slow_responses import ResponseSteps
from mq.broker.state.commands import GroupConfig, PutGroup, PutTopic, TopicConfig, encode_command
from mq.broker.write_path.replicate import encode
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import ProtocolError
from mq.protocol.names import retry_topic
from mq.protocol.requests.clients import (
    ConsumerList,
    ConsumerListReply,
    GetConsumerListByGroup,
    HeartBeat,
    HeartbeatData,
    HeartbeatOfProxy,
    UnregisterClient,
)
from mq.protocol.requests.removed_members import NOBODY

_LARGE_BYTES = 64 * 1024
"""A longer heartbeat is processed in steps; the heartbeat of a client with a hundred topics has about 15 KiB."""

_VERY_LARGE_BYTES = 256 * 1024
"""A heartbeat longer than this is not decoded in the client's turn, since that takes up to 20 ms."""


_NOTIFY_SECONDS = 0.1


class Heartbeats(Service):
    """Handles heartbeats, unregistrations of clients, and queries for the members of a group."""

    def __init__(self, context: BrokerContext) -> None:
        self._clients = context.clients
        self._gradually = context.slow_responses
        self._metadata = context.metadata
        self._appender = context.appender
        self._clock = context.clock
        self._wall_clock_ms = context.wall_clock_ms
        self._notices = ChangeNotices(context.limits.consume.notices_at_once_max)
        self._expire_some_seconds = context.limits.consume.expire_some_seconds
        self._expired_at = float("-inf")
        self._new_groups: set[str] = set()

    def routes(self) -> Iterator[Route]:
        yield Route(HeartBeat, self.handle_heartbeat)
        yield Route(UnregisterClient, self.handle_unregister)
        yield Route(GetConsumerListByGroup, self.handle_consumer_list)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_NOTIFY_SECONDS, self.notify_more, lambda: now_if(self._notices.are_pending))
        yield Periodic(self._expire_some_seconds, self.expire_some, self._expires_next_at)

    def _expires_next_at(self) -> float:
        """Return when `expire_some` is due next: a round over few connections takes as long as one over many."""
        count = self._clients.connection_count
        return self._expired_at + self._expire_some_seconds * ROUND_CALLS / count if count else float("inf")

    def resign(self) -> None:
        """Forget the groups that are being created: this replica stops leading, so they may never exist."""
        self._new_groups.clear()

    def check_invariants(self) -> None:
        self._notices.check_invariants()
        if self._appender.is_idle:
            assert not self._new_groups, f"{len(self._new_groups)} groups are being created, and nothing is pending"

    def handle_heartbeat(self, call: Call[HeartBeat]) -> bytes | None:
        """Request code 34: process a heartbeat, in steps if it has many subscriptions."""
        if call.connection.closed:
            # Closed while more of its requests were queued: if registered now, it would never be removed.
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the connection is closed")
        if len(call.body) > _LARGE_BYTES:
            try:
                self._clients.check_bytes(len(call.body))
            except HeartbeatInvalid as error:
                raise _refusal(error) from error
            steps = self._take_slowly(call)
            may_begin = len(call.body) <= _VERY_LARGE_BYTES
            self._gradually.work(call, steps, may_begin=may_begin)
            return None
        try:
            heartbeat = HeartbeatOfProxy.decode(call.body)
        except ProtocolError as error:
            raise _refusal(error) from error
        return self._register(call, heartbeat)

    def _take_slowly(self, call: Call[HeartBeat]) -> ResponseSteps:
        """Process a heartbeat with many subscriptions in steps between other work."""
        try:
            heartbeat = HeartbeatOfProxy.decode(call.body)
            yield
            self._clients.check_limits(call.connection, heartbeat)
            subscriptions = yield from self._clients.check_subscriptions(heartbeat)
        except (ProtocolError, HeartbeatInvalid) as error:
            raise _refusal(error) from error
        return self._register(call, heartbeat, subscriptions)

    def _register(
        self, call: Call[HeartBeat], heartbeat: HeartbeatData, subscriptions: CheckedSubscriptions | None = None
    ) -> bytes:
        try:
            outcome = self._clients.heartbeat(
                self._clock(), call.connection, heartbeat, call.request.language, call.request.version, subscriptions
            )
        except HeartbeatInvalid as error:
            raise _refusal(error) from error
        for group in outcome.consumer_groups:
            self.ensure_group(group)
            self._ensure_retry_topic(group)
        self.notify(outcome.notify, sender=call.connection)
        return call.response()

    def handle_unregister(self, call: Call[UnregisterClient]) -> bytes:
        """Request code 35: remove a client from its groups."""
        ext = call.request.ext
        self.notify(self._clients.unregister(call.connection, ext.client_id, ext.producer_group, ext.consumer_group))
        return call.response()

    def handle_consumer_list(self, call: Call[GetConsumerListByGroup]) -> bytes:
        """Request code 38: list the members of a group. A removed member gets a list without itself."""
        group = call.request.ext.consumer_group
        table, now = self._clients.removed_members, self._clock()
        if table.table and (member := table.at(call.connection, group, now)) is not None:
            others = ConsumerList(self._clients.consumer_ids(group) or [NOBODY])
            return call.response(body=others.encode(), ext=reply(member, now).fields())
        members = self._clients.consumer_list(group)
        if members is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        differ = self._clients.subscriptions_differ(group) or None
        return call.response(body=members, ext=ConsumerListReply(raftmq_subscriptions_differ=differ).fields())

    def send_notice(self, group: str, connections: Iterable[ClientConnection]) -> None:
        """Notify clients that the members of a group changed, so that they rebalance."""
        self._notices.notify(group, connections)

    def connection_closed(self, connection: ClientConnection) -> None:
        """Remove the clients of a connection, and notify their groups."""
        self.notify(self._clients.connection_closed(connection))

    def expire_some(self) -> None:
        """Remove some of the clients that were silent for too long. A timer calls this."""
        self._expired_at = self._clock()
        self.notify(self._clients.expire_some(self._expired_at))

    def notify_more(self) -> None:
        """Send pending notices to members of large groups. A timer calls this."""
        self._notices.send_some()

    def notify(
        self,
        groups: Iterable[tuple[str, Iterable[ClientConnection]]],
        *,
        sender: ClientConnection | None = None,
    ) -> None:
        """Notify the members of groups to rebalance, ``sender`` last. Skips groups for which notices are disabled."""
        for group, connections in groups:
            config = self._metadata.groups.get(group)
            if config is not None and not config.notify_consumer_ids_changed_enable:
                continue
            self._notices.notify(group, connections, sender=sender)

    def ensure_group(self, group: str) -> None:
        """Create an unknown consumer group with its retry topic, if this replica leads; else do nothing.

        Raises RequestRefused for an invalid name.
        """
        if not self._appender.is_open or group in self._new_groups or group in self._metadata.groups:
            return
        config = GroupConfig(name=group)
        put_group = encode(PutGroup(config=config, timestamp_ms=self._wall_clock_ms(), unless_there=True))
        if not self._metadata.has_room_for_group(group):
            return  # it can consume, but is not stored
        self._new_groups.add(group)
        if retry_topic(group) not in self._metadata.topics:
            self._appender.add_command(self._put_retry_topic(config))
        self._appender.add_command(put_group, lambda _: self._new_groups.discard(group))

    def _ensure_retry_topic(self, group: str) -> None:
        """Create the missing retry topic of a group that an operator created."""
        config = self._metadata.groups.get(group)
        if config is None or config.retry_queues < 1 or not self._appender.is_open or group in self._new_groups:
            return
        name = retry_topic(group)
        if name not in self._metadata.topics and self._metadata.has_room_for_topic(name):
            self._new_groups.add(group)
            self._appender.add_command(self._put_retry_topic(config), lambda _: self._new_groups.discard(group))

    def _put_retry_topic(self, config: GroupConfig) -> bytes:
        queues = config.retry_queues
        topic = TopicConfig(name=retry_topic(config.name), read_queues=queues, write_queues=queues)
        return encode_command(PutTopic(config=topic, timestamp_ms=self._wall_clock_ms(), unless_there=True))


def _refusal(error: ProtocolError | HeartbeatInvalid) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"heartbeat refused: {error}")
