"""Requests of clients to change their subscriptions to lite topics (code 200071).

A request changes what its client subscribes to at once, in the memory of the leader. Where it says at which offset the
group continues, that is replicated, and the request is answered afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from mq.broker.context import BrokerContext
from mq.broker.lite.pop import Client, LitePops, Subscriptions, is_connected
from mq.broker.lite.subscriptions import ClientKey
from mq.broker.net.call import Call
from mq.broker.net.connection import ClientConnection
from mq.broker.net.refusals import RequestRefused, decode_body
from mq.broker.net.service import Route, Service
from mq.broker.state.commands import CLIENT_ID_LENGTH_MAX
from mq.broker.state.lite_offsets import ROWS_MAX, ResetLiteOffsets
from mq.broker.write_path.replicate import encode, replicate
from mq.protocol.codes import ResponseCode
from mq.protocol.names import NameRefused, check_group, check_lite_topic, check_topic, lite_queue, split_lite_queue
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.lite import (
    Action,
    ControlLiteSubscriptions,
    LiteSubscription,
    LiteSubscriptionSet,
    OffsetKind,
    OffsetOption,
    Policy,
)
from mq.protocol.requests.lite_attributes import LiteGroup

SUBSCRIPTIONS_PER_REQUEST_MAX = 100
_ALL: Final = {"*"}
"""The subscription of a client that reads all lite topics: it is counted as one."""
_Resets = dict[str, list[tuple[str, QueueOffset]]]
"""The queues of each group, and the offsets at which it continues in them."""


class LiteControl(Service):
    """Changes the subscriptions of clients to lite topics.

    Args:
        offset_by_time: the offset of the first message of a queue that was stored at a time or later.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        pops: LitePops,
        offset_by_time: Callable[[str, int, int], QueueOffset],
    ) -> None:
        self._appender, self._store = context.appender, context.store
        self._clock = context.clock
        self._pops = pops
        self._subscriptions = pops.subscriptions
        self._offset_by_time = offset_by_time
        self._subscriptions_max = context.limits.lite.subscriptions_max
        self._removed_members = context.clients.removed_members

    def routes(self) -> Iterator[Route]:
        yield Route(ControlLiteSubscriptions, self.handle, leader_only=True)

    def handle(self, call: Call[ControlLiteSubscriptions]) -> bytes | None:
        """Request code 200071: change the subscriptions of clients. Raises RequestRefused without any change."""
        subscriptions = decode_body(LiteSubscriptionSet.decode, call.body).subscriptions
        if not 1 <= len(subscriptions) <= SUBSCRIPTIONS_PER_REQUEST_MAX:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"{len(subscriptions)} entries in one request; allowed: 1 to {SUBSCRIPTIONS_PER_REQUEST_MAX}",
            )
        self._appender.check_room()
        plan = _SubscriptionPlan(self._subscriptions)
        pairs = [(each, self._check_group(each, plan)) for each in subscriptions]
        resets: _Resets = {}
        later: list[tuple[LiteSubscription, LiteGroup]] = []
        for each, group in pairs:
            self._change(each, group, call.connection, resets, later)
        self._pops.subscriptions_changed()
        commands = [
            encode(ResetLiteOffsets(group=group, rows=rows[at : at + ROWS_MAX]))
            for group, rows in resets.items()
            for at in range(0, len(rows), ROWS_MAX)
        ]
        if not commands:
            return call.success()

        def check() -> None:
            for each, of_group in later:
                if not self._is_removed(each):
                    self._subscribe(each, of_group, call.connection)
            self._pops.subscriptions_changed()
            for group, rows in resets.items():
                for queue, _ in rows:
                    self._pops.group_changed(group, queue)

        replicate(self._appender, commands, call, what="a subscription", check=check)
        return None

    def _check_group(self, each: LiteSubscription, plan: _SubscriptionPlan) -> LiteGroup | None:
        """Return the lite settings of an entry's group; None if it only ends subscriptions. Raises RequestRefused.

        ``plan`` is what clients subscribe to after the entries before this one, and then after this one.
        """
        key, queues = (each.group, each.client_id), {lite_queue(each.topic, lite) for lite in each.lite_topics}
        try:
            check_group(each.group)
            check_topic(each.topic)
            for lite in each.lite_topics:
                check_lite_topic(lite)
        except NameRefused as error:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
        if not 1 <= len(each.client_id) <= CLIENT_ID_LENGTH_MAX:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"the client id has {len(each.client_id)} characters; allowed: 1 to {CLIENT_ID_LENGTH_MAX}",
            )
        if each.action is Action.COMPLETE_REMOVE:
            plan.put(key, None)
            return None
        if each.action is Action.PARTIAL_REMOVE:
            plan.put(key, plan.get(key) - queues)
            try:
                return self._pops.group(each.group, each.topic)
            except RequestRefused:
                return None
        group = self._pops.group(each.group, each.topic)
        if group.wildcard:
            if each.action is Action.PARTIAL_ADD:
                raise RequestRefused(
                    ResponseCode.ILLEGAL_OPERATION, f"the group {each.group} reads all lite topics of {each.topic}"
                )
            queues = _ALL
        elif each.action is Action.PARTIAL_ADD:
            queues |= {queue for queue in plan.get(key) if split_lite_queue(queue)[0] == each.topic}
        if not group.wildcard and len(queues) > group.quota:
            raise RequestRefused(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"the client subscribes {len(queues)} lite topics; the group {each.group} allows {group.quota}",
            )
        before = plan.count
        plan.put(key, queues)
        if plan.count > max(before, self._subscriptions_max):
            raise RequestRefused(
                ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"there are {self._subscriptions.count} subscriptions to lite topics; maximum:"
                f" {self._subscriptions_max}",
            )
        return group

    def _change(
        self,
        each: LiteSubscription,
        group: LiteGroup | None,
        connection: ClientConnection,
        resets: _Resets,
        later: list[tuple[LiteSubscription, LiteGroup]],
    ) -> None:
        key = each.group, each.client_id
        queues = sorted({lite_queue(each.topic, lite) for lite in each.lite_topics})
        client = self._subscriptions.clients.get(key)
        match each.action:
            case Action.COMPLETE_REMOVE:
                if client is not None:
                    self._subscriptions.drop(client)
                return
            case Action.PARTIAL_REMOVE:
                if client is not None:
                    own_queues = self._subscriptions.remove(client, queues)
                    if group is not None and group.reset_on_unsubscribe:
                        self._reset(each.group, own_queues, _FIRST, resets)
                return
            case Action.PARTIAL_ADD | Action.COMPLETE_ADD:
                pass
        assert group is not None, f"{each.action} without a group"
        if self._is_removed(each):
            return
        count = sum(map(len, resets.values()))
        if each.offset_option is not None and not group.wildcard:
            self._reset(each.group, queues, each.offset_option, resets)
        if group.exclusive and group.reset_on_eviction and each.action is Action.PARTIAL_ADD:
            shared_queues = [queue for queue in queues if self._others(key, queue)]
            self._reset(each.group, shared_queues, _FIRST, resets)
        if sum(map(len, resets.values())) > count:
            later.append((each, group))  # it gets nothing from where the group was before
        else:
            self._subscribe(each, group, connection)

    def _is_removed(self, each: LiteSubscription) -> bool:
        """Whether an operator has removed this client: it would keep others from messages that it does not get itself.
        When it may come back, its first pop is answered so that it says again what it subscribes to.
        """
        members = self._removed_members
        return bool(members.table) and members.get(each.group, each.client_id, self._clock()) is not None

    def _subscribe(self, each: LiteSubscription, group: LiteGroup, connection: ClientConnection) -> None:
        """Subscribe a client to the named lite topics, and end its other subscriptions if the list is complete."""
        key = each.group, each.client_id
        queues = sorted({lite_queue(each.topic, lite) for lite in each.lite_topics})
        client = self._subscriptions.open(key, each.topic, wildcard=group.wildcard)
        client.heard_at = self._clock()
        client.connection = connection
        if group.wildcard:
            self._pops.restart_sweep()
            return
        if group.exclusive and each.action is Action.PARTIAL_ADD:
            self._evict(key, queues)
        if each.action is Action.COMPLETE_ADD:
            assert client.queues is not None, f"{key} reads all lite topics"
            self._subscriptions.remove(client, sorted(client.queues - set(queues)))
            if group.exclusive:
                # The client may not know yet that another one has taken over some of them.
                conflicts = {queue for queue in queues if any(map(is_connected, self._others(key, queue)))}
                self._pops.notify(client, sorted(conflicts))
                queues = [queue for queue in queues if queue not in conflicts]
                self._evict(key, queues)
        self._pops.on_subscribe(client, self._subscriptions.add(client, queues))

    def _others(self, key: ClientKey, queue: str) -> list[Client]:
        return [other for other in self._subscriptions.subscribers(queue, key[0]) if other.key != key]

    def _evict(self, key: ClientKey, queues: Sequence[str]) -> None:
        """End the subscriptions of other clients of the group, and tell these clients."""
        for queue in queues:
            for other in self._others(key, queue):
                self._subscriptions.remove(other, [queue])
                self._pops.notify(other, [queue])

    def _reset(self, group: str, queues: Sequence[str], option: OffsetOption, resets: _Resets) -> None:
        """Add the offsets at which a group continues in these queues to ``resets``."""
        for queue in queues:
            offset = self._offset(queue, option)
            if offset is not None:
                resets.setdefault(group, []).append((queue, offset))

    def _offset(self, queue: str, option: OffsetOption) -> QueueOffset | None:
        """Return the offset at which a group continues; None to keep its offset, or for a missing lite topic.

        A group begins such a one at its first message. An offset would stay for ever if none came.
        """
        lite_queue = self._store.get(queue, 0)
        if lite_queue is None:
            return None
        low, high = lite_queue.min_offset, lite_queue.max_offset
        match option.type, option.value:
            case OffsetKind.POLICY, Policy.MIN:
                offset = low
            case OffsetKind.POLICY, Policy.MAX:
                offset = high
            case OffsetKind.OFFSET, value:
                offset = QueueOffset(value)
            case OffsetKind.TAIL_N, value:
                offset = QueueOffset(high - max(value, 0))
            case OffsetKind.TIMESTAMP, value:
                offset = self._offset_by_time(queue, 0, value)
            case _:
                return None
        return min(max(offset, low), high)


class _SubscriptionPlan:
    """The subscriptions that clients will have after the entries of a request that were checked, but not applied yet.

    Attributes:
        count: subscriptions of all clients.
    """

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._clients = subscriptions.clients
        self._changes: dict[ClientKey, set[str]] = {}
        self.count = subscriptions.count

    def get(self, key: ClientKey) -> set[str]:
        """Return the queues of a client; `_ALL` for one that reads all lite topics."""
        if key in self._changes:
            return self._changes[key]
        client = self._clients.get(key)
        if client is None:
            return set()
        return _ALL if client.queues is None else client.queues

    def put(self, key: ClientKey, queues: set[str] | None) -> None:
        """Replace the planned subscriptions of a client."""
        self.count += len(queues or ()) - len(self.get(key))
        self._changes[key] = queues or set()


_FIRST = OffsetOption(type=OffsetKind.POLICY, value=Policy.MIN)
