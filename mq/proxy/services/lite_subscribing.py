"""Subscriptions of consumers to lite topics: SyncLiteSubscription, and the notice of a lost subscription.

Subscriptions are in the memory of the leaders of the broker groups. Clients say all of them again every 30 s; meanwhile
the proxy does that for them, if a leader does not know them and they have said them to this proxy.
"""

from __future__ import annotations

from typing import Final

import structlog
import trio

from mq.client.errors import BrokerError, ClientError
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.lite import (
    Action,
    LiteSubscription,
    LiteSubscriptionSet,
    NotifyUnsubscribeLite,
    OffsetKind,
    OffsetOption,
)
from mq.proxy.brokers import Brokers
from mq.proxy.callers import Caller, Fields
from mq.proxy.clients import Clients
from mq.proxy.grpc.status import BrokenCall
from mq.proxy.mapping.names import group_of, lite_topic_of, topic_of
from mq.proxy.mapping.refusals import OK, CodedError
from mq.proxy.wire import messaging_pb2 as pb

_SECONDS: Final = 10.0
_AT_LEAVE_SECONDS: Final = 3.0
_NOTICES_MAX: Final = 256
"""Notices on their way to clients; further ones are dropped. A client without it gets nothing all the same."""
NAMES_MAX: Final = 200_000
"""Lite topics that the proxy remembers for all of its clients; above, it forgets the topics of the client that said its
own longest ago.
"""
_ACTIONS: Final = {
    pb.PARTIAL_ADD: Action.PARTIAL_ADD,
    pb.PARTIAL_REMOVE: Action.PARTIAL_REMOVE,
    pb.COMPLETE_ADD: Action.COMPLETE_ADD,
    pb.COMPLETE_REMOVE: Action.COMPLETE_REMOVE,
}
_KINDS: Final = {
    "policy": OffsetKind.POLICY,
    "offset": OffsetKind.OFFSET,
    "tail_n": OffsetKind.TAIL_N,
    "timestamp": OffsetKind.TIMESTAMP,
}

Log = structlog.stdlib.BoundLogger


