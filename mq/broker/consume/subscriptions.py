"""Determines the subscription of a pull or pop, and whether its group may consume; CHECK_CLIENT_CONFIG (46).

A pull contains its subscription, or uses the one in its group's latest heartbeat. An expression that does not compile
is refused in CHECK_CLIENT_CONFIG and in pulls that contain it. Refusing a heartbeat would break the client's other
groups, so there the filter is marked as invalid, and pulls of the group are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mq.broker.context import BrokerContext
from mq.broker.limits import ConsumeLimits
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.consumer_group import BROADCASTING
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import GroupConfig
from mq.filter.subscription import SQL92, Subscription, SubscriptionError, parse_subscription
from mq.protocol.codes import ResponseCode
from mq.protocol.errors import BodyError
from mq.protocol.requests.clients import CheckClientConfig, CheckClientConfigBody
from mq.protocol.requests.pop import PopExt
from mq.protocol.requests.pull import PullExt

_SUBSCRIPTION = 4
_ALL = "*"


def scanned_max(subscription: Subscription, limits: ConsumeLimits) -> int:
    """Return how many messages a filtered request may examine at most."""
    if subscription.sql is None:
        return limits.scan_entries_max
    return min(limits.scan_entries_max, max(1, limits.sql_work_max // len(subscription.expression)))


class Subscriptions(Service):
    """Determines the subscriptions of pulls and pops, and handles request code 46.

    Args:
        ensure_group: called with an unknown consumer group, to create it.
        refresh: asks a client for its subscriptions to a group.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        ensure_group: Callable[[str], None],
        refresh: Callable[[ClientConnection, str], None],
    ) -> None:
        self._settings = context.settings
        self._metadata = context.metadata
        self._clients = context.clients
        self._removed_members = context.clients.removed_members
        self._clock = context.clock
        self._ensure_group = ensure_group
        self._refresh = refresh

    def routes(self) -> Iterator[Route]:
        yield Route(CheckClientConfig, self.handle_check)

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Use changed settings, which say whether groups are created and SQL filters allowed."""
        self._settings = settings

    def handle_check(self, call: Call[CheckClientConfig]) -> bytes:
        """Request code 46: check a subscription. Raises RequestRefused if it is invalid."""
        try:
            subscription = CheckClientConfigBody.decode(call.body).subscription
        except BodyError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if subscription is not None:
            self._parse(subscription.topic, subscription.expression, subscription.expression_type)
        return call.response()

    def of_pull(self, connection: ClientConnection, ext: PullExt) -> Subscription:
        """Return the subscription of a pull whose topic was checked before.

        Raises RequestRefused. If the pull has a newer subscription than the group's heartbeats, its client is asked for
        it, and may pull again.
        """
        group = ext.consumer_group
        if self._removed_members.table:
            self._removed_members.check(connection, group, None, self._clock())
        config = self._group(group)
        if ext.sys_flag & _SUBSCRIPTION:
            return self._parse(ext.topic, ext.subscription or _ALL, ext.expression_type)
        members = self._clients.consumer_group(group)
        if members is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"no consumer of group {group} is connected")
        if config is not None and not config.consume_broadcast_enable and members.message_model == BROADCASTING:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"consumer group {group} may not consume in broadcast mode"
            )
        subscription = members.subscriptions.get(ext.topic)
        if subscription is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"group {group} does not subscribe to topic {ext.topic}"
            )
        if subscription.version < ext.sub_version:
            self._refresh(connection, group)
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the subscription of group {group} has version {subscription.version}, the pull has {ext.sub_version}",
            )
        if subscription.expression_type == SQL92:
            self._check_sql()
        if subscription.tag_filter is None:
            raise RequestRefused(
                ResponseCode.FILTER_DATA_NOT_EXIST, f"group {group} has no filter: {subscription.fault}"
            )
        return subscription.tag_filter

    def of_pop(self, connection: ClientConnection, ext: PopExt) -> Subscription:
        """Return the subscription of a pop, and create its group if that is unknown. Raises RequestRefused."""
        group = ext.consumer_group
        if self._removed_members.table:
            self._removed_members.check(connection, group, ext.client_id, self._clock())
        if self._group(group) is None and not self._metadata.has_room_for_group(group):
            count = len(self._metadata.groups)
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group {group} does not exist and cannot be created: the broker has its maximum of "
                f"{count} groups",
            )
        return self._parse(ext.topic, ext.expression or _ALL, ext.expression_type)

    def _group(self, name: str) -> GroupConfig | None:
        """Return a group that may consume; None for an unknown one that may be created. Raises RequestRefused."""
        config = self._metadata.groups.get(name)
        if config is None:
            if not self._settings.auto_create_groups:
                raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"there is no consumer group {name}")
            self._ensure_group(name)
        elif not config.consume_enable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"consumer group {name} may not consume")
        return config

    def _parse(self, topic: str, expression: str, expression_type: str | None) -> Subscription:
        if expression_type == SQL92:
            self._check_sql()
        try:
            return parse_subscription(topic, expression, expression_type)
        except SubscriptionError as error:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error

    def _check_sql(self) -> None:
        if not self._settings.sql_filter:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "SQL92 filters are disabled on this broker (sql_filter)")
