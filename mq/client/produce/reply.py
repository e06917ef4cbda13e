"""Builds replies to request messages, and sends them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mq.client.errors import BrokerError, NotARequest, ReplyNotDelivered
from mq.client.message import Message, MessageQueue, ReceivedMessage
from mq.client.net.client_core import ClientCore
from mq.client.net.leader_calls import Repeat, call_leader
from mq.client.produce.outgoing_message import OutgoingMessage, make_ready
from mq.client.produce.send_pipeline import send_fields
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.names import reply_topic

REPLY_SECONDS = 3.0
REPLY = "reply"


async def reply_to(
    request: ReceivedMessage[Any],
    body: bytes,
    core: ClientCore,
    group: str,
    *,
    properties: Mapping[str, str] | None,
    unique_key: str,
    timeout: float,
) -> None:
    """Send a reply to a request message, for the consumer group `group`. Implements `Consumer.reply`."""
    reply = _make_reply(request, body, properties=properties or {}, unique_key=unique_key)
    await _send_reply(core, group, request, reply, timeout=timeout)


def _make_reply(
    request: ReceivedMessage[Any], body: bytes, *, properties: Mapping[str, str], unique_key: str
) -> OutgoingMessage:
    """Make the reply to `request`. Raises NotARequest, MessageRefused."""
    fields = {name: request.properties.get(name) for name in (props.CORRELATION_ID, props.REPLY_TO_CLIENT, props.TTL)}
    cluster = request.properties.get(props.CLUSTER)
    if not fields[props.CORRELATION_ID] or not fields[props.REPLY_TO_CLIENT] or not cluster:
        raise NotARequest(request)
    own = {props.MESSAGE_TYPE: REPLY} | {name: value for name, value in fields.items() if value}
    return make_ready(
        Message(reply_topic(cluster), body, properties=properties),
        unique_key=unique_key,
        born_timestamp_ms=time.time_ns() // 1_000_000,
        compress=None,
        compress_bytes_min=0,
        own=own,
    )


async def _send_reply(
    core: ClientCore, group: str, request: ReceivedMessage[Any], reply: OutgoingMessage, *, timeout: float
) -> None:
    """Send the reply to the broker group that the request came from: it knows the requester.

    Retries while that group has no leader, and after unknown outcomes; the requester uses the first reply. Raises
    ReplyNotDelivered, and after `timeout` seconds the last error.
    """
    broker_name = request.queue.broker_name
    fields = send_fields(group, reply, MessageQueue(reply.topic, broker_name, 0))
    code = RequestCode.SEND_REPLY_MESSAGE_V2
    try:
        await call_leader(
            core, reply.topic, broker_name, code, fields, reply.body, seconds=timeout, repeat=Repeat.ALWAYS
        )
    except BrokerError as error:
        if error.code == ResponseCode.SYSTEM_ERROR:
            raise ReplyNotDelivered(error.remark or "") from error
        raise