class LiteSubscriptionTable:
    """The lite topics to which clients have subscribed, by client and group. Pure."""

    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self._names_max = names_max
        self._of: dict[tuple[str, str], tuple[str, set[str]]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of lite topics of all clients; each client counts as one more."""
        return self._count

    def get(self, client_id: str, group: str, topic: str) -> set[str] | None:
        """Return a client's subscriptions in a topic; None if they are not known."""
        entry = self._of.get((client_id, group))
        return entry[1] if entry is not None and entry[0] == topic else None

    def on_change(self, client_id: str, group: str, topic: str, action: Action, lites: set[str]) -> None:
        """Record a change that all broker groups have accepted."""
        current = self.get(client_id, group, topic)
        self._forget((client_id, group))
        match action:
            case Action.COMPLETE_ADD:
                names = lites
            case Action.PARTIAL_ADD:
                names = (current or set()) | lites
            case Action.PARTIAL_REMOVE if current is not None:
                names = current - lites
            case _:
                return
        self._of[client_id, group] = topic, names
        self._count += 1 + len(names)
        while self._count > self._names_max:
            self._forget(next(iter(self._of)))

    def on_loss(self, client_id: str, group: str, lite: str) -> None:
        """Remove a lite topic that another client of the group took."""
        entry = self._of.get((client_id, group))
        if entry is not None and lite in entry[1]:
            entry[1].discard(lite)
            self._count -= 1

    def forget(self, client_id: str) -> list[tuple[str, str]]:
        """Remove a client. Returns the groups and topics in which it had subscriptions."""
        keys = [key for key in self._of if key[0] == client_id]
        return [(group, topic) for client, group in keys for topic in [self._forget((client, group))]]

    def _forget(self, key: tuple[str, str]) -> str:
        topic, names = self._of.pop(key, ("", None))
        self._count -= 0 if names is None else 1 + len(names)
        return topic


class LiteSubscribing:
    """Serves SyncLiteSubscription: clients' subscriptions to lite topics.

    Args:
        nursery: of the tasks that outlive a call.
    """

    def __init__(self, brokers: Brokers, clients: Clients, nursery: trio.Nursery, log: Log) -> None:
        self._brokers = brokers
        self._clients = clients
        self._nursery = nursery
        self._log = log
        self._subscriptions = LiteSubscriptionTable()
        self._notices = 0

    async def sync(self, request: pb.SyncLiteSubscriptionRequest, caller: Caller) -> pb.SyncLiteSubscriptionResponse:
        """Send a client's subscriptions to all broker groups of a topic. Raises CodedError, ClientError.

        After an error some may know it; clients say it again.
        """
        group, topic = group_of(request.group), topic_of(request.topic)
        lites = {lite_topic_of(name) for name in request.lite_topic_set}
        action = _ACTIONS.get(request.action)
        if action is None:
            raise CodedError(pb.BAD_REQUEST, f"the action {request.action} is unknown")
        option = _offset_option(request.offset_option) if request.HasField("offset_option") else None
        await self._send_to_all(caller, group, topic, action, lites, option, caller.seconds_left(_SECONDS))
        self._subscriptions.on_change(caller.client_id, group, topic, action, lites)
        return pb.SyncLiteSubscriptionResponse(status=OK)

    def knows(self, caller: Caller, group: str, topic: str) -> bool:
        """Return whether the proxy has a client's subscriptions, so that `say_again` can send them."""
        return self._subscriptions.get(caller.client_id, group, topic) is not None

    async def say_again(self, caller: Caller, group: str, topic: str, broker_name: str) -> None:
        """Send a client's subscriptions again to a broker group that lost them. Raises CodedError, ClientError."""
        lites = self._subscriptions.get(caller.client_id, group, topic)
        if lites is None:
            return  # noqa: ASYNC910 - it has left meanwhile
        entry = _entry(caller, group, topic, Action.COMPLETE_ADD, lites, None)
        await self._control(topic, broker_name, entry, caller.extra, _SECONDS)

    def leave(self, caller: Caller) -> None:
        """End all subscriptions of a client that leaves."""
        for group, topic in self._subscriptions.forget(caller.client_id):
            self._nursery.start_soon(self._end, caller, group, topic)

    def taken_over(self, notice: NotifyUnsubscribeLite) -> None:
        """Tell a client that another client of its group now has a lite topic, after a broker's notice."""
        ext = notice.ext
        self._subscriptions.on_loss(ext.client_id, ext.consumer_group, ext.lite_topic)
        command = pb.TelemetryCommand(
            status=OK, notify_unsubscribe_lite_command=pb.NotifyUnsubscribeLiteCommand(lite_topic=ext.lite_topic)
        )
        if self._notices < _NOTICES_MAX:
            self._notices += 1
            self._nursery.start_soon(self._notify, ext.client_id, command)

    async def _notify(self, client_id: str, command: pb.TelemetryCommand) -> None:  # noqa: ASYNC910 - a client without a stream is told nothing
        try:
            for stream in self._clients.streams(client_id):
                try:
                    await stream.send(command)
                except BrokenCall as error:
                    self._log.debug("notice_not_sent", reason=str(error))
        finally:
            self._notices -= 1

    async def _end(self, caller: Caller, group: str, topic: str) -> None:  # noqa: ASYNC910 - asking is a checkpoint, also when it fails
        try:
            await self._send_to_all(caller, group, topic, Action.COMPLETE_REMOVE, set(), None, _AT_LEAVE_SECONDS)
        except (CodedError, ClientError) as error:  # brokers forget it after some minutes
            self._log.debug("subscriptions_not_ended", group=group, topic=topic, reason=str(error))

    async def _send_to_all(
        self,
        caller: Caller,
        group: str,
        topic: str,
        action: Action,
        lites: set[str],
        option: OffsetOption | None,
        seconds: float,
    ) -> None:
        """Send a change to all broker groups. Raises CodedError or ClientError if any refuses it."""
        entry = _entry(caller, group, topic, action, lites, option)
        errors: list[CodedError | ClientError] = []

        async def send(broker_name: str) -> None:  # noqa: ASYNC910 - asking is a checkpoint, also when it fails
            try:
                await self._control(topic, broker_name, entry, caller.extra, seconds)
            except (CodedError, ClientError) as error:
                errors.append(error)

        names = sorted((await self._brokers.topic(topic)).route.brokers)
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(send, name)
        if errors:
            raise next((error for error in errors if isinstance(error, CodedError | BrokerError)), errors[0])

    async def _control(
        self, topic: str, broker_name: str, entry: LiteSubscription, extra: Fields, seconds: float
    ) -> None:
        body = LiteSubscriptionSet(subscriptions=[entry]).encode()
        code = RequestCode.LITE_SUBSCRIPTION_CTL
        try:
            await self._brokers.ask(topic, broker_name, code, extra, body, seconds=seconds)
        except BrokerError as error:
            if error.code == ResponseCode.ILLEGAL_OPERATION:
                raise CodedError(pb.BAD_REQUEST, str(error)) from error
            raise


def _entry(
    caller: Caller, group: str, topic: str, action: Action, lites: set[str], option: OffsetOption | None
) -> LiteSubscription:
    return LiteSubscription(
        action=action,
        client_id=caller.client_id,
        group=group,
        topic=topic,
        lite_topics=sorted(lites),
        offset_option=option,
    )


def _offset_option(option: pb.OffsetOption) -> OffsetOption | None:
    kind = option.WhichOneof("offset_type")
    return None if kind is None else OffsetOption(type=_KINDS[kind], value=getattr(option, kind))
