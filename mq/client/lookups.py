"""Looks up single messages, by key or by the id of the stored record."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mq.client.errors import BrokerError, ClientError, NoRoute, UnreadableAnswer
from mq.client.logs import log
from mq.client.message import ReceivedMessage
from mq.client.net.client_core import ClientCore
from mq.client.net.replies import received_messages
from mq.client.net.routes import TopicRoute
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.message_ids import MessageIdInvalid, parse_offset_message_id
from mq.protocol.messages.trace import HandlingBegun, MessageTrace, SendTrace, TraceRecord, build_trace, decode_trace
from mq.protocol.numbers import PhysicalOffset
from mq.protocol.requests.namesrv import ClusterInfo
from mq.protocol.requests.queries import QueryMessageExt, ViewMessageByIdExt


async def message_by_id(core: ClientCore, offset_message_id: str, cluster: ClusterInfo) -> ReceivedMessage | None:
    """Return the record with this id; None if there is none. Asks the replicas of its broker group.

    If no broker group has the replica named in the id, because it is down or has another address now, every group is
    asked.

    Raises ValueError for an invalid id, NoRoute if no broker group has the replica named in it and none has the record,
    and request errors if a broker group that may have it does not answer.
    """
    try:
        ip, port, physical_offset = parse_offset_message_id(offset_message_id)
    except MessageIdInvalid as error:
        raise ValueError(str(error)) from error
    stored_at = f"{ip}:{port}"
    for name, group in cluster.brokers.items():
        if stored_at in group.broker_addrs.values():
            # First the replica that stored the message: it has certainly applied it.
            others = [address for _, address in sorted(group.broker_addrs.items()) if address != stored_at]
            return await _view(core, name, [stored_at, *others], physical_offset)
    failure: ClientError | None = None
    for name, group in cluster.brokers.items():
        addresses = [each for _, each in sorted(group.broker_addrs.items())]
        try:
            message = await _view(core, name, addresses, physical_offset)
        except ClientError as error:
            failure = error
            continue
        # Another group may have another record at this physical offset.
        if message is not None and message.offset_message_id == offset_message_id.upper():
            return message
    if failure is not None:
        raise failure
    raise NoRoute(
        "",
        f"message {offset_message_id} was stored at {stored_at}. No broker group has a replica there, and no other "
        "replica has the message. If this is a client message id, look it up as a key",
    )


async def _view(
    core: ClientCore, broker_name: str, addresses: Iterable[str], physical_offset: PhysicalOffset
) -> ReceivedMessage | None:
    failure: ClientError | None = None
    for address in addresses:
        try:
            ext = ViewMessageByIdExt(physical_offset=physical_offset)
            _, body = await core.call(address, RequestCode.VIEW_MESSAGE_BY_ID, ext.fields())
            return next(iter(received_messages(broker_name, body)), None)
        except BrokerError as error:
            if error.code == ResponseCode.SYSTEM_ERROR:  # the brokers' answer if no message begins there
                return None
            failure = error
        except ClientError as error:
            failure = error
            if isinstance(error, UnreadableAnswer):
                log.warning("replica_damaged", address=address, reason=str(error))
    assert failure is not None, "a broker group without addresses"
    raise failure


async def messages_by_key(
    core: ClientCore, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int, unique: bool
) -> list[ReceivedMessage]:
    """Ask each broker group of the topic for its newest ``count_max`` messages with a key. Returns all, oldest first.

    Raises TopicNotFound, NoRoute, BrokerError and request errors.
    """
    route = await core.route(topic, refresh=True)
    ext = QueryMessageExt(topic=topic, key=key, messages_max=count_max, begin_ms=begin_ms, end_ms=end_ms, unique=unique)
    messages: list[ReceivedMessage] = []
    for name in sorted(route.brokers):
        messages += await _group_messages_by_key(core, route, name, ext)
    return sorted(messages, key=lambda message: message.record.store_timestamp_ms)


async def _group_messages_by_key(
    core: ClientCore, route: TopicRoute, broker_name: str, ext: QueryMessageExt
) -> list[ReceivedMessage]:
    """Return the messages of one broker group; tries another replica if an answer cannot be parsed."""
    first = route.read_address(broker_name)
    if first is None:
        raise NoRoute(ext.topic, f"broker group {broker_name} has no replica")
    others = (each for _, each in sorted(route.brokers[broker_name].items()) if each != first)
    failure: UnreadableAnswer | None = None
    for address in (first, *others):
        try:
            _, body = await core.call(address, RequestCode.QUERY_MESSAGE, ext.fields())
            return received_messages(broker_name, body)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            raise
        except UnreadableAnswer as error:
            failure = error
            log.warning("replica_damaged", address=address, reason=str(error))
    assert failure is not None, "a broker group without addresses"
    raise failure


def trace_of(message_id: str, messages: Iterable[ReceivedMessage]) -> MessageTrace:
    """Build the trace of a message from messages of the trace topic, whose senders are the clients that wrote them."""
    records: list[TraceRecord] = []
    unreadable = 0
    for message in messages:
        steps, strange = decode_trace(message.body.decode("utf-8", "replace"))
        unreadable += strange
        host = message.born_host.ip
        records += [
            msgspec.structs.replace(each, client_host=host)
            if isinstance(each, SendTrace | HandlingBegun) and not each.client_host
            else each
            for each in steps
        ]
    return build_trace(message_id, records, unreadable)
