"""Settles received messages: acknowledges them, retries them later, or makes them dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from mq.client.errors import BrokerError, ClientError
from mq.client.net.leader_calls import Repeat
from mq.client.net.replies import fields_of
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.names import pop_retry_topic
from mq.protocol.requests.pop import AckExt, ChangeInvisibleExt, PopTimes
from mq.protocol.requests.receipts import NORMAL, Receipt
from mq.protocol.requests.send import SendBackExt
from mq.proxy.brokers import Brokers
from mq.proxy.callers import Caller, Fields
from mq.proxy.mapping.handles import Handle
from mq.proxy.mapping.names import group_of, topic_of
from mq.proxy.mapping.refusals import OK, CodedError, refusal_of, together
from mq.proxy.mapping.times import duration_ms
from mq.proxy.renewals import Renewals
from mq.proxy.wire import messaging_pb2 as pb

SETTLE_SECONDS: Final = 10.0
_DEAD: Final = -1
"""The delay level that makes a message a dead letter."""
INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000


class PoppedMessages:
    """Sends requests about popped messages to brokers. All are idempotent, and repeated while there is time."""

    def __init__(self, brokers: Brokers, wall_clock_ms: Callable[[], int]) -> None:
        self._brokers = brokers
        self._wall_clock_ms = wall_clock_ms

    async def _receipt(self, topic: str, handle: Handle) -> Receipt:
        """Return the receipt of a message. Raises CodedError if the topic has no such broker, ClientError."""
        receipt = handle.receipt
        if receipt.broker not in (await self._brokers.topic(topic)).route.brokers:
            raise CodedError(pb.INVALID_RECEIPT_HANDLE, f"the topic {topic} has no broker {receipt.broker[:64]!r}")
        return receipt

    async def acknowledge(self, group: str, topic: str, handle: Handle, extra: Fields, seconds: float) -> None:
        """Acknowledge a message. Raises ClientError; CodedError if the message is visible again."""
        receipt = await self._receipt(topic, handle)
        ext = AckExt(
            consumer_group=group,
            topic=_stored_topic(group, topic, handle),
            queue_id=receipt.queue_id,
            extra_info=receipt.encode(),
            offset=receipt.offset,
            lite_topic=handle.lite_topic or None,
        )
        try:
            await self._brokers.ask(
                topic, receipt.broker, RequestCode.ACK_MESSAGE, {**ext.fields(), **extra}, seconds=seconds
            )
        except BrokerError as error:
            if error.code != ResponseCode.NO_MESSAGE:
                raise
            if handle.hidden_until_ms <= self._wall_clock_ms():
                raise CodedError(pb.INVALID_RECEIPT_HANDLE, f"the receipt handle is expired: {error.remark}") from error
            # It was acknowledged before: by this request, whose first answer was lost, or by the client.

    async def defer(
        self,
        group: str,
        topic: str,
        handle: Handle,
        invisible_ms: int,
        extra: Fields,
        seconds: float = SETTLE_SECONDS,
        *,
        suspend: bool = False,
    ) -> Handle:
        """Hide a message for ``invisible_ms`` from now on. Raises ClientError; CodedError if it is visible already.

        With ``suspend``, the attempt that ends here is not counted.
        """
        receipt = await self._receipt(topic, handle)
        ext = ChangeInvisibleExt(
            consumer_group=group,
            topic=_stored_topic(group, topic, handle),
            queue_id=receipt.queue_id,
            extra_info=receipt.encode(),
            offset=receipt.offset,
            invisible_ms=invisible_ms,
            lite_topic=handle.lite_topic or None,
            suspend=suspend or None,
        )
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        try:
            response, _ = await self._brokers.ask(
                topic, receipt.broker, code, {**ext.fields(), **extra}, seconds=seconds
            )
        except BrokerError as error:
            if error.code != ResponseCode.NO_MESSAGE:
                raise
            raise CodedError(pb.INVALID_RECEIPT_HANDLE, f"the receipt handle is expired: {error.remark}") from error
        return handle.with_times(fields_of(PopTimes, response))

    async def bury(self, group: str, topic: str, handle: Handle, message_id: str, extra: Fields) -> None:
        """Make a message a dead letter, and acknowledge it. Raises CodedError, ClientError."""
        receipt = await self._receipt(topic, handle)
        ext = SendBackExt(
            physical_offset=handle.physical_offset,
            group=group,
            delay_level=_DEAD,
            original_message_id=message_id or None,
            origin_topic=topic,
            max_reconsume_times=0,
        )
        await self._brokers.ask(
            topic,
            receipt.broker,
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {**ext.fields(), **extra},
            seconds=SETTLE_SECONDS,
            repeat=Repeat.UNLESS_CARRIED_OUT,
        )
        await self.acknowledge(group, topic, handle, extra, SETTLE_SECONDS)


class Settling:
    """Serves AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

    def __init__(self, popped_messages: PoppedMessages, renewals: Renewals) -> None:
        self._pops = popped_messages
        self._renewals = renewals

    async def acknowledge(self, request: pb.AckMessageRequest, caller: Caller) -> pb.AckMessageResponse:
        """Acknowledge messages. Returns a status for each. Raises CodedError."""
        group, topic = group_of(request.group), topic_of(request.topic)
        entries = [
            pb.AckMessageResultEntry(message_id=each.message_id, receipt_handle=each.receipt_handle)
            for each in request.entries
        ]
        if not entries:
            raise CodedError(pb.BAD_REQUEST, "the request acknowledges no message")
        seconds = caller.seconds_left(SETTLE_SECONDS)

        async def acknowledge(entry: pb.AckMessageResultEntry) -> None:  # noqa: ASYNC910 - asking is a checkpoint, also when it fails
            try:
                async with self._renewals.take(caller.client_id, group, entry.receipt_handle) as handle:
                    await self._pops.acknowledge(group, topic, handle, caller.extra, seconds)
                entry.status.CopyFrom(OK)
            except CodedError as error:
                entry.status.CopyFrom(error.status)
            except ClientError as error:
                entry.status.CopyFrom(refusal_of(error).status)

        if len(entries) == 1:
            await acknowledge(entries[0])  # as most clients do: a task of its own would cost more than the rest
        else:
            async with trio.open_nursery() as nursery:
                for entry in entries:
                    nursery.start_soon(acknowledge, entry)
        return pb.AckMessageResponse(status=together(entry.status for entry in entries), entries=entries)

    async def change_invisible(
        self, request: pb.ChangeInvisibleDurationRequest, caller: Caller
    ) -> pb.ChangeInvisibleDurationResponse:
        """Change the invisible time of a message. Returns its new receipt handle. Raises CodedError, ClientError."""
        group, topic = group_of(request.group), topic_of(request.topic)
        invisible_ms = duration_ms(request.invisible_duration)
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise CodedError(
                pb.ILLEGAL_INVISIBLE_TIME, f"the invisible time is {invisible_ms} ms; allowed: 0 to {INVISIBLE_MS_MAX}"
            )
        try:
            async with self._renewals.take(caller.client_id, group, request.receipt_handle) as handle:
                new_handle = await self._pops.defer(
                    group,
                    topic,
                    handle,
                    invisible_ms,
                    caller.extra,
                    caller.seconds_left(SETTLE_SECONDS),
                    suspend=request.suspend,
                )
        except (CodedError, ClientError) as error:
            # With the handle that the client has: some take what is here without looking at the status.
            status = (error if isinstance(error, CodedError) else refusal_of(error)).status
            return pb.ChangeInvisibleDurationResponse(status=status, receipt_handle=request.receipt_handle)  # noqa: ASYNC910 - the handle was refused unasked
        return pb.ChangeInvisibleDurationResponse(status=OK, receipt_handle=new_handle.encode())

    async def forward_to_dead_letters(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, caller: Caller
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """Make a message a dead letter because the client gives it up. Raises CodedError, ClientError."""
        group, topic = group_of(request.group), topic_of(request.topic)
        async with self._renewals.take(caller.client_id, group, request.receipt_handle) as handle:
            await self._pops.bury(group, topic, handle, request.message_id, caller.extra)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=OK)


def _stored_topic(group: str, topic: str, handle: Handle) -> str:
    """Return the topic in which a popped message is stored."""
    return topic if handle.receipt.mark == NORMAL else pop_retry_topic(group, topic)
