"""Request messages of a producer: waits for their replies, which brokers push."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping

import anyio

from mq.client.errors import ClientError, NoReply, ProducerBusy
from mq.client.logs import log
from mq.client.message import MessageQueue, ReceivedMessage, SendResult
from mq.client.net.client_core import ClientCore
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.compression import CodecMissing, DecompressionError, inflate
from mq.protocol.messages.records import Host, StoredMessage
from mq.protocol.names import reply_topic
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.request_reply import PushReplyExt, PushReplyMessageToClient
from mq.protocol.wire.encoding import encode_response

INFLATED_BYTES_MAX = 64 * 1024 * 1024


class OpenRequest:
    """A request message that waits for its reply."""

    __slots__ = ("_came", "correlation_id", "reply")

    def __init__(self, correlation_id: str) -> None:
        self.correlation_id = correlation_id
        self.reply: ReceivedMessage | None = None
        self._came = anyio.Event()

    async def wait(self) -> ReceivedMessage:
        """Wait for the reply."""
        await self._came.wait()
        assert self.reply is not None, f"{self.correlation_id} was answered without a reply"
        return self.reply

    def complete(self, reply: ReceivedMessage) -> None:
        """End the wait of the request with its reply."""
        self.reply = reply
        self._came.set()


class OpenRequests:
    """The request messages of one producer that wait for replies, by correlation id; at most `limit`.

    `dropped_count` counts replies without a waiting request: late, duplicate, or for another process.
    """

    def __init__(self, client_id: str, *, limit: int, rng: random.Random) -> None:
        self._client_id = client_id
        self._limit = limit
        self._rng = rng
        self._open: dict[str, OpenRequest] = {}
        self.dropped_count = 0

    def __len__(self) -> int:
        return len(self._open)

    def open(self) -> OpenRequest:
        """Register a request, until `close`. Raises ProducerBusy."""
        if len(self._open) >= self._limit:
            raise ProducerBusy(self._limit)
        import uuid  # here: it would take a tenth of the SDK's import

        correlation_id = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        request = self._open[correlation_id] = OpenRequest(correlation_id)
        return request

    def close(self, request: OpenRequest) -> None:
        """Unregister a request."""
        del self._open[request.correlation_id]

    def properties(self, request: OpenRequest, seconds: float) -> dict[str, str]:
        """Return the properties of a request message by which its reply is routed back."""
        return {
            props.CORRELATION_ID: request.correlation_id,
            props.REPLY_TO_CLIENT: self._client_id,
            props.TTL: str(int(seconds * 1000)),
        }

    def on_push(self, request: PushReplyMessageToClient, body: memoryview, arrived_ms: int) -> bytes:
        """Take a reply that a broker pushes, and return the answer for the broker."""
        try:
            reply = _received_reply(request.ext, bytes(body), arrived_ms)
        except CodecMissing as error:
            log.error("body_not_inflated", topic=request.ext.topic, reason=str(error))
            return encode_response(request.opaque, ResponseCode.SYSTEM_ERROR, remark=str(error))
        correlation_id = reply.properties.get(props.CORRELATION_ID)
        if correlation_id is None:
            remark = f"a reply without {props.CORRELATION_ID}"
            return encode_response(request.opaque, ResponseCode.SYSTEM_ERROR, remark=remark)
        request_wait = self._open.get(correlation_id)
        if request_wait is None or request_wait.reply is not None:
            self.dropped_count += 1
            log.debug("reply_dropped", correlation_id=correlation_id[:64])
        else:
            request_wait.complete(reply)
        return encode_response(request.opaque, ResponseCode.SUCCESS)


async def _connect_for_replies(core: ClientCore, topic: str) -> None:
    """Connect to all brokers that may get the reply to a message of `topic`, ignoring failures.

    Clients in other languages send replies to any broker group of the cluster.
    """
    try:
        route = await core.route(topic, auto_create=True)
        for cluster in route.clusters:
            replies = await core.route(reply_topic(cluster))
            leaders = (replies.leader_address(name) for name in replies.brokers)
            await core.connect_all([address for address in leaders if address is not None])
    except ClientError as error:
        log.debug("reply_topic_unknown", topic=topic, reason=str(error))


async def ask(
    core: ClientCore,
    requests: OpenRequests,
    topic: str,
    *,
    seconds: float,
    send: Callable[[float, Mapping[str, str]], Awaitable[SendResult]],
) -> ReceivedMessage:
    """Send a request message and wait for its reply, both within `seconds`.

    `send` gets the seconds that are left and the properties of the request. Raises NoReply, ProducerBusy, and the
    errors of `send`.
    """
    deadline = anyio.current_time() + seconds
    request = requests.open()
    try:
        with anyio.move_on_at(deadline):
            await _connect_for_replies(core, topic)
        send_result = await send(max(deadline - anyio.current_time(), 0.0), requests.properties(request, seconds))
        with anyio.move_on_at(deadline):
            return await request.wait()
    finally:
        requests.close(request)
    raise NoReply(seconds, send_result.message_id)


def _received_reply(ext: PushReplyExt, body: bytes, arrived_ms: int) -> ReceivedMessage:
    properties = props.decode(ext.properties) | {props.ARRIVE_TIME: str(arrived_ms)}
    record = StoredMessage(
        topic=ext.topic,
        queue_id=ext.queue_id,
        flag=ext.flag,
        queue_offset=QueueOffset(0),
        physical_offset=PhysicalOffset(0),
        sys_flag=ext.sys_flag,
        born_timestamp_ms=ext.born_timestamp_ms,
        born_host=_host(ext.born_host),
        store_timestamp_ms=ext.store_timestamp_ms,
        store_host=_host(ext.store_host),
        reconsume_times=ext.reconsume_times,
        prepared_offset=PhysicalOffset(0),
        body=body,
        properties=properties,
        size=len(body),
    )
    try:
        content = inflate(ext.sys_flag, body, INFLATED_BYTES_MAX)
    except DecompressionError as error:
        log.error("body_not_inflated", topic=ext.topic, reason=str(error))
        content = body
    return ReceivedMessage(record, MessageQueue(ext.topic, "", ext.queue_id), content)


def _host(text: str) -> Host:
    # Stock brokers write "/10.0.0.1:1234", some with a name before the slash.
    ip, _, port = text.rpartition("/")[2].rpartition(":")
    return Host(ip, int(port) if port.isdecimal() else 0)
