"""Changes (request codes 200, 225 and 207) and shows (201 and 352) the configurations of consumer groups.

For the members of groups see `mq.broker.consume.heartbeat`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mq.broker.admin.attributes import merge_attributes
from mq.broker.admin.creations import Creations
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.linearizable_reads import when_current
from mq.broker.net.refusals import RequestRefused, decode_body
from mq.broker.net.service import Route, Service
from mq.broker.state.commands import DeleteGroup, GroupConfig, PutGroup
from mq.broker.state.format_level import LEVEL_OF_GROUP_ATTRIBUTES
from mq.broker.write_path.replicate import encode, replicate
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.message_types import FACTOR_MAX, PRIORITY_FACTOR, is_factor
from mq.protocol.requests.consumer_groups import (
    DeleteSubscriptionGroup,
    GetAllSubscriptionGroupConfig,
    GetSubscriptionGroupConfig,
    GroupCountReply,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateSubscriptionGroupList,
)
from mq.protocol.requests.lite_attributes import BIND_TOPIC, AttributeInvalid, lite_group

GROUPS_PER_REQUEST_MAX = 1000


class ConsumerGroups(Service):
    """Changes and shows the configurations of consumer groups."""

    def __init__(self, context: BrokerContext) -> None:
        self._metadata = context.metadata
        self._appender = context.appender
        self._creations = Creations("group")
        self._read = context.reads.read
        self._version = context.data_version
        self._wall_clock_ms = context.wall_clock_ms

    def routes(self) -> Iterator[Route]:
        yield Route(GetAllSubscriptionGroupConfig, self.handle_all)
        yield Route(GetSubscriptionGroupConfig, self.handle_one)
        yield Route(UpdateAndCreateSubscriptionGroup, self.handle_put, leader_only=True)
        yield Route(UpdateAndCreateSubscriptionGroupList, self.handle_put_list, leader_only=True)
        yield Route(DeleteSubscriptionGroup, self.handle_delete, leader_only=True)

    def handle_put(self, call: Call[UpdateAndCreateSubscriptionGroup]) -> None:
        """Request code 200: create or change a group; respond once the change is replicated."""
        config = decode_body(SubscriptionGroupConfig.decode, call.body)
        self._put(call, [config])

    def handle_put_list(self, call: Call[UpdateAndCreateSubscriptionGroupList]) -> None:
        """Request code 225: create or change several groups, or none if one is refused."""
        groups = decode_body(SubscriptionGroupList.decode, call.body).groups
        if not 1 <= len(groups) <= GROUPS_PER_REQUEST_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{len(groups)} groups in one request; allowed: 1 to {GROUPS_PER_REQUEST_MAX}",
            )
        self._put(call, groups)

    def handle_delete(self, call: Call[DeleteSubscriptionGroup]) -> None:
        """Request code 207: delete a group, and its offsets if requested; respond once that is replicated."""
        ext = call.request.ext
        command = DeleteGroup(
            name=ext.group_name,
            timestamp_ms=self._wall_clock_ms(),
            remove_offsets=ext.remove_offset or ext.clean_offset,
        )
        replicate(self._appender, [encode(command)], call, what="a group's deletion")

    def consumer_group_changed(self, group: str) -> None:
        if group in self._metadata.groups:
            self._creations.exists(group)

    def handle_all(self, call: Call[GetAllSubscriptionGroupConfig]) -> None:
        """Request code 201: return the configurations of all consumer groups."""

        def respond() -> bytes:
            groups = {name: _public_config(config) for name, config in self._metadata.groups.items()}
            table = SubscriptionGroupTable(groups, self._version())
            return call.response(ext=GroupCountReply(total_group_num=len(groups)).fields(), body=table.encode())

        when_current(self._read, call, respond)

    def handle_one(self, call: Call[GetSubscriptionGroupConfig]) -> None:
        """Request code 352: return the configuration of a consumer group."""

        def respond() -> bytes:
            config = self._metadata.groups.get(call.request.ext.group)
            if config is None:
                raise RequestRefused(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    f"the group {call.request.ext.group[:127]} does not exist",
                )
            return call.response(body=_public_config(config).encode())

        when_current(self._read, call, respond)

    def _put(self, call: Call[Any], groups: Sequence[SubscriptionGroupConfig]) -> None:
        now_ms = self._wall_clock_ms()
        commands = [encode(PutGroup(config=self._config(group), timestamp_ms=now_ms)) for group in groups]
        names = {group.group_name for group in groups}
        creation = self._creations.begin(names, self._metadata.groups)
        if len(self._metadata.groups) + len(names - self._metadata.groups.keys()) > self._metadata.limits.groups_max:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, self._full())

        def check() -> None:
            # Other requests may have used up the room since, and others may have made room again.
            assert creation.names <= names, f"{creation.names - names} are missing, and nobody created them"
            if creation.names:
                is_full = not all(map(self._metadata.has_room_for_group, creation.names))
                remark = self._full() if is_full else self._creations.not_created(creation)
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, remark)

        replicate(self._appender, commands, call, what="a group", check=check)

    def _config(self, request: SubscriptionGroupConfig) -> GroupConfig:
        """Parse the requested configuration. Raises RequestRefused."""
        old = self._metadata.groups.get(request.group_name)
        assert old is None or old.name == request.group_name, f"the group {request.group_name} is known as {old}"
        return GroupConfig(
            name=request.group_name,
            consume_enable=request.consume_enable,
            consume_from_min_enable=request.consume_from_min_enable,
            consume_broadcast_enable=request.consume_broadcast_enable,
            retry_queues=request.retry_queue_nums,
            retry_times_max=request.retry_max_times,
            broker_id=request.broker_id,
            which_broker_when_consume_slowly=request.which_broker_when_consume_slowly,
            notify_consumer_ids_changed_enable=request.notify_consumer_ids_changed_enable,
            consume_orderly=request.consume_message_orderly,
            attributes=self._attributes(old, request.attributes),
        )

    def _attributes(self, config: GroupConfig | None, changes: Mapping[str, str]) -> dict[str, str]:
        """Return the attributes of a group after changes. Below the format level that supports attributes, none are
        stored, and those with an effect are refused. Raises RequestRefused.
        """
        attributes = merge_attributes({} if config is None else config.attributes, changes)
        factor = attributes.get(PRIORITY_FACTOR)
        if factor is not None and not is_factor(factor):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"{PRIORITY_FACTOR} is {factor[:40]!r}, not a number from 0 to {FACTOR_MAX}",
            )
        try:
            of_lite_topics = lite_group(attributes).parent
        except AttributeInvalid as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        level = self._metadata.format_level.level
        if level >= LEVEL_OF_GROUP_ATTRIBUTES:
            return attributes
        if factor is not None or of_lite_topics:
            name = BIND_TOPIC if factor is None else PRIORITY_FACTOR
            raise RequestRefused(
                ResponseCode.VERSION_NOT_SUPPORTED,
                f"{name} needs format level {LEVEL_OF_GROUP_ATTRIBUTES}, and this broker group is at level {level}: "
                "upgrade all replicas first",
            )
        return {}

    def _full(self) -> str:
        return f"there are {len(self._metadata.groups)} groups; maximum: {self._metadata.limits.groups_max}"


def _public_config(config: GroupConfig) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(
        group_name=config.name,
        consume_enable=config.consume_enable,
        consume_from_min_enable=config.consume_from_min_enable,
        consume_broadcast_enable=config.consume_broadcast_enable,
        retry_queue_nums=config.retry_queues,
        retry_max_times=config.retry_times_max,
        broker_id=config.broker_id,
        which_broker_when_consume_slowly=config.which_broker_when_consume_slowly,
        notify_consumer_ids_changed_enable=config.notify_consumer_ids_changed_enable,
        consume_message_orderly=config.consume_orderly,
        attributes=dict(config.attributes),
    )
