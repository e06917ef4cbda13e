"""Answering messages that want a reply: what a consumer sends, and to whom."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from mq.client.errors import (
    BrokerError,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NoRoute,
    NotARequest,
    ReplyNotDelivered,
    RequestTimeout,
)
from mq.client.message import Message, MessageQueue, ReceivedMessage
from mq.client.remoting import Remoting
from mq.client.send_pipeline import send_fields
from mq.client.sending import OutgoingMessage, make_ready
from mq.client.verdict import Retry, judge_answer
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.compression import Codec
from mq.protocol.names import reply_topic

__all__ = ["make_reply", "send_reply"]

PAUSE_SECONDS = 0.05
REPLY = "reply"


def make_reply(
    request: ReceivedMessage,
    body: bytes,
    *,
    properties: Mapping[str, str],
    unique_key: str,
    born_timestamp_ms: int,
    compress: Codec | None = None,
    compress_bytes_min: int = 4096,
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
        born_timestamp_ms=born_timestamp_ms,
        compress=compress,
        compress_bytes_min=compress_bytes_min,
        own=own,
    )


async def send_reply(
    remoting: Remoting, group: str, request: ReceivedMessage, reply: OutgoingMessage, *, timeout: float
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


async def _leader(remoting: Remoting, request: ReceivedMessage, topic: str, *, refresh: bool) -> str:
    """Who leads the broker group that the request came from. Raises NoRoute and what requests raise."""
    broker_name = request.queue.broker_name
    route = await remoting.route(topic, refresh=refresh)
    address = route.leader_address(broker_name)
    if address is None:
        raise NoRoute(topic, f"broker group {broker_name} has no leader")
    return address
