"""Answering messages that want a reply: what a consumer sends, and to whom."""

from __future__ import annotations

import time
from collections.abc import Mapping

import anyio

from mq.client.errors import (
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NoRoute,
    NotARequest,
    ReplyNotDelivered,
    RequestTimeout,
)
from mq.client.message import Message, MessageQueue, ReceivedMessage
from mq.client.net.client_core import ClientCore
from mq.client.produce.outgoing_message import OutgoingMessage, make_ready
from mq.client.produce.send_pipeline import send_fields
from mq.client.send_outcome import Retry, judge_answer
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.names import reply_topic

__all__ = ["REPLY_SECONDS", "reply_to"]

REPLY_SECONDS = 3.0
PAUSE_SECONDS = 0.05
REPLY = "reply"


async def reply_to(
    request: ReceivedMessage,
    body: bytes,
    remoting: ClientCore | None,
    group: str,
    *,
    properties: Mapping[str, str] | None,
    unique_key: str,
    timeout: float,
) -> None:
    """What `PushConsumer.reply` does, for the consumer group `group`; `remoting` is None before it was entered."""
    if remoting is None:
        raise ClientClosed("enter the consumer first: async with ... as consumer")
    reply = _make_reply(request, body, properties=properties or {}, unique_key=unique_key)
    await _send_reply(remoting, group, request, reply, timeout=timeout)


def _make_reply(
    request: ReceivedMessage, body: bytes, *, properties: Mapping[str, str], unique_key: str
) -> OutgoingMessage:
    """The reply to `request`. Raises NotARequest, MessageRefused."""
    given = {name: request.properties.get(name) for name in (props.CORRELATION_ID, props.REPLY_TO_CLIENT, props.TTL)}
    cluster = request.properties.get(props.CLUSTER)
    if not given[props.CORRELATION_ID] or not given[props.REPLY_TO_CLIENT] or not cluster:
        raise NotARequest(request)
    own = {props.MESSAGE_TYPE: REPLY} | {name: value for name, value in given.items() if value}
    return make_ready(
        Message(reply_topic(cluster), body, properties=properties),
        unique_key=unique_key,
        born_timestamp_ms=time.time_ns() // 1_000_000,
        compress=None,
        compress_bytes_min=0,
        own=own,
    )


async def _send_reply(
    remoting: ClientCore, group: str, request: ReceivedMessage, reply: OutgoingMessage, *, timeout: float
) -> None:
    """Hand the reply to the broker group that the request came from: whoever waits for it is known there.

    Tries again while nobody leads that group, or when nobody knows what became of it; who waits takes the first one.
    Raises ReplyNotDelivered, and after `timeout` seconds what was in the way.
    """
    broker_name = request.queue.broker_name
    fields = send_fields(group, reply, MessageQueue(reply.topic, broker_name, 0))
    deadline = anyio.current_time() + timeout
    refresh = False
    while True:
        try:
            left = max(deadline - anyio.current_time(), PAUSE_SECONDS)
            with anyio.fail_after(left):
                address = await _leader(remoting, request, reply.topic, refresh=refresh)
                code = RequestCode.SEND_REPLY_MESSAGE_V2
                await remoting.call(address, code, fields, reply.body, timeout=left)
                return
        except TimeoutError:
            raise RequestTimeout(broker_name, RequestCode.SEND_REPLY_MESSAGE_V2, timeout) from None
        except BrokerError as error:
            if error.code == ResponseCode.SYSTEM_ERROR:
                raise ReplyNotDelivered(error.remark or "") from error
            if judge_answer(error.code, error.remark).retry is not Retry.UNTIL_TIMEOUT:
                raise
            failure: ClientError = error
        except (ConnectFailed, ConnectionLost, NoRoute) as error:
            failure = error
        if anyio.current_time() + PAUSE_SECONDS >= deadline:
            raise failure
        refresh = True
        await anyio.sleep(PAUSE_SECONDS)


async def _leader(remoting: ClientCore, request: ReceivedMessage, topic: str, *, refresh: bool) -> str:
    """Who leads the broker group that the request came from. Raises NoRoute and what requests raise."""
    broker_name = request.queue.broker_name
    route = await remoting.route(topic, refresh=refresh)
    address = route.leader_address(broker_name)
    if address is None:
        raise NoRoute(topic, f"broker group {broker_name} has no leader")
    return address
